"""Pictures of segments: an episode is played again from its seed, and its stretch is drawn."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import DataError
from assay.core.types import tree_leaves
from assay.envs.make import make_env
from assay.evaluation.video import Frame, redraw, write_gif
from assay.preferences.files import PreferenceSet, Segment
from assay.preferences.pairs import make_buffer
from assay.runs.files import replacing

_SIDE = 320  # pixels of the longer side at most
_SLOWEST = 15.0  # frames per second that are enough to see what happens
_FIX = "Sample from a run, with --from policy or random, or answer with --oracle or --file."


class Clips:
    """GIFs of segments, each drawn when it is first asked for, and kept in the set's directory."""

    def __init__(self, found: PreferenceSet) -> None:
        self.found = found
        self._lock = threading.Lock()  # one environment draws at a time

    def clip(self, segment: Segment) -> Path:
        """Return the GIF of a segment.

        Raises:
            DataError: How its episode began is not known, or it came out differently.
            EnvError: The environment cannot be rendered.
        """
        path = self.found.path / "clips" / f"{segment.name}.gif"
        with self._lock:
            if not path.is_file():
                self._draw(segment, path)
        return path

    def _draw(self, segment: Segment, path: Path) -> None:
        batch = next(one for one in self.found.batches if one.number == segment.batch)
        seed = batch.seed(segment.episode)
        if seed is None:
            raise DataError(
                f"Episode {segment.episode} of batch {batch.number} cannot be drawn: its seed is "
                "not known.",
                _FIX,
            )
        episode = batch.dataset.episode(segment.episode)
        last = segment.start + self.found.length
        settings = self.found.facts["env_settings"]
        made = redraw(
            self._make,
            seed,
            episode.action[:last],
            first=segment.start,
            wrappers=settings.get("wrappers", ()),
        )
        rows = make_buffer(batch.dataset).canonical(episode.obs)
        for recorded, drawn in zip(tree_leaves(rows), _columns(made.obs), strict=True):
            expected = recorded[segment.start : last + 1]
            if not np.allclose(expected, drawn, rtol=1e-3, atol=1e-3):
                raise DataError(
                    f"Episode {segment.episode} of batch {batch.number} came out differently when "
                    "it was played again from its seed: the seed does not determine what the "
                    "environment does.",
                    _FIX,
                )
        stride = max(1, round(made.fps / _SLOWEST))
        with replacing(path) as draft, write_gif(draft, made.fps / stride) as write:
            for frame in made.frames[::stride]:
                write(_smaller(frame))

    def _make(self, render_mode: str) -> Any:
        facts = self.found.facts
        settings = facts["env_settings"]
        kwargs = {**settings.get("env_kwargs", {}), "render_mode": render_mode}
        limit = settings.get("max_episode_steps")
        return make_env(facts["env"], env_kwargs=kwargs, max_episode_steps=limit)


def _columns(trees: list[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the parts of observations [K], each [K, ...]."""
    rows = [tree_leaves(tree) for tree in trees]
    return [np.concatenate(parts) for parts in zip(*rows, strict=True)]


def _smaller(frame: Frame) -> Frame:
    step = -(-max(frame.shape[:2]) // _SIDE)
    return frame[::step, ::step]
