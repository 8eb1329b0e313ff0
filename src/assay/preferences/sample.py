"""Sample pairs of segments: from runs, from datasets, and from random actions."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from assay.agents import load, require_one_agent, required_vector
from assay.api import configure, open_run
from assay.core.errors import ConfigError, DataError
from assay.core.seeding import derive_rng
from assay.core.types import Action, Tree
from assay.data.collect import from_episodes
from assay.data.combine import first, merge
from assay.data.dataset import Dataset
from assay.data.files import load as load_data
from assay.envs.recorded import NO_ENV
from assay.evaluation.evaluate import episode_seed, rewarded_carry
from assay.evaluation.play import Uniform, play, recorded_space
from assay.experts.reward_model import RewardModel
from assay.loops.config import RunConfig
from assay.loops.run_settings import find_run
from assay.preferences.files import Batch, PreferenceSet
from assay.preferences.pairs import By, Places, choose_pairs
from assay.recording import record
from assay.runs import checkpoint

Actor = Literal["policy", "random", "replay"]
_FIX = "Record episodes with assay data record, and sample from that dataset."


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes to take segments from."""

    episodes: Dataset  # the episodes
    env: str  # the environment's id, "none" if it is not known
    env_settings: dict[str, Any]  # what else decides which environment it is
    facts: dict[str, Any]  # what provenance keeps of where they came from
    # What each episode was reset with; empty where that is not known.
    seeds: list[int | None] = field(default_factory=list)


class Exploring:
    """An agent that acts as it does in training."""

    def __init__(self, agent: Any) -> None:
        self.agent = agent

    def initial_carry(self, n: int) -> Tree:
        """Return that of the agent."""
        return self.agent.initial_carry(n)

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Draw an action for each row of `obs`."""
        chosen: Action = self.agent.act(obs, carry, True)
        return chosen

    def rewarded(self, carry: Tree, reward: Any) -> Tree:
        """Tell the agent what it got."""
        return rewarded_carry(self.agent, carry, reward)


def source_of(
    text: Path | str, *, actor: Actor = "policy", episodes: int = 20, seed: int = 0
) -> Source:
    """Return episodes of a run, or those of a dataset.

    Args:
        text: A run or a dataset, by path or name.
        actor: Who acts, of a run: its "policy", exploring as in training, "random" actions, or
            nobody, for what its "replay" holds.
        episodes: How many at most.
        seed: Fixes the episodes that are played.

    Raises:
        AssayError: There is no such run or dataset, or the run has no replay.
    """
    place = find_run(str(text))
    if place is None:
        found = first(load_data(text), episodes)
        env = str(found.metadata.get("env", NO_ENV))
        return Source(found, env, {}, {"dataset": str(text), **found.facts()})
    run = open_run(place)
    latest = checkpoint.latest(run.directory.checkpoints_path)
    facts = {"run": str(place), "actor": actor, "checkpoint": latest and latest.name}
    if actor == "replay":
        with tempfile.TemporaryDirectory() as spare:
            held = record(place, Path(spare) / "replay.npz", quality="replay")
            kept = list(held.episodes())[-episodes:]  # the youngest
            found = from_episodes(kept, held.schema.observation, held.schema.action)
        return Source(found, run.config.env, _settings(run.config), facts)
    agent = None
    if actor == "policy":
        agent = load(place)
        require_one_agent(agent, "Comparing")
    return played(run.config, None if agent is None else agent.policy, episodes, seed, facts)


def random_source(env: str, *, episodes: int = 20, seed: int = 0, **settings: Any) -> Source:
    """Return episodes of random actions in an environment.

    `settings` are those of a run that decide which environment it is.
    """
    config, _ = configure("ppo", env, settings, preset=False)
    return played(config, None, episodes, seed, {"random": env})


def played(
    config: RunConfig, policy: Any, episodes: int, seed: int, facts: dict[str, Any]
) -> Source:
    """Return episodes that a policy plays, or random actions without one."""
    vector = required_vector(config, None, episodes, _FIX)
    try:
        space = vector.spaces.action
        rng = derive_rng(seed, "preferences", "random")
        actor: Any = Uniform(space, rng) if policy is None else Exploring(policy)
        spaces = recorded_space(vector.observations), vector.actions.source
        made = from_episodes(play(actor, vector, episodes=episodes, seed=seed), *spaces)
    finally:
        vector.close()
    seeds: list[int | None] = [episode_seed(seed, number) for number in range(episodes)]
    return Source(made, config.env, _settings(config), {**facts, "seed": seed}, seeds)


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return what decides which environment it is, beside its id, in plain values."""
    run: dict[str, Any] = config.run.model_dump(mode="json")
    kept = {name: run[name] for name in config.run.env_settings()}
    return {name: value for name, value in kept.items() if value not in (None, 0, {}, [])}


