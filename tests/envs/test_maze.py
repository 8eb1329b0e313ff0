"""The maze, and replaying its levels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core.errors import AssayError, EnvError
from assay.core.types import Action
from assay.envs.make import make_vector
from assay.envs.native.maze import Maze, layout
from assay.envs.native.named_mazes import DRAWINGS, drawn
from assay.envs.parameters import set_parameters
from assay.envs.variation.ranges import Ranges, read_ranges
from assay.envs.variation.replay import LevelReplay
from assay.evaluation.evaluate import evaluate
from assay.functional.mazes import Levels, distances
from assay.loops import events
from assay.testing.algorithms import assert_same_run

UP, RIGHT, DOWN, LEFT = range(4)


def at(envs: Any, level: float, **more: float) -> Maze:
    envs.set_parameters({"level": np.full(envs.num_envs, level)} | {
        name: np.full(envs.num_envs, value) for name, value in more.items()
    })  # fmt: skip
    return envs


def test_distances_go_around_walls() -> None:
    walls = np.array([[0, 1, 0], [0, 1, 0], [0, 0, 0]], bool)
    assert distances(walls, 2).tolist() == [[6, -1, 0], [5, -1, 1], [4, 3, 2]]


@pytest.mark.parametrize("kind", ["walls", "corridors"])
def test_every_level_can_be_solved_and_stays_the_same(kind: Any) -> None:
    for level in range(60):
        walls, start, goal = layout(level, -1, -1, 9, 30, kind)
        assert not walls.reshape(-1)[[start, goal]].any()
        assert distances(walls, goal).reshape(-1)[start] > 0
        again = layout.__wrapped__(level, -1, -1, 9, 30, kind)
        assert np.array_equal(walls, again[0]) and (start, goal) == again[1:]
        if kind == "corridors":  # a tree: one edge less than cells
            free = ~walls
            edges = (free[1:] & free[:-1]).sum() + (free[:, 1:] & free[:, :-1]).sum()
            assert edges == free.sum() - 1
    near = [layout(level, 20, 2, 9, 30, "walls") for level in range(30)]
    assert {int(walls.sum()) for walls, *_ in near} == {20}
    assert all(distances(w, goal).reshape(-1)[start] <= 2 for w, start, goal in near)


def test_the_shortest_way_is_paid_and_walls_stop() -> None:
    maze = at(Maze(2), 7.0)
    obs, _ = maze.reset(seed=0)
    walls, start, goal = layout(7, -1, -1, 9, 30, "walls")
    away = distances(walls, goal)
    y, x = divmod(start, 9)
    goal_y, goal_x = divmod(goal, 9)
    np.testing.assert_allclose(obs[0, 25:], [(goal_y - y) / 9, (goal_x - x) / 9], rtol=1e-6)
    padded = np.pad(walls, 2, constant_values=True)
    assert np.array_equal(obs[0, :25].reshape(5, 5), padded[y : y + 5, x : x + 5])
    steps = int(away[y, x])
    for left in range(steps, 0, -1):
        options = {UP: (y - 1, x), RIGHT: (y, x + 1), DOWN: (y + 1, x), LEFT: (y, x - 1)}
        move = next(a for a, p in options.items() if min(p) >= 0 and max(p) < 9
                    and away[p] == left - 1)  # fmt: skip
        y, x = options[move]
        _, reward, over, cut, _ = maze.step(np.array([move, move]))
        assert over.all() == (left == 1) and not cut.any()
        assert reward.tolist() == ([1 - 0.9 * steps / 100] * 2 if left == 1 else [0, 0])
    walled = at(Maze(1, size=3, max_walls=0), 1.0)
    walled.reset(seed=0)
    rows = []
    for _ in range(4):
        walled.step(np.array([UP]))
        rows.append([line for line, cells in enumerate(walled.drawing().split()) if "A" in cells])
    assert rows[-1] == rows[-2] == [0]  # the edge


def test_one_copy_is_like_many_and_a_state_goes_on() -> None:
    single, many = gym.make("assay/Maze-v0"), make_vector("assay/Maze-v0", 3)
    rng = np.random.default_rng(0)
    ours, _ = single.reset(seed=5)
    theirs = many.reset(5)
    for step in range(400):
        assert np.array_equal(ours, theirs[0])
        actions = rng.integers(4, size=3)
        if step == 200:
            saved = many.get_state()
            many.reset(9)
            many.set_state(saved)
        ours, _, over, cut, _ = single.step(actions[0])
        theirs = many.step(actions)[0]
        if over or cut:
            ours, _ = single.reset()
    with pytest.raises(EnvError, match="an odd number for corridors"):
        Maze(1, size=8, kind="corridors")
    with pytest.raises(EnvError, match="max_walls is 99"):
        Maze(1, max_walls=99)
    with pytest.raises(EnvError, match="no maze 'labirinth'"):
        Maze(1, maze="labirinth")


def test_levels_are_given_cell_by_cell() -> None:
    walls = np.zeros((2, 9, 9), bool)
    walls[0, 0, 1], walls[1, 8, 8] = True, True
    levels = Levels(walls, np.array([0, 5]), np.array([80, 6]))
    assert levels.paths().tolist() == [16, 1]
    cut_off = walls[:1].copy()
    cut_off[0, 1, 0] = True
    assert Levels(cut_off, np.array([0]), np.array([80])).paths().tolist() == [-1]
    envs = make_vector("assay/Maze-v0", 2)
    set_parameters(envs, levels.parameters())
    envs.reset(1)
    backend: Any = envs.backend
    maze = backend.env.unwrapped
    assert maze.drawing(0).split()[0] == "A#......."
    assert maze.drawing(0).split()[8] == "........G"
    assert maze.drawing(1).split() == [".....AG..", *["........."] * 7, "........#"]
    for _ in range(3):  # the next episode is in the same level
        reward = envs.step(np.array([DOWN, RIGHT]))[1]
        assert reward[1] == pytest.approx(0.991) and maze.drawing(1).split()[0] == ".....AG.."


def test_a_trail_counts_visits_and_goes_on() -> None:
    envs = make_vector("assay/Maze-v0", 2, env_kwargs={"trail": True, "maze": "corridor"})
    obs = envs.reset(1)
    assert obs.shape == (2, 52) and obs[0, 27:].sum() == pytest.approx(1 / 3)
    for action in (RIGHT, LEFT, RIGHT, LEFT):
        obs = envs.step(np.array([action, UP]))[0]
    trail = obs[:, 27:].reshape(2, 5, 5)
    np.testing.assert_allclose(trail[0, 2], [0, 0, 1, 2 / 3, 0], rtol=1e-6)
    np.testing.assert_allclose(trail[1, :, 2], [0, 0, *[1 / 3] * 3], rtol=1e-6)
    saved = envs.get_state()
    assert saved is not None
    after = envs.step(np.array([RIGHT, UP]))[0]
    other = make_vector("assay/Maze-v0", 2, env_kwargs={"trail": True, "maze": "corridor"})
    other.reset(5)
    other.set_state(saved)
    assert np.array_equal(other.step(np.array([RIGHT, UP]))[0], after)


@pytest.mark.parametrize("name", DRAWINGS)
def test_named_mazes_can_be_solved(name: str) -> None:
    walls, start, goal = drawn(name)
    assert walls.shape == (13, 13) and start != goal and not walls.reshape(-1)[[start, goal]].any()
    expected = {"four_rooms": 24, "sixteen_rooms": 24, "corridor": 16, "labyrinth": 60}
    away = distances(walls, goal).reshape(-1)[start]
    assert away == expected.get(name, 96)
    assert (gym.make("assay/Maze-v0", maze=name).reset(seed=1)[0][25:27] * 13).round().any()


def test_levels_are_ranked_by_score_and_by_age() -> None:
    known = Ranges(read_ranges({"level": {"integer": [0, 99]}}), {"level": -1.0})
    plan = LevelReplay(levels=4, temperature=0.5, staleness=0.25, replay=0.5)
    sampler: Any = plan.sampler(known)
    places = (np.array([3, 5, 7, 9]) + 0.5) / 100
    sampler.scored(places[:, None], np.full(4, -1), np.array([0.1, 0.4, 0.2, 0.3]))
    ranks, age = np.array([4, 1, 3, 2]), np.array([3, 2, 1, 0])
    by_score = ranks ** (-2.0) / (ranks ** (-2.0)).sum()
    np.testing.assert_allclose(sampler.weights(), 0.75 * by_score + 0.25 * age / 6)
    # a level that is known gets its new score, one more takes the place of the lowest
    sampler.scored(np.array([[0.0572], [0.99]]), np.full(2, -1), np.array([0.05, 0.35]))
    assert known.values(sampler.units)["level"].tolist() == [3, 99, 7, 9]
    assert sampler.found.tolist() == [0.1, 0.35, 0.2, 0.3]
    sampler.scored(np.array([[0.5]]), np.array([-1]), np.array([0.01]))
    assert len(sampler.found) == 4 and 0.01 not in sampler.found
    units, tags = sampler.draw(np.random.default_rng(0), 2000)
    assert (tags == 0).mean() == pytest.approx(0.5, abs=0.04)
    assert set(known.values(units[tags == 0])["level"]) == {3, 99, 7, 9}
    # a run that was saved before there was learnability goes on
    saved = {k: v for k, v in sampler.state().items() if k not in ("tries", "new_rate")}
    resumed: Any = plan.sampler(known)
    resumed.load_state(saved)
    for one in (sampler, resumed):
        one.scored(np.array([[0.995], [0.2]]), np.full(2, -1), np.array([0.5, 0.6]))
    assert resumed.found.tolist() == sampler.found.tolist()
    np.testing.assert_array_equal(resumed.weights(), sampler.weights())


def test_levels_that_are_solved_now_and_then_score_high() -> None:
    known = Ranges(read_ranges({"level": {"integer": [0, 99]}}), {"level": -1.0})
    sampler: Any = LevelReplay(levels=2, score="learnability").sampler(known)
    sampler.new_rate = 0.8
    new, again = np.array([-1]), np.array([0])

    def play(level: int, tag: np.ndarray, won: float) -> None:
        sampler.ended(np.array([[(level + 0.5) / 100]]), tag, np.zeros(1), np.array([won]))

    assert not sampler.scores
    play(3, new, 1.0)  # new levels: 0.8 + 0.01 (1 - 0.8) = 0.802; p = (1 + 0.802) / 2 = 0.901
    play(5, new, 0.0)  # 0.802 - 0.01 * 0.802 = 0.79398; p = 0.79398 / 2 = 0.39699
    np.testing.assert_allclose(sampler.found, [0.901 * 0.099, 0.39699 * 0.60301])
    play(5, again, 1.0)  # 1.8 episodes, 1 of them solved: p = (1 + 0.79398) / 2.8
    p = 1.79398 / 2.8
    np.testing.assert_allclose(sampler.found[1], p * (1 - p))
    play(7, new, 0.0)  # takes the place of level 3, and knows nothing of its episode
    assert known.values(sampler.units)["level"].tolist() == [7, 5]
    assert sampler.tries.tolist() == [[1.0, 0.0], [1.8, 1.0]]
    with pytest.raises(EnvError, match="which the environment does not report"):
        play(7, again, np.nan)


def test_scores_are_the_mean_advantages_of_whole_episodes() -> None:
    plan: Any = {"level_replay": {"levels": 8}}
    randomize = {"level": {"integer": [0, 999]}, "reach": {"integer": [1, 2]}}
    envs = make_vector("assay/Maze-v0", 1, max_episode_steps=3, randomize=randomize,
                       curriculum=plan)  # fmt: skip
    envs.reset(1)
    overs = []
    for _ in range(2):
        overs += [bool(np.logical_or(*envs.step(np.zeros(1, np.int64))[2:4])[0]) for _ in range(4)]
        first = 1 + 4 * (len(overs) // 8)
        envs.score(np.arange(first, first + 4.0)[:, None] * -1)
    ends = np.flatnonzero(overs)
    starts = np.concatenate([[0], ends[:-1] + 1])
    expected = [np.arange(a + 1, b + 2).mean() for a, b in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(envs.curriculum.found, expected)
    assert len(expected) >= 2


@pytest.mark.parametrize("score", ["value_loss", "learnability"])
def test_a_run_with_level_replay_is_resumed_exactly(tmp_path: Path, score: str) -> None:
    settings: dict[str, Any] = {
        "env_steps": 512, "num_envs": 4, "horizon": 16, "minibatch_size": 16, "hidden": (8,),
        "eval_episodes": 2, "checkpoint_every": 128, "sinks": (), "compile": False,
        "root": tmp_path, "max_episode_steps": 10, "randomize": {"level": {"integer": [0, 99]}},
        "curriculum": {"level_replay": {"levels": 10, "score": score}},
    }  # fmt: skip

    def stop(event: events.Event) -> Any:
        return assay.STOP if event.clock.env_steps >= 192 else None

    whole = assay.train("ppo", "assay/Maze-v0", name="whole", **settings)
    parts = assay.train("ppo", "assay/Maze-v0", name="parts", callbacks=[stop], **settings)
    assert_same_run(whole.path, assay.resume(parts.path).path)
    assert whole.metrics()["curriculum/levels"][1][-1] == 10
    del settings["horizon"], settings["minibatch_size"]
    if score == "learnability":  # which needs no advantages
        assay.train("dqn", "assay/Maze-v0", name="any", learning_starts=64, **settings)
        return
    with pytest.raises(AssayError, match="which dqn does not compute"):
        assay.train("dqn", "assay/Maze-v0", name="none", **settings)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("options", [{}, {"wrappers": [{"frame_stack": 2}]}, {"backend": "sync"}])
def test_reaching_the_goal_is_a_success(options: dict[str, Any]) -> None:
    class Right:
        def act(self, obs: Any, carry: Any, explore: bool) -> Action:
            return Action(np.full(len(obs), RIGHT))

        def initial_carry(self, n: int) -> None:
            return None

    with make_vector("assay/Maze-v0", 4, env_kwargs={"size": 3, "max_walls": 0}, **options) as envs:
        found = evaluate(Right(), envs, episodes=12, seed=1)
    assert found.success is not None and 0 < found.success.sum() < 12
    assert np.array_equal(found.success, found.returns > 0)
