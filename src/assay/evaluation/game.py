"""Evaluate a strategy of a game exactly: by what best responses to it would gain.

Nothing is played. Where other evaluations have episodes, this one has the seats, and the return of
a seat is minus what its player could gain by a best response. So the mean is minus the
exploitability, higher is better as everywhere, and an equilibrium has 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, EnvError
from assay.core.types import ACTION_MASK, Tree
from assay.envs.games.table import game_obs
from assay.evaluation.evaluate import EvaluationResult
from assay.functional.games.best_response import Exploitation, exploitation
from assay.functional.games.tree import Floats, GameTree
from assay.policies.heads import StochasticHead
from assay.policies.strategy_table import INFORMATION, TablePolicy
from assay.policies.team import TeamPolicy


@dataclass(frozen=True, slots=True, eq=False)
class GameResult(EvaluationResult):
    """An exact evaluation; `found` says what every player gets, and could get."""

    found: Exploitation | None = None

    @property
    def figures(self) -> dict[str, float]:
        """Return NashConv and exploitability."""
        assert self.found is not None
        return {"nash_conv": self.found.nash_conv, "exploitability": self.found.exploitability}

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with what each player gets."""
        assert self.found is not None
        values = {"values": self.found.values.tolist()}
        return EvaluationResult.to_json(self) | self.figures | values


def policy_strategy(tree: GameTree, policy: Any, *, sampled: bool) -> Floats:
    """Return the probabilities of a policy's actions in every information set [I, A].

    Args:
        tree: The game.
        policy: Of an agent for one seat, or of agents for all of them.
        sampled: Whether a policy with a distribution samples; else it takes the best action.

    Raises:
        AssayError: The policy is one for other observations, or remembers.
    """
    if isinstance(policy, TeamPolicy):
        return _team_strategy(tree, policy, sampled=sampled)
    parts = getattr(policy.spaces.observation, "spaces", {})
    fits = set(parts) == {INFORMATION, ACTION_MASK}
    if not fits or parts[INFORMATION].shape != tree.vectors.shape[1:]:
        raise _other_game(tree, policy)
    obs = {INFORMATION: tree.vectors, ACTION_MASK: tree.legal.astype(np.int8)}
    if isinstance(policy, TablePolicy):
        return policy.probabilities(obs)
    return _probabilities(policy, obs, tree.legal, sampled=sampled)


def _team_strategy(tree: GameTree, policy: TeamPolicy, *, sampled: bool) -> Floats:
    team = policy.spaces.team
    assert team is not None
    space = team.observations[0]
    if team.size != tree.num_players or space.shape != tree.vectors.shape[1:]:
        raise _other_game(tree, policy)
    sets = np.arange(tree.num_infosets)
    seen = game_obs(tree, sets, sets, tree.num_infosets)
    strategy = np.zeros(tree.legal.shape)
    for crew in policy.crews:
        rows = np.isin(tree.infoset_player, crew.members)
        own = np.searchsorted(crew.members, tree.infoset_player[rows])
        # A crew's policy is asked for each of its members; only the one that acts counts.
        asked = crew.see({name: part[rows] for name, part in seen.items()})
        place = np.arange(len(own)) * crew.size + own
        legal = np.ones((len(own) * crew.size, tree.num_actions), np.bool_)
        legal[place] = tree.legal[rows]
        found = _probabilities(policy.policies[crew.name], asked, legal, sampled=sampled)
        strategy[rows] = found[place]
    return strategy


def _probabilities(policy: Any, obs: Tree, legal: NDArray[np.bool_], *, sampled: bool) -> Floats:
    if policy.initial_carry(1) is not None:
        raise AssayError(
            "The policy has a memory: what it does depends on more than the information set.",
            "Give a run without one.",
        )
    if sampled and isinstance(policy.head, StochasticHead):
        logits = np.where(legal, policy.parameters(obs).astype(np.float64), -np.inf)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))
    return np.eye(legal.shape[1])[np.asarray(policy.act(obs).action)]


def _other_game(tree: GameTree, policy: Any) -> EnvError:
    return EnvError(
        f"The agent does not play '{tree.name}': it sees {policy.spaces.observation}.",
        "Give a run of this game.",
    )


def evaluate_strategy(tree: GameTree, strategy: Floats, *, seed: int = 0) -> GameResult:
    """Return how far a strategy [I, A] is from an equilibrium."""
    found = exploitation(tree, strategy)
    seats = tree.num_players
    return GameResult(
        seed,
        -np.maximum(found.gains, 0.0),  # below 0 by rounding only
        np.zeros(seats, np.int64),
        np.ones(seats, np.bool_),
        np.zeros(seats, np.bool_),
        np.arange(seats),
        found=found,
    )
