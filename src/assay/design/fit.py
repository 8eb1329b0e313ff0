"""Which algorithms can learn a problem at all: by what the registry says, without importing any."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.core import registry
from assay.core.registry import AlgorithmSpec
from assay.design.problem import Problem

# Spaces of Gymnasium by the kinds of actions in a problem.
SPACES: Mapping[str, str] = {
    "discrete": "Discrete",
    "multi_discrete": "MultiDiscrete",
    "multi_binary": "MultiBinary",
    "box": "Box",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What of a problem decides between algorithms.

    Attributes:
        space: The action space in Gymnasium's words; None if it is not decided.
        hybrid: Whether actions are a hybrid.
        vector: Whether the state is one vector of floats.
        image: Whether there is an image in the state.
        team: Whether several agents learn that act at once or are not opposed.
        game: Whether two opponents take turns.
        perfect: Whether players see all of the game.
        steps: Whether steps can be taken.
        data: Whether there is recorded data.
        teacher: Whether somebody can be asked.
        reward: Whether there is a reward.
        partial: Whether the past matters.
    """

    space: str | None
    hybrid: bool
    vector: bool
    image: bool
    team: bool
    game: bool
    perfect: bool
    steps: bool
    data: bool
    teacher: bool
    reward: bool
    partial: bool


def facts_of(problem: Problem) -> Facts:
    """Return what decides."""
    action, agents, shown, mdp = (
        problem.action, problem.agents, problem.demonstrations, problem.mdp,
    )  # fmt: skip
    kind = action.kind if action is not None else None
    if kind is None and agents is not None:
        kind = next((t.action.kind for t in agents.types if t.action is not None), None)
    simulator = mdp.simulator if mdp is not None else None
    nothing = simulator is not None and simulator.kind == "none"
    count = sum(t.count for t in agents.types) if agents is not None else 1
    game = count > 1 and agents is not None and agents.turns == "alternating"
    game = game and agents is not None and agents.relation == "competitive"
    entries = problem.state.entries if problem.state is not None else ()
    return Facts(
        space=SPACES.get(kind or ""),
        hybrid=kind == "hybrid",
        vector=len(entries) == 1 and entries[0].kind == "vector",
        image=any(entry.kind == "image" for entry in entries),
        team=count > 1 and not game,
        game=game,
        perfect=agents is not None and agents.information != "imperfect",
        steps=not nothing and not (shown is not None and shown.interaction is False),
        data=shown is not None and shown.data is not None,
        teacher=shown is not None and shown.teacher is not None,
        reward=problem.reward is None or problem.reward.source != "none",
        partial=mdp is not None and (mdp.observability == "partial" or bool(mdp.memory)),
    )


def specs() -> list[AlgorithmSpec]:
    """Return the facts about all algorithms that are installed."""
    return [registry.spec_of(name) for name in registry.names()]


def unfit(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> str | None:
    """Return why an algorithm cannot learn a problem, or None if it can."""
    many = spec.agents == "many"
    if facts.hybrid:
        return "no algorithm takes hybrid actions"
    rivals = "rivals" in spec.traits and facts.game
    if many != facts.team and not rivals:
        return "it trains several agents" if many else "it trains one agent, and there are several"
    if facts.space is not None and facts.space not in spec.own_actions:
        return f"it takes {' or '.join(spec.own_actions)} actions, not {facts.space}"
    return _data(spec, facts) or _world(spec, facts) or _team(spec, problem)


def _data(spec: AlgorithmSpec, facts: Facts) -> str | None:
    """Return what it would have to learn from and cannot."""
    if spec.loop == "offline" and not facts.data:
        return "it learns from recorded data, and there is none"
    if spec.loop != "offline" and not facts.steps:
        return "it takes steps in an environment, and there is none to step"
    if spec.expert == "episodes" and not facts.data:
        return "it imitates recorded episodes, and there are none"
    if spec.expert == "policy" and not facts.teacher:
        return "it asks a teacher, and there is none"
    unpaid = spec.family != "imitation" or "returns" in spec.traits
    if not facts.reward and unpaid:
        return "it needs a reward, and there is none"
    return None


def _world(spec: AlgorithmSpec, facts: Facts) -> str | None:
    """Return what the problem would have to be and is not."""
    hidden = facts.game and not facts.perfect
    if spec.loop == "game" and not hidden:
        return "it solves small games with hidden information"
    if "rivals" in spec.traits and not hidden:
        return "it is for games in which players hide something"
    if "rules" in spec.traits and spec.loop != "game" and not (facts.game and facts.perfect):
        return "it is for games of two players who see everything and take turns"
    if facts.game and not {"rules", "rivals"} & {*spec.traits}:
        return "it knows no opponent who answers"
    if "designs" in spec.traits:
        return "it draws the levels of assay/Maze-v0, and of nothing else"
    if "vectors" in spec.traits and not facts.vector:
        return "it models observations that are one vector of floats"
    return None


def _team(spec: AlgorithmSpec, problem: Problem) -> str | None:
    agents = problem.agents
    if "team" in spec.traits and agents is not None:
        if agents.relation not in (None, "cooperative") or agents.reward == "individual":
            return "it needs one reward for all agents"
    return None
