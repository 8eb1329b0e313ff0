"""Record videos of an agent: GIF (always available) or MP4 (with the extra `video`).

Recorded episodes are those of `evaluate` with the same seed. The environment is a single Gymnasium
one, because only those can render, behind the same adapter as in training and evaluation; so the
agent gets the same observations.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError, EnvError, MissingExtraError, require_counts
from assay.core.types import Tree, tree_map
from assay.envs.make import make_env, make_vector
from assay.envs.screen import offscreen, opengl_fix
from assay.envs.wrappers.settings import Given
from assay.evaluation.evaluate import Agent, clip_to_space, episode_seed, rewarded_carry
from assay.runs.files import replacing

Frame = NDArray[np.uint8]  # [height, width, 3]
Write = Callable[[Frame], None]

_DEFAULT_FPS = 30
_TINY, _VISIBLE = 32, 160  # pixels of the longer side
_TITLE, _GAP = 20, 4  # pixels above and between pictures that stand side by side
# GIFs count in hundredths of a second, and viewers slow down frames of less than two.
_SHORTEST_DELAY = 2


@dataclass(frozen=True, slots=True)
class Recording:
    """A video of an agent.

    Attributes:
        path: The file.
        returns: Raw return of each episode, as far as it was recorded.
        lengths: Environment steps of each episode, as far as it was recorded.
    """

    path: Path
    returns: tuple[float, ...]
    lengths: tuple[int, ...]


def record(
    agent: Agent,
    env: str | Callable[..., gym.Env[Any, Any]],
    path: Path,
    *,
    seed: int,
    episodes: int = 1,
    fps: float | None = None,
    max_steps: int = 1000,
    wrappers: Given = (),
) -> Recording:
    """Record the first episodes that `evaluate` plays with the same seed.

    Args:
        agent: Anything with `act` and `initial_carry`.
        env: A Gymnasium id, or a function that makes an environment with
            `render_mode="rgb_array"` (it is passed on if the function has such a parameter).
        path: Where to, ending in `.gif` or `.mp4`; its directory is made.
        seed: Fixes every episode.
        episodes: How many, one after the other.
        fps: Frames per second; by default what the environment names.
        max_steps: Where to cut an episode off.
        wrappers: What is around the environment, as of `assay.envs.make.make_vector`.

    Raises:
        ConfigError: The file is neither a GIF nor an MP4, or a number is below 1.
        EnvError: The environment is unknown or cannot be rendered; the message says how to fix it.
        MissingExtraError: MP4 or the environment's rendering needs a package that is not installed.
        RunError: The file cannot be written.
    """
    _check_numbers(episodes, max_steps, fps)
    open_writer = _writer_for(path)
    with _filmed(agent, env, wrappers) as film:
        rate = fps or film.fps
        with replacing(path) as draft, open_writer(draft, rate) as write:
            for k in range(episodes):
                for frame in film.play(episode_seed(seed, k), max_steps):
                    write(frame)
    returns, lengths = zip(*film.played, strict=True)
    return Recording(path, returns, lengths)


def record_beside(
    agents: Sequence[tuple[str, Agent, str | Callable[..., gym.Env[Any, Any]], Given]],
    path: Path,
    *,
    seed: int,
    episodes: int = 1,
    fps: float | None = None,
    max_steps: int = 1000,
) -> list[Recording]:
    """Record agents side by side, from the same seeds, each under its name.

    Frame by frame; an episode that is over stays at its last one, until all are.

    Args:
        agents: Name, agent, environment and wrappers of each; the last three are those of `record`.
        path: Where to, ending in `.gif` or `.mp4`.
        seed: Fixes every episode.
        episodes: How many, one after the other.
        fps: Frames per second; by default what the first environment names.
        max_steps: Where to cut an episode off.

    Raises:
        ConfigError: As `record`.
        EnvError: As `record`.
        MissingExtraError: As `record`.
        RunError: The file cannot be written.
    """
    _check_numbers(episodes, max_steps, fps)
    open_writer = _writer_for(path)
    names = [name for name, *_ in agents]
    with ExitStack() as stack:
        films = [stack.enter_context(_filmed(*one[1:])) for one in agents]
        draft = stack.enter_context(replacing(path))
        write = stack.enter_context(open_writer(draft, fps or films[0].fps))
        for k in range(episodes):
            last: list[Frame | None] = [None] * len(films)
            for row in zip_longest(
                *(film.play(episode_seed(seed, k), max_steps) for film in films)
            ):
                last = [old if new is None else new for old, new in zip(last, row, strict=True)]
                write(_beside([frame for frame in last if frame is not None], names))
    return [Recording(path, *zip(*film.played, strict=True)) for film in films]


def frames(
    agent: Agent,
    env: str | Callable[..., gym.Env[Any, Any]],
    moments: Iterable[tuple[int, int]],
    *,
    seed: int,
    wrappers: Given = (),
) -> dict[tuple[int, int], Frame]:
    """Return pictures of moments (episode, step) of the episodes that `evaluate` plays.

    The others are those of `record`.

    Raises:
        EnvError: As `record`.
        MissingExtraError: As `record`.
    """
    wanted: dict[int, set[int]] = {}
    for episode, time in moments:
        wanted.setdefault(episode, set()).add(time)
    found = {}
    with _filmed(agent, env, wrappers) as film:
        for episode, times in wanted.items():
            for shot in film.play(episode_seed(seed, episode), max(times) + 1):
                if film.length in times:  # the last picture of a step is what the agent sees next
                    found[episode, film.length] = shot
    return found


def _check_numbers(episodes: int, max_steps: int, fps: float | None) -> None:
    require_counts(episodes=episodes, max_steps=max_steps)
    if fps is not None and fps <= 0:
        raise ConfigError(f"fps={fps}: expected a positive number.")


def _beside(shots: Sequence[Frame], names: Sequence[str]) -> Frame:
    """Return frames in a row, each under its name."""
    height = max(len(shot) for shot in shots)
    columns = []
    for shot, name in zip(shots, names, strict=True):
        column = np.zeros((height + _TITLE, shot.shape[1] + _GAP, 3), np.uint8)
        column[_TITLE : _TITLE + len(shot), : shot.shape[1]] = shot
        column[:_TITLE] = _title(name, column.shape[1])
        columns.append(column)
    return np.concatenate(columns, axis=1)[:, :-_GAP]


def _title(name: str, width: int) -> Frame:
    image: Any = importlib.import_module("PIL.Image")
    draw: Any = importlib.import_module("PIL.ImageDraw")
    made = image.new("RGB", (width, _TITLE))
    pen = draw.Draw(made)
    while len(name) > 1 and pen.textlength(name) > width - 2 * _GAP:
        name = name[1:]  # the end of a path tells more than its beginning
    pen.text((_GAP, _TITLE // 5), name, fill=(255, 255, 255))
    return np.asarray(made)


class _Film:
    """An agent in an environment that is drawn.

    Attributes:
        fps: Frames per second, as the environment names them.
        played: Return and length of each episode, as far as it was played.
        length: Steps of the running one.
    """

    def __init__(self, agent: Agent, vector: Any, camera: _Camera) -> None:
        self.agent, self.vector, self.camera = agent, vector, camera
        self.fps = float(camera.metadata.get("render_fps") or _DEFAULT_FPS)
        self.played: list[tuple[float, int]] = []
        self.length = 0

    def play(self, seed: int, max_steps: int) -> Iterator[Frame]:
        """Play an episode, and yield every frame from the reset to the end."""
        agent, camera = self.agent, self.camera
        camera.rolling, self.length = True, 0
        obs, carry = self.vector.reset(seed), agent.initial_carry(1)
        yield from camera.taken()
        total, over = 0.0, False
        while not over and self.length < max_steps:
            action = agent.act(obs, carry, False)
            actions = clip_to_space(action.action, self.vector.spaces.action)
            obs, reward, terminated, truncated, _, _ = self.vector.step(actions)
            carry = rewarded_carry(agent, action.carry, reward)
            total += float(reward[0])
            self.length += 1
            over = bool(terminated[0] or truncated[0])
            yield from camera.taken()
        self.played.append((total, self.length))


@contextmanager
def _filmed(
    agent: Agent, env: str | Callable[..., gym.Env[Any, Any]], wrappers: Given
) -> Iterator[_Film]:
    with offscreen():
        camera = _Camera(_make_drawable(env))
        with make_vector(camera, 1, training=False, wrappers=wrappers) as vector:
            yield _Film(agent, vector, camera)


class Redrawn(NamedTuple):
    """A stretch of an episode that was played again.

    Attributes:
        frames: [K + 1] pictures, before its first step and after each.
        obs: [K + 1] what was seen then, canonical.
        fps: Frames per second that the environment names.
    """

    frames: list[Frame]
    obs: list[Tree]
    fps: float


def redraw(
    env: str | Callable[..., gym.Env[Any, Any]],
    seed: int,
    actions: NDArray[Any],
    *,
    first: int = 0,
    wrappers: Given = (),
) -> Redrawn:
    """Play the actions of an episode again, from its seed on, and draw its end.

    Args:
        env: As of `record`.
        seed: What the episode was reset with.
        actions: [T, ...] in the environment's own units, up to where the drawing ends.
        first: The step with which it begins.
        wrappers: As of `record`.

    Raises:
        EnvError: The environment is unknown or cannot be rendered.
    """
    seen: list[Tree] = []
    with offscreen():
        camera = _Camera(_make_drawable(env))
        with make_vector(camera, 1, training=False, wrappers=wrappers) as vector:
            camera.rolling = first == 0
            seen.append(tree_map(np.array, vector.reset(seed)))
            for t, action in enumerate(vector.actions.from_env(actions)):
                camera.rolling = t + 1 >= first
                after, *_, final = vector.step(action[None])
                seen.append(tree_map(np.array, after if final is None else final))
    frames = camera.taken()
    rate = float(camera.metadata.get("render_fps") or _DEFAULT_FPS)
    return Redrawn(frames, seen[first:], rate)


class _Camera(gym.Wrapper[Any, Any, Any, Any]):
    """Render after every reset and step until the episode is over.

    It sits inside the adapter, which resets an environment in the step that ends its episode: from
    outside, the last frame could not be seen.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.rolling = False
        self._shots: list[Frame] = []

    def taken(self) -> list[Frame]:
        """Return the frames since the last call."""
        shots, self._shots = self._shots, []
        return shots

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset, and render the first frame."""
        result = self.env.reset(seed=seed, options=options)
        self._shoot()
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and render the next frame."""
        result = self.env.step(action)
        self._shoot()
        if result[2] or result[3]:
            self.rolling = False
        return result

    def _shoot(self) -> None:
        if not self.rolling:
            return
        name = self.spec.id if self.spec is not None else type(self.unwrapped).__name__
        try:
            frame = self.env.render()
        except gym.error.DependencyNotInstalled as error:
            raise MissingExtraError("pygame", "classic", f"Drawing '{name}'") from error
        except Exception as error:
            raise self._cannot_draw(name, f"{type(error).__name__}: {error}") from error
        image = _as_bytes(np.asarray(frame))
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            found = "nothing" if frame is None else f"a {image.dtype} array of {image.shape}"
            raise self._cannot_draw(
                name, f"render() returned {found}, not uint8 [height, width, 3]"
            )
        self._shots.append(enlarge(image))

    def _cannot_draw(self, name: str, reason: str) -> EnvError:
        fix = "Make sure that the environment's render() returns an image in the mode 'rgb_array'."
        if any("mujoco" in kind.__module__ for kind in type(self.unwrapped).__mro__):
            fix = opengl_fix()
        return EnvError(f"'{name}' cannot be rendered: {reason}.", fix)


