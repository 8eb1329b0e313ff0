"""Mazes with names, to try agents in that never saw them: the kinds of Dennis et al. 2020.

The drawings are our own. # is a wall, A where the agent begins, G the goal.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

FOUR_ROOMS = """
A.....#......
......#......
.............
......#......
......#......
......#......
##.######.###
......#......
......#......
......#......
.............
......#......
......#.....G
"""
SIXTEEN_ROOMS = """
A..#..#..#...
......#......
...#.....#...
#.##.##.###.#
...#..#......
......#..#...
#.###.#.##.##
...#..#..#...
.............
#.##.###.##.#
...#..#......
.........#...
...#..#..#..G
"""
CORRIDOR = """
.#.#.#.#.#G#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
A............
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
.#.#.#.#.#.#.
"""
LABYRINTH = """
.............
############.
...........#.
.#########.#.
.#.......#.#.
.#.#####.#.#.
.#.#..G#.#.#.
.#.#.###.#.#.
.#.#.....#.#.
.#.#######.#.
.#.........#.
.###########.
A............
"""
ZIGZAG = """
A............
############.
.............
.############
.............
############.
.............
.############
.............
############.
.............
.############
............G
"""
DRAWINGS = {
    "four_rooms": FOUR_ROOMS,
    "sixteen_rooms": SIXTEEN_ROOMS,
    "corridor": CORRIDOR,
    "labyrinth": LABYRINTH,
    "zigzag": ZIGZAG,
}


@lru_cache
def drawn(name: str) -> tuple[np.ndarray, int, int]:
    """Return the walls [size, size], the start and the goal of a maze by its name."""
    cells = np.array([list(line) for line in DRAWINGS[name].split()])
    flat = cells.reshape(-1)
    return cells == "#", int((flat == "A").argmax()), int((flat == "G").argmax())
