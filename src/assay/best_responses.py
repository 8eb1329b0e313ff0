"""Best responses that are trained: for games too large to write out.

One seat of a game is an environment (`assay.envs.games.seat`), the others play a fixed strategy,
and an algorithm for one agent learns to beat it. What it gains is a lower bound of what a best
response would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from assay.agents import Agent, load
from assay.api import train
from assay.core.errors import AssayError
from assay.core.seeding import derive_rng
from assay.core.types import ACTION_MASK
from assay.envs.games.base import Game, History, Player
from assay.envs.games.seat import Seat, tabular, uniform
from assay.evaluation.game import policy_strategy
from assay.evaluation.payoffs import play_game
from assay.functional.games.tree import Floats, GameTree
from assay.policies.strategy_table import INFORMATION

# Squared errors: a Huber loss learns something between the mean and the median of returns, and in
# a game of chance the two differ.
SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        "gamma": 1.0, "lr": 1e-3, "loss": "mse", "batch_size": 64, "learning_starts": 500,
        "target_every": 200, "epsilon": "linear:1.0:0.2:0.3",
    },
    "ppo": {"gamma": 1.0, "num_envs": 8},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrainedResponse:
    """A response that was trained, and what it gets.

    Attributes:
        run: Where its run is.
        seat: Which seat it plays.
        value: What it gets on average.
        error: The standard error of `value`; 0 where the game was written out.
        exact: What an exact best response gets, where the game was written out.
    """

    run: Path
    seat: int
    value: float
    error: float
    exact: float | None


def train_best_response(
    game: str | Game,
    opponent: Floats | Player | None = None,
    *,
    seat: int,
    algorithm: str = "dqn",
    env_steps: int = 20_000,
    seed: int = 1,
    episodes: int = 20_000,
    tree: GameTree | None = None,
    root: Path | str | None = None,
    **settings: Any,
) -> TrainedResponse:
    """Train an algorithm for one agent against a fixed strategy, and measure what it gets.

    Args:
        game: A name, or a `Game`.
        opponent: A strategy [I, A] of `tree`, or what plays for the others; by default uniform.
        seat: Which one learns.
        algorithm: One for Discrete actions.
        env_steps: How long.
        seed: The run's seed, and that of the games that are played to measure it.
        episodes: How many are played, where the game is not written out.
        tree: The game written out, where it can be: then values are exact.
        root: Where the run is kept.
        **settings: Of the run, over `SETTINGS` of the algorithm.

    Raises:
        AssayError: A strategy is given without its tree, or a setting is wrong.
    """
    if isinstance(opponent, np.ndarray) and tree is None:
        raise AssayError("A strategy as an array needs the tree of its game.", "Give tree=...")
    player: Player = uniform
    if isinstance(opponent, np.ndarray):
        assert tree is not None
        player = tabular(tree, opponent)
    elif opponent is not None:
        player = opponent
        if tree is not None:
            raise AssayError(
                "tree is given, but against a function no value is exact.",
                "Leave tree out, or give the strategy as an array.",
            )
    make = partial(Seat, game, seat, player)
    plain: dict[str, Any] = {"eval_every": 0, "checkpoint_every": 0, "sinks": ()}
    chosen = plain | SETTINGS.get(algorithm, {}) | settings
    run = train(algorithm, make, root=root, env_steps=env_steps, seed=seed, **chosen)
    agent = load(run.path)
    if tree is not None:
        strategy = opponent if isinstance(opponent, np.ndarray) else tree.uniform()
        return _exactly(tree, agent, strategy, seat, run.path)
    whole = Seat(game, seat).game
    mine = partial(_choose, agent)
    seated = [mine if number == seat else player for number in range(whole.num_players)]
    rng = derive_rng(seed, "best-response")
    got = np.array([play_game(whole, seated, rng)[seat] for _ in range(episodes)])
    error = float(got.std(ddof=1) / np.sqrt(episodes))
    return TrainedResponse(run.path, seat, float(got.mean()), error, None)


def _exactly(
    tree: GameTree, agent: Agent, strategy: Floats, seat: int, run: Path
) -> TrainedResponse:
    from assay.functional.games.best_response import best_response

    answer = strategy.copy()
    mine = tree.infoset_player == seat
    answer[mine] = agent_strategy(tree, agent, sampled=False)[mine]
    value = float(tree.expected_returns(answer)[seat])
    return TrainedResponse(run, seat, value, 0.0, best_response(tree, strategy, seat)[1])


def learned_strategy(tree: GameTree, run: Path) -> Floats:
    """Return what the agent of a run does in every information set of a game [I, A].

    A policy that samples is taken as it samples, since the best of mixed actions is another
    strategy.

    Raises:
        AssayError: The run is of another game, or its policy has a memory.
    """
    return agent_strategy(tree, load(run), sampled=True)


def agent_strategy(tree: GameTree, agent: Agent, *, sampled: bool) -> Floats:
    """Return the probabilities of an agent's actions in every information set [I, A].

    Args:
        tree: The game.
        agent: Whom to ask.
        sampled: Whether a policy with a distribution samples; else it takes the best action.

    Raises:
        AssayError: The agent is one for other observations, or remembers.
    """
    return policy_strategy(tree, agent.policy, sampled=sampled)


def _choose(agent: Agent, moment: History) -> Sequence[float]:
    """Return the agent's choice among the legal actions, as probabilities."""
    legal = moment.legal_actions()
    mask = np.zeros(agent.policy.spaces.action.n, np.int8)
    mask[list(legal)] = 1
    seen = np.asarray(moment.information_vector(), np.float32)
    action = int(agent.act({INFORMATION: seen, ACTION_MASK: mask}))
    return [float(action == one) for one in legal]
