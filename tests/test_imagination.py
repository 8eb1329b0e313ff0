"""Pictures of what a world model predicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from PIL import Image

import assay
from assay.core.errors import ConfigError
from assay.imagination import draw_imagination
from assay.networks.world_model import dream
from assay.testing.algorithms import make_algorithm

TINY: dict[str, Any] = {
    "size": "nano", "deter": 8, "hidden": 8, "classes": 3, "units": 8, "stoch": 2, "blocks": 2,
    "layers": 1, "batch_size": 2, "sequence": 4, "imagination": 2, "train_ratio": 1,
    "learning_starts": 20, "env_steps": 64, "num_envs": 2, "buffer_size": 64, "eval_every": 0,
    "sinks": (), "preset": False,
}  # fmt: skip


def test_what_is_drawn_is_what_the_model_says() -> None:
    torch.manual_seed(0)
    image = Box(0, 255, (1, 20, 18), np.uint8)  # padded to 20 by 20
    algorithm = make_algorithm(
        "dreamerv3", image, Discrete(2), size="nano", stoch=8, classes=8, deter=8, hidden=16,
        units=8, blocks=2, layers=1, batch_size=2, sequence=4, imagination=2,
    )  # fmt: skip
    world, actor = algorithm.world, algorithm.actor
    obs = torch.randint(0, 256, (5, 3, 1, 20, 18), dtype=torch.uint8)
    action = torch.eye(2)[torch.randint(0, 2, (5, 3))]
    gumbel = torch.zeros(3, 3, 8, 8)
    dreams = dream(world, actor, obs, action, 2, gumbel)
    for part in dreams:
        assert part["image"].shape == (5, 3, 1, 20, 18)
    torch.testing.assert_close(dreams.truth["image"], obs / 255)
    for predicted in (dreams.open_loop, dreams.imagined):  # up to there all have seen the same
        torch.testing.assert_close(predicted["image"][:2], dreams.reconstruction["image"][:2])
    # Later observations are not seen, and later actions are.
    other = obs.clone()
    other[2:] = 0
    blind = dream(world, actor, other, action, 2, gumbel)
    torch.testing.assert_close(blind.open_loop["image"], dreams.open_loop["image"])
    assert not blind.reconstruction["image"].allclose(dreams.reconstruction["image"])
    swapped = action.clone()
    swapped[3] = 1 - action[3]
    told = dream(world, actor, obs, swapped, 2, gumbel)
    torch.testing.assert_close(told.open_loop["image"][:3], dreams.open_loop["image"][:3])
    assert not torch.equal(told.open_loop["image"][3:], dreams.open_loop["image"][3:])
    torch.testing.assert_close(told.imagined["image"], dreams.imagined["image"])


def test_files_of_a_run(tmp_path: Path) -> None:
    run = assay.train("dreamerv3", "assay/Catch-v0", root=tmp_path, **TINY)
    files = draw_imagination(run.path, episodes=2)
    place = run.path / "imagination"
    names = ["imagined.gif", "open_loop.gif", "open_loop.png", "reconstruction.png"]
    assert sorted(path.name for path in files) == names == sorted(p.name for p in place.iterdir())
    with Image.open(place / "open_loop.gif") as film:
        assert film.n_frames == 8  # seven steps
        assert film.size == (2 * 164, 3 * 164)  # two episodes; truth, model and error
    with Image.open(place / "open_loop.png") as sheet:
        assert sheet.size == (8 * 164, 2 * 3 * 164)
        frame = np.asarray(sheet.convert("RGB"))
    assert frame[0, 0].tolist() == [0, 160, 0] and frame[0, -1].tolist() == [200, 0, 0]
    # The first row is the truth: a ball at the top, a paddle at the bottom.
    first = frame[2:162, 2:162]
    assert first[:20].max() == 255 and first[140:].max() == 255 and not first[20:140].any()


def test_runs_without_a_picture_are_refused(tmp_path: Path) -> None:
    run = assay.train("dreamerv3", "CartPole-v1", root=tmp_path, name="numbers", **TINY)
    with pytest.raises(ConfigError, match="are not images"):
        draw_imagination(run.path)
    with pytest.raises(ConfigError, match="episodes=0: expected at least 1"):
        draw_imagination(run.path, episodes=0)
    with pytest.raises(ConfigError, match="steps=1: expected at least 2"):
        draw_imagination(run.path, steps=1)
    options = {"env_steps": 64, "eval_every": 0, "sinks": (), "preset": False, "num_envs": 2}
    run = assay.train("a2c", "CartPole-v1", root=tmp_path, name="plain", horizon=8, **options)
    with pytest.raises(ConfigError, match="learned with a2c, which has no world model"):
        draw_imagination(run.path)
