"""Evaluate an agent over a fixed set of episodes: raw returns, own seeds, no side effects.

Episode k of an evaluation starts from `episode_seed(seed, k)`. Environments that run in parallel
are all reset, each gives exactly one episode, and its later steps are ignored until all are done.
So short episodes are not over-represented, and the result depends neither on how many environments
ran at once nor on how fast they were (given that copy i of a vector environment behaves like a
single one with seed + i, as Gymnasium asks).

An evaluation is stored in the run directory as `eval/<count>-<label>.json`:

| key         | value                                                                       |
|-------------|-----------------------------------------------------------------------------|
| `env_steps` | how long the agent had been trained; `updates` where it learned from data   |
| `label`     | why it was evaluated: `training` for the evaluations of the training loop   |
| `seed`      | the seed that the episodes' seeds derive from                               |
| `episodes`  | one object per episode: `return`, `length`, `terminated`, `truncated`, `seed` |
| `mean`, `iqm`, `std` | of the episodes' returns; `std` describes these episodes (ddof 0)  |
| `success_rate` | share of episodes whose last info says so, where infos have `is_success` or    |
|                | `success`; each episode then has `success` as well                            |
| `agents`       | of several agents: the mean return of each, by name; each episode then has     |
|                | `agents` as well, and its `return` is the mean over agents                    |
| `levels`       | what the levels of an agent did: shares of options and their lengths, or how   |
|                | subgoals are reached; each episode then has `levels` as well                  |
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import RunError, require_counts
from assay.core.seeding import derive_seed
from assay.core.types import AGENT_REWARD, Action, Tree, Unit, tree_map
from assay.evaluation import statistics
from assay.runs.directory import RunDirectory, evaluated_at
from assay.runs.files import RunWarning

if TYPE_CHECKING:
    from assay.envs.vector import Vector

TRAINING = "training"  # the label of what the training loop evaluates
DEFAULT_NUM_ENVS = 16
MOST_UNENDING = 4  # episodes of an evaluation that nothing but the bound on their steps may end


class Agent(Protocol):
    """An agent that can be evaluated."""

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose an action for each row of `obs`."""

    def initial_carry(self, n: int) -> Tree:
        """Return the state in which `n` episodes begin, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class EvaluationResult:
    """The episodes of one evaluation, in the order of their seeds; all arrays are `[episodes]`.

    Attributes:
        seed: What the episodes' seeds derive from.
        returns: Undiscounted sums of the environment's own rewards.
        lengths: Environment steps.
        terminated: Whether the episode ended by itself.
        truncated: Whether it was cut off; both can be true in the same step.
        seeds: The seed that each episode was reset with.
        success: Whether the episode's last step was a success, or None if the environment does not
            report it.
        agents: The return of each agent by name, or None where there is one.
        levels: What the levels of the agent did, by name: shares and lengths of options, or how
            well subgoals are reached. None where it has one level.
    """

    seed: int
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    success: NDArray[np.bool_] | None = None
    agents: dict[str, NDArray[np.float64]] | None = None
    levels: dict[str, NDArray[np.float64]] | None = None

    @property
    def agent_means(self) -> dict[str, float]:
        """Return the mean return of each of several agents; nothing where there is one."""
        return {name: float(values.mean()) for name, values in (self.agents or {}).items()}

    @property
    def success_rate(self) -> float | None:
        """Return the share of successful episodes, or None if success is not reported."""
        return None if self.success is None else float(self.success.mean())

    @property
    def figures(self) -> dict[str, float]:
        """Return what else was measured, by name: agents' mean returns, and levels."""
        own = {name: float(values.mean()) for name, values in (self.levels or {}).items()}
        return own | {f"{name}/return_mean": mean for name, mean in self.agent_means.items()}

    @property
    def mean(self) -> float:
        """Return the mean return."""
        return float(self.returns.mean())

    @property
    def iqm(self) -> float:
        """Return the interquartile mean of the returns."""
        return statistics.iqm(self.returns)

    @property
    def std(self) -> float:
        """Return the standard deviation of these returns (not an estimate for other episodes)."""
        return float(self.returns.std())

    def to_json(self) -> dict[str, Any]:
        """Return plain values in the schema of this module, without its count and `label`."""
        columns = {
            "return": self.returns,
            "length": self.lengths,
            "terminated": self.terminated,
            "truncated": self.truncated,
            "seed": self.seeds,
        }
        summary: dict[str, Any] = {"mean": self.mean, "iqm": self.iqm, "std": self.std}
        if self.success is not None and self.success_rate is not None:
            columns["success"] = self.success
            summary["success_rate"] = self.success_rate
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        episodes = [dict(zip(columns, row, strict=True)) for row in rows]
        for key, parts in (("agents", self.agents), ("levels", self.levels)):
            if parts is None:
                continue
            summary[key] = {name: float(x.mean()) for name, x in parts.items()}
            for k, episode in enumerate(episodes):
                episode[key] = {name: float(x[k]) for name, x in parts.items()}
        return {"seed": self.seed, "episodes": episodes, **summary}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EvaluationResult:
        """Read what `to_json` returned.

        Raises:
            ValueError: The content is not an evaluation, or one without episodes.
        """
        try:
            episodes = content["episodes"]
            if not episodes:
                raise ValueError("it has no episodes")

            def column(key: str, kind: Any) -> NDArray[Any]:
                return np.array([episode[key] for episode in episodes], kind)

            return cls(
                int(content["seed"]),
                column("return", np.float64),
                column("length", np.int64),
                column("terminated", np.bool_),
                column("truncated", np.bool_),
                column("seed", np.int64),
                column("success", np.bool_) if "success" in episodes[0] else None,
                _by_name(episodes, "agents"),
                _by_name(episodes, "levels"),
            )
        except KeyError as error:
            raise ValueError(f"it lacks {error}") from None
        except (TypeError, AttributeError) as error:
            raise ValueError(f"it is not in the expected form ({error})") from None


