"""Acting on rows of observations without torch: with the policy that a checkpoint holds as data."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, CheckpointError, ConfigError
from assay.core.types import ACTION_MASK, State, Tree, tree_leaves, tree_map
from assay.envs.space_codec import space_from_state
from assay.envs.spaces import ActionMap, ObservationMap
from assay.policies.model_file import Snapshot, from_state
from assay.prediction.reading import Rows
from assay.prediction.writing import Write
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.server.client.policy import Policy, PolicyError

Array = NDArray[Any]


class Actor(Protocol):
    """What answers observations.

    Attributes:
        observations: What it sees.
        actions: What it does.
        remembers: Whether an action depends on earlier rows of the episode.
    """

    observations: ObservationMap
    actions: ActionMap
    remembers: bool

    def act(self, obs: Tree) -> Array:
        """Return canonical actions [N, ...] for canonical observations [N, ...].

        One that remembers is asked about one row at a time.
        """

    def reset(self) -> None:
        """Forget: an episode begins."""


class ModelActor:
    """Takes the best action, in NumPy, as a client of the training server does.

    Args:
        snapshot: The policy.
        observations: What it sees.
        actions: What it does.
    """

    def __init__(
        self, snapshot: Snapshot, observations: ObservationMap, actions: ActionMap
    ) -> None:
        self.observations, self.actions = observations, actions
        self.remembers = snapshot.architecture.recurrent
        self._policy = Policy(snapshot)

    def act(self, obs: Tree) -> Array:
        """Return actions, which are found row by row."""
        found = []
        for i in range(len(tree_leaves(obs)[0])):
            row = tree_map(lambda part, i=i: part[i], obs)
            mask = row.get(ACTION_MASK) if isinstance(row, dict) else None
            try:
                found.append(self._policy.act(row, mask)[0])
            except PolicyError as error:
                raise AssayError(f"The policy cannot act on an observation: {error}") from None
        return np.stack(found)

    def reset(self) -> None:
        """Forget: an episode begins."""
        self._policy.reset()


def find_checkpoint(directory: RunDirectory, named: str | None) -> Path:
    """Return a checkpoint of a run: the last one, or one by its count or its path.

    Raises:
        CheckpointError: There is none.
    """
    places = checkpoint.list_checkpoints(directory.checkpoints_path)
    if not places:
        raise directory.no_checkpoint()
    if named is None:
        return places[-1]
    counts = {int(place.name.partition(".")[0]): place for place in places}
    if named.isdigit() and int(named) in counts:
        return counts[int(named)]
    if (Path(named) / checkpoint.MANIFEST).is_file():
        return Path(named)
    listed = ", ".join(map(str, counts))
    raise CheckpointError(
        f"The run '{directory.path}' has no checkpoint '{named}'.", f"It has: {listed}."
    )


def maps_of(saved: State, config: dict[str, Any]) -> tuple[ObservationMap, ActionMap]:
    """Return what an agent sees and does, by the section `run` of a checkpoint."""
    text = config.get("run", {}).get("embed_text", 0)
    observations = ObservationMap(space_from_state(saved["observation"]), saved["mask_size"], text)
    return observations, ActionMap(space_from_state(saved["action"]))


def model_actor(directory: RunDirectory, place: Path) -> ModelActor | None:
    """Return what acts as a checkpoint does; None where its policy needs torch.

    Raises:
        CheckpointError: It is damaged.
    """
    if checkpoint.POLICY not in checkpoint.read_manifest(place)["sections"]:
        return None
    sections = checkpoint.read_checkpoint(place, (checkpoint.POLICY, "run"))
    observations, actions = maps_of(sections["run"], directory.config)
    return ModelActor(from_state(sections[checkpoint.POLICY]), observations, actions)


def refuse_rewards(wants_rewards: bool) -> None:
    """Refuse a policy that observations alone do not tell what to do.

    Raises:
        ConfigError: It acts by the return still to reach.
    """
    if wants_rewards:
        raise ConfigError(
            "The policy acts by the return still to reach, and observations hold no rewards.",
            "Load the run in Python: assay.load(run).act(obs, reward=reward).",
        )


def answer(actor: Actor, batches: Iterable[Rows], write: Write) -> tuple[int, int]:
    """Write the actions for all rows; return how many there were, and of how many episodes."""
    rows = episodes = 0
    to_env = actor.actions.to_env
    for batch in batches:
        if not rows:
            batch.first[0] = True
        actions = _remembering(actor, batch) if actor.remembers else actor.act(batch.obs)
        rows, episodes = rows + len(actions), episodes + int(batch.first.sum())
        write(actions if to_env is None else to_env(actions))
    return rows, episodes


def _remembering(actor: Actor, batch: Rows) -> Array:
    found = []
    for i, begins in enumerate(batch.first):
        if begins:
            actor.reset()
        found.append(actor.act(tree_map(lambda part, i=i: part[i : i + 1], batch.obs)))
    return np.concatenate(found)
