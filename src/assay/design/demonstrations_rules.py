"""Rules of the section `demonstrations`; what is in the data is checked as `assay data` does."""

from __future__ import annotations

from assay.core.errors import AssayError
from assay.design.problem import Demonstrations, Problem
from assay.design.rules import Hits, Rules

RULES = Rules("demonstrations")
FEW = 10  # episodes below which cloning drifts away from what it was shown


@RULES.add("error", "There is nothing to learn from.", "Name a dataset in data, or a teacher.")
def nothing(shown: Demonstrations, problem: Problem) -> Hits:
    """There is neither data nor a teacher."""
    if not shown.data and not shown.teacher:
        yield "demonstrations.data", "there is neither data nor a teacher"


@RULES.add(
    "error", "Nothing should learn from data that is not valid.", "See `assay data validate SET`."
)
def invalid(shown: Demonstrations, problem: Problem) -> Hits:
    """The data cannot be read, or does not fit the environment."""
    yield from _validated(shown, problem, "error")


@RULES.add("warning", "It may not be what was meant.", "See `assay data validate SET`.")
def doubtful(shown: Demonstrations, problem: Problem) -> Hits:
    """The data is valid and odd: constant, duplicate, or covering little."""
    yield from _validated(shown, problem, "warning")


def _validated(shown: Demonstrations, problem: Problem, level: str) -> Hits:
    if not shown.data:
        return
    from assay.data.findings import validate

    try:
        for one in validate(shown.data, problem.env):
            if one.level == level:
                yield "demonstrations.data", one.message
    except AssayError as error:
        if level == "error":
            yield "demonstrations.data", error.message


@RULES.add(
    "warning",
    "Small mistakes lead where nothing was shown, and add up.",
    "Record more episodes, or let it interact: gail, or dagger with a teacher.",
)
def few(shown: Demonstrations, problem: Problem) -> Hits:
    """There are few episodes, and nothing but cloning is possible."""
    alone = not shown.interaction and not shown.teacher
    if shown.episodes is not None and shown.episodes < FEW and alone:
        yield "demonstrations.episodes", f"{shown.episodes} episodes without interaction"


@RULES.add(
    "error",
    "Every algorithm that learns from data here learns from actions.",
    "Record the actions.",
)
def no_actions(shown: Demonstrations, problem: Problem) -> Hits:
    """The actions were not recorded."""
    if not shown.actions:
        yield "demonstrations.actions", "it is false"


@RULES.add(
    "error",
    "It would learn to act at random.",
    "Collect better data, or write a reward.",
    contradiction=True,
)
def imitate_random(shown: Demonstrations, problem: Problem) -> Hits:
    """What is to be imitated is random."""
    unrewarded = problem.reward is not None and problem.reward.source == "none"
    if unrewarded and shown.quality == "random":
        yield "demonstrations.quality", "it is random, and there is no reward"


@RULES.add(
    "error",
    "Offline learning reads rewards from the data.",
    "Record the rewards, or clone: set reward.source: none.",
)
def no_rewards(shown: Demonstrations, problem: Problem) -> Hits:
    """There is a reward, nothing to interact with, and the data lacks it."""
    rewarded = problem.reward is None or problem.reward.source != "none"
    if shown.data and not shown.rewards and rewarded and not shown.interaction:
        yield "demonstrations.rewards", "it is false, and nothing but the data is there"


@RULES.add(
    "error",
    "A teacher answers in states that the learner comes to.",
    "Set interaction: true, or record what the teacher does.",
    contradiction=True,
)
def teacher_unasked(shown: Demonstrations, problem: Problem) -> Hits:
    """There is a teacher, and no way to come to states where it is asked."""
    if shown.teacher and shown.interaction is False:
        yield "demonstrations.interaction", "it is false, and there is a teacher"