def sample(
    out: Path | str,
    sources: Sequence[Source],
    *,
    pairs: int,
    length: int,
    by: By = "chance",
    model: RewardModel | None = None,
    held_out: float = 0.15,
    seed: int = 0,
) -> tuple[Batch, bool]:
    """Add pairs of segments to a set, and return them, and whether they are new.

    Asked again for the same, it returns what it made.

    Args:
        out: The directory of the set; made if missing.
        sources: Where segments come from.
        pairs: How many.
        length: Steps of a segment.
        by: How pairs are chosen, as of `choose_pairs`.
        model: Whose members disagree.
        held_out: Share of the episodes, and of the pairs, that models are measured by and not
            fitted to. A pair is of two such episodes or of none.
        seed: Fixes the draws.

    Raises:
        DataError: Sources are of different environments, or not of that of the set, or no episode
            is long enough.
        ConfigError: A number is out of range.
    """
    if pairs < 1 or length < 1 or not 0 <= held_out < 1:
        raise ConfigError(
            f"pairs={pairs}, length={length}, held_out={held_out:g}: expected at least one pair of "
            "at least one step, and a share from 0 to below 1."
        )
    if not sources:
        raise ConfigError("Nothing to take segments from.", "Give a run, a dataset, or --env.")
    env, settings = _one_environment(sources)
    asked = {
        "sources": [{**one.facts, "sha256": one.episodes.content_hash} for one in sources],
        "pairs": pairs, "by": by, "held_out": held_out, "seed": seed,
        "model": None if model is None else model.identity,
    }  # fmt: skip
    dataset = merge([_plain(one.episodes) for one in sources])
    rng = derive_rng(seed, "preferences", "pairs")
    apart = _held_out(dataset, length, held_out, rng)
    chosen, held = _choose(dataset, length, pairs, held_out, apart, rng, by=by, model=model)
    found = PreferenceSet.begin(out, {"env": env, "env_settings": settings, "length": length})
    for batch in found.batches:
        if batch.facts["asked"] == asked:
            return batch, False
    dataset.metadata = {"env": env, "sources": asked["sources"]}
    places = np.stack([chosen.episode, chosen.start], -1)
    seeds = [seed for one in sources for seed in one.seeds or [None] * one.episodes.num_episodes]
    facts = {"asked": asked, "held_out": held, "seeds": seeds, "pairs": places.tolist()}
    return found.add_batch(dataset, facts), True


def _plain(dataset: Dataset) -> Dataset:
    """Return episodes without what only some of them were recorded with."""
    schema = dataset.schema
    if not schema.extras:
        return dataset
    bare = (replace(one, extras={}) for one in dataset.episodes())
    return from_episodes(bare, schema.observation, schema.action, name=dataset.name)


def _one_environment(sources: Sequence[Source]) -> tuple[str, dict[str, Any]]:
    env, settings = sources[0].env, sources[0].env_settings
    for other in sources[1:]:
        if (other.env, other.env_settings) != (env, settings):
            raise DataError(
                f"Segments of '{env}' {settings or ''} and of '{other.env}' "
                f"{other.env_settings or ''} cannot be compared.",
                "Give runs and data of one environment.",
            )
    return env, settings


def _held_out(
    dataset: Dataset, length: int, share: float, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return the episodes that models are measured by: a share of those that are long enough."""
    usable = np.flatnonzero(dataset.lengths > length)
    count = min(max(round(share * len(usable)), 2 if share else 0), len(usable) // 2)
    return np.sort(rng.permutation(usable)[:count])


def _choose(
    dataset: Dataset,
    length: int,
    pairs: int,
    share: float,
    apart: np.ndarray[Any, Any],
    rng: np.random.Generator,
    **how: Any,
) -> tuple[Places, list[int]]:
    """Return the pairs, in an order that says nothing, and the episodes that are held out."""
    measured = round(share * pairs) if len(apart) else 0
    rest = np.setdiff1d(np.arange(dataset.num_episodes), apart if measured else [])
    parts = [choose_pairs(dataset, length, pairs - measured, rng, episodes=rest, **how)]
    if measured:  # by chance: a model is measured on what there is, not on what it asked for
        parts.append(choose_pairs(dataset, length, measured, rng, episodes=apart))
    joined = Places(*(np.concatenate(one) for one in zip(*parts, strict=True)))
    order = rng.permutation(pairs)
    return joined.take(order), apart.tolist() if measured else []
