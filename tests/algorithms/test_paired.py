"""PAIRED: the contract, regret by hand, the mazes it draws, and that each of the three learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import assay
from assay.algorithms.paired import PAIRED, episode_returns
from assay.core.errors import ConfigError, EnvError
from assay.envs.make import make_vector
from assay.evaluation.level_plots import levels_text, plot_levels, read_levels
from assay.functional.mazes import Canvas, Gallery, Levels
from assay.loops import events
from assay.testing.algorithms import AlgorithmContract, Case, Rig, assert_same_run

SMALL: dict[str, Any] = {
    "horizon": 12, "minibatch_size": 12, "epochs": 2, "hidden": (8,), "size": 3, "blocks": 2,
}  # fmt: skip


class NoSaving(gym.Wrapper[Any, Any, Any, Any]):
    """A maze that cannot say where it is."""

    get_state = set_state = None

    def parameters(self) -> Any:
        return self.unwrapped.parameters()  # type: ignore[attr-defined]

    def set_parameters(self, values: Any) -> None:
        self.unwrapped.set_parameters(values)  # type: ignore[attr-defined]


def small_maze(saves: bool = True) -> Any:
    maze = gym.make("assay/Maze-v0", size=3, max_walls=2, max_episode_steps=5)
    return maze if saves else NoSaving(maze)


class MazeCase(Case):
    def factory(self, **options: Any) -> Callable[[], Any]:
        return partial(small_maze, **options)


class TestContract(AlgorithmContract):
    algorithm = "paired"
    settings = SMALL | {"adversary": "minimax"}

    def cases(self) -> Iterator[Case]:
        yield MazeCase("maze", spaces.Discrete(4))


def pairs(**more: Any) -> Rig:
    env = make_vector(
        "assay/Maze-v0", 4, max_episode_steps=5, env_kwargs={"size": 3, "max_walls": 2}
    )
    return Rig("paired", env, num_envs=4, **SMALL | more)


def test_returns_and_regret_by_hand() -> None:
    # The first column has episodes of 1 + 2 and 5, and a third that does not end; the second none.
    reward = np.array([[1, 0.5], [2, 0], [5, 0.25], [9, 0]])
    over = np.array([[0, 0], [1, 0], [1, 0], [0, 0]], bool)
    mean, best = episode_returns(reward, over)
    assert mean.tolist() == [4.0, 0.75] and best.tolist() == [5.0, 0.75]


def test_the_generator_is_paid_regret() -> None:
    rig = pairs(horizon=4, minibatch_size=8, epochs=1)
    rig.loop.iterate()
    algorithm: Any = rig.algorithm
    paid: list[Any] = []
    algorithm._learn_to_draw = lambda net, reward: paid.append(reward)
    data = rig.loop.rollout
    data.terminated[:], data.truncated[:] = False, False
    data.finals = None
    data.terminated[[1, 3]] = True
    # Columns: two mazes of the protagonist, then the same two of the antagonist.
    data.reward[:] = np.array([[0, 0, 0, 0], [0.2, 0.6, 0.9, 0.1], [0, 0, 0, 0], [0.4, 0, 0.3, 0]])
    algorithm.update(data)
    # max(0.9, 0.3) - mean(0.2, 0.4), and max(0.1, 0) - mean(0.6, 0), which is below 0
    np.testing.assert_allclose(paid[0], [0.6, 0.0], atol=1e-6)
    algorithm.antagonist = None  # minimax
    algorithm.update(data)
    np.testing.assert_allclose(paid[1], [-0.3, -0.3], atol=1e-6)


def test_the_loss_of_a_drawing_by_hand() -> None:
    rig = pairs(epochs=1, normalize_advantage=False, generator_entropy=0.0)
    rig.collector.collect_rollout(rig.loop.rollout)
    algorithm: Any = rig.algorithm
    net = algorithm.generator
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.zero_()
        net.value_head[0].bias.fill_(0.25)
    for step in algorithm.drawing:  # log-probabilities of a generator that draws uniformly
        step["log_prob"] = -np.log(step["action_mask"].sum(1))
    algorithm._learn_to_draw(net, np.array([1.0, 0.5]))
    # Ratios are 1, so the loss of the policy is minus the mean of R - V: 0.75 and 0.25. That of
    # the values is half the mean square, (0.5625 + 0.0625) / 4.
    found = algorithm.drain_metrics()
    assert found["train/generator_policy_loss"] == pytest.approx(-0.5)
    assert found["train/generator_value_loss"] == pytest.approx(0.15625)


def test_drawn_mazes_are_valid() -> None:
    rng = np.random.default_rng(0)
    canvas = Canvas(64, 4, 6, np.zeros((64, 8), np.float32))
    for _ in range(canvas.steps):
        mask = canvas.seen()["action_mask"]
        canvas.put(np.where(mask, rng.random(mask.shape), -1).argmax(1))
    levels = canvas.levels()
    flat = levels.walls.reshape(64, -1)
    assert (levels.start != levels.goal).all()
    assert not flat[np.arange(64), levels.start].any()
    assert not flat[np.arange(64), levels.goal].any()
    assert flat.sum(1).max() == 6 > flat.sum(1).min()  # a wall on a wall changes nothing
    found = levels.statistics()
    # By another search: what can be reached grows until it stays the same.
    solvable = []
    for walls, start, goal in zip(levels.walls, levels.start, levels.goal, strict=True):
        reach = np.zeros((6, 6), bool)
        reach[1 + start // 4, 1 + start % 4] = True
        for _ in range(16):
            near = reach[:-2, 1:-1] | reach[2:, 1:-1] | reach[1:-1, :-2] | reach[1:-1, 2:]
            reach[1:-1, 1:-1] |= near & ~walls
        solvable.append(reach[1 + goal // 4, 1 + goal % 4])
    assert 0 < found["solvable"] < 1 and found["solvable"] == np.mean(solvable)
    assert found["walls"] == flat.sum(1).mean()


def test_both_agents_play_the_same_mazes_and_all_learn() -> None:
    rig = pairs()
    before = rig.weights()
    rig.loop.iterate()
    maze: Any = rig.env.backend.env.unwrapped
    assert np.array_equal(maze._walls[:2], maze._walls[2:])
    assert np.array_equal(maze._goals[:2], maze._goals[2:])
    after = rig.weights()
    moved = {name.split(".")[0] for name in before if (before[name] != after[name]).any()}
    assert moved == {"net", "antagonist", "generator"}
    assert {"train/regret", "train/solvable", "train/path_length", "train/walls"} <= (
        rig.algorithm.drain_metrics().keys()
    )


@pytest.mark.parametrize("adversary", ["paired", "random"])
def test_a_run_is_resumed_exactly(tmp_path: Path, adversary: str) -> None:
    settings: dict[str, Any] = SMALL | {
        "env_steps": 480, "num_envs": 4, "eval_episodes": 2, "checkpoint_every": 96, "sinks": (),
        "compile": False, "root": tmp_path, "max_episode_steps": 5, "adversary": adversary,
        "env_kwargs": {"size": 3, "max_walls": 2, "trail": True}, "preset": False,
    }  # fmt: skip

    def stop(event: events.Event) -> Any:
        return assay.STOP if event.clock.env_steps >= 192 else None

    whole = assay.train("paired", "assay/Maze-v0", name="whole", **settings)
    second = assay.train("paired", "assay/Maze-v0", name="parts", callbacks=[stop], **settings)
    assert_same_run(whole.path, assay.resume(second.path).path)
    assert whole.evaluate(episodes=3).mean >= 0
    parts = read_levels(whole.path)
    assert len(parts) == 10 and levels_text(parts).count("G") == 10
    assert plot_levels(parts, tmp_path / "levels.png").stat().st_size > 1000


def test_the_generator_learns_what_pays() -> None:
    """Paid for goals in the first row, it puts them there."""
    rig = pairs(generator_lr=3e-3, epochs=4)
    algorithm: Any = rig.algorithm
    algorithm.mazes = algorithm.num_envs = 64
    assert isinstance(algorithm, PAIRED)

    def share() -> float:
        algorithm.design()
        assert algorithm.levels is not None
        return float((algorithm.levels.goal < 3).mean())

    early = np.mean([share() for _ in range(5)])
    for _ in range(40):
        share()
        assert algorithm.levels is not None and algorithm.generator is not None
        algorithm._learn_to_draw(algorithm.generator, (algorithm.levels.goal < 3).astype(float))
    assert early < 0.5 and np.mean([share() for _ in range(5)]) > 0.8


def test_a_gallery_keeps_mazes_of_each_part() -> None:
    gallery = Gallery()
    for step, progress in enumerate((0.0, 0.05, 0.1, 0.35, 0.99)):
        cells = np.full(6, step)
        gallery.show(Levels(np.zeros((6, 3, 3), bool), cells, cells + 1), progress)
    assert [int(one.start[0]) for one in gallery.levels] == [0, 2, 3, 3, *[4] * 6]
    assert all(len(one.start) == 4 for one in gallery.levels)
    other = Gallery()
    other.load_state(gallery.state())
    assert [one.pictures() for one in other.levels] == [one.pictures() for one in gallery.levels]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    run: dict[str, Any] = {"env_steps": 96, "num_envs": 4, "root": tmp_path, "sinks": ()}
    with pytest.raises(ConfigError, match="num_envs=3 cannot be shared"):
        assay.train("paired", "assay/Maze-v0", **SMALL | run | {"num_envs": 3, "preset": False})
    with pytest.raises(EnvError, match="'CartPole-v1' does not have"):
        assay.train("paired", "CartPole-v1", **SMALL | run)
    with pytest.raises(EnvError, match=r"needs env_kwargs=\{size: 13\}"):
        assay.train("paired", "assay/Maze-v0", **SMALL | run)
    with pytest.raises(ConfigError, match="randomize has nothing to draw"):
        assay.train(
            "paired", "assay/Maze-v0", randomize={"reach": [1, 9]}, **SMALL | run | {"size": 9}
        )
