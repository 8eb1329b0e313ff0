"""Every registered algorithm is a class that trains, goes on, evaluates, predicts and saves."""

from __future__ import annotations

import errno
import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import assay
from assay.core import registry
from assay.core.errors import AssayError, CheckpointError, ConfigError, RunError
from assay.loops.config import RunConfig
from assay.managed.classes import OWN, algorithm_class
from assay.managed.stub import COMMAND, PLACE, render
from assay.managed.types import settings_of
from assay.runs import checkpoint
from assay.testing.offline import record

TINY = {"compile": False, "sinks": [], "eval_every": 0, "eval_episodes": 2, "preset": False}
SMALL = TINY | {"hidden": (16,), "learning_starts": 16, "batch_size": 8}
ALGORITHMS = registry.names()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Made from the registry


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_a_class_of_its_own_name(name: str) -> None:
    algorithm = registry.get(name)
    made = getattr(assay, algorithm.__name__)
    assert made is algorithm_class(name)
    assert made.__name__ == algorithm.__name__ and made.algorithm == name
    assert algorithm.__name__ not in assay._HOME
    assert algorithm.__name__ in dir(assay)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_signatures_show_every_setting(name: str) -> None:
    shown = inspect.signature(algorithm_class(name)).parameters
    assert set(shown) == set(OWN) | set(settings_of(registry.get(name)))
    assert all(one.annotation != "Any" for one in shown.values()), "a type without a name"
    described = algorithm_class(name).__doc__
    assert all(f"    {setting}: " in described for setting in settings_of(registry.get(name)))


def test_types_and_defaults_are_what_a_user_would_write() -> None:
    shown = inspect.signature(assay.FQF).parameters
    assert (shown["lr"].annotation, shown["lr"].default) == ("float | str", 5e-5)
    assert shown["hidden"].annotation == "Sequence[int]"
    assert shown["epsilon"].default == "linear:1.0:0.05:0.1"
    data = inspect.signature(assay.BC).parameters["data"]
    assert (data.annotation, data.default) == ("str | Path", inspect.Parameter.empty)


def test_looking_at_assay_imports_no_torch() -> None:
    code = "import assay, sys; dir(assay); hasattr(assay, 'Nothing'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_names_that_do_not_exist_are_no_attributes() -> None:
    for name in ("Nothing", "fqf", "Fqf", "REcurrentPPO"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
            getattr(assay, name)


def test_the_page_names_everything_that_assay_offers() -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text()
    assert [name for name in assay._HOME if f"`{name}" not in page] == []


OWN_ALGORITHM = '''
from assay.algorithms.dqn import DQN
from assay.core.registry import register


@register(loop="off_policy", actions=("Discrete",), family="value", paper="None.")
class Mine(DQN):
    """An algorithm of one's own."""
'''


def test_an_algorithm_of_ones_own_is_a_class(place: Path, monkeypatch: Any) -> None:
    (place / "my_algorithms.py").write_text(OWN_ALGORITHM)
    monkeypatch.syspath_prepend(str(place))
    mine = assay.algorithm_class("my_algorithms:Mine")("CartPole-v1", **SMALL).train(64)
    assert mine.run is not None and mine.run.config.algorithm == "my_algorithms:Mine"
    again = assay.algorithm_class("my_algorithms:Mine").load(mine.run.path)
    assert again.predict(np.zeros(4)) in (0, 1)
    text = refused(RunError, lambda: assay.DQN.load(mine.run.path))
    assert 'Load it with assay.algorithm_class("my_algorithms:Mine").load.' in text


# Training and what follows


def test_a_trained_object_can_be_sent_to_another_process(place: Path) -> None:
    made = assay.DQN("CartPole-v1", **SMALL).train(32)
    expected = made.predict(np.zeros(4))
    sent = pickle.loads(pickle.dumps(made))
    assert type(sent) is assay.DQN and sent.predict(np.zeros(4)) == expected
    assert sent.train(16).agent.clock.env_steps == 48


def test_an_algorithm_trains_and_goes_on(place: Path) -> None:
    fqf = assay.FQF("CartPole-v1", lr=3e-4, name="first", **SMALL)
    assert fqf.train(64) is fqf
    assert fqf.run is not None and fqf.run.path == place / "runs/first"
    assert fqf.run.status == "done" and fqf.agent.clock.env_steps == 64
    assert fqf.run.config.hyperparameters["lr"] == 3e-4
    assert len(fqf.evaluate(episodes=3).returns) == 3
    before = fqf.agent
    fqf.train(36)
    assert fqf.agent is not before and fqf.agent.clock.env_steps == 100
    assert fqf.run.status == "done" and fqf.run.config.run.total == 100
    [event] = [one for one in fqf.run.directory.events() if one["kind"] == "ConfigChanged"]
    assert event["budget"] == 100
    single, batch = fqf.predict(np.zeros(4)), fqf.predict
    fqf.reset()
    assert batch(np.zeros((3, 4))).tolist() == [single] * 3


def test_going_on_is_the_same_every_time(place: Path) -> None:
    def weights(name: str) -> Any:
        made = assay.DQN("CartPole-v1", name=name, **SMALL).train(64).train(64)
        return made.agent.algorithm.state()["weights"]

    first, second = (json.dumps(weights(n), default=lambda x: x.tolist()) for n in ("a", "b"))
    assert first == second
    longer = assay.DQN("CartPole-v1", name="c", **SMALL).train(64).agent.algorithm.state()
    assert json.dumps(longer["weights"], default=lambda x: x.tolist()) != first


def unsaved() -> gym.Env[Any, Any]:
    """Make an environment whose state nobody can save."""
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), float)