def _as_bytes(image: NDArray[Any]) -> NDArray[Any]:
    """Return brightness from 0 to 1, which some environments draw in, as bytes."""
    if image.dtype.kind != "f" or not image.size or image.min() < 0 or image.max() > 1:
        return image
    return (image * 255).round().astype(np.uint8)


def enlarge(image: Frame) -> Frame:
    """Draw every pixel of a tiny image as a square, so that there is something to see."""
    longer = max(image.shape[:2])
    times = _VISIBLE // longer
    return image if longer >= _TINY else image.repeat(times, 0).repeat(times, 1)


def _make_drawable(env: str | Callable[..., gym.Env[Any, Any]]) -> gym.Env[Any, Any]:
    if isinstance(env, str):
        return make_env(env, env_kwargs={"render_mode": "rgb_array"})
    if isinstance(env, gym.Env) or not callable(env):
        raise EnvError(
            f"{env!r} is a {type(env).__name__}; an id or a function that makes an environment "
            "was expected.",
            "Give the id, or `lambda: gymnasium.make(id, render_mode='rgb_array')`.",
        )
    made = env(render_mode="rgb_array") if "render_mode" in _parameters(env) else env()
    if getattr(made, "render_mode", None) != "rgb_array":
        mode = getattr(made, "render_mode", None)
        made.close()
        raise EnvError(
            f"The environment was made with render_mode={mode!r}; 'rgb_array' was expected.",
            "Make it with render_mode='rgb_array', or give the function a parameter render_mode.",
        )
    return made


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