def _by_name(episodes: Any, key: str) -> dict[str, NDArray[np.float64]] | None:
    """Return columns that episodes have by name under `key`, or None."""
    if key not in episodes[0]:
        return None
    return {
        name: np.array([episode[key][name] for episode in episodes], np.float64)
        for name in episodes[0][key]
    }


def episode_seed(seed: int, episode: int) -> int:
    """Return the seed that episode number `episode` of an evaluation is reset with.

    They are consecutive, because copy i of a vector environment is reset with seed + i, and they
    fit 30 bits, because the adapter keeps only so many.
    """
    return derive_seed(seed, "evaluation") % 2**29 + episode


def evaluate(
    agent: Agent,
    env: Any,
    *,
    episodes: int,
    seed: int,
    num_envs: int = DEFAULT_NUM_ENVS,
    explore: bool = False,
    max_episode_steps: int | None = None,
    every_episode: bool = False,
) -> EvaluationResult:
    """Play `episodes` episodes and return every one of them.

    Where nobody set a limit and episodes do not end, the evaluation is over with the fourth one
    (`MOST_UNENDING`) that is cut at the bound, and a warning says so.

    Args:
        agent: Anything with `act` and `initial_carry`. It is not changed, and without `explore` its
            random numbers are not used.
        env: What `make_vector` takes or returned. An environment that exists already is reset and
            left open, so do not pass the one that training uses.
        episodes: How many.
        seed: Fixes every episode; the result does not depend on `num_envs`.
        num_envs: The most environments to step at once.
        explore: Whether the agent acts as in training.
        max_episode_steps: Where to truncate episodes. By default the environment's own limit; where
            it is not known, `assay.envs.limits.EPISODE_BOUND`, with a warning.
        every_episode: Whether to play all episodes, however many of them do not end.

    Raises:
        ConfigError: A number is below 1.
        EnvError: The environment is broken.
    """
    require_counts(episodes=episodes, num_envs=num_envs, max_episode_steps=max_episode_steps)
    # Here, so that reading evaluations does not import Gymnasium.
    import gymnasium as gym

    from assay.envs.make import make_vector
    from assay.envs.vector import Vector

    most = episodes if every_episode or max_episode_steps is not None else MOST_UNENDING
    play = partial(_evaluate, agent, episodes=episodes, seed=seed, explore=explore,
                   limit=max_episode_steps, most=most)  # fmt: skip
    if isinstance(env, Vector):
        return play(env)
    if isinstance(env, gym.Env | gym.vector.VectorEnv):
        return play(make_vector(env, training=False))
    rounds = -(-episodes // num_envs)
    with rows_to_evaluate(env, -(-episodes // rounds)) as vector:
        return play(vector)


def rows_to_evaluate(env: Any, count: int, **settings: Any) -> Vector:
    """Make `count` environments for an evaluation, or fewer where episodes may never end.

    All are stepped until the last one is over, so as many are enough as may be without an end.
    """
    from assay.envs.make import make_vector

    vector = make_vector(env, count, training=False, **settings)
    if vector.limit is not None or count <= MOST_UNENDING:
        return vector
    vector.close()
    return make_vector(env, MOST_UNENDING, training=False, **settings)


def save_evaluation(
    run: RunDirectory,
    count: int,
    result: EvaluationResult,
    *,
    label: str = TRAINING,
    unit: Unit = "env_steps",
) -> None:
    """Store an evaluation in the run directory, in the schema of this module.

    The same label at the same count replaces the older one. A run may be someone else's, or on a
    disk that is full: after its training, what cannot be stored is a warning.
    """
    try:
        run.write_eval(result.to_json(), count=count, label=label, unit=unit)
    except RunError as error:
        if label == TRAINING:
            raise
        warnings.warn(f"The evaluation is not stored. {error.message}", RunWarning, stacklevel=2)


def load_evaluations(
    run: RunDirectory, *, label: str = TRAINING
) -> list[tuple[int, EvaluationResult]]:
    """Return the evaluations of a run with their counts, from the least to the most trained.

    Raises:
        RunError: A file is damaged.
    """
    found = []
    for content in run.evals():
        if content.get("label", TRAINING) != label:
            continue
        try:
            found.append((evaluated_at(content), EvaluationResult.from_json(content)))
        except (KeyError, TypeError, ValueError) as error:
            at = content.get("env_steps", content.get("updates"))
            raise RunError(
                f"An evaluation in '{run.eval_path}' (at {at!r}) cannot be read: {error}.",
                "Delete the file, or evaluate the run again.",
            ) from None
    return sorted(found, key=lambda item: item[0])


def clip_to_space(actions: Any, space: Any) -> Any:
    """Return continuous actions within the bounds of their space, and others as they are.

    A Gaussian policy may act beyond the bounds, and Gymnasium does not define what that does.
    """
    low = getattr(space, "low", None)
    return actions if low is None else np.clip(actions, low, space.high)


def _evaluate(
    agent: Agent,
    vector: Vector,
    *,
    episodes: int,
    seed: int,
    explore: bool,
    limit: int | None,
    most: int,
) -> EvaluationResult:
    """Run as many rounds as needed, each of one episode per environment."""
    from assay.envs.limits import EPISODE_BOUND, warn_unending

    n = vector.num_envs
    bound = max(EPISODE_BOUND, vector.limit or 0) if limit is None else limit
    most = most if vector.limit is None else episodes
    parts, unending = [], np.zeros(0, np.bool_)
    for k in range(0, episodes, n):
        wanted = min(n, episodes - k)
        part, own = _play_round(agent, vector, episode_seed(seed, k), wanted, explore, bound)
        parts.append((part, own))
        unending = np.append(unending, part[1] >= bound)  # by length: wrappers may have cut it
        if unending.sum() >= most:
            break
    # The same episodes count, however many were played at once.
    count = int(np.flatnonzero(unending)[most - 1]) + 1 if unending.sum() >= most else episodes
    joined = map(np.concatenate, zip(*(part for part, _ in parts), strict=True))
    columns = (column[:count] for column in joined)
    returns, lengths, terminated, truncated, seen, unfinished, shares = columns
    names = parts[0][1]
    levels = {name: np.concatenate([own[name] for _, own in parts])[:count] for name in names}
    if limit is None and unfinished.any():
        warn_unending(vector.name, bound)
    if count < episodes:
        warnings.warn(
            f"An evaluation in '{vector.name}' played {count} of {episodes} episodes: it stopped "
            f"when {most} of them had not ended within {bound:,} steps. Set max_episode_steps to "
            "play all of them.",
            stacklevel=1,
        )
    if _cancel_out(shares):
        warnings.warn(
            f"The returns of agents in '{vector.name}' cancel out, so that the team's, their mean, "
            "is 0 whatever they do: look at each agent's own, eval/AGENT/return_mean. Algorithms "
            "that learn from the team's reward (vdn, qmix) learn nothing here; others do.",
            stacklevel=1,
        )
    seeds = episode_seed(seed, 0) + np.arange(count)
    success = None if np.isnan(seen).any() else seen > 0
    team = vector.spaces.team
    agents = None if team is None else dict(zip(team.agents, shares.T, strict=True))
    return EvaluationResult(
        seed, returns, lengths, terminated, truncated, seeds, success, agents, levels or None
    )


def _cancel_out(shares: NDArray[Any]) -> bool:
    """Return whether what some agents get [episodes, A] is what the others lose."""
    return bool(shares.any() and (np.abs(shares.sum(1)) <= 1e-4 * np.abs(shares).sum(1)).all())


def _play_round(
    agent: Agent, vector: Vector, first_seed: int, wanted: int, explore: bool, limit: int
) -> tuple[tuple[NDArray[Any], ...], dict[str, NDArray[Any]]]:
    """Return the results of one episode in each of `wanted` rows, none longer than `limit`.

    They are (returns, lengths, terminated, truncated, success, unfinished, shares); success is NaN
    where it is not reported, unfinished are the episodes that only `limit` has ended, and shares
    [wanted, A] are the returns of each of several agents. With them comes what the agent's
    levels did, by name.
    """
    n = vector.num_envs
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    ended, cut_off = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
    success = np.full(n, np.nan)
    unfinished = np.arange(n) < wanted
    team = vector.spaces.team
    shares = np.zeros((n, 0 if team is None else team.size))
    meter = _meter(agent, n)
    for step in played_steps(agent, vector, first_seed, wanted, explore=explore, limit=limit):
        playing = step.playing
        returns[playing] += step.reward[playing]
        lengths += playing
        ended |= playing & step.terminated
        cut_off |= playing & step.truncated
        if team is not None:
            shares[playing] += vector.outcomes()[AGENT_REWARD][playing]
        reported = vector.success
        if reported is not None:
            success[playing] = reported[playing]  # that of an episode's last step remains
        if meter is not None:
            meter.add(step)
        unfinished = step.playing_on
    columns = returns, lengths, ended, cut_off | unfinished, success, unfinished, shares
    levels = {} if meter is None else meter.columns()
    return (
        tuple(column[:wanted] for column in columns),
        {name: column[:wanted] for name, column in levels.items()},
    )


def _meter(agent: Any, n: int) -> Any:
    """Return what measures the levels of an agent, over an episode in each of n rows."""
    make = getattr(agent, "meter", None) or getattr(getattr(agent, "policy", None), "meter", None)
    return None if make is None else make(n)


class PlayedStep(NamedTuple):
    """One step of all rows.

    Attributes:
        obs: What was acted on.
        action: Within the bounds of its space.
        reward: Of the step.
        terminated: Whether the episode ended.
        truncated: Whether it was cut off.
        final: The last observations of episodes that are over; None if none is.
        after: The next observations; of a row whose episode is over, of its next one.
        playing: The rows whose counted episode was going on before the step.
        extras: What the agent said about its choice.
    """

    obs: Tree
    action: NDArray[Any]
    reward: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final: Tree
    after: Tree
    playing: NDArray[np.bool_]
    extras: Mapping[str, NDArray[Any]]

    @property
    def over(self) -> NDArray[np.bool_]:
        """Return the rows whose episode ends with this step."""
        return self.terminated | self.truncated

    @property
    def playing_on(self) -> NDArray[np.bool_]:
        """Return the rows whose counted episode goes on after the step."""
        return self.playing & ~self.over


def played_steps(
    agent: Agent, vector: Vector, first_seed: int, wanted: int, *, explore: bool, limit: int
) -> Iterator[PlayedStep]:
    """Play one episode in each of `wanted` rows, and yield the steps, `limit` of them at most.

    Rows whose episode is over go on without being counted, as do rows that were only reset.
    """
    n = vector.num_envs
    playing = np.arange(n) < wanted
    obs, carry = vector.reset(first_seed), agent.initial_carry(n)
    for _ in range(limit):
        choice = agent.act(obs, carry, explore)
        actions = clip_to_space(choice.action, vector.spaces.action)
        after, reward, terminated, truncated, valid, final = vector.step(actions)
        step = PlayedStep(
            obs, actions, reward, terminated, truncated, final, after, playing, choice.extras
        )
        yield step
        obs, playing, over = after, step.playing_on, step.over
        if not playing.any():
            return
        # A new episode must not start with the carry of an old one, counted or not.
        carry = rewarded_carry(agent, choice.carry, reward)
        carry = restart_carry(agent, carry, over if valid is None else over | ~valid)


def rewarded_carry(agent: Agent, carry: Tree, reward: NDArray[Any]) -> Tree:
    """Return `carry` after rewards [N], which an agent is told that has a method for it."""
    told = getattr(agent, "rewarded", None)
    return carry if carry is None or told is None else told(carry, reward)


class Around:
    """What agents around another one have in common: they tell it everything."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def initial_carry(self, n: int) -> Tree:
        """Return that of the agent."""
        return self.agent.initial_carry(n)

    def rewarded(self, carry: Tree, reward: NDArray[Any]) -> Tree:
        """Tell the agent what it got."""
        return rewarded_carry(self.agent, carry, reward)


def restart_carry(agent: Agent, carry: Tree, rows: NDArray[np.bool_]) -> Tree:
    """Return `carry` with the initial one in `rows`."""
    if carry is None or not rows.any():
        return carry
    replace = partial(_replace_rows, np.flatnonzero(rows))
    return tree_map(replace, carry, agent.initial_carry(len(rows)))


def _replace_rows(rows: NDArray[np.intp], old: Any, new: Any) -> Any:
    replaced = copy.deepcopy(old)  # an array or a tensor; a copy, since the agent may keep its own
    replaced[rows] = new[rows]
    return replaced
