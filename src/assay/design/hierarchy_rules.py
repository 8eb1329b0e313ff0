"""Rules of the section `hierarchy`."""

from __future__ import annotations

from itertools import pairwise

from assay.core.errors import nearest
from assay.design.problem import Hierarchy, Level, Problem
from assay.design.rules import Hits, Rules, repeated
from assay.design.units import comparable

RULES = Rules("hierarchy")
EACH = RULES.each("levels")


@RULES.add("error", "One level is an agent, not a hierarchy.", "Add a level, or remove the section")
def too_few(hierarchy: Hierarchy, problem: Problem) -> Hits:
    """There are fewer than two levels."""
    if len(hierarchy.levels) < 2:
        yield "hierarchy.levels", f"there are {len(hierarchy.levels)}"


@RULES.add("error", "Metrics and checkpoints go by the name.", "Rename one of them.")
def duplicate_name(hierarchy: Hierarchy, problem: Problem) -> Hits:
    """Two levels have the same name."""
    return repeated("hierarchy.levels", hierarchy.levels)


@RULES.add(
    "error",
    "The lowest level acts in the environment, and only that one does.",
    "Make the last level primitive, and the others options or goals.",
)
def bottom(hierarchy: Hierarchy, problem: Problem) -> Hits:
    """The lowest level is not primitive, or another one is."""
    last = len(hierarchy.levels) - 1
    for index, level in enumerate(hierarchy.levels):
        if (level.kind == "primitive") != (index == last):
            yield f"hierarchy.levels[{index}].kind", f"'{level.name}' is {level.kind}"


@EACH("error", "It decides what the level is for.", "Write the steps between its decisions.")
def interval_missing(level: Level, problem: Problem) -> Hits:
    """A level that is not the lowest has neither an interval nor a termination."""
    free = level.termination in ("learned", "reached")
    if level.kind != "primitive" and level.interval is None and not free:
        yield ".interval", f"'{level.name}' has none"


@RULES.add(
    "error",
    "A level decides for all steps of the level below it.",
    "Let intervals fall from the top, each a multiple of the next.",
)
def intervals(hierarchy: Hierarchy, problem: Problem) -> Hits:
    """Intervals do not fall from level to level, or do not divide each other."""
    for index, (upper, lower) in enumerate(pairwise(hierarchy.levels)):
        above, below = upper.interval, lower.interval or (1 if lower.kind == "primitive" else None)
        if above is not None and below is not None and (above <= below or above % below):
            yield f"hierarchy.levels[{index}].interval", f"{above}, and {below} below it"


@EACH("error", "It is the size of that level's head.", "Write how many options there are.")
def options_missing(level: Level, problem: Problem) -> Hits:
    """A level chooses options, and their number is open or 1."""
    if level.kind == "options" and (level.options or 0) < 2:
        yield ".options", f"'{level.name}' has {level.options}"


@EACH(
    "error",
    "A goal is a value of entries of the state.",
    "Name entries of the state in goal_space.",
)
def goal_space(level: Level, problem: Problem) -> Hits:
    """A level sets goals in no space, or in one that does not exist."""
    known = [entry.name for entry in problem.state.entries] if problem.state is not None else []
    if level.kind == "goals" and not level.goal_space:
        yield ".goal_space", f"'{level.name}' has none"
    for name in level.goal_space:
        if known and name not in known:
            yield ".goal_space", f"the state has no entry '{name}'. {nearest(name, known)}"


@EACH(
    "error",
    "A distance over metres and radians depends on nothing but the choice of units.",
    "Set goals in entries of one unit, or normalise all of them.",
)
def goal_units(level: Level, problem: Problem) -> Hits:
    """Goals are compared by distance over entries whose units cannot be compared."""
    entries = {e.name: e for e in problem.state.entries} if problem.state is not None else {}
    parts = [entries[name] for name in level.goal_space if name in entries]
    raw = [part for part in parts if part.unit and part.normalise in (None, "none")]
    for one, other in pairwise(raw):
        if level.intrinsic == "distance" and not comparable(str(one.unit), str(other.unit)):
            both = f"{one.name} [{one.unit}] cannot be compared with {other.name} [{other.unit}]"
            yield ".goal_space", both


@EACH("warning", "The level below then has no reason to obey.", "Reward it by distance or success.")
def no_intrinsic(level: Level, problem: Problem) -> Hits:
    """A level sets goals, and reaching them is not rewarded."""
    if level.kind == "goals" and level.intrinsic in (None, "none"):
        yield ".intrinsic", f"'{level.name}' gives none"


@EACH(
    "warning",
    "It decides how long the level below acts on one choice, and when the next one is made.",
    "Set termination: fixed (after interval steps), learned (a probability in each state, as in "
    "option_critic), or reached (where the goal is).",
)
def no_termination(level: Level, problem: Problem) -> Hits:
    """A level chooses options or goals, and nothing says when one ends."""
    if level.kind != "primitive" and level.termination is None:
        what = "a goal" if level.kind == "goals" else "an option"
        yield ".termination", f"nothing says when {what} of '{level.name}' ends"


@RULES.add(
    "warning",
    "While the lower level learns, the same goal leads elsewhere: the upper level's data ages.",
    "Train bottom_up, or correct goals of replayed data (as HIRO does).",
)
def joint_goals(hierarchy: Hierarchy, problem: Problem) -> Hits:
    """Levels with goals are trained at once."""
    if hierarchy.order == "joint" and any(level.kind == "goals" for level in hierarchy.levels):
        yield "hierarchy.order", "it is joint, and there are goals"


@EACH(
    "warning",
    "It then decides once or twice in an episode.",
    "Shorten the interval, or remove the level.",
)
def interval_horizon(level: Level, problem: Problem) -> Hits:
    """A level's interval is more than half of an episode."""
    steps = problem.mdp.horizon if problem.mdp is not None else None
    if steps is not None and level.interval is not None and 2 * level.interval > steps:
        yield ".interval", f"{level.interval} of {steps} steps"
