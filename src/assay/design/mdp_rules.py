"""Rules of the section `mdp`."""

from __future__ import annotations

from assay.design.problem import Ending, Mdp, Problem, Table
from assay.design.rules import Hits, Rules

RULES = Rules("mdp")
EACH = RULES.each("endings")
_NEARLY = 1e-6  # by which probabilities may miss a sum of 1
_FIRST = 10.0  # times that the look-ahead of a discount and the length of episodes may differ


@RULES.add(
    "error",
    "From every state, something follows every action, with a chance of 1 in all.",
    "Correct the row: as many chances as states, none below 0, 1 in sum.",
)
def rows(mdp: Mdp, problem: Problem) -> Hits:
    """A row of the transition table is not a distribution over the states."""
    if mdp.table is None:
        return
    states = len(mdp.table.transitions[0]) if mdp.table.transitions else 0
    for action, matrix in enumerate(mdp.table.transitions):
        place = f"mdp.table.transitions[{action}]"
        if len(matrix) != states:
            yield place, f"it has {len(matrix)} states, and the first action has {states}"
        for state, row in enumerate(matrix):
            if len(row) != states:
                yield f"{place}[{state}]", f"{len(row)} chances for {states} states"
            elif min(row) < 0 or abs(sum(row) - 1) > _NEARLY:
                yield f"{place}[{state}]", f"{list(row)} sums to {sum(row):g}"


@RULES.add("error", "Episodes begin somewhere, with a chance of 1.", "Correct the chances.")
def start_sum(mdp: Mdp, problem: Problem) -> Hits:
    """The distribution of first states is not one."""
    start = mdp.table.start if mdp.table is not None else None
    if start is not None and (min(start, default=0) < 0 or abs(sum(start) - 1) > _NEARLY):
        yield "mdp.table.start", f"{list(start)} sums to {sum(start):g}"


@RULES.add(
    "warning",
    "What is never reached is never learned.",
    "Begin there sometimes, or remove the state.",
)
def unreachable(mdp: Mdp, problem: Problem) -> Hits:
    """A state of the table cannot be reached from any first state."""
    table = mdp.table
    if table is None or table.start is None or any(True for _ in rows(mdp, problem)):
        return
    missing = set(range(len(table.start))) - _reached(table)
    if missing:
        yield "mdp.table", f"states {sorted(missing)} are never reached"


def _reached(table: Table) -> set[int]:
    seen = {state for state, chance in enumerate(table.start or ()) if chance > 0}
    border = list(seen)
    while border:
        state = border.pop()
        for matrix in table.transitions:
            for after, chance in enumerate(matrix[state]):
                if chance > 0 and after not in seen:
                    seen.add(after)
                    border.append(after)
    return seen


@RULES.add(
    "warning",
    "With a short look-ahead the end is invisible; with a long one values vary without need.",
    "Choose gamma near 1 - 1 / horizon.",
)
def gamma_horizon(mdp: Mdp, problem: Problem) -> Hits:
    """The discount looks much less or much further ahead than episodes last."""
    if mdp.gamma is None or mdp.gamma == 1 or mdp.horizon is None:
        return
    ahead = 1 / (1 - mdp.gamma)
    if not 1 / _FIRST <= ahead / mdp.horizon <= _FIRST:
        seen = f"gamma={mdp.gamma:g} looks {ahead:,.0f} steps ahead in {mdp.horizon:,}"
        yield "mdp.gamma", f"{seen}; 1 - 1 / horizon is {1 - 1 / mdp.horizon:.6g}"


@RULES.add(
    "error",
    "The sum of rewards of an endless episode is infinite.",
    "Choose gamma < 1, or say how episodes end.",
)
def gamma_one(mdp: Mdp, problem: Problem) -> Hits:
    """Nothing is discounted, and nothing ends an episode."""
    if mdp.gamma == 1 and not mdp.endings and mdp.limit is None:
        yield "mdp.gamma", "it is 1, and episodes do not end"


@EACH(
    "error",
    "After a time limit something would have followed: values must go on from there.",
    "Report it as truncated.",
)
def time_terminates(ending: Ending, problem: Problem) -> Hits:
    """A time limit is reported as a termination."""
    if ending.kind == "time" and ending.flag == "terminated":
        yield ".flag", f"'{ending.name}' is a time limit"


@EACH(
    "error",
    "After success or failure nothing follows: a value that goes on rewards what never comes.",
    "Report it as terminated.",
)
def end_truncates(ending: Ending, problem: Problem) -> Hits:
    """Success or failure is reported as a truncation."""
    if ending.kind != "time" and ending.flag == "truncated":
        yield ".flag", f"'{ending.name}' is a {ending.kind}"


