"""The acting half of the client: it answers, whatever happens to the rest.

`act` does no input or output, waits for no lock that a network thread holds, and never raises. It
asks, in this order: the current model, the last good one, the user's heuristic, a safe constant;
never chance. What leaves has passed the shield. What happened is recorded in a bounded outbox, from
which a `Courier` sends it.
"""

from __future__ import annotations

import operator
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from pydantic import Field

from assay.core import seeding
from assay.core.config import Model
from assay.core.errors import ConfigError
from assay.core.types import Tree, action_mask, tree_leaves
from assay.envs.spaces import ActionMap, ObservationMap
from assay.policies.description import describe_space
from assay.server.client.keeper import Loaded, ModelKeeper
from assay.server.client.outbox import Outbox, Overflow, RewardPatch, Segment, Step
from assay.server.client.shield import Flag, Shield
from assay.server.spec import MOST_LOG_PROB, MOST_VALUE

Array = np.ndarray[Any, Any]
Heuristic = Callable[[Any, Any], Any]
Mode = Literal["act", "shadow", "apprentice"]
Source = Literal["model", "last_good", "heuristic", "constant"]

_SURELY_SMALL = 0.9 * MOST_VALUE**2  # a sum of squares below it has no number beyond the limit
_ALIKE = 1e-3  # how far two numbers of an action may differ and be called the same


class ClientSettings(Model):
    """How a client acts, records and guards."""

    mode: Mode = Field("act", description="act, shadow (recommend) or apprentice (imitate first).")
    apprentice_steps: int = Field(
        1000, ge=0, description="Steps for which an apprentice follows the heuristic."
    )
    explore: bool = Field(True, description="Sample as in training, or take the best action.")
    masks: bool = Field(False, description="Whether act() is given action masks.")
    seed: int = Field(0, ge=0, description="Seed of exploration and of the reservoir.")
    model_ttl: float | None = Field(
        None, gt=0, description="Seconds without word from the server after which models rest."
    )
    batch_steps: int = Field(256, gt=0, description="Steps after which a batch is closed.")
    batch_seconds: float = Field(1.0, gt=0, description="Seconds after which a batch is closed.")
    buffer_steps: int = Field(100_000, gt=0, description="Most steps held until acknowledged.")
    overflow: Overflow = Field("drop_oldest", description="What gives when the buffer is full.")
    block_seconds: float = Field(1.0, ge=0, description="Longest wait of overflow=block.")
    max_change: float | None = Field(
        None, gt=0, description="How far a Box action may move from step to step."
    )
    hold_steps: int = Field(0, ge=0, description="Steps before a choice may change.")


class Decided(NamedTuple):
    """A decision and where it came from.

    Attributes:
        action: In the system's own units.
        event: Its number, for rewards that come late.
        source: Who chose it.
        version: Of the model that chose it; 0 if none did.
        log_prob: Of what the policy did.
        flags: Why it is not a sample of the current policy (`Flag`); 0 if it is one.
    """

    action: Any
    event: int
    source: Source
    version: int
    log_prob: float
    flags: int


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """What a client did so far.

    Attributes:
        decisions: Calls of `act`.
        sources: How many were answered by whom.
        shielded: How many the shield changed.
        errors: What went wrong inside `act`, by kind; it answered nevertheless.
        version: Of the current model, or None.
        held_steps: Steps that wait to be acknowledged.
        recorded_steps: Steps that were handed over.
        dropped_steps: Steps that the buffer's policy or bad numbers cost.
        lost_rewards: Rewards that belong to no step, or that are too large to be sent.
        late_rewards: Rewards that were sent after their step.
        agreement: In shadow or apprentice mode: share of steps at which the model would have done
            what the heuristic did; None before the first.
        rejected_models: Models that were refused.
        last_rejection: Why, of the last one.
    """

    decisions: int
    sources: dict[str, int]
    shielded: int
    errors: dict[str, int]
    version: int | None
    held_steps: int
    recorded_steps: int
    dropped_steps: int
    lost_rewards: int
    late_rewards: int
    agreement: float | None
    rejected_models: int
    last_rejection: str


