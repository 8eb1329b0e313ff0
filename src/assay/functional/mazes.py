"""Mazes on a square grid: the way through, levels as numbers, and drawing levels step by step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.core.types import ACTION_MASK, State

MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]])  # up, right, down, left
_BITS = 48  # of a number that a float64 holds exactly


def distances(walls: np.ndarray, goal: int) -> np.ndarray:
    """Return the steps from every cell of a grid to the goal, -1 where it cannot be reached."""
    size = len(walls)
    found = np.full(walls.shape, -1)
    found[divmod(goal, size)] = 0
    edge, steps = [divmod(goal, size)], 0
    while edge:
        steps += 1
        beyond = []
        for y, x in edge:
            for dy, dx in MOVES.tolist():
                place = (y + dy, x + dx)
                inside = 0 <= place[0] < size and 0 <= place[1] < size
                if inside and not walls[place] and found[place] < 0:
                    found[place] = steps
                    beyond.append(place)
        edge = beyond
    return found


def picture(walls: np.ndarray, start: int, goal: int) -> str:
    """Return a maze as text: # is a wall, A where the agent is, G the goal."""
    cells = np.where(walls, "#", ".").reshape(-1)
    cells[goal] = "G"
    cells[start] = "A"
    return "\n".join("".join(line) for line in cells.reshape(walls.shape))


def word_count(cells: int, bits: int = 1) -> int:
    """Return how many numbers hold `bits` of every cell."""
    return -(-cells // (_BITS // bits))


def to_words(cells: np.ndarray, bits: int = 1) -> np.ndarray:
    """Return cells [N, C], each below 2^bits, as whole numbers in float64 [N, words]."""
    rows, count = cells.shape
    each, words = _BITS // bits, word_count(count, bits)
    padded = np.zeros((rows, words * each), np.int64)
    padded[:, :count] = cells
    weight = 1 << (bits * np.arange(each, dtype=np.int64))
    return (padded.reshape(rows, words, each) * weight).sum(2).astype(np.float64)


def from_words(words: np.ndarray, cells: int, bits: int = 1) -> np.ndarray:
    """Return the cells [N, C] that `to_words` was given."""
    shift = bits * np.arange(_BITS // bits, dtype=np.int64)
    found = (words.astype(np.int64)[:, :, None] >> shift) & ((1 << bits) - 1)
    return found.reshape(len(words), -1)[:, :cells]


def level_names(size: int) -> list[str]:
    """Return the names of the parameters that hold a level: its ends, and its walls as numbers.

    The size is in the first, so that a level is not taken for one of another size.
    """
    return [f"ends_{size}", *(f"cells_{i}" for i in range(word_count(size * size)))]


@dataclass(frozen=True, slots=True)
class Levels:
    """N mazes.

    Attributes:
        walls: [N, size, size] bool.
        start: [N] cells, counted by rows.
        goal: [N] cells.
    """

    walls: np.ndarray
    start: np.ndarray
    goal: np.ndarray

    def parameters(self) -> dict[str, np.ndarray]:
        """Return them as parameters [N] of `assay/Maze-v0` by name."""
        count, size = self.walls.shape[:2]
        words = to_words(self.walls.reshape(count, -1))
        ends = (self.start * size * size + self.goal).astype(np.float64)
        return dict(zip(level_names(size), [ends, *words.T], strict=True))

    def paths(self) -> np.ndarray:
        """Return the steps of the shortest ways [N]; -1 where there is none."""
        pairs = zip(self.walls, self.start.tolist(), self.goal.tolist(), strict=True)
        found = [distances(walls, goal).reshape(-1)[start] for walls, start, goal in pairs]
        return np.array(found, np.int64)

    def statistics(self) -> dict[str, float]:
        """Return the share that can be solved, how far their goals are, and how many walls are."""
        paths = self.paths()
        solvable = paths >= 0
        far = float(paths[solvable].mean()) if solvable.any() else 0.0
        walls = float(self.walls.sum((1, 2)).mean())
        return {"solvable": float(solvable.mean()), "path_length": far, "walls": walls}

    def pictures(self) -> list[str]:
        """Return them as text."""
        pairs = zip(self.walls, self.start.tolist(), self.goal.tolist(), strict=True)
        return [picture(*one) for one in pairs]

    def repeated(self, times: int) -> Levels:
        """Return all of them so many times, one after the other."""
        return Levels(*(np.concatenate([x] * times) for x in (self.walls, self.start, self.goal)))


class Gallery:
    """A few mazes from each tenth of a run, for pictures of how they change."""

    parts, kept = 10, 4

    def __init__(self) -> None:
        self.levels: list[Levels] = []

    def show(self, levels: Levels, progress: float) -> None:
        """Keep the first few of some mazes, if the next part of the run has begun."""
        if len(self.levels) <= int(progress * self.parts):
            some = slice(None, self.kept)
            few = Levels(levels.walls[some], levels.start[some], levels.goal[some])
            self.levels += [few] * (int(progress * self.parts) + 1 - len(self.levels))

    def state(self) -> State:
        """Return what is kept, as arrays [parts, mazes, ...]."""
        return {
            name: np.array([getattr(levels, name) for levels in self.levels])
            for name in ("walls", "start", "goal")
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        columns = (state["walls"], state["start"], state["goal"])
        self.levels = [Levels(*(np.array(x) for x in one)) for one in zip(*columns, strict=True)]


class Canvas:
    """N mazes that are drawn together: first the start, then the goal, then wall after wall.

    An action is a cell. The goal cannot be put on the start, nor a wall on either (the mask says
    so); a wall on a wall changes nothing, so that a maze may have fewer walls than steps.

    Args:
        count: N.
        size: Cells of a side.
        walls: Steps in which a wall is put.
        noise: [N, Z] what the one who draws is shown, so that mazes can differ.

    Attributes:
        steps: How many actions a maze takes.
    """

    def __init__(self, count: int, size: int, walls: int, noise: np.ndarray) -> None:
        self.count, self.size, self.noise = count, size, noise
        self.steps = walls + 2
        self._at = 0
        # Walls, start and goal as one plane each.
        self._planes = np.zeros((count, 3, size * size), np.float32)
        self._rows = np.arange(count)

    def seen(self) -> dict[str, np.ndarray]:
        """Return what is drawn so far, the share of steps that are over, noise, and the mask."""
        flat = self._planes.reshape(self.count, -1)
        over = np.full((self.count, 1), self._at / self.steps, np.float32)
        taken = self._planes[:, 1] + self._planes[:, 2]
        drawn = np.concatenate([flat, over, self.noise], 1)
        return {"drawn": drawn, ACTION_MASK: (taken == 0).astype(np.int8)}

    def put(self, cells: np.ndarray) -> None:
        """Take an action [N] in every maze."""
        self._planes[self._rows, (1, 2, 0)[min(self._at, 2)], cells] = 1.0
        self._at += 1

    def levels(self) -> Levels:
        """Return the mazes; all steps must be over."""
        walls = self._planes[:, 0].reshape(self.count, self.size, self.size) > 0
        return Levels(walls, self._planes[:, 1].argmax(1), self._planes[:, 2].argmax(1))
