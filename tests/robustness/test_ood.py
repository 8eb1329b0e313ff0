"""`assay test ood`: shifts do what they say, losses are theirs, and bad ones are refused."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import ConfigError
from assay.core.types import Action
from assay.envs.make import make_vector
from assay.evaluation.evaluate import evaluate
from assay.robustness.disturbed import (
    LateStart,
    Misled,
    NoisyActions,
    Room,
    Watched,
    gaussian_noise,
)
from assay.robustness.ood import measure_shifts, parameter_names
from assay.robustness.shifts import PRESETS, Change, preset, read_shifts


class Still:
    """Always does the same, and keeps what it saw."""

    def __init__(self, action: Any) -> None:
        self.action, self.seen = action, []

    def initial_carry(self, n: int) -> None:
        return None

    def act(self, obs: Any, carry: Any, explore: bool) -> Action:
        self.seen.append(obs)
        return Action(np.repeat(self.action[None], len(obs), 0))


def test_a_grid_is_read_in_order_with_combinations() -> None:
    shifts = read_shifts(
        {
            "obs_noise": [0.1, 0.2],
            "action_delay": 2,
            "env_kwargs": {"g": [5]},
            "combine": [["obs_noise", "action_delay"]],
        }
    )
    assert [str(shift.point) for shift in shifts] == [
        "obs_noise=0.1", "obs_noise=0.2", "action_delay=2", "env_kwargs.g=5",
        "obs_noise + action_delay={obs_noise: 0.1, action_delay: 2}",
        "obs_noise + action_delay={obs_noise: 0.2, action_delay: 2}",
    ]  # fmt: skip
    assert shifts[2].change == Change(wrappers=({"action_delay": 2},), blind=2)
    assert shifts[5].change == Change(wrappers=({"action_delay": 2},), obs_noise=0.2, blind=2)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"obs_nois": 0.1}, "Did you mean 'obs_noise'"),
        ({"frame_stack": 4}, "changes spaces"),
        ({"scale_reward": 2}, "changes rewards"),
        ({"obs_noise": -1}, "expected a number above 0"),
        ({"action_noise": 1.5}, "at most 1"),
        ({"random_start": 0.5}, "expected a number of steps"),
        ({"obs_delay": 0}, "obs_delay"),
        ({"sticky_actions": []}, "has no values"),
        ({"start": [3]}, "expected options of reset"),
        ({"levels": [3]}, "expected the id"),
        ({"env_kwargs": 3}, "expected {name"),
        ({"parameters": {"g": ["a"]}}, "expected a finite number"),
        ({"obs_noise": 0.1, "combine": [["obs_noise"]]}, "is not a pair"),
        ({"obs_noise": 0.1, "combine": [["obs_noise", "obs_delay"]]}, "which the grid lacks"),
        ({}, "no shifts"),
    ],
)
def test_a_bad_grid_is_refused(grid: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_shifts(grid)


def test_presets_are_grids() -> None:
    for name in PRESETS:
        assert read_shifts(preset(name), lambda: ["gravity"])
    with pytest.raises(ConfigError, match="Did you mean 'sensors'"):
        preset("sensor")


def test_noise_is_a_share_of_the_spread_that_was_seen() -> None:
    vector = make_vector("Pendulum-v1", 8)
    space = vector.spaces.observation
    watched = Watched(Still(np.zeros(1, np.float32)), space, np.random.default_rng(0))
    evaluate(watched, vector, episodes=8, seed=0)
    seen = np.concatenate(watched.agent.seen)
    room = watched.room()
    assert room.scales[""] == pytest.approx(seen.std(0), rel=1e-3)
    noisy = partial(gaussian_noise, room, 0.5, np.random.default_rng(1))
    middle = np.zeros((4000, 3), np.float32)
    moved = noisy(middle, None)
    speed = moved[:, 2]
    assert speed.std() == pytest.approx(0.5 * seen[:, 2].std(), rel=0.05)
    assert np.abs(moved).max(0)[0] <= 1.0  # within the bounds of the space


def test_whole_numbers_stay_whole_and_within_bounds() -> None:
    from gymnasium.spaces import Box

    box = Box(0, 255, (2,), np.uint8)
    room = Room({"": box}, {"": np.full(2, 100.0, np.float32)})
    moved = room.put(np.zeros((1, 2), np.uint8), {"": np.array([[-30.4, 300.7]])})
    assert moved.dtype == np.uint8 and moved.tolist() == [[0, 255]]


def test_action_noise_has_the_asked_size_and_keeps_the_bounds() -> None:
    from gymnasium.spaces import Box

    space = Box(-2, 2, (1,), np.float32)
    agent = NoisyActions(Still(np.zeros(1, np.float32)), space, 0.25, np.random.default_rng(0))
    actions = agent.act(np.zeros((4000, 3)), None, False).action
    assert actions.std() == pytest.approx(0.5, rel=0.05)  # a quarter of half the range, 2
    assert np.abs(actions).max() <= 2


def test_a_late_start_is_random_for_so_many_steps_of_every_episode() -> None:
    from gymnasium.spaces import Discrete

    still = Still(np.array(7))
    agent = LateStart(still, Discrete(3), 2, np.random.default_rng(0))
    obs, carry = np.zeros((50, 1)), agent.initial_carry(50)
    for step in range(4):
        choice = agent.act(obs, carry, False)
        carry = choice.carry
        assert (choice.action == 7).all() == (step >= 2)
    assert agent.initial_carry(1)["steps"].tolist() == [0]


def test_a_misled_agent_sees_something_else() -> None:
    still = Still(np.array(0))
    Misled(still, lambda obs, carry: obs + 1).act(np.zeros((2, 1)), None, False)
    assert still.seen[0].tolist() == [[1.0], [1.0]]


def test_a_good_run_holds_under_small_shifts_and_fails_under_large_ones(balancing: Path) -> None:
    grid: dict[str, Any] = {
        "obs_noise": [0.01],
        "sticky_actions": [0.9],
        "start": [{"low": -0.5, "high": 0.5}],
    }
    verdict = measure_shifts([balancing], read_shifts(grid), episodes=40)
    small, stuck, start = verdict.cells
    assert verdict.nominal == 500 and verdict.floor < 60
    assert small.outcome == "holds" and small.mean == 500
    assert stuck.outcome == "fails" and stuck.loss.low > 0.5
    assert 0.2 < start.loss.point < 0.9  # many begin beyond the angle at which episodes end
    assert verdict.outcome == "fails" and verdict.worst[0] is stuck


def test_dynamics_are_factors_and_parameters_are_values(balancing: Path) -> None:
    assert "force_mag" in parameter_names(balancing)
    # A cart that is pushed with a two-hundredth of the force cannot hold the pole.
    grid = {"dynamics": {"force_mag": [0.005, 1.0]}, "parameters": {"force_mag": [0.05]}}
    weak, same, value = measure_shifts([balancing], read_shifts(grid), episodes=8).cells
    assert same.mean == 500 and weak.mean < 100
    assert value.mean == weak.mean  # Gymnasium's is 10
    every = read_shifts({"dynamics": [2]}, lambda: ["gravity", "length"])
    assert [str(shift.point) for shift in every] == ["dynamics.gravity=2", "dynamics.length=2"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"action_delay": [500]}, "makes the environment unsolvable: episodes end after 500"),
        ({"start": [{"low": 5.0, "high": 5.1}]}, "unsolvable: every episode is over after 1"),
        ({"start": [{"low": 1, "high": -1}]}, r"^.*reset refuses the options .*high': -1.*\n.*$"),
        ({"start": [{"low": "a"}]}, "refuses the options {'low': 'a'}"),
        ({"start": [{"hihg": 0.1}]}, "episodes start as they do without the options {'hihg': 0.1}"),
        ({"levels": ["Acrobot-v1"]}, "the run was trained on"),
        ({"env_kwargs": {"lenght": [1]}}, "no setting 'lenght'"),
        ({"dynamics": {"gravty": [2]}}, "no parameter 'gravty'"),
        ({"dynamics": {"length": [0]}}, "dynamics.length=0: Environment 0 .* is nan"),
    ],
)
def test_shifts_that_leave_nothing_to_play(
    balancing: Path, grid: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_shifts([balancing], read_shifts(grid), episodes=4)


def test_a_mistake_in_the_last_cell_is_known_before_the_first_is_played(balancing: Path) -> None:
    told: list[int] = []
    for wrong in ({"dynamics": {"gravty": [2]}}, {"start": [{"low": 1, "high": -1}]}):
        with pytest.raises(ConfigError, match=r"gravty|refuses"):
            measure_shifts(
                [balancing],
                read_shifts({"obs_noise": [0.1], **wrong}),
                episodes=4,
                progress=lambda done, of: told.append(done),
            )
    assert not told


def test_a_floor_is_a_number(balancing: Path) -> None:
    with pytest.raises(ConfigError, match="floor=nan: expected a finite number"):
        measure_shifts([balancing], read_shifts({"obs_noise": 0.1}), episodes=4, floor=np.nan)


def test_a_run_that_is_no_better_than_chance_is_refused(useless: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to lose"):
        measure_shifts([useless], read_shifts({"obs_noise": 0.1}), episodes=4)


def test_the_command_writes_a_report_and_exits_by_the_verdict(
    balancing: Path, tmp_path: Path
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text("sticky_actions: [0.9]\n")
    arguments = ["test", "ood", str(balancing), "--shifts", str(grid), "--episodes", "20"]
    out = tmp_path / "report"
    result = CliRunner().invoke(app, [*arguments, "--out", str(out), "--tolerance", "0.1"])
    assert result.exit_code == 1, result.output
    assert "Fails: 1 of 1 cost more than 10%" in result.stdout
    found = json.loads((out / "report.json").read_text())
    assert found["outcome"] == "fails" and found["cells"][0]["axis"] == "sticky_actions"
    assert "| sticky_actions | 0.9 |" in (out / "report.md").read_text()
    assert (out / "losses.svg").stat().st_size > 1000
    short = [*arguments[:-1], "4"]
    assert CliRunner().invoke(app, short).exit_code == 0  # no verdict was asked for


def test_a_mistake_exits_with_2_and_writes_nothing(balancing: Path, tmp_path: Path) -> None:
    out = tmp_path / "report"
    for wrong in (
        ["obs_nois=0.1"], ["--shifts", "sensor"], ["--pictures", "gif"], ["combine=3"],
        ["combine=[[a, b]]"], ["--floor", "nan"],
    ):  # fmt: skip
        result = CliRunner().invoke(app, ["test", "ood", str(balancing), "--out", str(out), *wrong])
        assert result.exit_code == 2, result.output
    assert not out.exists()
    out.write_text("mine")
    result = CliRunner().invoke(app, ["test", "ood", str(balancing), "--out", str(out)])
    assert result.exit_code == 2 and "is a file" in result.stderr


@pytest.mark.parametrize("attack", [False, True])
def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_played(
    balancing: Path, tmp_path: Path, attack: bool
) -> None:
    (tmp_path / "file").write_text("mine")
    command = ["test", "attack" if attack else "ood", str(balancing), "--episodes", "2"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "file" / "report")])
    assert result.exit_code == 2 and "nothing can be written to" in result.stderr
    assert " cells" not in result.stderr


@pytest.mark.parametrize("command", ["test ood", "test attack", "explain", "evaluate", "plot"])
def test_wrappers_that_were_changed_after_training_are_refused(
    balancing: Path, tmp_path: Path, command: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(balancing, run)
    config = (run / "config.yaml").read_text()
    assert "wrappers: []" in config
    (run / "config.yaml").write_text(config.replace("wrappers: []", "wrappers: [{frame_stack: 4}]"))
    places = [str(run), str(balancing), "--video"] if command == "plot" else [str(run)]
    result = CliRunner().invoke(app, [*command.split(), *places, "--episodes", "2"])
    assert result.exit_code == 2, result.output
    assert "trained on Box" in result.stderr and "wrappers" in result.stderr


def test_no_attack_is_not_all_attacks(balancing: Path) -> None:
    result = CliRunner().invoke(app, ["test", "attack", str(balancing), "--attacks", ""])
    assert result.exit_code == 2 and "There is no attack ''" in result.stderr
