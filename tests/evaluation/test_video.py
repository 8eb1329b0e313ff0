"""Videos show every frame of the episodes that evaluation plays."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from assay.core.errors import ConfigError, EnvError, MissingExtraError, RunError
from assay.core.types import Action
from assay.evaluation.evaluate import evaluate
from assay.evaluation.video import record


class Fade(gym.Env[np.ndarray, int]):
    """Episodes of 2 to 9 steps; frame number t has the brightness 20 t."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 100, (1,))
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(2, 10))
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == self.length, False, {}

    def render(self) -> Any:
        return np.full((33, 47, 3), 20 * self.steps, np.uint8)


class Still:
    """Always plays 0."""

    def initial_carry(self, n: int) -> None:
        return None

    def act(self, obs: np.ndarray, carry: None, explore: bool) -> Action:
        return Action(np.zeros(len(obs), np.int64))


def brightness(path: Path) -> list[tuple[int, int]]:
    """Return (brightness, milliseconds) of every frame of a GIF."""
    frames = []
    with Image.open(path) as image:
        for index in range(image.n_frames):
            image.seek(index)
            pixel = image.convert("RGB").getpixel((20, 20))
            frames.append((pixel[0], image.info["duration"]))
    return frames


def test_a_gif_has_every_frame_from_the_first_to_the_last(tmp_path: Path) -> None:
    played = evaluate(Still(), Fade, episodes=2, seed=4)
    recording = record(Still(), Fade, tmp_path / "new" / "a.gif", seed=4, episodes=2)
    assert recording.returns == tuple(played.returns)
    assert recording.lengths == tuple(played.lengths)
    expected = [(20 * t, 100) for length in recording.lengths for t in range(length + 1)]
    assert brightness(recording.path) == expected


def test_an_episode_is_cut_off_and_speed_can_be_set(tmp_path: Path) -> None:
    recording = record(Still(), Fade, tmp_path / "a.gif", seed=4, max_steps=1, fps=1000)
    assert recording.lengths == (1,)
    assert brightness(recording.path) == [(0, 20), (20, 20)]


def test_an_mp4_has_every_frame(tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    recording = record(Still(), Fade, tmp_path / "a.mp4", seed=4)
    reader = ffmpeg.read_frames(str(recording.path))
    facts = next(reader)
    frames = [np.frombuffer(frame, np.uint8).mean() for frame in reader]
    assert facts["size"] == (46, 32)  # even sides
    assert facts["fps"] == 10
    assert np.allclose(frames, 20.0 * np.arange(recording.lengths[0] + 1), atol=3)


def test_a_real_environment_is_rendered_without_a_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    recording = record(Still(), "CartPole-v1", tmp_path / "a.gif", seed=1)
    played = evaluate(Still(), "CartPole-v1", episodes=1, seed=1)
    assert recording.returns == tuple(played.returns)
    # Frames that look alike are one frame of a GIF, shown for longer: 50 frames are a second.
    assert sum(shown for _, shown in brightness(recording.path)) == 20 * (recording.lengths[0] + 1)
    with Image.open(recording.path) as image:
        assert image.size == (600, 400)
    assert "MUJOCO_GL" not in os.environ and "SDL_VIDEODRIVER" not in os.environ


class Broken(Fade):
    """Cannot be drawn after the second step."""

    def render(self) -> Any:
        if self.steps == 2:
            raise RuntimeError("no context")
        return super().render()


class BrokenMujoco(Broken):
    """The same, from a module of MuJoCo environments."""


BrokenMujoco.__module__ = "gymnasium.envs.mujoco.broken"


class Blind(Fade):
    """Draws nothing."""

    def render(self) -> Any:
        return None


class Bare(Fade):
    """Lacks the package that draws."""

    def render(self) -> Any:
        raise gym.error.DependencyNotInstalled("pygame is not installed")


@pytest.mark.parametrize(
    ("env", "error", "message"),
    [
        (Broken, EnvError, r"'Broken' cannot be rendered: RuntimeError: no context.\nMake sure"),
        (BrokenMujoco, EnvError, "no context.\nMuJoCo renders with OpenGL. .*MUJOCO_GL=egl"),
        (Blind, EnvError, r"'Blind' cannot be rendered: render\(\) returned nothing"),
        (Bare, MissingExtraError, r"(?s)Drawing 'Bare' needs the package 'pygame'.*assay\[classic"),
        (lambda: Fade(), EnvError, "render_mode=None; 'rgb_array' was expected"),
        (Fade("rgb_array"), EnvError, "an id or a function that makes an environment"),
        ("CartPole-v9", EnvError, "CartPole-v1"),
    ],
)
def test_a_failure_to_render_is_explained_and_leaves_no_file(
    tmp_path: Path, env: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        record(Still(), env, tmp_path / "a.gif", seed=4)
    assert list(tmp_path.iterdir()) == []


class Tiny(Fade):
    """Draws eight by ten pixels in brightness from 0 to 1, as MinAtar does."""

    def render(self) -> Any:
        frame = np.zeros((8, 10, 3))
        frame[0, 0] = 1.0
        return frame


def test_a_tiny_picture_of_floats_is_drawn_large(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    record(Still(), Tiny, path, seed=4)
    with Image.open(path) as image:
        assert image.size == (160, 128)
        colours = image.convert("RGB")
        assert [colours.getpixel(at) for at in ((15, 15), (16, 0))] == [(255,) * 3, (0,) * 3]


def test_a_factory_with_its_own_render_mode_is_used_as_it_is(tmp_path: Path) -> None:
    assert record(Still(), lambda: Fade("rgb_array"), tmp_path / "a.gif", seed=4).path.exists()


def test_mp4_without_ffmpeg_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match=r"assay\[video\]"):
        record(Still(), Fade, tmp_path / "a.mp4", seed=4)


def test_an_old_video_survives_a_failed_new_one(tmp_path: Path) -> None:
    path = record(Still(), Fade, tmp_path / "a.gif", seed=4).path
    before = path.read_bytes()
    with pytest.raises(EnvError):
        record(Still(), Broken, path, seed=4)
    assert path.read_bytes() == before


def test_a_failed_mp4_leaves_no_half_file(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(EnvError):
        record(Still(), Broken, tmp_path / "a.mp4", seed=4)
    assert list(tmp_path.iterdir()) == []


def test_unusable_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in '.avi': expected .gif or .mp4"):
        record(Still(), Fade, tmp_path / "a.avi", seed=4)
    with pytest.raises(ConfigError, match="episodes=0"):
        record(Still(), Fade, tmp_path / "a.gif", seed=4, episodes=0)
    with pytest.raises(ConfigError, match="fps=0"):
        record(Still(), Fade, tmp_path / "a.gif", seed=4, fps=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Cannot write"):
        record(Still(), Fade, tmp_path / "file" / "a.gif", seed=4)
