"""How a run's settings come together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium.spaces import Box, Discrete

import assay.presets
from assay.core import presets, registry
from assay.core.errors import ConfigError
from assay.core.types import Spaces
from assay.envs.make import look_at
from assay.loops import config
from assay.loops.config import RunConfig, preset, resolve
from assay.loops.run_settings import (
    FineTuneSettings,
    GameSettings,
    MixedSettings,
    OfflineSettings,
    OnlineSettings,
    RunSettings,
)
from assay.loops.training import build_algorithm
from assay.testing.algorithms import required_settings

PRESETS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted(Path(next(iter(assay.presets.__path__))).glob("*.yaml"))
}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let presets be read from a directory of the test."""
    monkeypatch.setattr(presets.importlib.resources, "files", lambda package: tmp_path)  # type: ignore[attr-defined]
    return tmp_path


def test_names_of_other_libraries_lead_to_settings_that_exist() -> None:
    algorithms = [registry.get(name) for name in registry.names()]
    known = set().union(
        *(cls.Hyperparameters.model_fields for cls in algorithms),
        *(config.settings_model(cls).model_fields for cls in algorithms),
    )
    wrong = {name for names in config._ELSEWHERE.values() for name in names} - known
    assert wrong == set()


class TestPrecedence:
    def test_later_layers_win(self, shelf: Path) -> None:
        (shelf / "ppo.yaml").write_text("Maze-v0: {lr: 0.1, horizon: 64, num_envs: 2, seed: 3}")
        config = resolve("ppo", "Maze-v0", {"horizon": 16, "seed": 4}, {"seed": 5})
        hyper, run = config.hyperparameters, config.run
        assert hyper["gamma"] == 0.99  # a default
        assert hyper["lr"] == 0.1 and run.num_envs == 2  # the preset
        assert hyper["horizon"] == 16  # the user's file
        assert run.seed == 5  # the command line

    def test_preset_can_be_left_out(self, shelf: Path) -> None:
        (shelf / "ppo.yaml").write_text("Maze-v0: {lr: 0.1}")
        assert resolve("ppo", "Maze-v0", use_preset=False).hyperparameters["lr"] == 3e-4

    def test_exact_id_wins_over_a_pattern_and_default_lies_under_both(self, shelf: Path) -> None:
        (shelf / "ppo.yaml").write_text(
            "default: {clip: 0.3}\n'Maze*': {lr: 0.1, gamma: 0.5}\nMaze-v1: {lr: 0.2}\n"
        )
        assert preset("ppo", "Maze-v1") == {"clip": 0.3, "lr": 0.2}
        assert preset("ppo", "Maze-v7") == {"clip": 0.3, "lr": 0.1, "gamma": 0.5}
        assert preset("ppo", "Other-v0") == {"clip": 0.3}
        assert preset("dqn", "Maze-v1") == {}

    @pytest.mark.parametrize("layer", [{3: 4}, {"run": {True: 1}}])
    def test_a_key_that_is_no_name_is_refused(self, layer: Any) -> None:
        with pytest.raises(ConfigError, match="expected the name of a setting"):
            resolve("ppo", "CartPole-v1", layer)

    def test_flat_and_nested_forms_mix(self) -> None:
        nested = {"run": {"seed": 4}, "hyperparameters": {"lr": 0.1}}
        config = resolve("ppo", "Maze-v0", nested, {"lr": 0.2})
        assert config.run.seed == 4 and config.hyperparameters["lr"] == 0.2

    def test_what_a_run_wrote_starts_an_equal_run(self) -> None:
        config = resolve("dqn", "Maze-v0", {"env_steps": 777, "epsilon": "linear:1:0.1:0.3"})
        again = resolve("dqn", "Maze-v0", yaml.safe_load(yaml.safe_dump(config.to_dict())))
        assert again == config
        assert RunConfig.from_dict(config.to_dict()) == config

    def test_a_config_of_something_else_is_refused(self) -> None:
        config = resolve("dqn", "Maze-v0").to_dict()
        with pytest.raises(ConfigError, match=r"algorithm='dqn', but 'ppo' was asked for"):
            resolve("ppo", "Maze-v0", config)
        with pytest.raises(ConfigError, match="env='Maze-v0', but 'Lake-v0'"):
            resolve("dqn", "Lake-v0", config)


