"""One policy's learner: it consumes committed batches and hands out model versions.

It never opens the store. Whatever it hands out carries the position that it had consumed and the
state that belongs to it, so that a new learner goes on from the last one that was committed.
On a CPU the same start and the same batches give the same versions, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError
from torch import nn

from assay.algorithms.base import Algorithm, ReplayNeeds
from assay.core import seeding
from assay.core.errors import AssayError, CheckpointError
from assay.core.types import State
from assay.core.wording import counted
from assay.loops.divergence import divergence_fix
from assay.optim.threads import use_threads
from assay.policies import description as arch
from assay.policies.model_file import Snapshot, make_snapshot, parse_snapshot
from assay.policies.parts import ModelError
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.server.errors import RejectionError
from assay.server.learner.building import Canonical, build, configure, read_settings
from assay.server.learner.feed import Feed
from assay.server.learner.messages import (
    CHECKPOINT,
    CONSUME,
    ON_POLICY_LAG,
    START,
    Consume,
    Frame,
    LearnerSettings,
    Outcome,
    Publication,
    Ready,
    Start,
)
from assay.server.learner.replay_feed import ReplayFeed
from assay.server.learner.rollout_feed import RolloutFeed
from assay.server.learner.segments import EpisodeBook, Steps, read_batch
from assay.server.learner.sequence_feed import SequenceFeed
from assay.server.spec import read_spec
from assay.server.tensors import Layout

ENV_STEPS, UPDATES, EPISODES = "server/env_steps", "server/updates", "server/episodes"
WARM_UP_NOISE = 1.0  # of a deterministic policy that has learned nothing: half the range of actions


class Learner:
    """Learns one policy. Call `start` first, and everything from one thread."""

    settings: LearnerSettings
    algorithm: Algorithm
    feed: Feed

    def start(self, start: Start) -> Ready:
        """Build the algorithm, and go on from the checkpoint or the weights, if there are any.

        Raises:
            AssayError: The spec or a setting cannot be used; it is named.
        """
        spec = read_spec(start.spec)
        self.settings = settings = read_settings(start.settings)
        use_threads(settings.threads)
        self.layout, self.canonical = Layout(spec), Canonical(spec)
        config = configure(spec, settings)
        seed = config.run.seed
        self.clock = config.run.clock()
        self.algorithm = build(config, self.canonical.spaces, self.clock)
        self.feed = self._make_feed(seed)
        self.episodes = EpisodeBook()
        self.noise = seeding.derive_rng(seed, "publish")
        self.epoch, self.version, self.position = start.epoch, start.version, start.position
        self.bad_batches = 0
        self.overflows = 0  # moments of the optimizer that were reset
        self._without_checkpoint = 0  # versions since the last one
        self._metrics: dict[str, float] = {}
        self.keep_after = self.position
        if start.checkpoint:
            self._load(state_from_bytes(start.checkpoint))
        elif start.weights:
            self._warm_start(start)
        self.feed.version = self.version
        replay_from = self.keep_after
        return Ready(replay_from, () if self.version else (self._publish(),))

    def consume(self, message: Consume) -> Outcome:
        """Learn from batches, in their order; how they are grouped makes no difference."""
        publications: list[Publication] = []
        for position, client, payload in message.batches:
            if message.replaying:
                self._refill(position, client, payload)
                continue
            if position <= self.position:
                continue  # it was consumed before
            self._take(position, client, payload)
            self.position = position
            if self.feed.due:
                publications.append(self._publish())
        metrics = self._metrics | self._live_metrics()
        return Outcome(self.position, self.keep_after, tuple(publications), metrics)

    def checkpoint(self) -> Publication | None:
        """Return what was learned since the last version, or None if nothing was."""
        return self._publish(checkpoint=True) if self.feed.updates else None

    # ------------------------------------------------------------------ batches

    def _take(self, position: int, client: str, payload: bytes) -> None:
        found = self._read(client, payload)
        if found is None:
            self.bad_batches += 1
            return
        steps, patches = found
        self.feed.patch(client, patches)
        for reward in patches.values():
            self.episodes.add_late(client, reward)
        if steps is None:
            return
        self.episodes.add(steps)
        self.clock.episodes = self.episodes.count
        self.feed.take(position, steps)

    def _refill(self, position: int, client: str, payload: bytes) -> None:
        found = self._read(client, payload)
        if found is None:
            return
        steps, patches = found
        self.feed.patch(client, patches, counts=False)
        if steps is not None:
            self.feed.refill(position, steps)

    def _read(self, client: str, payload: bytes) -> tuple[Steps | None, dict[int, float]] | None:
        """Unpack a batch; None for one that should never have been committed.

        The gateway checks every batch. If one got past it, it must not stop the policy for ever.
        """
        try:
            return read_batch(payload, client, self.canonical, self.layout)
        except (RejectionError, DecodeError):
            return None

    # ------------------------------------------------------------------ versions

    def _publish(self, *, checkpoint: bool = False) -> Publication:
        self._refuse_divergence()
        for step in self.algorithm.steps.values():
            self.overflows += step.forget_overflow()
        parent, self.version = self.version, self.version + 1
        snapshot = self._snapshot()
        self._metrics = self.algorithm.drain_metrics() | self.episodes.metrics()
        self._metrics = {k: v for k, v in self._metrics.items() if np.isfinite(v)}
        self.feed.published(self.version)
        self._without_checkpoint += 1
        state = b""
        if checkpoint or parent == 0 or self._without_checkpoint >= self.settings.checkpoint_every:
            self._without_checkpoint = 0
            state = state_to_bytes(self._state())
            self.keep_after = self.feed.replay_from(self.position)
        return Publication(
            self.version,
            self.position,
            snapshot.data,
            state,
            parent,
            self._metrics | self._live_metrics(),
            snapshot.architecture.model_dump_json(),
        )

    def _snapshot(self) -> Snapshot:
        snapshot = self.algorithm.policy.snapshot(
            self.algorithm.spec.name, version=self.version, epoch=self.epoch, noise=self.noise
        )
        if not (isinstance(self.feed, ReplayFeed) and self.feed.warming_up):
            return snapshot
        # Before learning starts a local run acts at random; clients come as near as they can.
        head = snapshot.architecture.head
        change: dict[str, Any] = {}
        if isinstance(head, arch.ActionValues):
            change = {"epsilon": 1.0}
        elif isinstance(head, arch.Deterministic):
            change = {"noise": max(head.noise, WARM_UP_NOISE)}
        if not change:
            return snapshot
        explores = snapshot.architecture.model_copy(update={"head": head.model_copy(update=change)})
        return make_snapshot(explores, snapshot.arrays)

    def _refuse_divergence(self) -> None:
        for name, module in self.algorithm.modules.items():
            for parameter in module.parameters():
                if not bool(torch.isfinite(parameter).all()):
                    raise AssayError(
                        f"Training diverged: the weights of '{name}' are not finite after "
                        f"{counted(self.clock.updates, 'update')}.",
                        f"{divergence_fix(self.algorithm)} The last version and its checkpoint "
                        "are intact.",
                    )

    def _live_metrics(self) -> dict[str, float]:
        clock = self.clock
        return self.feed.metrics() | {
            ENV_STEPS: float(clock.env_steps),
            UPDATES: float(clock.updates),
            EPISODES: float(clock.episodes),
            "server/bad_batches": float(self.bad_batches),
            "server/overflows": float(self.overflows),
        }

    # ------------------------------------------------------------------ building and saving

    def _make_feed(self, seed: int) -> Feed:
        settings, lag = self.settings, self.settings.max_lag
        if isinstance(self.algorithm.needs, ReplayNeeds):
            return ReplayFeed(
                self.algorithm,
                None if lag == "auto" else lag,
                seed=seed,
                publish_steps=settings.publish_steps,
            )
        recurrent = self.algorithm.initial_carry(1) is not None
        feed = SequenceFeed if recurrent else RolloutFeed
        most = ON_POLICY_LAG if lag == "auto" else lag
        return feed(self.algorithm, most, imitate=settings.imitate)

    def _state(self) -> State:
        clock = self.clock
        return {
            "algorithm": self.algorithm.state(),
            "feed": self.feed.state(),
            "episodes": self.episodes.state(),
            "noise": seeding.rng_state(self.noise),
            "learner": {
                "position": self.position,
                "version": self.version,
                "env_steps": clock.env_steps,
                "updates": clock.updates,
                "episodes": clock.episodes,
                "bad_batches": self.bad_batches,
                "overflows": self.overflows,
                "replay_from": self.feed.replay_from(self.position),
                "metrics": self._metrics,
            },
        }

    def _warm_start(self, start: Start) -> None:
        """Go on with a version's policy, where its checkpoint is lost."""
        clock, count = self.clock, start.metrics.get
        clock.env_steps, clock.updates = int(count(ENV_STEPS, 0)), int(count(UPDATES, 0))
        clock.episodes = int(count(EPISODES, 0))
        load_weights(self.algorithm, parse_snapshot(start.weights), clock.env_steps)
        if isinstance(self.feed, ReplayFeed):
            # The replay is empty, and is filled as far as it was before the first update.
            needs = self.feed.needs
            self.feed.rounds = clock.env_steps // needs.train_every

    def _load(self, state: State) -> None:
        try:
            saved = state["learner"]
            if saved["position"] != self.position:
                raise CheckpointError(
                    f"The checkpoint belongs to position {saved['position']}; the cursor is at "
                    f"{self.position}.",
                    "Start the learner with the checkpoint and cursor of one publication.",
                )
            clock = self.clock
            clock.env_steps, clock.updates = int(saved["env_steps"]), int(saved["updates"])
            clock.episodes, self.bad_batches = int(saved["episodes"]), int(saved["bad_batches"])
            self.overflows = int(saved["overflows"])
            self.algorithm.load_state(state["algorithm"])
            self.feed.load_state(state["feed"])
            self.episodes.load_state(state["episodes"])
            seeding.set_rng_state(self.noise, state["noise"])
            self._metrics = dict(saved["metrics"])
            self.keep_after = int(saved["replay_from"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"The checkpoint is not one of this learner: {error!r}."
            ) from None


def load_weights(algorithm: Algorithm, snapshot: Snapshot, seen: int) -> None:
    """Give an algorithm that has just been built the policy of a model file.

    A file has the policy alone: critics, optimizer and replay start from nothing.

    Args:
        algorithm: It must not have learned anything.
        snapshot: Of the same policy.
        seen: Observations that the file's normalisation comes from.

    Raises:
        CheckpointError: The file is not one of this policy.
    """
    modules = list(algorithm.modules.values())
    # Target networks begin as copies of what they follow, and do so again.
    copies = [
        (one, two) for one in modules for two in modules if one is not two and _same(one, two)
    ]
    acting = {id(p) for p in algorithm.policy.network.parameters()}
    try:
        algorithm.policy.load(snapshot, seen)
    except ModelError as error:
        raise CheckpointError(
            f"The model file is not one of this policy: {error.message}",
            "Use the version of Assay that published it.",
        ) from None
    for source, target in copies:
        if acting & {id(p) for p in source.parameters()}:
            target.load_state_dict(source.state_dict())


def _same(one: nn.Module, two: nn.Module) -> bool:
    own, theirs = list(one.parameters()), list(two.parameters())
    return len(own) == len(theirs) > 0 and all(map(torch.equal, own, theirs))


class LearnerHost:
    """What an executor runs: it dispatches the calls of a supervisor to a `Learner`."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Frame:
        """Answer one call.

        Raises:
            AssayError: A spec or setting cannot be used, or learning failed for a known reason.
            ValueError: The call is unknown, or comes before `start`.
        """
        method = head["method"]
        if method == START:
            self._learner = None  # its memory first
            self._learner = Learner()
            return self._learner.start(Start.from_frame(head, blobs)).to_frame()
        if self._learner is None:
            raise ValueError(f"the call '{method}' came before '{START}'")
        if method == CONSUME:
            return self._learner.consume(Consume.from_frame(head, blobs)).to_frame()
        if method == CHECKPOINT:
            publication = self._learner.checkpoint()
            if publication is None:
                return {"publication": None}, ()
            inner, parts = publication.to_frame()
            return {"publication": inner}, parts
        raise ValueError(f"the call '{method}' is unknown")