def test_returns_end_where_an_environment_began_again_because_training_went_on() -> None:
    settings = SMALL | {"checkpoint_every": 0, "learning_starts": 4, "train_every": 1}
    made = assay.DQN(unsaved, **settings).train(7).train(7)
    assert made.run is not None
    last = checkpoint.latest(made.run.directory.checkpoints_path)
    assert last is not None
    sections = checkpoint.read_checkpoint(last)
    assert sections["collector"]["env"] is None
    kept = sections["replay-00000"]
    assert kept["terminated"][:7].sum() == 0  # no CartPole falls in seven steps
    assert np.flatnonzero(kept["truncated"][:14]).tolist() == [6]


def test_a_budget_that_is_not_given_is_that_of_the_settings() -> None:
    made = assay.DQN("CartPole-v1", env_steps=48, **SMALL).train()
    assert made.agent.clock.env_steps == 48
    with pytest.raises(RunError, match="is done"):
        made.train()


def test_an_interrupted_run_is_finished() -> None:
    made = assay.DQN("CartPole-v1", env_steps=64, log_every=16, **SMALL)
    made.train(callbacks=[lambda event: assay.STOP])
    assert made.run is not None and made.run.status == "interrupted"
    assert made.train().run.status == "done"  # type: ignore[union-attr]
    assert made.agent.clock.env_steps == 64


def test_offline_algorithms_learn_from_data(place: Path) -> None:
    data = assay.data.save(record("CartPole-v1", episodes=3), place / "set.npz")
    bc = assay.BC("CartPole-v1", data=data, **TINY).train(5)
    assert bc.agent.clock.updates == 5
    assert bc.train(3).agent.clock.updates == 8
    assert bc.predict(np.zeros(4)) in (0, 1)


def test_imitators_take_experts_that_are_objects(place: Path) -> None:
    settings = TINY | {"expert": lambda obs: 1, "hidden": (16,)}
    made = assay.DAgger("CartPole-v1", **settings).train(64)
    # It keeps all that it asked about: with more steps there is more room.
    assert made.train(64).agent.clock.env_steps == 128
    assert made.predict(np.zeros(4)) in (0, 1)