@RULES.add(
    "warning",
    "An agent that gets stuck stays there for the whole run.",
    "Set a limit (max_episode_steps), reported as truncated.",
)
def endless(mdp: Mdp, problem: Problem) -> Hits:
    """Nothing ends or cuts an episode."""
    timed = any(ending.kind == "time" for ending in mdp.endings)
    if mdp.limit is None and not timed and mdp.table is None:
        yield "mdp.limit", "there is no limit"


@RULES.add(
    "error",
    "Episodes cannot last longer than their limit.",
    "Raise the limit, or correct the horizon.",
    contradiction=True,
)
def limit_horizon(mdp: Mdp, problem: Problem) -> Hits:
    """Episodes are cut before they are as long as they typically are."""
    if mdp.limit is not None and mdp.horizon is not None and mdp.limit < mdp.horizon:
        yield "mdp.limit", f"limit={mdp.limit:,} is below horizon={mdp.horizon:,}"


@RULES.add(
    "warning",
    "A policy of the last observation alone cannot be the best one.",
    "Stack a history, or say how far back matters (mdp.memory) and use an algorithm with a memory.",
)
def partial(mdp: Mdp, problem: Problem) -> Hits:
    """The state is partial, and nothing remembers."""
    entries = problem.state.entries if problem.state is not None else ()
    if mdp.observability == "partial" and not mdp.memory and all(e.history == 1 for e in entries):
        yield "mdp.memory", "observability is partial, and there is neither history nor memory"


@RULES.add(
    "error",
    "What is fully observed needs no memory.",
    "Set observability: partial, or remove memory.",
    contradiction=True,
)
def full_memory(mdp: Mdp, problem: Problem) -> Hits:
    """The state says all, and still something must be remembered."""
    if mdp.observability == "full" and mdp.memory:
        yield "mdp.memory", f"observability is full, and memory is {mdp.memory}"


@RULES.add(
    "note",
    "A stack forgets what is older than it is.",
    "Use an algorithm with a memory: assay design choose.",
)
def memory_history(mdp: Mdp, problem: Problem) -> Hits:
    """The stacked history is shorter than what must be remembered."""
    entries = problem.state.entries if problem.state is not None else ()
    longest = max((entry.history for entry in entries), default=1)
    if mdp.memory and 1 < longest < mdp.memory:
        yield "mdp.memory", f"{mdp.memory} steps matter, and the longest history is {longest}"


@RULES.add(
    "warning",
    "The agent learns one path, and fails beside it.",
    "Begin in random states, and evaluate on others than those.",
)
def fixed_start(mdp: Mdp, problem: Problem) -> Hits:
    """Every episode begins in the same state."""
    if mdp.start == "fixed":
        yield "mdp.start", "it is fixed"


@RULES.add(
    "error",
    "An agent has to see which goal it is to reach.",
    "Add an entry named goal (in Gymnasium: desired_goal).",
)
def goal_unseen(mdp: Mdp, problem: Problem) -> Hits:
    """There are goals, and no entry of the state is one."""
    entries = problem.state.entries if problem.state is not None else ()
    if mdp.goals and entries and not any("goal" in e.name.lower() for e in entries):
        yield "mdp.goals", "no entry of the state has 'goal' in its name"


@RULES.add(
    "error",
    "There is nothing to learn from.",
    "Describe the simulator, or name recorded data in demonstrations.data.",
)
def nothing_to_learn_from(mdp: Mdp, problem: Problem) -> Hits:
    """There is neither something to interact with nor recorded data."""
    alone = mdp.simulator is not None and mdp.simulator.kind == "none"
    shown = problem.demonstrations
    if alone and (shown is None or not shown.data):
        yield "mdp.simulator.kind", "it is none, and no data is named"


@RULES.add(
    "error",
    "What does not exist has no speed.",
    "Remove the fields, or change the kind.",
    contradiction=True,
)
def simulator_none(mdp: Mdp, problem: Problem) -> Hits:
    """There is no simulator, and it has properties."""
    simulator = mdp.simulator
    if simulator is None or simulator.kind != "none":
        return
    for name in ("steps_per_second", "parallel", "rules_known"):
        if getattr(simulator, name):
            yield f"mdp.simulator.{name}", "the kind of simulator is none"
    if problem.demonstrations is not None and problem.demonstrations.interaction:
        yield "demonstrations.interaction", "it is true, and there is nothing to interact with"
