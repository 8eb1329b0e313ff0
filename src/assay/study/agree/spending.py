"""What is spent of a study's one error rate, and at which level the next look decides.

A candidate gets its share when its first promotion run is launched, before anybody has seen a
score of it. From its first score on the share is spent, whether a verdict is given or the candidate
is discarded: whoever may look first and then choose what counts finds something in noise. A pool
that is extended after a verdict is another look, and costs another share.

With early looks (`evaluation.looks`) a share is split over them by a spending function. The sum of
the levels is the share, so that the chance to be wrong at any look is at most that, whatever the
looks have in common and whichever test is used.
"""

from __future__ import annotations

import math

from assay.core.wording import counted
from assay.study.files.base import Phase
from assay.study.files.contract import Contract, Evaluation
from assay.study.files.documents import StudyError
from assay.study.record import kinds
from assay.study.record.book import Book
from assay.study.record.history import History


def decisions(book: Book) -> int:
    """Return how many candidates have a share of the error rate, or have spent one."""
    return len(book.shares)


def spent(book: Book) -> float:
    """Return what their shares come to, whatever the contract expected at the time."""
    return math.fsum(share.alpha for share in book.shares)


def spend(evaluation: Evaluation, decided: int, used: float | None = None) -> float:
    """Return the share of the next candidate, `decided` having been given before it.

    The study's alpha is split evenly over the candidates that the contract expects (Bonferroni).
    Where the contract expected another number earlier, the candidates that are still to come share
    what is left: over all of them together at most alpha is spent, whatever they have in common.

    Args:
        evaluation: The protocol.
        decided: How many shares were given.
        used: What they come to, by the ledger; None where each was the share of this protocol.

    Raises:
        StudyError: All of it is spent.

    Example:
        >>> from assay.study.files.contract import Pools
        >>> pools = Pools(development=(0,), promotion=range(1, 6), validation=range(6, 11))
        >>> evaluation = Evaluation(episodes=10, pools=pools, expected_candidates=20)
        >>> spend(evaluation, decided=3)
        0.0025
        >>> round(spend(evaluation, decided=10, used=0.04), 6)  # they were given more each
        0.001
    """
    way_out = "Close this study with its report, and begin a new one for further candidates."
    if decided >= evaluation.expected_candidates:
        raise StudyError(
            f"The study's error rate of {evaluation.alpha:g} is spent (decided or looked at: "
            f"{counted(decided, 'candidate')}; expected: {evaluation.expected_candidates}).",
            way_out,
        )
    share = evaluation.alpha / evaluation.expected_candidates
    if used is None:
        return share
    left = evaluation.alpha - used
    if left <= evaluation.alpha * 1e-9:
        raise StudyError(
            f"The study's error rate of {evaluation.alpha:g} is spent (decided or looked at: "
            f"{counted(decided, 'candidate')}, at {used:g} in all).",
            way_out,
        )
    to_come = evaluation.expected_candidates - decided
    # What is left is a sum of many shares; its last digits are no reason to give less.
    return share if left >= share * to_come * (1 - 1e-9) else left / to_come


def exhausted(book: Book, agreed: Contract) -> str:
    """Return why no further share can be given, or "" where one can."""
    try:
        spend(agreed.evaluation, decisions(book), spent(book))
    except StudyError as error:
        return error.message.rstrip(".")
    return ""


def barred(book: Book, agreed: Contract, name: str) -> str:
    """Return why a candidate cannot be judged in promotion any more, or "" where it can."""
    return "" if book.share(name) is not None else exhausted(book, agreed)


def due(history: History, agreed: Contract, name: str, phase: Phase) -> float | None:
    """Return the share that a launch has to reserve for a candidate, or None if it needs none.

    Raises:
        StudyError: The error rate is spent, so that the run could not be judged.
    """
    unjudged = history.kind.get(name) in kinds.UNJUDGED or history.status.get(name) == "accepted"
    if phase != "promotion" or unjudged or history.share(name) is not None:
        return None
    return spend(agreed.evaluation, decisions(history), spent(history))


def share_of(history: History, agreed: Contract, name: str, phase: Phase) -> float:
    """Return the error rate that all looks at a candidate in a phase share.

    Validation has the whole alpha: it only repeats what promotion found at its share of it.
    Against a new incumbent a candidate that was judged before is given no more than it had.
    """
    if phase == "validation":
        return agreed.evaluation.alpha
    share = history.share(name)
    if share is not None:
        return share.alpha
    before = [share.alpha for share in history.shares if share.candidate == name]
    return min([spend(agreed.evaluation, decisions(history), spent(history)), *before])


def level(share: float, used: float, seeds: int, pool: int) -> float:
    """Return the level of a look at `seeds` of a pool, `used` of the share being spent on others.

    alpha(t) = alpha t^2 is spent at a share t of the seeds (the power family of Kim and DeMets):
    early looks find what is clear, and most is left for the last one.

    Example:
        >>> early = level(0.05, 0.0, 5, 10)
        >>> round(early, 4), round(early + level(0.05, early, 10, 10), 4)
        (0.0125, 0.05)
    """
    return max(0.0, share * (seeds / pool) ** 2 - used)


def used(history: History, name: str, phase: Phase) -> float:
    """Return what early looks at a candidate have spent since its last verdict in a phase."""
    total = 0.0
    for event in reversed(history.verdicts):
        if (event.data["candidate"], event.data["phase"]) != (name, phase):
            continue
        if event.data["outcome"] == kinds.CONTINUE:
            total += float(event.data["alpha"])
        elif event.data["outcome"] != "invalid":
            break
    return total
