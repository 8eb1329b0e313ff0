"""Rules of the reward on what a run logged of its terms: `assay design check reward --run RUN`."""

from __future__ import annotations

from statistics import fmean

from assay.core.errors import nearest
from assay.design.problem import Problem, Reward, RewardTerm
from assay.design.reward_rules import DOMINANT
from assay.design.rules import DesignError, Finding, Rule, found
from assay.runs.directory import RunDirectory
from assay.runs.metrics import read_metrics

Series = dict[str, list[float]]


def _rule(name: str, summary: str, why: str, fix: str) -> Rule:
    return Rule(f"reward.{name}", "warning", summary, why, fix, None)


DOMINATES = _rule(
    "run_dominance",
    "In a run, one term was most of the reward.",
    "What the agent learned is that term.",
    "Lower its weight, and train again.",
)
CONSTANT = _rule(
    "run_constant",
    "In a run, a term never changed.",
    "It taught nothing: it is either always or never earned.",
    "Remove it, or make it easier to reach.",
)
OUTSIDE = _rule(
    "run_range",
    "In a run, a term left the range that is written down.",
    "All sizes that were computed from the range are wrong.",
    "Correct the range, or the environment.",
)
PROXY = _rule(
    "run_proxy",
    "In a run, the goal fell while the sum of the other terms rose.",
    "The agent games the reward.",
    "Weigh the goal more, and look at episodes: assay evaluate RUN --video",
)
RULES = (DOMINATES, CONSTANT, OUTSIDE, PROXY)


def read_terms(problem: Problem, run: RunDirectory) -> Series:
    """Return what a run logged of every term, in order.

    Raises:
        DesignError: The problem has no terms, or the run logged nothing of one of them.
    """
    terms = problem.reward.terms if problem.reward is not None else ()
    if not terms:
        raise DesignError(
            "The problem has no reward terms to look for in a run.", "List them: reward.terms."
        )
    logged = read_metrics(run.metrics_path)
    keys = {term.name: term.metric or f"reward/{term.name}" for term in terms}
    if missing := [name for name, key in keys.items() if key not in logged]:
        own = [name for name in logged if name.startswith("reward/")]
        known = nearest(keys[missing[0]], own) if own else "It logged no metric reward/NAME at all."
        raise DesignError(
            f"The run '{run.name}' logged nothing of the reward terms "
            f"{', '.join(map(repr, missing))}: it has no metric '{keys[missing[0]]}'. {known}",
            f"Name the metric: metric: NAME in the term '{missing[0]}', or let the environment's "
            f"info have '{keys[missing[0]]}'.",
        )
    series: Series = {
        name: [float(value) for value in logged[key][1]] for name, key in keys.items()
    }
    return series


def check_series(reward: Reward, series: Series) -> list[Finding]:
    """Return what the logged terms of a run say about its reward."""
    terms = {term.name: (index, term) for index, term in enumerate(reward.terms)}
    findings = []
    sizes = {name: abs(terms[name][1].weight) * _size(values) for name, values in series.items()}
    whole = sum(sizes.values())
    for name, values in series.items():
        index, term = terms[name]
        place = f"reward.terms[{index}]"
        if len(series) > 1 and whole and not term.goal and sizes[name] / whole > DOMINANT:
            share = sizes[name] / whole
            findings.append(found(DOMINATES, f"{place}.weight", f"'{name}' was {share:.0%} of it"))
        if len(values) > 1 and max(values) == min(values):
            findings.append(found(CONSTANT, place, f"'{name}' was {values[0]:g} all the time"))
        if _outside(term, values):
            seen = f"it was {min(values):g} to {max(values):g}"
            findings.append(found(OUTSIDE, f"{place}.low", f"'{name}': {seen}"))
    goals = [name for name in series if terms[name][1].goal]
    others = [name for name in series if not terms[name][1].goal]
    if goals and others:
        goal, rest = (
            sum(terms[n][1].weight * _trend(series[n]) for n in names) for names in (goals, others)
        )
        if goal < 0 < rest:
            message = f"{', '.join(goals)} changed by {goal:.3g}, and the rest by {rest:.3g}"
            findings.append(found(PROXY, "reward.terms", message))
    return findings


def _size(values: list[float]) -> float:
    return fmean(map(abs, values)) if values else 0.0


def _trend(values: list[float]) -> float:
    """Return the mean of the last third less that of the first."""
    third = max(1, len(values) // 3)
    return fmean(values[-third:]) - fmean(values[:third])


def _outside(term: RewardTerm, values: list[float]) -> bool:
    low = term.low if term.low is not None else -float("inf")
    high = term.high if term.high is not None else float("inf")
    return term.kind == "dense" and bool(values) and not low <= min(values) <= max(values) <= high
