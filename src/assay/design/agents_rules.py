"""Rules of the section `agents`."""

from __future__ import annotations

from assay.core.errors import nearest
from assay.design.problem import Agents, AgentType, Problem
from assay.design.rules import Hits, Rules, repeated

RULES = Rules("agents")
EACH = RULES.each("types")


@RULES.add("error", "Nobody acts.", "List the types of agents, with their number.")
def empty(agents: Agents, problem: Problem) -> Hits:
    """There are no types of agents."""
    if not agents.types:
        yield "agents.types", "there are none"


@RULES.add("warning", "Algorithms for one agent are simpler and better.", "Remove the section.")
def one(agents: Agents, problem: Problem) -> Hits:
    """There is one agent only."""
    if sum(kind.count for kind in agents.types) == 1:
        yield "agents.types", "there is one agent"


@RULES.add("error", "Sharing and results go by the type's name.", "Rename one of them.")
def duplicate_type(agents: Agents, problem: Problem) -> Hits:
    """Two types have the same name."""
    return repeated("agents.types", agents.types)


@RULES.add(
    "error",
    "An algorithm for several agents takes one kind of actions for all of them.",
    "Give all types choices, or all of them boxes.",
)
def mixed_actions(agents: Agents, problem: Problem) -> Hits:
    """Types of agents have different kinds of actions."""
    kinds = {kind.action.kind for kind in agents.types if kind.action is not None}
    if len(kinds) > 1:
        yield "agents.types", f"actions are of the kinds {', '.join(sorted(map(str, kinds)))}"


@EACH("warning", "No network can be built for it.", "Write its action, or that of all.")
def no_action(kind: AgentType, problem: Problem) -> Hits:
    """Nothing says what agents of a type do."""
    if kind.action is None and problem.action is None:
        yield ".action", f"'{kind.name}' has no action"


@RULES.add("error", "The map would have no effect.", "Use the name of a type.")
def sharing_unknown(agents: Agents, problem: Problem) -> Hits:
    """The sharing map names a type that does not exist."""
    known = [kind.name for kind in agents.types]
    for name in agents.sharing:
        if known and name not in known:
            yield f"agents.sharing.{name}", f"there is no type '{name}'. {nearest(name, known)}"


@RULES.add(
    "error",
    "One network has one input and one output.",
    "Give the types equal spaces, or groups of their own.",
)
def sharing_spaces(agents: Agents, problem: Problem) -> Hits:
    """Types with unequal spaces share a network."""
    groups: dict[str, list[str]] = {}
    for kind in agents.types:
        if kind.name in agents.sharing:
            groups.setdefault(agents.sharing[kind.name], []).append(kind.name)
    spaces = {kind.name: (kind.observation, kind.action) for kind in agents.types}
    for group, names in groups.items():
        if len({spaces[name] for name in names}) > 1:
            yield "agents.sharing", f"'{group}' is {', '.join(names)}, whose spaces differ"


@RULES.add(
    "error",
    "Opponents that share a reward are not opponents.",
    "Set reward: individual, or relation: cooperative.",
    contradiction=True,
)
def team_of_rivals(agents: Agents, problem: Problem) -> Hits:
    """Agents with opposed goals get one reward."""
    if agents.relation == "competitive" and agents.reward == "team":
        yield "agents.reward", "it is team, and the relation is competitive"


@RULES.add(
    "warning",
    "From one number an agent cannot tell what its own part was.",
    "Train with a critic or mixer that sees the whole: training: central.",
)
def credit(agents: Agents, problem: Problem) -> Hits:
    """Several agents share a reward, and each learns by itself."""
    count = sum(kind.count for kind in agents.types)
    if agents.reward == "team" and agents.training == "independent" and count > 2:
        yield "agents.training", f"{count} agents share a reward and are trained independently"


@RULES.add(
    "note",
    "The critic then sees all observations side by side, which may lack something.",
    "Let the environment tell the state of the whole, if it knows it.",
)
def central_state(agents: Agents, problem: Problem) -> Hits:
    """Training is central, and there is no state of the whole."""
    if agents.training == "central" and not agents.global_state:
        yield "agents.global_state", "training is central without it"


@RULES.add(
    "error",
    "Self-play is against a copy of oneself.",
    "Set training: central or independent.",
    contradiction=True,
)
def self_play(agents: Agents, problem: Problem) -> Hits:
    """Agents with one goal are trained by self-play."""
    if agents.training == "self_play" and agents.relation == "cooperative":
        yield "agents.training", "it is self_play, and the relation is cooperative"


@RULES.add(
    "warning",
    "No algorithm here adds a channel by itself.",
    "Make messages a part of actions and observations, of a fixed width.",
)
def communication(agents: Agents, problem: Problem) -> Hits:
    """Agents talk, and the width of messages is open."""
    talk = agents.communication
    if talk is not None and talk.channel != "none" and talk.width is None:
        yield "agents.communication.width", f"the channel is {talk.channel}, without a width"


@RULES.add(
    "warning", "It decides which algorithms fit.", "Write cooperative, competitive or mixed."
)
def relation_missing(agents: Agents, problem: Problem) -> Hits:
    """Nothing says whether agents share a goal."""
    if agents.relation is None:
        yield "agents.relation", "it is missing"
