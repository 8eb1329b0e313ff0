"""Stepping environments with an algorithm and recording only what really happened.

This is the one place that knows about episode ends: the rows that Gymnasium's next-step autoreset
ignores never count, and the true final observation is what a truncated transition bootstraps from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from assay.algorithms.base import Algorithm
from assay.buffers.replay_protocol import Replay
from assay.buffers.rollout import Rollout
from assay.core import seeding
from assay.core.errors import ConfigError, EnvError, SpaceError
from assay.core.types import (
    Clock,
    Collected,
    Metrics,
    State,
    Transition,
    Tree,
    action_mask,
    tree_map,
)
from assay.envs.parameters import parameters, set_parameters
from assay.envs.sync import Terms, merge_terms
from assay.policies.exploration import GreedyActions

EPISODE_WINDOW = 100


class EpisodeStatistics:
    """Returns and lengths of episodes as they end, and their recent mean."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=EPISODE_WINDOW)

    def step(self, reward: np.ndarray, done: np.ndarray | None, valid: np.ndarray | None) -> int:
        """Count one step of all environments; return how many episodes ended."""
        self.returns += reward if valid is None else np.where(valid, reward, 0.0)
        self.lengths += 1 if valid is None else valid
        if done is None:
            return 0
        ended = np.flatnonzero(done)
        for n in ended:
            self.recent.append((float(self.returns[n]), int(self.lengths[n])))
        self.returns[ended] = 0.0
        self.lengths[ended] = 0
        return len(ended)

    def restart(self) -> None:
        """Forget the episodes in flight."""
        self.returns[:] = 0.0
        self.lengths[:] = 0

    def metrics(self) -> dict[str, float]:
        """Return the mean over the last episodes, if any has ended."""
        return recent_means(self.recent)

    def state(self) -> State:
        """Return everything that later metrics depend on."""
        recent = np.array(list(self.recent)).reshape(-1, 2)
        return {"returns": self.returns, "lengths": self.lengths, "recent": recent}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.returns[:] = state["returns"]
        self.lengths[:] = state["lengths"]
        self.recent = deque(((float(r), int(n)) for r, n in state["recent"]), EPISODE_WINDOW)


def recent_means(recent: Collection[tuple[float, int]]) -> dict[str, float]:
    """Return the mean return and length of episodes as metrics; nothing if there are none."""
    if not recent:
        return {}
    returns, lengths = zip(*recent, strict=True)
    return {
        "rollout/return_mean": float(np.mean(returns)),
        "rollout/length_mean": float(np.mean(lengths)),
    }


def no_scores(algorithm: str) -> ConfigError:
    """Return the error that a curriculum needs advantages, and an algorithm computes none."""
    return ConfigError(
        f"The curriculum scores levels by advantages, which {algorithm} does not compute.",
        "Train ppo, a2c or recurrent_ppo, or set score: learnability, or another curriculum.",
    )


def refuse_levels(env: Any, levels: Mapping[str, np.ndarray], algorithm: str) -> None:
    """Refuse levels that an algorithm designs for environments that cannot have them.

    Raises:
        ConfigError: Something else draws parameters of them.
        EnvError: They have no such parameters.
    """
    if getattr(env, "curriculum", None) is not None:
        raise ConfigError(
            f"{algorithm} designs the levels, so that randomize has nothing to draw.",
            "Leave randomize and curriculum out, or train ppo.",
        )
    missing = sorted(levels.keys() - parameters(env).keys())
    if missing:
        raise EnvError(
            f"{algorithm} designs levels by the parameter '{missing[0]}', which '{env.name}' does "
            "not have.",
            "Train on assay/Maze-v0; size=13 of the algorithm needs env_kwargs={size: 13}.",
        )


