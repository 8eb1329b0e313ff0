"""Record datasets from a run: what acts at random, half-way, at the end, or what it collected."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from assay.agents import require_one_agent
from assay.algorithms.base import ReplayNeeds
from assay.api import Agent, Run, load, open_run, required_vector
from assay.buffers.allocation import tree_bytes
from assay.buffers.replay import ReplayBuffer
from assay.core.errors import ConfigError, DataError, require_counts
from assay.core.seeding import derive_rng
from assay.core.types import Spaces
from assay.data.collect import collected, from_transitions
from assay.data.dataset import Dataset, Episode
from assay.data.files import check_target, save
from assay.data.files import load as load_data
from assay.envs.vector import Vector
from assay.evaluation.evaluate import evaluate
from assay.evaluation.play import Mixed, play, recorded_space, restored
from assay.loops.off_policy import make_replay
from assay.runs import checkpoint

Quality = Literal["random", "medium", "replay", "expert"]
QUALITIES: tuple[Quality, ...] = ("random", "medium", "replay", "expert")

_EPISODES = 100
_PROBE = 20  # episodes by which an agent's return is estimated
_NEAR = 0.15  # how far from half-way a checkpoint may be
_CLOSE = 0.1  # how far from half-way noise may lead
# Share of random actions beside those of an earlier checkpoint. With one action for each
# observation there would be nothing to choose from, and imitation would be the best to do.
_CHANCE = 0.2
_TRIES = 7
_HELD = 1 << 30  # bytes of observations of the episodes that are played at once


def record(
    run: Run | Path | str,
    out: Path | str,
    *,
    episodes: int | None = None,
    quality: Quality = "expert",
    seed: int = 0,
    log_prob: bool = False,
    env: Any = None,
) -> Dataset:
    """Record a dataset from a run, write it and return it.

    Args:
        run: The run, or its directory.
        out: Where to, as of `assay.data.save`.
        episodes: How many; 100 by default, and for "replay" all that there are.
        quality: "random": uniform actions. "expert": the deterministic policy of the last
            checkpoint. "medium": the last kept checkpoint that, with a uniform action at 20 % of
            the steps, is within 15 % of the distance from half-way between these two, else the
            policy of the last one with a share of uniform actions that leads half-way; the metadata
            say which.
            "replay": what the run collected, as far as its replay still holds it.
        seed: Fixes the episodes.
        log_prob: Record the log-probability of each Discrete action, as the extra `log_prob` that
            `assay.evaluate_offline` reads. Not of a replay, which does not hold it.
        env: The environment object, if the run was not given an id.

    Raises:
        ConfigError: There is no such quality, or fewer than one episode; or actions have no
            probability that could be recorded.
        DataError: The run has no replay, or there is nothing half-way.
        RunError: The dataset cannot be written.
    """
    if quality not in QUALITIES:
        raise ConfigError(
            f"quality='{quality}': expected {', '.join(QUALITIES[:-1])} or {QUALITIES[-1]}."
        )
    require_counts(episodes=episodes)
    if log_prob and quality == "replay":
        raise ConfigError(
            "A replay does not hold the probabilities of its actions.", "Leave out --log-prob."
        )
    directory = check_target(out)
    opened = run if isinstance(run, Run) else open_run(run, env)
    agent = load(opened.path)
    require_one_agent(agent, "Recording")
    count = _EPISODES if episodes is None else episodes
    vector = _vector(opened, count)
    try:
        if quality == "replay":
            how: dict[str, Any] = {}
            source: Iterator[Episode] = islice(_replayed(opened, agent, vector), episodes)
        else:
            actor, how = _actor(opened, agent, vector, quality, seed)
            if log_prob:
                actor = _telling(actor, vector, seed)
            source = play(actor, vector, episodes=count, seed=seed)
        metadata = _metadata(opened, agent) | {"quality": quality, "seed": seed, **how}
        spaces = recorded_space(vector.observations), vector.actions.source
        with collected(
            source, *spaces, directory=directory, metadata=metadata, name=f"'{out}'"
        ) as made:
            return load_data(save(made, out))
    finally:
        vector.close()


def _vector(run: Run, episodes: int) -> Vector:
    """Return environments, as many as give episodes that can be held in memory at once."""
    fix = "Record it yourself with assay.data.from_episodes."
    vector = required_vector(run.config, run.env, episodes, fix)
    most = max(1, _HELD // tree_bytes(vector.spaces.observation, vector.limit or 1000))
    if most >= vector.num_envs:
        return vector
    vector.close()
    return required_vector(run.config, run.env, most, fix)


def _metadata(run: Run, agent: Agent) -> dict[str, Any]:
    return {
        "env": run.config.env,
        "algorithm": run.config.algorithm,
        "run": run.path.name,
        agent.clock.unit: agent.clock.count,
    }


# Who acts


def _actor(
    run: Run, agent: Agent, vector: Vector, quality: Quality, seed: int
) -> tuple[Any, dict[str, Any]]:
    if quality == "expert":
        return agent.policy, {}
    if quality == "random":
        return _mixed(agent, vector, 1.0, seed), {}
    return _medium(run, agent, vector, seed)


def _telling(actor: Any, vector: Vector, seed: int) -> Mixed:
    """Return the same actor, which tells its probabilities."""
    mixed = isinstance(actor, Mixed)
    agent, epsilon = (actor.agent, actor.epsilon) if mixed else (actor, 0.0)
    rng = derive_rng(seed, "record")
    return Mixed(agent, vector.spaces.action, epsilon, rng, log_prob=True)


def _mixed(agent: Agent, vector: Vector, epsilon: float, seed: int) -> Mixed:
    return Mixed(agent.policy, vector.spaces.action, epsilon, derive_rng(seed, "record"))


def _medium(run: Run, agent: Agent, vector: Vector, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return who gets about half of what the last policy gains over acting at random."""

    def measure(actor: Any) -> float:
        return evaluate(actor, vector, episodes=_PROBE, seed=seed).mean

    low, high = measure(_mixed(agent, vector, 1.0, seed)), measure(agent.policy)
    if high <= low:
        raise DataError(
            f"The policy of '{run.path}' has a return of {high:.4g}, and acting at random "
            f"{low:.4g}: nothing is half-way between them.",
            "Record --quality expert, or train the run for longer.",
        )
    facts = {"random_return": low, "final_return": high}
    for place in checkpoint.list_checkpoints(run.directory.checkpoints_path)[-2::-1]:
        older = _mixed(load(run.path, checkpoint_path=place), vector, _CHANCE, seed)
        share = (measure(older) - low) / (high - low)
        if abs(share - 0.5) <= _NEAR:
            return older, {**facts, **_noisy(_CHANCE, share, f"checkpoint {place.name}, ")}
    epsilon, share = _half_way(lambda x: measure(_mixed(agent, vector, x, seed)), low, high)
    return _mixed(agent, vector, epsilon, seed), {**facts, **_noisy(epsilon, share)}