class TestMistakes:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"learning_rate": 1}, r"for ppo: 'learning_rate'. It is called 'lr' here."),
            ({"batch_size": 1}, r"'batch_size'. It is called 'minibatch_size' here."),
            ({"learnig_rte": 1}, r"Unknown setting for ppo: 'learnig_rte'. (Known|Did you)"),
            ({"optimizer": "adam"}, r"(?s)Known: .*'optimizer' is a setting of a2c, impala\.$"),
            ({"maze_map": 7}, r"(?s)'maze_map'. Known: .*env_kwargs='{maze_map: 7}'"),
            ({"lrr": 7}, r"(?s)Did you mean 'lr'.*lists all of them.$"),
            ({"num_env": 4}, "Did you mean 'num_envs'"),
            ({"horizn": 4}, "Did you mean 'horizon'"),
            ({"gamma": 1.5}, "gamma=1.5: input should be less than or equal to 1"),
            ({"env_steps": 0}, "env_steps=0: input should be greater than 0"),
            ({"lr": -1}, "lr=-1"),
            ({"lr": "cubic:1:2"}, "unknown schedule 'cubic'"),
            ({"sinks": ["printer"]}, "printer"),
            ({"hyperparameters": {"gama": 0.9}}, "Did you mean 'gamma'"),
        ],
    )
    def test_are_named(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            resolve("ppo", "Maze-v0", values)

    def test_all_of_them_at_once(self) -> None:
        with pytest.raises(ConfigError) as caught:
            resolve("ppo", "Maze-v0", {"gamma": 2.0, "epochs": 0})
        assert "gamma=2.0" in caught.value.message and "epochs=0" in caught.value.message

    def test_a_setting_of_another_algorithm(self) -> None:
        with pytest.raises(ConfigError, match=r"`assay algorithms ppo`"):
            resolve("ppo", "Maze-v0", {"target_every": 5})

    def test_in_the_file_of_a_run(self) -> None:
        config = resolve("ppo", "Maze-v0").to_dict()
        config["run"]["env_steps"] = 0
        with pytest.raises(ConfigError, match=r"config.yaml: env_steps=0: input should be greater"):
            RunConfig.from_dict(config)

    def test_an_unknown_algorithm(self) -> None:
        with pytest.raises(ConfigError, match=r"Unknown algorithm 'poo'. Did you mean 'ppo'"):
            resolve("poo", "Maze-v0")


class TestIntervals:
    def test_follow_the_budget(self) -> None:
        run = OnlineSettings(env_steps=5000).resolved()
        assert (run.eval_every, run.checkpoint_every, run.log_every) == (500, 500, 50)
        run = OnlineSettings(env_steps=5).resolved()
        assert (run.eval_every, run.checkpoint_every, run.log_every) == (1, 1, 1)

    def test_zero_is_kept(self) -> None:
        run = OnlineSettings(
            env_steps=5000, eval_every=0, checkpoint_every=0, log_every=7
        ).resolved()
        assert (run.eval_every, run.checkpoint_every, run.log_every) == (0, 0, 7)


CONTINUOUS = re.compile(
    "Continuous|Pendulum|HalfCheetah|Hopper|Walker2d|Ant|Humanoid|Fetch|dm_control|(Point|Long)Maze"
)


@pytest.mark.parametrize(
    ("algorithm", "env"), [(name, env) for name, table in PRESETS.items() for env in table]
)
def test_every_preset_is_valid(algorithm: str, env: str) -> None:
    given = required_settings(algorithm)
    config = resolve(algorithm, env, given)
    table = PRESETS[algorithm]
    assert config == resolve(
        algorithm, env, table.get("default", {}) | table[env] | given, use_preset=False
    )
    # Settings that do not go together (a minibatch that does not divide the rollout) show here.
    run = config.run.model_copy(update={"device": "cpu", "compile": False})
    trial = config.model_copy(update={"run": run})
    learner = registry.get(algorithm)
    if learner.spec.agents == "many" or learner.plays_itself:  # for environments of their own kind
        build_algorithm(trial, look_at(env, run.env_settings()).spaces, run.clock())
        return
    action = Box(-1.0, 1.0, (2,), np.float32) if CONTINUOUS.search(env) else Discrete(2)
    if action.__class__.__name__ not in registry.get(algorithm).spec.actions:
        pytest.fail(f"{algorithm} cannot act in {env}")
    seen = Box(0, 255, (4, 84, 84), np.uint8) if "ALE" in env or "Frameskip" in env else (
        Box(-1.0, 1.0, (3,), np.float32)
    )  # fmt: skip
    build_algorithm(trial, Spaces(seen, action), run.clock())


def test_presets_are_of_algorithms() -> None:
    assert set(PRESETS) == set(registry.names())


@pytest.mark.parametrize(
    "model", [OnlineSettings, MixedSettings, OfflineSettings, FineTuneSettings, GameSettings]
)
def test_every_run_setting_has_a_meaning(model: type[RunSettings]) -> None:
    for key, (_, _, meaning) in model.meanings().items():
        assert meaning.endswith("."), key
    assert next(iter(model.meanings())) == model.unit  # the budget is what people look for


class TestObjects:
    """Environments that were given as objects."""

    def test_are_marked(self) -> None:
        config = resolve("ppo", "Maze", env_is_object=True)
        assert config.env == "Maze" and config.env_label == "Maze (object)"
        assert RunConfig.from_dict(config.to_dict()) == config
        assert resolve("ppo", "Maze").env_label == "Maze"

    def test_a_config_of_one_is_not_that_of_an_id(self) -> None:
        config = resolve("ppo", "Maze", env_is_object=True).to_dict()
        with pytest.raises(ConfigError, match="env_is_object=True, but False was asked for"):
            resolve("ppo", "Maze", config)

    def test_the_suffix_of_earlier_versions_is_read(self) -> None:
        config = resolve("ppo", "Maze", env_is_object=True)
        old = config.to_dict() | {"env": "Maze (object)"}
        del old["env_is_object"]
        assert RunConfig.from_dict(old) == config
        assert resolve("ppo", "Maze", old, env_is_object=True) == config

    def test_presets_go_by_the_name(self, shelf: Path) -> None:
        (shelf / "ppo.yaml").write_text("Maze-v0: {lr: 0.1}")
        config = resolve("ppo", "Maze-v0", env_is_object=True)
        assert config.hyperparameters["lr"] == 0.1


def test_the_environment_is_looked_at_as_the_run_will_make_it() -> None:
    seen: list[Any] = []

    def look(settings: Any) -> Any:
        seen.append(dict(settings))
        return look_at("FrozenLake-v1", settings)

    given = {"env_kwargs": {"map_name": "8x8"}, "max_episode_steps": 7}
    resolve("ppo", "FrozenLake-v1", given, look=look)
    assert seen == [given | {"reset_options": {}, "embed_text": 0, "wrappers": ()}]
    assert look_at("FrozenLake-v1", seen[0]).spaces.observation.n == 64
