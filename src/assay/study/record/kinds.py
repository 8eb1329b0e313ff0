"""Words that many modules of a study share: kinds of events, phases, file names.

They stand apart so that a question which is answered from the books alone need not load what
launches and measures.
"""

from __future__ import annotations

from assay.study.files.base import MINIMUM_SEEDS as MINIMUM_SEEDS
from assay.study.files.base import Phase

CREATED = "study.created"
MIGRATED = "study.migrated"
TRIED = "study.tried"
ANCHORED = "ledger.anchored"
APPROVED = "contract.approved"
STATE = "candidate.state"
REGISTERED = "candidate.registered"
RESERVED = "budget.reserved"
SETTLED = "budget.settled"
PREPARED = "run.prepared"
LAUNCHED = "run.launched"
MEASURED = "run.measured"
EXITED = "run.exited"
ENDED = "run.ended"
AUDITED = "result.audited"
ADOPTED = "evidence.adopted"
WITHDRAWN = "evidence.withdrawn"
SHOWN = "evidence.shown"
GIVEN = "verdict.given"
RANKED = "trials.ranked"
PLANNED = "probe.planned"
SUMMARISED = "probe.summarised"
REFLECTED = "reward.reflected"
STOPPED = "study.stopped"
RESUMED = "study.resumed"
WARNED = "budget.warning"
LOOPED = "loop.ended"

# Why a run ended that was stopped with all others; the event of that stop follows in brackets.
SWITCHED = "the kill switch was on"
UNSTARTED = "it was prepared and never started"  # why a run was lost that nobody has seen begin
STOP = "STOP"  # the kill switch, a file in the study's directory

DECIDING: tuple[Phase, ...] = ("promotion", "validation")
MOST_LOST = 2  # attempts at a deciding seed whose supervisor was killed
MOST_RUNS_LOST = 1  # occasions of an arm in a deciding phase, beyond which no audit passes
MOST_BASELINES = 1  # with scores that may be discarded, by the same protocol
UNJUDGED = ("baseline", "dr-probe")  # kinds of candidates that no verdict is given on
CONTINUE = "continue"  # the outcome of an early look that is not clear: the next seeds are run
