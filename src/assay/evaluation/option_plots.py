"""Draw which option of an agent acts where: a map of a grid, else a timeline of each episode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.types import DRAWN, OPTION
from assay.evaluation.evaluate import Agent, episode_seed, played_steps
from assay.evaluation.plots import COLOURS, FAINT, INK, check_suffix, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from assay.envs.vector import Vector

_MOST_STEPS = 1_000
_MOST_LINES = 12  # episodes in a timeline


class OptionEpisode(NamedTuple):
    """One episode.

    Attributes:
        option: [T], which one acted.
        chosen: [T], whether it was chosen at this step.
        place: [T, 2], line and column of the agent in its grid; None where there is no grid.
    """

    option: NDArray[np.int64]
    chosen: NDArray[np.bool_]
    place: NDArray[np.int64] | None


def play_options(
    agent: Agent, vector: Vector, *, episodes: int, seed: int = 0
) -> list[OptionEpisode]:
    """Play episodes, and return which options acted in them.

    Raises:
        ConfigError: The agent has no options.
    """
    found: list[OptionEpisode] = []
    while len(found) < episodes:
        wanted = min(vector.num_envs, episodes - len(found))
        found += _play_round(agent, vector, episode_seed(seed, len(found)), wanted)
    return found


def _play_round(agent: Agent, vector: Vector, first_seed: int, wanted: int) -> list[OptionEpisode]:
    taken: list[list[int]] = [[] for _ in range(wanted)]
    chosen: list[list[bool]] = [[] for _ in range(wanted)]
    places: list[list[Any]] = [[] for _ in range(wanted)]
    for step in played_steps(agent, vector, first_seed, wanted, explore=False, limit=_MOST_STEPS):
        if OPTION not in step.extras:
            raise ConfigError("This agent has no options to draw.", "Draw a run of option_critic.")
        cells = _cells(step.obs)
        for row in np.flatnonzero(step.playing).tolist():
            taken[row].append(int(step.extras[OPTION][row].argmax()))
            chosen[row].append(bool(step.extras[DRAWN][row]))
            if cells is not None:
                places[row].append(cells[row])
    return [
        OptionEpisode(np.array(o), np.array(c), np.array(p) if len(p) == len(o) else None)
        for o, c, p in zip(taken, chosen, places, strict=True)
    ]


def plot_options(agent: Agent, vector: Vector, path: Path, *, episodes: int, seed: int = 0) -> Path:
    """Draw which options act in some episodes, and return the file's path.

    Where observations are a grid with one cell that is not 0, it is a map: which option acted most
    often in each cell, and how often an option ended there. Else it is a line for each episode.

    Raises:
        ConfigError: The agent has no options, or the file's ending is not known.
        RunError: The file cannot be written.
    """
    check_suffix(path)
    played = play_options(agent, vector, episodes=episodes, seed=seed)
    space, count = vector.spaces.observation, agent.initial_carry(1)[OPTION].shape[1]
    on_grid = all(episode.place is not None for episode in played)
    if on_grid:
        figure = new_figure(8.0, 4.0)
        left, right = figure.subplots(1, 2)
        _draw_map(left, played, space.shape, count)
        _draw_ends(right, played, space.shape)
    else:
        shown = played[:_MOST_LINES]
        figure = new_figure(7.0, 1.4 + 0.3 * len(shown))
        _draw_lines(figure.subplots(), shown)
    used = sorted({int(k) for episode in played for k in episode.option})
    from matplotlib.patches import Patch

    marks = [Patch(color=_colour(k), label=f"option {k}") for k in used]
    figure.legend(handles=marks, loc="outside lower center", ncols=6, frameon=False)
    return save_figure(figure, path)


def _cells(obs: Any) -> NDArray[np.int64] | None:
    """Return the line and column [N, 2] of the one cell of each grid that is not 0, if it is so."""
    if isinstance(obs, dict) or obs.ndim != 3:
        return None
    flat = obs.reshape(len(obs), -1)
    if not (np.count_nonzero(flat, axis=1) == 1).all():
        return None
    return np.stack(np.divmod((flat != 0).argmax(1), obs.shape[2]), 1)


def _draw_map(
    axes: Axes, episodes: Sequence[OptionEpisode], shape: tuple[int, ...], count: int
) -> None:
    steps = np.zeros((count, *shape))
    for option, _, place in episodes:
        assert place is not None
        np.add.at(steps, (option, place[:, 0], place[:, 1]), 1)
    total = steps.sum(0)
    colours = np.array([_rgb(_colour(k)) for k in range(count)])
    # A cell is paler the more its options share it.
    share = (steps.max(0) / np.maximum(total, 1))[..., None]
    picture = share * colours[steps.argmax(0)] + (1 - share)
    picture[total == 0] = _rgb(FAINT)
    axes.imshow(picture)
    _name(axes, "which option acts most")


def _draw_ends(axes: Axes, episodes: Sequence[OptionEpisode], shape: tuple[int, ...]) -> None:
    ended, there = np.zeros(shape), np.zeros(shape)
    for _, chosen, place in episodes:
        assert place is not None
        # What is chosen first ends nothing.
        np.add.at(there, tuple(place[1:].T), 1)
        np.add.at(ended, tuple(place[1:].T), chosen[1:])
    rate = np.where(there > 0, ended / np.maximum(there, 1), np.nan)
    axes.set_facecolor(FAINT)
    image = axes.imshow(rate, cmap="magma_r", vmin=0.0, vmax=1.0)
    axes.figure.colorbar(image, ax=axes, fraction=0.045)
    _name(axes, "how often options end")


def _draw_lines(axes: Axes, episodes: Sequence[OptionEpisode]) -> None:
    for line, (option, _, _) in enumerate(episodes):
        cuts = np.flatnonzero(np.diff(option)) + 1
        starts = np.concatenate([[0], cuts])
        lengths = np.diff(np.concatenate([starts, [len(option)]]))
        axes.broken_barh(
            list(zip(starts.tolist(), lengths.tolist(), strict=True)),
            (line - 0.4, 0.8),
            facecolors=[_colour(int(k)) for k in option[starts]],
        )
    axes.set_yticks(range(len(episodes)), [str(k) for k in range(len(episodes))])
    axes.invert_yaxis()
    axes.set_xlabel("step")
    axes.set_ylabel("episode")
    axes.set_title("which option acts", loc="left", color=INK)


def _name(axes: Axes, title: str) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, loc="left", color=INK)


def _colour(option: int) -> str:
    return COLOURS[option % len(COLOURS)]


def _rgb(colour: str) -> NDArray[np.float64]:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
