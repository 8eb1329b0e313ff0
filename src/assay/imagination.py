"""What a world model sees and predicts, as pictures in the directory of its run.

Episodes are played with the run's agent. The model is shown their first moments, and predicts the
rest from the actions alone (open loop), or imagines how it would go on by itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from assay.agents import load, required_vector
from assay.algorithms.dreamerv3 import DreamerV3
from assay.core.errors import ConfigError, require_counts
from assay.core.types import Tree, tree_map
from assay.evaluation.video import enlarge, write_gif
from assay.loops.config import RunConfig
from assay.networks.world_model import Dreams, dream
from assay.runs.directory import RunDirectory
from assay.runs.files import replacing

Frame = NDArray[np.uint8]  # [height, width, 3]
_FPS = 5.0
_GAP = 2  # pixels between pictures
_SEEN, _PREDICTED = (0, 160, 0), (200, 0, 0)  # colours around what was seen, and what was not


def draw_imagination(
    path: Path | str, env: Any = None, *, episodes: int = 4, steps: int = 48, seed: int = 0
) -> list[Path]:
    """Draw what the world model of a run predicts, and return the files.

    `RUN/imagination` gets, for each image of the observation, `open_loop.gif` and `open_loop.png`
    (rows: truth, model, error; until the colour of the frame changes the model sees the truth),
    `reconstruction.png` (every moment is seen) and `imagined.gif` (the agent acts in its model).

    Args:
        path: The run.
        env: Its environment, where that was given as an object.
        episodes: How many are played, side by side.
        steps: Most moments of an episode that are drawn.
        seed: Fixes the episodes.

    Raises:
        ConfigError: The run has no world model, or no images, or a number is too small.
    """
    require_counts(episodes=episodes)
    if steps < 2:
        raise ConfigError(f"steps={steps}: expected at least 2, one of which is predicted.")
    directory = RunDirectory.open(Path(path))
    agent, config = load(path), RunConfig.from_dict(directory.config)
    algorithm = agent.algorithm
    if not isinstance(algorithm, DreamerV3):
        raise ConfigError(
            f"The run '{path}' learned with {config.algorithm}, which has no world model to draw.",
            "Draw a run of dreamerv3.",
        )
    if not len(algorithm.world.parts.images):
        raise ConfigError(
            f"The observations of '{path}' are not images: there is nothing to draw.",
            "Draw a run that sees images.",
        )
    with required_vector(config, env, episodes, "Give a function that makes it.") as vector:
        obs, action = _play(algorithm, vector, steps, seed)
    context = max(1, min(5, len(action) // 2))
    shape = (len(action) - context, action.shape[1], algorithm.hp.stoch)
    noise = np.random.default_rng(seed).gumbel(size=(*shape, algorithm.world.rssm.classes))
    gumbel = torch.from_numpy(noise.astype(np.float32))
    dreams = dream(algorithm.world, algorithm.actor, obs, action, context, gumbel)
    return _write(directory.path / "imagination", dreams, context)


def _play(algorithm: Any, vector: Any, steps: int, seed: int) -> tuple[Tree, torch.Tensor]:
    """Return moments [T, N, ...] of one episode each, and what was done before them [T, N, A].

    An episode that is over stays at its last moment.
    """
    obs, carry = vector.reset(seed), algorithm.initial_carry(vector.num_envs)
    seen, taken = [tree_map(np.copy, obs)], [carry["action"]]
    over = np.zeros(vector.num_envs, bool)
    while len(seen) < steps and not over.all():
        choice = algorithm.act(obs, carry, False)
        next_obs, _, terminated, truncated, _, final = vector.step(choice.action)
        after = (
            next_obs
            if final is None
            else tree_map(_chosen(terminated | truncated), final, next_obs)
        )
        seen.append(tree_map(_chosen(over), seen[-1], after))
        taken.append(_chosen(over)(np.zeros_like(taken[-1]), choice.carry["action"]))
        over |= terminated | truncated
        obs, carry = next_obs, choice.carry
    moments = tree_map(lambda *parts: torch.from_numpy(np.stack(parts)), *seen)
    return moments, torch.from_numpy(np.stack(taken))


def _chosen(rows: NDArray[np.bool_]) -> Any:
    """Return a function that takes `rows` of its first argument, and the others of the second."""
    return lambda one, two: np.where(rows.reshape(-1, *[1] * (one.ndim - 1)), one, two)


# ---------------------------------------------------------------------- pictures


def _write(place: Path, dreams: Dreams, context: int) -> list[Path]:
    files = []
    for name in dreams.truth:
        truth, seen, told, own = (_frames(part[name]) for part in dreams)
        prefix = "" if name == "image" else f"{name.removeprefix('image:')}-"
        films = {"open_loop.gif": [truth, told, _error(truth, told)], "imagined.gif": [own]}
        sheets = {
            "open_loop.png": [truth, told, _error(truth, told)],
            "reconstruction.png": [truth, seen, _error(truth, seen)],
        }
        for file, rows in films.items():
            moments = [
                _column(_row([row[t, n] for n in range(row.shape[1])], t, context) for row in rows)
                for t in range(len(truth))
            ]
            files.append(place / f"{prefix}{file}")
            with replacing(files[-1]) as draft, write_gif(draft, _FPS) as write:
                for moment in moments:
                    write(moment)
        for file, rows in sheets.items():
            until = len(truth) if file == "reconstruction.png" else context
            lines = [
                _across([_row([row[t, n]], t, until) for t in range(len(row))])
                for n in range(truth.shape[1])
                for row in rows
            ]
            files.append(place / f"{prefix}{file}")
            with replacing(files[-1]) as draft:
                image: Any = importlib.import_module("PIL.Image")
                image.fromarray(_column(lines)).save(draft, format="PNG")
    return files


def _frames(images: torch.Tensor) -> Frame:
    """Return [T, N, H, W, 3] bytes; of stacked images the newest."""
    channels = images.shape[2]
    colours = 3 if channels % 3 == 0 else 1
    newest = images[:, :, channels - colours :].permute(0, 1, 3, 4, 2).numpy()
    frames = (newest * 255.0).round().astype(np.uint8)
    return frames.repeat(3 // colours, axis=-1)


def _error(truth: Frame, model: Frame) -> Frame:
    """Return grey where both agree, brighter where the model is too bright."""
    return ((model.astype(np.int64) - truth + 255) // 2).astype(np.uint8)


def _row(images: list[Frame], moment: int, context: int) -> Frame:
    """Return images side by side, framed by whether the model has seen this moment."""
    colour = np.array(_SEEN if moment < context else _PREDICTED, np.uint8)
    return _across([_framed(enlarge(image), colour) for image in images])


def _framed(image: Frame, colour: NDArray[np.uint8]) -> Frame:
    height, width, _ = image.shape
    frame = np.tile(colour, (height + 2 * _GAP, width + 2 * _GAP, 1))
    frame[_GAP:-_GAP, _GAP:-_GAP] = image
    return frame


def _across(images: list[Frame]) -> Frame:
    return np.concatenate(images, axis=1)


def _column(rows: Iterable[Frame]) -> Frame:
    return np.concatenate(list(rows), axis=0)
