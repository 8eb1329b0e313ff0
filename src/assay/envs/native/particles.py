"""Two tasks of the particle world (arXiv:1706.02275), batched in NumPy, equal to MPE2's.

Copy `i` of a reset with `seed` is what MPE2 gives for `seed + i`, in every step and after every
reset: the same draws in the same order, and the same operations on float64.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.envs.arguments import require_integer
from assay.envs.native.team import NativeTeam

DT = 0.1
DAMPING = 0.25
SENSITIVITY = 5.0
CONTACT_FORCE = 1e2
CONTACT_MARGIN = 1e-3
AGENT_SIZE = 0.15  # radius in simple_spread

# Nothing, left, right, down, up: as forces.
_PUSHES = np.array([[0.0, -1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0, 1.0]]) * SENSITIVITY
# The landmarks' colours in simple_speaker_listener; one of them is what the speaker sees.
_COLOURS = np.array([[0.65, 0.15, 0.15], [0.15, 0.65, 0.15], [0.15, 0.15, 0.65]])
_FOREVER = 2**62


def _limit(max_cycles: int, max_episode_steps: int) -> int:
    require_integer("max_cycles", max_cycles)
    return min(max_cycles, max_episode_steps)


def _forces(actions: NDArray[Any]) -> NDArray[np.float64]:
    """Return the forces [2, ...] of movers' actions: [...] choices, or [..., 5] numbers.

    Of numbers, opposite directions are subtracted from each other.
    """
    if actions.dtype.kind in "iu":
        return _PUSHES.take(actions, 1)
    pushes = np.clip(actions, 0.0, 1.0)
    net = np.stack([pushes[..., 2] - pushes[..., 1], pushes[..., 4] - pushes[..., 3]])
    return net.astype(np.float64) * SENSITIVITY


def _move(position: NDArray[Any], velocity: NDArray[Any], force: NDArray[Any]) -> None:
    """Make one step in place: the old velocity moves, the force changes it."""
    position += velocity * DT
    velocity *= 1 - DAMPING
    velocity += force * DT


def _length(gap: NDArray[Any]) -> NDArray[Any]:
    """Return the lengths [...] of vectors [2, ...]."""
    square = gap * gap
    return np.sqrt(square[0] + square[1])


class SimpleSpread(NativeTeam):
    """simple_spread_v3: N agents cover N landmarks, without bumping into each other.

    Observation of an agent: its velocity and position, where landmarks and other agents are from
    there, and what the others say, which is nothing (zeros). Reward: `local_ratio` times -1 for
    each collision of its own, and the rest times minus the sum of every landmark's distance to its
    nearest agent.
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = _FOREVER,
        N: int = 3,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ) -> None:
        require_integer("N", N)
        if not 0.0 <= local_ratio <= 1.0:
            raise EnvError(f"local_ratio is {local_ratio!r}; a share from 0 to 1 was expected.")
        action: Space[Any] = Box(0.0, 1.0, (5,), np.float32) if continuous_actions else Discrete(5)
        width = 4 + 2 * N + 4 * (N - 1)
        agents = {f"agent_{i}": (width, action) for i in range(N)}
        limit = _limit(max_cycles, max_episode_steps)
        # Positions of agents and landmarks, and velocities of agents: [3 N, 2].
        super().__init__(num_envs, limit, agents, variables=6 * N, state=N * width)
        self.count, self.local_ratio, self._width = N, local_ratio, width
        # Bodies are the agents and then the landmarks.
        self._pairs = list(itertools.combinations(range(N), 2))
        gaps = [(i, N + j) for i in range(N) for j in range(N)] + self._pairs
        self._ends = np.array(gaps, np.int64).T  # [2, N * N + pairs]
        shown = [[*range(N, 2 * N), *(j for j in range(N) if j != i)] for i in range(N)]
        self._shown = np.array(shown, np.int64).T  # [2 N - 1, N], to each agent

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        n = self.count
        return np.concatenate([rng.uniform(-1, +1, 4 * n), np.zeros(2 * n)])

    def _parts(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return where bodies are [2, 2 N, rows], and the velocities of agents [2, N, rows].

        Rows come last, and lie one behind the other: there are more of them than of all else.
        """
        n = self.count
        parts = variables.T.reshape(3 * n, 2, len(variables)).swapaxes(0, 1)
        return parts[:, : 2 * n], parts[:, 2 * n :]

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        bodies, velocity = self._parts(self._variables)
        n, force = self.count, _forces(actions.swapaxes(0, 1))
        one, two = self._ends
        if self._pairs:
            gap = bodies.take(one[n * n :], 1) - bodies.take(two[n * n :], 1)
            distance = _length(gap)  # [pairs, rows]
            # How deep two agents are in each other, softly.
            depth = np.logaddexp(0, (2 * AGENT_SIZE - distance) / CONTACT_MARGIN) * CONTACT_MARGIN
            push = CONTACT_FORCE * gap / distance * depth
            for pair, (i, j) in enumerate(self._pairs):
                force[:, i] += push[:, pair]
                force[:, j] -= push[:, pair]
        _move(bodies[:, :n], velocity, force)
        distance = _length(bodies.take(one, 1) - bodies.take(two, 1))
        # [agents, landmarks, rows] to [landmarks, rows]
        nearest = distance[: n * n].reshape(n, n, -1).min(0)
        common = -nearest[0]
        for landmark in nearest[1:]:
            common -= landmark
        reward = np.repeat(common[:, None] * (1 - self.local_ratio), n, 1)
        bumped = distance[n * n :] < 2 * AGENT_SIZE
        if np.count_nonzero(bumped):
            own = np.zeros((n, self.num_envs))
            for (i, j), both in zip(self._pairs, bumped, strict=True):
                own[i] -= both
                own[j] -= both
            reward += own.T * self.local_ratio
        return reward, np.zeros(self.num_envs, np.bool_)

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        bodies, velocity = self._parts(variables)
        rows, n = len(variables), self.count
        place = bodies[:, :n]
        seen = np.zeros((rows, n, self._width), np.float32)  # the last ones are silence
        vectors = seen.reshape(rows, n, -1, 2).T  # [2, width / 2, N, rows]
        vectors[:, 0], vectors[:, 1] = velocity, place
        shown = bodies.take(self._shown, 1)  # [2, 2 N - 1, N, rows]
        np.subtract(shown, place[:, None], out=vectors[:, 2 : 1 + 2 * n], casting="same_kind")
        return seen, seen.reshape(rows, -1)


class SimpleSpeakerListener(NativeTeam):
    """simple_speaker_listener_v4: one sees which landmark is meant, the other has to go there.

    The speaker sees the colour of the landmark and says one of three words. The listener sees its
    velocity, where the landmarks are from there, and the word that was said. Both get minus the
    squared distance between listener and landmark.
    """

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = _FOREVER,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ) -> None:
        choices: tuple[Space[Any], ...] = (Discrete(3), Discrete(5))
        if continuous_actions:
            choices = tuple(Box(0.0, 1.0, (n,), np.float32) for n in (3, 5))
        agents = {"speaker_0": (3, choices[0]), "listener_0": (11, choices[1])}
        limit = _limit(max_cycles, max_episode_steps)
        # The landmark that is meant, the listener's place and velocity, the landmarks, the word.
        super().__init__(num_envs, limit, agents, variables=14, state=14)

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        goal = float(rng.integers(3))
        draws = rng.uniform(-1, +1, 10)  # the speaker's place, which nobody sees, comes first
        return np.concatenate([[goal], draws[2:4], np.zeros(2), draws[4:], np.zeros(3)])

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        state = self._variables
        force = _forces(actions[:, 1]).T
        if actions.dtype.kind in "iu":
            state[:, 11:] = np.eye(3)[actions[:, 0]]
        else:
            state[:, 11:] = np.clip(actions[:, 0, :3], 0.0, 1.0)
        _move(state[:, 1:3], state[:, 3:5], force)
        goal = state[:, 0].astype(np.int64)
        landmark = state[:, 5:11].reshape(-1, 3, 2)[np.arange(len(state)), goal]
        reward = -np.square(state[:, 1:3] - landmark).sum(-1)
        return np.repeat(reward[:, None], 2, 1), np.zeros(self.num_envs, np.bool_)

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        rows = len(variables)
        colour = _COLOURS[variables[:, 0].astype(np.int64)]
        landmarks = variables[:, 5:11].reshape(-1, 3, 2) - variables[:, None, 1:3]
        heard = [variables[:, 3:5], landmarks.reshape(rows, 6), variables[:, 11:]]
        seen = np.zeros((rows, 2, 11), np.float32)
        seen[:, 0, :3] = colour
        seen[:, 1] = np.concatenate(heard, 1)
        return seen, np.concatenate([seen[:, 0, :3], seen[:, 1]], 1)