def _noisy(epsilon: float, share: float, who: str = "") -> dict[str, Any]:
    what = f"{who}a random action at {epsilon:.1%} of the steps"
    return {"medium": what, "share": share, "epsilon": epsilon}


def _half_way(measure: Any, low: float, high: float) -> tuple[float, float]:
    """Return the share of random actions that leads nearest to half-way, and where it leads."""
    least, most = 0.0, 1.0
    found: list[tuple[float, float]] = []
    for _ in range(_TRIES):
        epsilon = (least + most) / 2
        share = (measure(epsilon) - low) / (high - low)
        found.append((epsilon, share))
        if abs(share - 0.5) <= _CLOSE:
            break
        least, most = (epsilon, most) if share > 0.5 else (least, epsilon)
    return min(found, key=lambda one: abs(one[1] - 0.5))


# What was collected


def _replayed(run: Run, agent: Agent, vector: Vector) -> Iterator[Episode]:
    """Yield the episodes that the replay of the last checkpoint holds, by environment."""
    replay = _replay(run, agent, vector)
    space = recorded_space(vector.observations)
    actions = vector.actions
    for env in range(replay.num_envs):
        held = replay.history(env)
        if not len(held.reward):
            continue
        yield from from_transitions(
            restored(vector.observations, held.obs),
            held.action if actions.to_env is None else actions.to_env(held.action),
            held.reward,
            restored(vector.observations, held.next_obs),
            held.terminated,
            held.truncated,
            observation_space=space,
            action_space=actions.source,
            name=f"the replay of '{run.path}'",
        ).episodes()


def _replay(run: Run, agent: Agent, vector: Vector) -> ReplayBuffer:
    needs = agent.algorithm.needs
    place = checkpoint.latest(run.directory.checkpoints_path)
    assert place is not None  # the agent was loaded from it
    names = [n for n in checkpoint.read_manifest(place)["sections"] if n.startswith("replay-")]
    kept = isinstance(needs, ReplayNeeds) and needs.her is None and needs.sequence is None
    if not names or not kept:
        why = "keeps no replay" if not names else "keeps sequences or goals in its replay"
        raise DataError(
            f"{run.config.algorithm} {why}, so that what '{run.path}' collected is not in its "
            "checkpoint as transitions.",
            "Record --quality random, medium or expert.",
        )
    assert isinstance(needs, ReplayNeeds)
    spaces = Spaces(vector.observations.space, vector.actions.space)
    shape = SimpleNamespace(
        spaces=spaces,
        num_envs=run.config.run.num_envs,
        frame_stack=vector.frame_stack,
        resets_in_steps=vector.resets_in_steps,
    )
    replay = make_replay(needs, shape, "cpu", derive_rng(0, "replay"), run.config.run.total)
    assert isinstance(replay, ReplayBuffer)
    replay.load_sections(checkpoint.read_checkpoint(place, names))
    return replay