# Files


def _writer_for(path: Path) -> Callable[[Path, float], AbstractContextManager[Write]]:
    suffix = path.suffix.lower()
    if suffix == ".gif":
        return write_gif
    if suffix == ".mp4":
        try:
            importlib.import_module("imageio_ffmpeg")
        except ImportError:
            raise MissingExtraError("imageio-ffmpeg", "video", "Writing MP4") from None
        return _write_mp4
    raise ConfigError(f"'{path}' ends in '{path.suffix}': expected .gif or .mp4.")


@contextmanager
def write_gif(path: Path, fps: float) -> Iterator[Write]:
    """Keep frames in 256 colours, a third of their size, and write them at the end."""
    image: Any = importlib.import_module("PIL.Image")
    frames: list[Any] = []

    def write(frame: Frame) -> None:
        frames.append(image.fromarray(frame).quantize(256, dither=image.Dither.NONE))

    yield write
    first, *rest = frames
    delay = 10 * max(_SHORTEST_DELAY, round(100 / fps))  # milliseconds
    first.save(path, format="GIF", save_all=True, append_images=rest, duration=delay, loop=0)


@contextmanager
def _write_mp4(path: Path, fps: float) -> Iterator[Write]:
    """Pass frames to ffmpeg one by one."""
    ffmpeg: Any = importlib.import_module("imageio_ffmpeg")
    pipe: Any = None

    def write(frame: Frame) -> None:
        nonlocal pipe
        # The usual pixel format needs even sides.
        even = frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2]
        if pipe is None:
            size = (even.shape[1], even.shape[0])
            pipe = ffmpeg.write_frames(str(path), size, fps=fps, quality=7, macro_block_size=2)
            pipe.send(None)
        pipe.send(np.ascontiguousarray(even))

    try:
        yield write
    finally:
        if pipe is not None:
            pipe.close()