def test_a_budget_that_the_state_does_not_fit_leaves_the_run_as_it_was(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = assay.DQN("CartPole-v1", **SMALL).train(64)

    def refuse(*state: Any) -> None:
        raise CheckpointError("It does not fit.")

    monkeypatch.setattr(registry.get("dqn"), "load_state", refuse)
    text = refused(ConfigError, lambda: made.train(64))
    assert "budget=128: dqn cannot go on with it. It does not fit." in text
    assert made.run is not None and made.run.status == "done"
    assert assay.open_run(made.run.path).config == made.run.config


def test_memory_is_carried_until_it_is_reset() -> None:
    made = assay.RecurrentPPO("Pendulum-v1", horizon=16, **TINY).train(32)
    obs = np.ones(3, np.float32)
    first, second = made.predict(obs), made.predict(obs)
    assert not np.array_equal(first, second)
    made.reset()
    assert np.array_equal(made.predict(obs), first)


def test_what_is_saved_is_a_run_of_its_own(place: Path) -> None:
    made = assay.DQN("CartPole-v1", name="one", **SMALL).train(64)
    copy = assay.DQN.load(made.save(place / "kept/two"))
    assert copy.train(16).agent.clock.env_steps == 80
    assert assay.DQN.load("one").agent.clock.env_steps == 64
    assert [one.name for one in (place / "kept").iterdir()] == ["two"]


def test_it_trains_as_assay_train_does() -> None:
    made = assay.PPO("CartPole-v1", seed=3, compile=False, eval_every=0).train(2048)
    other = assay.train("ppo", "CartPole-v1", env_steps=2048, seed=3, compile=False, eval_every=0)
    assert made.run is not None
    assert RunConfig.from_dict(made.run.directory.config) == other.config
    assert made.evaluate(5).returns.tolist() == other.evaluate(5).returns.tolist()


# Mistakes


def refused(kind: type[Exception], call: Any) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, AssayError)
    return str(caught.value)


def test_settings_are_refused_at_once(place: Path) -> None:
    text = refused(ConfigError, lambda: assay.FQF("CartPole-v1", lrr=1e-3))
    assert "Unknown setting for fqf: 'lrr'. Did you mean 'lr'?" in text
    text = refused(ConfigError, lambda: assay.FQF("CartPole-v1", learning_rate=1e-3))
    assert "It is called 'lr' here" in text
    assert "gamma=2" in refused(ConfigError, lambda: assay.FQF("CartPole-v1", gamma=2))
    assert "no file is given" in refused(ConfigError, lambda: assay.BC("CartPole-v1"))
    assert "none is given" in refused(ConfigError, lambda: assay.GAIL("CartPole-v1"))
    text = refused(ConfigError, lambda: assay.algorithm_class("fqq"))
    assert "Did you mean 'fqf'?" in text
    assert not (place / "runs").exists()


def test_what_needs_a_run_is_refused_before_there_is_one(place: Path) -> None:
    made = assay.DQN("CartPole-v1", **SMALL)
    for call in (made.evaluate, made.reset, lambda: made.predict([0]), lambda: made.save("x")):
        assert "The DQN is not trained yet" in refused(RunError, call)


def test_bad_runs_budgets_and_places_are_refused(place: Path) -> None:
    made = assay.DQN("CartPole-v1", name="one", **SMALL).train(64)
    text = refused(RunError, lambda: assay.PPO.load("one"))
    assert "is a run of dqn, not of ppo" in text and "assay.DQN.load" in text
    assert "no run at" in refused(RunError, lambda: assay.DQN.load("nowhere"))
    (place / "taken").write_text("")
    assert "already" in refused(RunError, lambda: made.save(place / "taken"))
    assert "Cannot save" in refused(RunError, lambda: made.save(place / "taken/inside"))
    for budget in (0, -5, 1.5, True, "many"):
        text = refused(ConfigError, lambda: made.train(budget))  # noqa: B023
        assert f"budget={budget!r}: expected a whole number of at least 1." in text
    assert made.run is not None and made.run.status == "done"
    assert made.run.config.run.total == 64
    text = refused(ConfigError, lambda: assay.resume(made.run.path, budget=64.5))
    assert "budget=64.5: expected a whole number" in text
    assert "at env_steps=64 already" in refused(
        ConfigError, lambda: assay.resume(made.run.path, budget=64)
    )
    assert made.predict(np.zeros(4)) in (0, 1)
    assert "episodes=0" in refused(ConfigError, lambda: made.evaluate(episodes=0))