class BadMaskError(ValueError):
    """A mask is not a row of flags, one for each choice. It never leaves the agent."""


class _Choice(NamedTuple):
    action: Array  # canonical, flat
    raw: Array
    log_prob: float
    version: int
    flags: int
    source: Source


class ClientAgent:
    """Acts for one controlled system. Safe to call from several threads.

    Args:
        observation: The system's observation space.
        action: Its action space.
        safe_action: What to do when nothing else can answer, in the system's own units.
        settings: How to act, record and guard.
        heuristic: `(observation, mask or None) -> action`, what the system did before; None if
            there is nothing.
        directory: Where good models are kept for the next start; None to keep none.
        limits: The lowest and highest Box actions that the system can bear, where they are
            narrower than its space.
        clock: Seconds that only grow.

    Raises:
        ConfigError: The safe action is not allowed, or settings do not go together.
        SpaceError: A space is not supported.

    Attributes:
        outbox: What waits to be sent.
        keeper: The models.
        recommendation: What the model would have done at the last decision of shadow or apprentice
            mode, in the system's own units; None if no model answered.
    """

    def __init__(
        self,
        observation: gym.Space[Any],
        action: gym.Space[Any],
        safe_action: Any,
        settings: ClientSettings | None = None,
        *,
        heuristic: Heuristic | None = None,
        directory: Path | None = None,
        limits: tuple[Array, Array] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or ClientSettings()
        self.settings = settings
        self._actions = ActionMap(action)
        mask_size = self._actions.mask_size if settings.masks else None
        self._refuse(settings, heuristic, mask_size)
        self._observations = ObservationMap(observation, mask_size)
        self._masked = action_mask(self._observations.zeros(1)) is not None
        self._heuristic = heuristic
        self._clock = clock
        # What the learner trains for and the shield lets through.
        self._allowed = _narrowed(self._actions.space, limits)
        self._shield = Shield(self._allowed, settings.max_change, settings.hold_steps)
        self._discrete = isinstance(self._actions.space, gym.spaces.Discrete)
        self._dtype: np.dtype[Any] = np.dtype(np.int64)
        if isinstance(self._actions.space, gym.spaces.Box):
            self._dtype = np.dtype(np.float32)
        elif isinstance(self._actions.space, gym.spaces.MultiBinary):
            self._dtype = np.dtype(np.int8)
        self._bounded = self._dtype.kind != "f" or self._allowed.is_bounded("both")  # type: ignore[attr-defined]
        self._safe = self._checked_safe(action, safe_action)
        self.keeper = ModelKeeper(
            describe_space(self._observations.space),
            describe_space(self._allowed),
            directory,
            clock,
        )
        derive = seeding.derive_rng
        self.outbox = Outbox(
            settings.buffer_steps, settings.overflow, derive(settings.seed, "outbox")
        )
        self._rng = derive(settings.seed, "exploration") if settings.explore else None
        # Held by those who act, record and ask; the courier and the keeper never take it.
        # A heuristic may ask the agent something while it is being asked.
        self._lock = threading.RLock()
        self._acting: Loaded | None = None  # the current model, as far as acting has adopted it
        self._pending: Step | None = None
        self._open: list[Step] = []
        self._open_since = 0.0
        self._by_event: dict[int, Step] = {}
        self._place = (0, 0)  # episode and step of the first open step
        self._episode = self._step = 0
        self._event = 0
        self.recommendation: Any = None
        self._sources: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._shielded = self._unrecorded = self._lost_rewards = self._late_rewards = 0
        self._agreed = self._compared = 0

    # ------------------------------------------------------------------ acting

    def act(self, obs: Any, mask: Any = None) -> Any:
        """Return an action for one observation, always; see `Connection.act`."""
        return self.decide(obs, mask).action

    def decide(self, obs: Any, mask: Any = None) -> Decided:
        """Return an action and where it came from; like `act`, it never raises."""
        try:
            with self._lock:
                return self._decide(obs, mask)
        except Exception as error:
            self._cut_record()
            return self._last_resort(error)
        except BaseException:  # such as Ctrl-C, anywhere in between
            self._cut_record()
            raise

    def reward(self, reward: float, event: int | None = None) -> bool:
        """Add a reward to the latest decision, or to the one with a number.

        Returns:
            Whether it belongs to a step; False if there is none, or the sum is beyond `MOST_VALUE`.
        """
        try:
            value = float(reward)
            with self._lock:
                kept = abs(value) <= MOST_VALUE and self._reward(value, event)
                self._lost_rewards += not kept
        except Exception as error:
            self._errors[type(error).__name__] += 1
            return False
        self._wait_if_asked()
        return kept

    def end(
        self,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final_obs: Any = None,
        final_mask: Any = None,
    ) -> bool:
        """End the episode.

        Args:
            terminated: It ended by itself: there is no value after it.
            truncated: It was cut off. If `terminated` is False, this is what is meant.
            final_obs: The observation after the last action, which a truncated episode needs.
            final_mask: Which choices are valid there; all of them without it.

        Returns:
            Whether the last step could be recorded.
        """
        try:
            with self._lock:
                kept = self._end(bool(terminated), bool(truncated), final_obs, final_mask)
        except Exception as error:
            self._errors[type(error).__name__] += 1
            return False
        self._wait_if_asked()
        return kept

    def flush(self) -> None:
        """Hand over the steps that are complete, however few."""
        with self._lock:
            if self._open:
                last = self._open[-1]
                goes_on = not (last.terminated or last.truncated)
                self._close(self._pending.obs if goes_on and self._pending else None)

    def after_fork(self) -> None:
        """Act on in a child process, and record nothing: what was recorded is the parent's."""
        self._lock = threading.RLock()  # another thread may have held it when the process forked
        self.outbox.closed = True
        self._open, self._by_event, self._pending = [], {}, None
        for loaded in (self._acting, self.keeper.current, self.keeper.last_good):
            if loaded is not None:
                loaded.policy.reset()

    def status(self) -> ClientStatus:
        """Return what happened so far."""
        with self._lock:
            current, box = self.keeper.current, self.outbox
            return ClientStatus(
                decisions=self._event,
                sources=dict(self._sources),
                shielded=self._shielded,
                errors=dict(self._errors),
                version=None if current is None else current.version,
                held_steps=box.held_steps,
                recorded_steps=box.offered_steps,
                dropped_steps=box.dropped_steps + self._unrecorded,
                lost_rewards=self._lost_rewards,
                late_rewards=self._late_rewards,
                agreement=self._agreed / self._compared if self._compared else None,
                rejected_models=self.keeper.rejected,
                last_rejection=self.keeper.last_rejection,
            )

    # ------------------------------------------------------------------ deciding

    def _decide(self, obs: Any, mask: Any) -> Decided:
        self._event += 1
        event, now = self._event, self._clock()
        tree: Tree = None
        try:
            mask = self._checked_mask(mask)
            tree = self._observations.one(obs, mask if self.settings.masks else None)
            inside = action_mask(tree) if self._masked and mask is None else None
            if inside is not None:
                mask = self._checked_mask(inside[0])
        except BadMaskError:
            # Whatever was chosen might be forbidden: what is safe at any time is the answer.
            self._errors["BadMaskError"] += 1
            mask = None
            choice = self._constant(Flag.FALLBACK)
        except Exception as error:  # nothing about an observation may stop the system
            self._errors[type(error).__name__] += 1
            choice = self._choose(None, obs, mask, now)
        else:
            choice = self._choose(tree, obs, mask, now)
        action, shield_flags = self._shielded_action(choice, mask)
        if tree is not None and not (
            _can_be_sent(tree)
            and abs(choice.log_prob) <= MOST_LOG_PROB
            and (self._bounded or _can_be_sent(action))
        ):
            tree = None  # the server would refuse the whole batch for it
        flags = choice.flags | shield_flags
        if mask is not None and not self._masked:
            flags |= Flag.MASK  # the learner does not see this mask
        self._shielded += bool(shield_flags)
        self._sources[choice.source] += 1
        self._record(tree, action, choice, flags, event, now)
        return Decided(
            self._to_system(action), event, choice.source, choice.version, choice.log_prob, flags
        )

    def _checked_mask(self, mask: Any) -> Array | None:
        """Return a mask as flags, None where there is none."""
        if mask is None:
            return None
        flags = np.asarray(mask)
        if flags.shape != (self._actions.mask_size,) or flags.dtype.kind not in "biu":
            raise BadMaskError
        valid: Array = flags != 0
        return valid

    def _choose(self, tree: Tree, obs: Any, mask: Any, now: float) -> _Choice:
        """Ask the chain: current model, last good one, heuristic, constant."""
        settings = self.settings
        imitates = settings.mode == "shadow" or (
            settings.mode == "apprentice" and self._event <= settings.apprentice_steps
        )
        choice = None if tree is None else self._ask_models(tree, mask, now)
        if not imitates:
            if choice is not None:
                return choice
            return self._ask_heuristic(obs, mask, Flag.FALLBACK) or self._constant(Flag.FALLBACK)
        own = self._ask_heuristic(obs, mask, Flag.HEURISTIC) or self._constant(Flag.HEURISTIC)
        self.recommendation = None
        if choice is not None:
            self.recommendation = self._to_system(choice.action)
            self._compared += 1
            self._agreed += bool((np.abs(choice.action - own.action) <= _ALIKE).all())
        return own

    def _ask_models(self, tree: Tree, mask: Any, now: float) -> _Choice | None:
        self._adopt()
        ttl = self.settings.model_ttl
        for loaded, source in ((self._acting, "model"), (self.keeper.last_good, "last_good")):
            if loaded is None or (ttl is not None and now - loaded.fresh_at > ttl):
                continue
            policy = loaded.policy
            try:
                action, log_prob = policy.act(tree, mask, self._rng)
            except Exception as error:
                self._errors[type(error).__name__] += 1
                continue
            if self._discrete:
                flat = raw = np.array([action], np.int64)
            else:
                flat, raw = action, policy.raw
            flags = 0 if source == "model" else Flag.FALLBACK
            name: Source = "model" if source == "model" else "last_good"
            return _Choice(flat, raw, log_prob, loaded.version, int(flags), name)
        return None

    def _adopt(self) -> None:
        """Take over a new current model; a memory is not changed in the middle of an episode."""
        newest = self.keeper.current
        if newest is self._acting:
            return
        acting = self._acting
        remembers = newest is not None and newest.policy.architecture.recurrent
        remembers = remembers or (acting is not None and acting.policy.architecture.recurrent)
        if self._pending is not None and acting is not None and remembers:
            return
        if newest is not None:
            newest.policy.reset()
        self._acting = newest

    def _ask_heuristic(self, obs: Any, mask: Any, flag: Flag) -> _Choice | None:
        if self._heuristic is None:
            return None
        try:
            flat = self._to_canonical(self._heuristic(obs, mask))
        except Exception as error:
            self._errors[type(error).__name__] += 1
            return None
        return _Choice(flat, flat, 0.0, 0, int(flag), "heuristic")

    def _constant(self, flag: Flag) -> _Choice:
        return _Choice(self._safe, self._safe, 0.0, 0, int(flag), "constant")

    def _shielded_action(self, choice: _Choice, mask: Any) -> tuple[Array, int]:
        try:
            return self._shield.apply(choice.action, mask)
        except Exception as error:  # a heuristic's nonsense, or a mask of another length
            self._errors[type(error).__name__] += 1
            return self._safe, int(Flag.BOUNDS)

    def _last_resort(self, error: Exception) -> Decided:
        """Answer when something failed that nobody thought of."""
        self._errors[type(error).__name__] += 1
        self._sources["constant"] += 1
        return Decided(self._to_system(self._safe), 0, "constant", 0, 0.0, int(Flag.FALLBACK))

    # ------------------------------------------------------------------ recording

    def _record(
        self, tree: Tree, action: Array, choice: _Choice, flags: int, event: int, now: float
    ) -> None:
        """Complete the step before, whose successor has come, and begin a new one."""
        if tree is None:
            # A step that cannot be sent: the one before lacks its successor, so it goes as well,
            # and its own observation is what the rest bootstraps from.
            # Their numbers are left out, so that nobody takes what comes next for what followed.
            self._unrecorded += 1
            if self._pending is not None:
                self._unrecorded += 1
                self._forget_pending()
            self._step += 1
            return
        self._complete(tree, now)
        raw = choice.raw
        if not self._discrete:  # one choice is [1] already
            action, raw = action[None], raw[None]
        step = Step(tree, action, raw, choice.log_prob, choice.version, flags, event)
        self._pending = step
        self._by_event[event] = step

    def _complete(self, following: Tree, now: float) -> None:
        """Put the pending step among the open ones; close them if there are enough."""
        step, self._pending = self._pending, None
        if step is None:
            return
        if not self._open:
            self._place, self._open_since = (self._episode, self._step), now
        self._open.append(step)
        self._step += 1
        settings = self.settings
        if (
            len(self._open) >= settings.batch_steps
            or now - self._open_since >= settings.batch_seconds
        ):
            ended = step.terminated or step.truncated
            self._close(None if ended else following, waits=settings.overflow == "block")

    def _close(self, bootstrap: Tree, waits: bool = False) -> None:
        """Hand the open steps over as one segment.

        Args:
            bootstrap: The observation after the last of them, where its episode goes on.
            waits: Keep them open while there is no room, up to the size of the buffer: it is for
                `reward` and `end` to wait, not for `act`.
        """
        steps = self._open
        if waits and not self.outbox.has_room(len(steps)) and len(steps) < self.outbox.capacity:
            return
        episode, start = self._place
        self.outbox.offer(Segment(tuple(steps), episode, start, bootstrap))
        self._open = []
        self._by_event = {}
        if self._pending is not None:
            self._by_event[self._pending.event] = self._pending

    def _forget_pending(self) -> None:
        step, self._pending = self._pending, None
        if step is None:
            return
        self._by_event.pop(step.event, None)
        if self._open:
            last = self._open[-1]
            self._close(None if last.terminated or last.truncated else step.obs)
        self._step += 1

    def _cut_record(self) -> None:
        """Give up what is not handed over yet: it may be half written.

        What comes next must not pass for what followed it.
        """
        with self._lock:
            self._unrecorded += len(self._open) + (self._pending is not None)
            self._open, self._by_event, self._pending = [], {}, None
            self._step += 2  # the decision that failed, and the one that may have waited for it

    def _begin_episode(self) -> None:
        self._episode += 1
        self._step = 0

    def _reward(self, value: float, event: int | None) -> bool:
        event = None if event is None else operator.index(event)  # 2.5 is the number of nothing
        step = self._pending if event is None else self._by_event.get(event)
        if step is not None:
            total = step.reward + value
            if abs(total) > MOST_VALUE:
                return False
            step.reward = total
            return True
        if event is None or not 0 < event <= self._event:
            return False
        self._late_rewards += 1
        return self.outbox.offer(RewardPatch(event, value))

    def _end(self, terminated: bool, truncated: bool, final_obs: Any, final_mask: Any) -> bool:
        for loaded in (self._acting, self.keeper.last_good):
            if loaded is not None:
                loaded.policy.reset()
        step = self._pending
        if step is None:
            if self._step:  # its last step could not be recorded
                self._begin_episode()
            return False
        if not terminated:
            step.final = self._final(final_obs, final_mask)
            if step.final is None:
                self._errors["NoFinalObservation"] += 1
                self._unrecorded += 1
                self._forget_pending()
                self._begin_episode()
                return False
        step.terminated, step.truncated = terminated, truncated or not terminated
        self._complete(None, self._clock())
        self._begin_episode()
        return True

    def _final(self, obs: Any, mask: Any) -> Tree:
        """Return the observation after a truncated step, or None if it is of no use."""
        if obs is None:
            return None
        try:
            mask = self._checked_mask(mask) if self.settings.masks else None
            tree = self._observations.one(obs, mask)
        except Exception as error:
            self._errors[type(error).__name__] += 1
            return None
        return tree if _can_be_sent(tree) else None

    def _wait_if_asked(self) -> None:
        """With overflow=block: wait outside the lock until what is open finds room."""
        settings = self.settings
        if settings.overflow != "block" or len(self._open) < settings.batch_steps:
            return
        self.outbox.wait_for_room(len(self._open), settings.block_seconds)

    # ------------------------------------------------------------------ units

    def _to_system(self, flat: Array) -> Any:
        """Return a canonical action in the system's own units."""
        to_env = self._actions.to_env
        if self._discrete:
            value = int(flat[0])
            return value if to_env is None else int(to_env(np.array([value]))[0])
        return flat.copy() if to_env is None else to_env(flat[None])[0]

    def _to_canonical(self, action: Any) -> Array:
        """Return an action of the system as a flat canonical one."""
        space = self._actions.source
        flat = np.asarray(action).reshape(-1)
        if flat.dtype.kind not in "iufb":
            raise ValueError(f"{action!r} is not an action of {space}.")
        if isinstance(space, gym.spaces.Discrete):
            flat = flat - int(space.start)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            flat = flat - space.start.reshape(-1)
        size = int(np.prod(self._actions.space.shape or ()))
        whole = self._dtype.kind != "f"
        if (
            flat.shape != (size,)
            or not np.isfinite(flat).all()
            or (whole and (flat != np.floor(flat)).any())
        ):
            raise ValueError(f"{action!r} is not an action of {space}.")
        return flat.astype(self._dtype)

    def _checked_safe(self, space: gym.Space[Any], action: Any) -> Array:
        try:
            flat = self._to_canonical(action)
            inside = self._actions.space.contains(
                flat[0] if self._discrete else flat.astype(self._actions.space.dtype)
            )
        except (TypeError, ValueError):
            inside = False
        if not inside:
            raise ConfigError(
                f"safe_action={action!r} is not in the action space {space}.",
                "Give an action that is safe at any time.",
            )
        if self._dtype.kind == "f" and not self._allowed.contains(flat):
            raise ConfigError(
                f"safe_action={action!r} is outside the bounds of the action.",
                "Give an action within the bounds, or wider bounds.",
            )
        flat.flags.writeable = False
        return flat

    @staticmethod
    def _refuse(
        settings: ClientSettings, heuristic: Heuristic | None, mask_size: int | None
    ) -> None:
        if settings.mode != "act" and heuristic is None:
            raise ConfigError(
                f"mode={settings.mode} needs a heuristic that acts meanwhile; there is none.",
                "Pass heuristic=..., or use mode=act.",
            )
        if settings.masks and mask_size is None:
            raise ConfigError(
                "masks=true, but Box actions have no masks.", "Leave masks out of the settings."
            )
        if settings.batch_steps > settings.buffer_steps:
            raise ConfigError(
                f"batch_steps={settings.batch_steps} is more than "
                f"buffer_steps={settings.buffer_steps}: no batch would fit.",
                "Choose a larger buffer_steps or a smaller batch_steps.",
            )


def _can_be_sent(tree: Tree) -> bool:
    """Return whether all numbers of an observation or action are within the limits of the wire."""
    for leaf in tree_leaves(tree):
        # The quick question first: this is on the way of every decision.
        if (
            leaf.dtype.kind == "f"
            and not np.vdot(leaf, leaf) <= _SURELY_SMALL
            and not (np.abs(leaf) <= MOST_VALUE).all()
        ):
            return False
    return True


def _narrowed(space: gym.Space[Any], limits: tuple[Array, Array] | None) -> gym.Space[Any]:
    """Return a canonical action space within tighter limits."""
    if limits is None:
        return space
    if not isinstance(space, gym.spaces.Box):
        raise ConfigError(
            "Bounds are for Box actions; these are choices.", "Use action masks instead."
        )
    low, high = (np.asarray(limit, np.float32).reshape(-1) for limit in limits)
    return gym.spaces.Box(np.maximum(space.low, low), np.minimum(space.high, high))
