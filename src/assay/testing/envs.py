"""Tiny environments with known answers, for tests of algorithms and loops.

Each one can be solved in seconds, and each one needs something that a broken algorithm lacks: to
use the observation (`Identity`), to bootstrap (`Corridor`, `Reach`), to remember (`Recall`).
`Counting` is for tests that write down what must come out of a collector.
"""

from __future__ import annotations

from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Observe = Literal["vector", "discrete", "image", "dict"]
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

CONTEXTS = 4
IMAGE_SIZE = 36  # the smallest image that the Nature network takes


class Identity(gym.Env[Any, Any]):
    """Show one of four contexts at random; each has one right answer, whatever was done before.

    The reward is the share of the action's parts that are right, so 1 is the best; for a Box it is
    1 less the mean distance to the answer, in half widths of the box.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary or a bounded Box.
        observe: How the context is shown: "vector" (one-hot), "discrete", "image" (a quarter of it
            is bright) or "dict" (an image and a vector, each of which shows only half).
        masked: Give action masks, which forbid a wrong choice; taking it is an error.
        length: Steps of an episode.
        truncates: Whether episodes are cut short (truncated) or end (terminated).
        saves: Whether the environment can save its state.
    """

    def __init__(
        self,
        action_space: gym.Space[Any] | None = None,
        observe: Observe = "vector",
        *,
        masked: bool = False,
        length: int = 8,
        truncates: bool = False,
        saves: bool = True,
    ) -> None:
        self.action_space = spaces.Discrete(CONTEXTS) if action_space is None else action_space
        self.observe, self.masked = observe, masked
        self.length, self.truncates = length, truncates
        self.answers = [self._answer(i) for i in range(CONTEXTS)]
        self.observation_space = _OBSERVATIONS[observe]
        self.context, self.t = 0, 0
        if saves:
            self.get_state = lambda: {"context": self.context, "t": self.t}
            self.set_state = self._set_state

    def _answer(self, context: int) -> Any:
        """Return the right action of a context; they differ as far as the space allows."""
        space = self.action_space
        if isinstance(space, spaces.Discrete):
            return space.start + context % space.n
        if isinstance(space, spaces.MultiDiscrete):
            flat = (context + np.arange(space.nvec.size)) % space.nvec.reshape(-1)
            return (flat.reshape(space.nvec.shape) + space.start).astype(space.dtype)
        if isinstance(space, spaces.MultiBinary):
            size = int(np.prod(space.shape))
            flat = np.array([(context >> (i % 2)) & 1 for i in range(size)], np.int8)
            return flat.reshape(space.shape)
        assert isinstance(space, spaces.Box)
        size = int(np.prod(space.shape))
        share = np.array([0.2 + 0.6 * ((context + i) % CONTEXTS) / 3 for i in range(size)])
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        return (low + share.reshape(space.shape) * (high - low)).astype(space.dtype)

    def _mask(self) -> np.ndarray:
        """Return the mask of the context: in every part, one choice that is wrong is forbidden."""
        space, answer = self.action_space, self.answers[self.context]
        if isinstance(space, spaces.MultiBinary):
            return np.asarray(answer, np.int8).reshape(-1)  # a bit that must be 0 may not be 1
        if isinstance(space, spaces.Discrete):
            sizes, right = [int(space.n)], [int(answer - space.start)]
        else:
            assert isinstance(space, spaces.MultiDiscrete)
            sizes = [int(n) for n in space.nvec.reshape(-1)]
            right = [int(n) for n in (answer - space.start).reshape(-1)]
        parts = []
        for size, choice in zip(sizes, right, strict=True):
            part = np.ones(size, np.int8)
            part[(choice + 1) % size] = 0
            parts.append(part)
        return np.concatenate(parts)

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        self.context = int(self.np_random.integers(CONTEXTS))
        info = {"action_mask": self._mask()} if self.masked else {}
        return show(self.context, self.observe), info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.t = 0
        return self._observe()

    def step(self, action: Any) -> StepResult:
        """Reward the action for the context that was shown, and show another."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        answer = self.answers[self.context]
        if self.masked:
            self._refuse_forbidden(np.asarray(action))
        if isinstance(self.action_space, spaces.Box):
            half = (self.action_space.high - self.action_space.low) / 2
            reward = 1.0 - float(np.mean(np.abs(action - answer) / half))
        else:
            reward = float(np.mean(np.asarray(action) == answer))
        self.t += 1
        over = self.t >= self.length
        obs, info = self._observe()
        return obs, reward, over and not self.truncates, over and self.truncates, info

    def _refuse_forbidden(self, action: np.ndarray) -> None:
        mask, space = self._mask(), self.action_space
        if isinstance(space, spaces.MultiBinary):
            forbidden = bool((action.reshape(-1) > mask).any())
        else:
            assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
            sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.reshape(-1)
            choices = (action - space.start).reshape(-1)
            starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
            forbidden = not mask[starts + choices].all()
        if forbidden:
            raise ValueError(f"the mask {mask.tolist()} forbids the action {action.tolist()}")

    def _set_state(self, state: dict[str, Any]) -> None:
        self.context, self.t = int(state["context"]), int(state["t"])


def _image() -> spaces.Box:
    return spaces.Box(0, 255, (1, IMAGE_SIZE, IMAGE_SIZE), np.uint8)


_OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": spaces.Box(0.0, 1.0, (CONTEXTS,), np.float32),
    "discrete": spaces.Discrete(CONTEXTS),
    "image": _image(),
    "dict": spaces.Dict({"image": _image(), "vector": spaces.Box(-1.0, 1.0, (1,), np.float32)}),
}


def show(context: int, observe: Observe) -> Any:
    """Return the observation of a context of `Identity`."""
    if observe == "vector":
        return np.eye(CONTEXTS, dtype=np.float32)[context]
    if observe == "discrete":
        return np.int64(context)
    row, column = divmod(context, 2)
    image = np.zeros((1, IMAGE_SIZE, IMAGE_SIZE), np.uint8)
    half = IMAGE_SIZE // 2
    if observe == "image":
        image[0, row * half : (row + 1) * half, column * half : (column + 1) * half] = 255
        return image
    image[0, row * half : (row + 1) * half] = 255
    return {"image": image, "vector": np.array([2.0 * column - 1.0], np.float32)}


class Corridor(gym.Env[Any, Any]):
    """Walk left or right; a small reward is near on the left, a large one far on the right.

    An agent that does not look ahead takes the small one. Episodes start in the second of six
    cells. The best return is 1; turning left immediately gives 0.2.

    Args:
        limit: Steps after which an episode is cut short.
    """

    cells = 6
    observation_space = spaces.Discrete(cells)
    action_space = spaces.Discrete(2)

    def __init__(self, limit: int = 20) -> None:
        self.limit = limit
        self.cell, self.t = 1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Go back to the second cell."""
        super().reset(seed=seed)
        self.cell, self.t = 1, 0
        return np.int64(self.cell), {}

    def step(self, action: Any) -> StepResult:
        """Move by one cell; both ends are terminal."""
        self.cell += 1 if action == 1 else -1
        self.t += 1
        left, right = self.cell == 0, self.cell == self.cells - 1
        reward = 1.0 if right else 0.2 if left else 0.0
        terminated = left or right
        return np.int64(self.cell), reward, terminated, not terminated and self.t >= self.limit, {}

    def get_state(self) -> dict[str, Any]:
        """Return where the walker is."""
        return {"cell": self.cell, "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the position."""
        self.cell, self.t = int(state["cell"]), int(state["t"])


class Reach(gym.Env[Any, Any]):
    """Bring a point to a goal and hold it there: continuous, and never terminal.

    The reward of a step is the negative distance *before* the move, so that an action pays off only
    later, and episodes are cut off (truncated), so that learning needs the bootstrap there. The
    bounds of the action are not symmetric: an action of 0 does not stand still.

    Args:
        size: Number of dimensions.
        limit: Steps of an episode.
    """

    low, high = -1.0, 3.0

    def __init__(self, size: int = 1, limit: int = 12) -> None:
        self.size, self.limit = size, limit
        self.observation_space = spaces.Box(-2.0, 2.0, (2 * size,), np.float32)
        self.action_space = spaces.Box(self.low, self.high, (size,), np.float32)
        self.position, self.goal = np.zeros(size), np.zeros(size)
        self.t = 0

    def _observe(self) -> np.ndarray:
        return np.concatenate([self.position, self.goal]).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Place the point and the goal at random."""
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0, self.size)
        self.goal = self.np_random.uniform(-1.0, 1.0, self.size)
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        """Move by up to 0.5 in every dimension."""
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        reward = -float(np.mean(np.abs(self.position - self.goal)))
        move = (np.asarray(action, np.float64) - (self.low + self.high) / 2) / 4.0
        self.position = np.clip(self.position + move, -2.0, 2.0)
        self.t += 1
        return self._observe(), reward, False, self.t >= self.limit, {}

    def get_state(self) -> dict[str, Any]:
        """Return point, goal and time."""
        return {"position": self.position.copy(), "goal": self.goal.copy(), "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.position, self.goal = np.array(state["position"]), np.array(state["goal"])
        self.t = int(state["t"])


class Recall(gym.Env[Any, Any]):
    """Show a cue once and ask for it later: a policy without memory is right half of the time.

    The observation is (cue or 0, whether it is asked for). The return is 1 or 0.

    Args:
        delay: Steps between the cue and the question.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay
        self.cue, self.t = 0, 0

    def _observe(self) -> np.ndarray:
        shown = 2.0 * self.cue - 1.0 if self.t == 0 else 0.0
        return np.array([shown, float(self.t == self.delay)], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a cue and show it."""
        super().reset(seed=seed)
        self.cue, self.t = int(self.np_random.integers(2)), 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        """Wait, or take the answer."""
        asked = self.t == self.delay
        reward = float(asked and action == self.cue)
        self.t += 1
        return self._observe(), reward, asked, False, {}

    def get_state(self) -> dict[str, Any]:
        """Return cue and time."""
        return {"cue": self.cue, "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.cue, self.t = int(state["cue"]), int(state["t"])


class Counting(gym.Env[Any, Any]):
    """Observe 100 * episode + t, be rewarded with t, and end after `length` steps.

    So every number in a buffer says where it came from. The environment has no `get_state`.

    Args:
        length: Steps of an episode.
        truncates: Whether episodes are cut short (truncated) or end (terminated).
        action_space: What it takes; nothing depends on the action.
    """

    observation_space = spaces.Box(0.0, 1e6, (1,), np.float32)

    def __init__(
        self,
        length: int = 3,
        truncates: bool = False,
        action_space: gym.Space[Any] | None = None,
    ) -> None:
        self.length, self.truncates = length, truncates
        self.action_space = spaces.Discrete(2) if action_space is None else action_space
        self.episode, self.t = -1, 0

    def _observe(self) -> np.ndarray:
        return np.array([100 * self.episode + self.t], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode; a seed begins with episode 0 again."""
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        """Count one step."""
        self.t += 1
        over = self.t >= self.length
        terminated, truncated = over and not self.truncates, over and self.truncates
        return self._observe(), float(self.t), terminated, truncated, {}


class Drifting(gym.Env[Any, Any]):
    """Push a point against a hidden drift; the environment cannot save its state.

    What is observed (the position) is less than what the future depends on (drift, generator).

    Args:
        discrete: Push by one of three amounts instead of by any in [-1, 1].
        limit: Steps of an episode.
    """

    observation_space = spaces.Box(-5.0, 5.0, (1,), np.float32)

    def __init__(self, discrete: bool = False, limit: int = 30) -> None:
        self.discrete, self.limit = discrete, limit
        self.action_space: gym.Space[Any] = (
            spaces.Discrete(3) if discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)
        )
        self._position, self._drift, self._t = 0.0, 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a position and a drift."""
        super().reset(seed=seed)
        self._position, self._drift = self.np_random.uniform(-1.0, 1.0, 2)
        self._t = 0
        return np.array([self._position], np.float32), {}

    def step(self, action: Any) -> StepResult:
        """Push; the drift changes at random."""
        push = float(action) - 1.0 if self.discrete else float(action[0])
        self._drift = 0.9 * self._drift + 0.3 * self.np_random.normal()
        self._position = float(np.clip(self._position + 0.3 * push + 0.1 * self._drift, -5.0, 5.0))
        self._t += 1
        terminated = abs(self._position) > 4.0
        truncated = not terminated and self._t >= self.limit
        obs = np.array([self._position], np.float32)
        return obs, -abs(self._position), terminated, truncated, {}


class BitFlip(gym.Env[Any, Any]):
    """Flip one bit at a time until a goal is spelt: the example of hindsight (arXiv:1707.01495).

    The reward is -1 until the goal is reached, which ends the episode, so a learner that never
    reaches one by chance sees nothing but -1. Both goal functions take batches.

    Args:
        bits: How many; also the steps of an episode.
        reset_goal: Whether every episode has its own goal; else all bits must be 1.
    """

    def __init__(self, bits: int = 8, reset_goal: bool = True) -> None:
        self.bits, self.reset_goal = bits, reset_goal
        some = spaces.MultiBinary(bits)
        self.observation_space = spaces.Dict(
            {"observation": some, "achieved_goal": some, "desired_goal": some}
        )
        self.action_space = spaces.Discrete(bits)
        self.state = self.goal = np.ones(bits, np.int8)
        self.t = 0

    def _observe(self) -> dict[str, np.ndarray]:
        shown = self.state.copy()
        return {"observation": shown, "achieved_goal": shown, "desired_goal": self.goal}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw the bits and a goal that differs from them."""
        super().reset(seed=seed)
        self.state = self.np_random.integers(0, 2, self.bits, np.int8)
        if self.reset_goal:
            self.goal = self.np_random.integers(0, 2, self.bits, np.int8)
        if (self.state == self.goal).all():
            self.state[0] ^= 1
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        """Flip a bit."""
        self.state[int(action)] ^= 1
        self.t += 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        terminated = bool(self.compute_terminated(self.state, self.goal, {}))
        truncated = not terminated and self.t >= self.bits
        return self._observe(), reward, terminated, truncated, {"is_success": terminated}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return 0 where the goal is reached and -1 elsewhere."""
        return -(achieved_goal != desired_goal).any(-1).astype(np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return whether the goal is reached."""
        return (achieved_goal == desired_goal).all(-1)

    def get_state(self) -> dict[str, Any]:
        """Return bits, goal and time."""
        return {"state": self.state.copy(), "goal": self.goal.copy(), "t": self.t}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.state, self.goal = (np.array(state[k], np.int8) for k in ("state", "goal"))
        self.t = int(state["t"])


class GoalPoint(gym.Env[Any, Any]):
    """Bring a point on a line to a small goal far away, in the style of Gymnasium-Robotics.

    The reward is -1 outside the goal and 0 inside; no goal ends an episode; the goals are float64.
    `compute_terminated` takes one goal at a time. The environment has no `get_state`.

    Args:
        limit: Steps of an episode.
    """

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, limit: int = 15) -> None:
        self.limit = limit
        line = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.observation_space = spaces.Dict(
            {"observation": line, "achieved_goal": line, "desired_goal": line}
        )
        self.position, self.goal = np.zeros(1), np.zeros(1)
        self.t = 0

    def _observe(self) -> dict[str, np.ndarray]:
        shown = self.position.copy()
        return {"observation": shown, "achieved_goal": shown, "desired_goal": self.goal.copy()}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Put the point into the middle, and the goal somewhere on its left or right."""
        super().reset(seed=seed)
        self.position = np.zeros(1)
        self.goal = self.np_random.uniform(1.5, 3.0, 1) * self.np_random.choice([-1.0, 1.0])
        self.t = 0
        return self._observe(), {}

    def step(self, action: Any) -> StepResult:
        """Move by up to 0.5."""
        self.position = self.position + 0.5 * np.clip(np.asarray(action, np.float64), -1.0, 1.0)
        self.t += 1
        reward = float(self.compute_reward(self.position, self.goal, {}))
        terminated = self.compute_terminated(self.position, self.goal, {})
        return (
            self._observe(),
            reward,
            terminated,
            self.t >= self.limit,
            {"is_success": reward == 0},
        )

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """Return 0 within 0.2 of the goal and -1 elsewhere."""
        return -(np.abs(achieved_goal - desired_goal)[..., 0] > 0.2).astype(np.float32)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> bool:
        """Return False: the point is to stay."""
        return False
