"""The rules of a diagnosis: each looks at one case for one kind of failure.

A rule is a function of a `Case` that returns a `Finding` or None. Its name is that of the finding,
and the first line of its docstring is what `assay diagnose --rules` prints. A rule that lacks what
it reads returns None. The limits were chosen on a few runs, and are measured on others
(`benchmarks/diagnosis.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from assay.diagnosis import learning_rules as learning
from assay.diagnosis import outcome_rules as outcome
from assay.diagnosis.case import Case, Finding

Rule = Callable[[Case], Finding | None]

RULES: tuple[Rule, ...] = (
    learning.diverged,
    learning.failed,
    learning.loss_explodes,
    learning.values_explode,
    learning.values_do_not_fit,
    learning.temperature,
    learning.learning_rate,
    learning.policy_does_not_move,
    learning.entropy_collapse,
    learning.stays_random,
    learning.kl_spikes,
    learning.clip_fraction,
    learning.discount,
    learning.replay_ratio,
    learning.value_support,
    learning.dead_units,
    learning.stale_normalizer,
    learning.inputs_unscaled,
    outcome.episodes_end_at_once,
    outcome.no_episode_ends,
    outcome.no_reward_signal,
    outcome.always_truncated,
    outcome.never_improves,
    outcome.plateau,
    outcome.collapse_of_returns,
    outcome.evaluation_gap,
    outcome.reward_hacking,
    outcome.slows_down,
    outcome.bottleneck,
)


def describe(rule: Rule) -> tuple[str, str]:
    """Return a rule's name and what it looks for."""
    text = (rule.__doc__ or "").strip().partition("\n")[0]
    return rule.__name__, re.sub(r"\.$", "", text)