class Collector:
    """Drive a vector of environments with an algorithm.

    Of the run's counts the collector advances `episodes`, the loop the rest.
    """

    def __init__(self, env: Any, algorithm: Algorithm, clock: Clock, seed: int) -> None:
        self.env = env
        self.algorithm = algorithm
        self.clock = clock
        self.seed = seed
        self.episodes = EpisodeStatistics(env.num_envs)
        self.rng = seeding.derive_rng(seed, "collector")
        self.obs: Tree = None
        self.filled = 0  # steps of a rollout in the middle of which the run was stopped
        self.carry: Tree = algorithm.initial_carry(env.num_envs)
        # Of several agents, what happened to each goes with what was collected.
        self.outcomes = None if env.spaces.team is None else env.outcomes
        self.terms: Terms = {}
        self.curriculum = getattr(env, "curriculum", None)
        if self.curriculum is not None:
            self.curriculum.progress = lambda: clock.progress

    def start(self) -> None:
        """Reset all environments with seeds of this run and of the current step."""
        step = self.clock.env_steps + self.filled * self.env.num_envs
        self.obs = self.env.reset(seeding.derive_seed(self.seed, "env", step))
        self.carry = self.algorithm.initial_carry(self.env.num_envs)
        self.episodes.restart()
        if not self.filled:  # else the algorithm will see in the rollout where episodes were cut
            self.algorithm.cut_episodes()

    @property
    def can_save(self) -> bool:
        """Return whether the environments can be saved and go on from there."""
        return self.env.get_state() is not None

    def collect_rollout(self, rollout: Rollout) -> Collected | None:
        """Fill a rollout with `length` steps of every environment, and return what was seen.

        None if the run was stopped meanwhile: then the next call goes on with the same rollout.
        """
        levels = None if self.filled else self.algorithm.design()
        if levels is not None:
            refuse_levels(self.env, levels, self.algorithm.spec.name)
            set_parameters(self.env, levels)
            self.start()
        step, act, outcomes = self.env.step, self.algorithm.act, self.outcomes
        if not self.filled:
            rollout.reset(self.carry)
        obs, carry, clock, copies = self.obs, self.carry, self.clock, self.env.num_envs
        # Levels that were designed, or are to be scored, are those of a whole rollout.
        scores = self.curriculum is not None and self.curriculum.scores
        can_stop, first = levels is None and not scores, self.filled
        for t in range(first, rollout.length):
            if clock.stopping and can_stop:
                self.obs, self.carry, self.filled = obs, carry, t
                self._count_episodes(rollout, first, t)
                return None
            choice = act(obs, carry, True)
            next_obs, reward, terminated, truncated, valid, final = step(choice.action)
            real = True if valid is None else valid
            extras = choice.extras if outcomes is None else choice.extras | outcomes()
            rollout.write(t, obs, choice.action, reward, terminated, truncated, real, extras)
            carry = choice.carry
            if final is not None:
                cut = np.flatnonzero(truncated & ~terminated)
                if len(cut):
                    rows = tree_map(lambda x, cut=cut: x[cut], final)
                    carried = tree_map(lambda x, cut=cut: x[cut], carry)
                    rollout.add_final(t, cut, rows, carried)
                if carry is not None:
                    carry = self._restart_carry(carry, terminated | truncated)
            if valid is not None and carry is not None:
                carry = self._restart_carry(carry, ~valid)
            obs = next_obs
            clock.collected += copies
        self.obs, self.carry, self.filled = obs, carry, 0
        rollout.last_obs, rollout.last_carry = obs, carry
        done = self._count_episodes(rollout, first, rollout.length)
        return Collected(rollout.obs, rollout.reward, done, rollout.valid, rollout.env_steps)

    def _restart_carry(self, carry: Tree, rows: np.ndarray) -> Tree:
        fresh = self.algorithm.initial_carry(len(rows))

        return tree_map(lambda old, new: _where(rows, new, old), carry, fresh)

    def _count_episodes(self, rollout: Rollout, first: int, last: int) -> np.ndarray:
        """Count the steps from `first` to before `last`; return which of all [T, N] are ends."""
        done = rollout.terminated | rollout.truncated
        ends = np.asarray(done.any(1))
        all_valid = rollout.valid[first:last].all()
        for t in range(first, last):
            valid = None if all_valid else rollout.valid[t]
            self.clock.episodes += self.episodes.step(
                rollout.reward[t], done[t] if ends[t] else None, valid
            )
        return done

    def collect_step(self, replay: Replay[Any], random: bool) -> Collected:
        """Take one step of every environment into a replay, and return what was seen.

        With `random` actions are uniform. An algorithm that carries a state, or says
        `gives_extras`, is asked all the same, for these; its action is not taken.
        """
        obs, algorithm = self.obs, self.algorithm
        action, carry, extras = None, None, None
        # A replay holds the same columns for random steps as for the algorithm's own.
        if not random or self.carry is not None or algorithm.gives_extras:
            choice = algorithm.act(obs, self.carry, True)
            action, carry, extras = choice.action, choice.carry, choice.extras or None
        if random:
            space, n = self.env.spaces.action, self.env.num_envs
            action = random_actions(self.rng, space, n, action_mask(self.obs))
            carry = None if carry is None else algorithm.acted(carry, action)
        next_obs, reward, terminated, truncated, valid, final = self.env.step(action)
        if self.outcomes is not None:
            extras = (extras or {}) | self.outcomes()
        done, successor = None, next_obs
        if final is not None:
            done = terminated | truncated
            successor = tree_map(lambda new, end: _where(done, end, new), next_obs, final)
            if carry is not None:
                carry = self._restart_carry(carry, done)
        replay.add(
            Transition(
                obs, action, reward, successor, terminated, truncated, valid, extras, self.carry
            )
        )
        if valid is not None and carry is not None:
            carry = self._restart_carry(carry, ~valid)
        self.obs, self.carry = next_obs, carry
        self.clock.episodes += self.episodes.step(reward, done, valid)
        steps = len(reward) if valid is None else int(valid.sum())
        # Without a final observation no episode is over, and `terminated` says so.
        return Collected(obs, reward, terminated if done is None else done, valid, steps)

    def metrics(self) -> Metrics:
        """Return what the recent episodes were like, and what the curriculum has to say.

        The terms of the reward are means over the steps since the last time.
        """
        drawn = {} if self.curriculum is None else self.curriculum.metrics()
        merge_terms(self.terms, self.env.take_terms())
        terms, self.terms = self.terms, {}
        means = {key: total / count for key, (total, count) in terms.items()}
        return self.episodes.metrics() | drawn | means

    def state(self) -> State:
        """Return where the environments and the collector are; `env` is None if it cannot say."""
        merge_terms(self.terms, self.env.take_terms())
        terms = {key: list(one) for key, one in self.terms.items()}
        return {
            "env": self.env.get_state(),
            "obs": tree_map(np.array, self.obs),
            "carry": tree_map(np.array, self.carry),
            "episodes": self.episodes.state(),
            "rng": seeding.rng_state(self.rng),
            **({"filled": self.filled} if self.filled else {}),
            **({} if self.curriculum is None else {"curriculum": self.curriculum.state()}),
            **({"terms": terms} if terms else {}),
        }

    def load_state(self, state: State) -> None:
        """Go on from `state`; without an environment's state, from a fresh reset.

        The reset is the one that `start` makes at this step, which is what the run itself did
        when it wrote the checkpoint.
        """
        self.episodes.load_state(state["episodes"])
        self.filled = int(state.get("filled", 0))
        self.clock.collected = self.filled * self.env.num_envs
        self.terms = {key: tuple(one) for key, one in state.get("terms", {}).items()}
        seeding.set_rng_state(self.rng, state["rng"])
        if self.curriculum is not None:
            self.curriculum.load_state(state["curriculum"])
        if state["env"] is None:
            self.start()
        else:
            self.env.reset(self.seed)
            self.env.set_state(state["env"])
            self.obs, self.carry = state["obs"], state["carry"]