def test_a_full_disk_is_told_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = assay.DQN("CartPole-v1", name="one", **SMALL).train(32)

    def full(source: Any, target: Any, **_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr("shutil.copyfile", full)
    text = refused(RunError, lambda: made.save("kept"))
    assert (
        text == "Cannot save the run to 'kept': the disk is full.\nFree some space and try again."
    )
    assert [one.name for one in place.iterdir()] == ["runs"]


def test_budgets_may_be_floats_that_are_whole(place: Path) -> None:
    made = assay.DQN("CartPole-v1", name="one", **TINY | {"preset": True})
    assert made.train(64.0).run.config.hyperparameters["learning_starts"] == 3  # a 20th, as of 64
    made.train(1e2)
    assert "env_steps: 164\n" in (place / "runs/one/config.yaml").read_text()


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ([0.0, np.nan, 0.0, 0.0], "number 1 of row 0 of the observation is nan; expected a finite"),
        ([[0.0] * 4, [0.0, 0.0, 1e300, 0.0]], "number 2 of row 1 of the observation is inf"),
        (np.zeros((0, 4)), "it holds no observations"),
        ([[0.0] * 4, [0.0]], "inhomogeneous"),
    ],
)
def test_predict_refuses_numbers_that_no_environment_gives(
    place: Path, obs: Any, said: str, recwarn: pytest.WarningsRecorder
) -> None:
    made = assay.DQN("CartPole-v1", **SMALL).train(32)
    assert said in refused(AssayError, lambda: made.predict(obs))
    assert not recwarn.list
    assert made.predict(np.zeros(4)) in (0, 1)


def test_predict_refuses_choices_that_there_are_not(place: Path) -> None:
    made = assay.DQN("FrozenLake-v1", **SMALL).train(32)
    assert made.predict([0, 15]).shape == (2,)
    text = refused(AssayError, lambda: made.predict([3, 16]))
    assert "number 0 of row 1 of the observation is 16; expected a value of Discrete(16)" in text


class Parts(gym.Env):
    """Two numbers, each by its name."""

    observation_space = gym.spaces.Dict({k: gym.spaces.Box(-1, 1, (1,)) for k in ("a", "b")})
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 1.0, True, False, {}


def test_predict_refuses_entries_that_are_not_as_many(place: Path) -> None:
    made = assay.DQN(Parts, **SMALL).train(32)
    text = refused(AssayError, lambda: made.predict({"a": np.zeros((3, 1)), "b": np.zeros((2, 1))}))
    assert "its entries have 2 and 3 rows" in text
    text = refused(AssayError, lambda: made.predict({"a": [0.0], "b": [np.nan]}))
    assert "number 0 of row 0 of entry 'b' is nan" in text


def test_a_run_with_two_budgets_does_not_go_on(place: Path) -> None:
    data = assay.data.save(record("CartPole-v1", episodes=3), place / "set.npz")
    made = assay.IQL("CartPole-v1", data=data, env_steps=4, hidden=(16,), **TINY).train(4)
    text = refused(ConfigError, lambda: made.train(4))
    assert "two budgets, updates and env_steps" in text


# Types


def test_the_stub_is_up_to_date() -> None:
    message = f"{PLACE} is out of date: run `{COMMAND}`, or `make stubs`"
    assert PLACE.read_text() == render(), message


@pytest.mark.slow
def test_type_checkers_know_the_settings(place: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    (place / "typed.py").write_text(
        "from assay import BC, FQF\n"
        "FQF('CartPole-v1', lr=3e-4, hidden=[64, 64], epsilon='linear:1:0.1')\n"
        "FQF('CartPole-v1', lrr=3e-4)\n"
        "FQF('CartPole-v1', lr=[3e-4])\n"
        "BC('CartPole-v1')\n"
    )
    options = ["--follow-imports=skip", "--cache-dir", str(place / "cache"), "--config-file="]
    text, _, _ = mypy.run([*options, str(PLACE), "typed.py"])
    errors = [line for line in text.splitlines() if line.startswith("typed.py") and "error" in line]
    assert [int(line.split(":")[1]) for line in errors] == [3, 4, 5], text
    assert 'Unexpected keyword argument "lrr" for "FQF"; did you mean "lr"?' in errors[0]