def random_actions(
    rng: np.random.Generator, space: gym.Space[Any], n: int, mask: np.ndarray | None
) -> np.ndarray:
    """Return uniform actions [n, ...] of a canonical space, among those that the mask allows.

    Raises:
        SpaceError: A Box has no bounds to draw between.
    """
    if isinstance(space, gym.spaces.Box):
        if not space.is_bounded():
            raise SpaceError(f"Cannot draw uniform actions: {space} has no bounds.")
        return rng.uniform(space.low, space.high, (n, *space.shape)).astype(space.dtype)
    return _random_choices(rng, space, n, mask)


def _random_choices(
    rng: np.random.Generator, space: gym.Space[Any], n: int, mask: np.ndarray | None
) -> np.ndarray:
    if isinstance(space, gym.spaces.MultiDiscrete):
        if mask is not None:
            return _allowed_choices(rng, space.nvec, mask)
        return rng.integers(space.nvec, size=(n, *space.shape))
    if isinstance(space, gym.spaces.MultiBinary):
        bits = rng.integers(2, size=(n, *space.shape))
        return (bits if mask is None else bits * mask).astype(np.int8)
    assert isinstance(space, gym.spaces.Discrete)
    return GreedyActions(space).random(rng, n, mask)


def _allowed_choices(rng: np.random.Generator, sizes: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return random choices [N, *sizes.shape], each among those that its part of the mask allows.

    Args:
        rng: Source of randomness.
        sizes: How many choices there are, of every sub-action.
        mask: [N, sum of sizes]. A part that allows nothing counts as one without a mask.
    """
    draws = rng.random(mask.shape)
    chosen = []
    for end, size in zip(np.cumsum(sizes), sizes.reshape(-1), strict=True):
        allowed = mask[:, end - size : end] != 0
        allowed |= ~allowed.any(1, keepdims=True)
        chosen.append(np.where(allowed, draws[:, end - size : end], -1.0).argmax(1))
    return np.stack(chosen, 1).reshape(len(mask), *sizes.shape)


def _where(rows: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(rows.reshape(-1, *[1] * (no.ndim - 1)), yes, no)
