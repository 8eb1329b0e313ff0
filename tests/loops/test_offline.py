"""Learning from recorded data alone, through everything that a run goes through."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from offline_data import answers
from typer.testing import CliRunner

import assay
from assay.cli.app import app
from assay.core import registry
from assay.core.errors import AssayError, ConfigError, DataError, RunError
from assay.core.types import Clock
from assay.data.collect import from_episodes
from assay.data.files import save
from assay.evaluation.compare import compare
from assay.evaluation.plots import read_unit
from assay.loops import events
from assay.loops.offline import OfflineLoop
from assay.loops.training import Training
from assay.runs import checkpoint
from assay.runs.metrics import read_records
from assay.testing.algorithms import assert_same_run, last_checkpoint
from assay.testing.envs import Identity

PATIENCE = 120.0  # seconds that a process may take, on a machine that is busy with other things
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([0.5, 10.0], np.float32))
SMALL: dict[str, Any] = {
    "lr": 1e-2, "hidden": (16,), "batch_size": 32, "updates": 100, "eval_episodes": 2,
    "sinks": (), "compile": False, "device": "cpu",
}  # fmt: skip
OFTEN = {"log_every": 20, "eval_every": 40, "checkpoint_every": 30}

Train = Callable[..., Any]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that trains BC on the right answers of an `Identity` environment."""

    def run(name: str, env: Any = Identity, **options: Any) -> Any:
        path = tmp_path / "answers.npz"
        if not path.exists():
            save(answers(env()), path)
        settings = {"data": path, **SMALL, **options}
        settings["data"] = str(settings["data"])
        return assay.train("bc", env, name=name, root=tmp_path, **settings)

    return run


class Untouched(Identity):
    """Must not be stepped. A copy of it, which evaluation plays with, may be."""

    def step(self, action: Any) -> Any:
        raise AssertionError("an environment was stepped")

    def __deepcopy__(self, memo: Any) -> Identity:
        return Identity()


def die_at(kind: str, updates: int) -> Callable[[events.Event], None]:
    def callback(event: events.Event) -> None:
        if (type(event).__name__, event.clock.updates) == (kind, updates):
            raise KeyError("the power is out")

    return callback


class TestLearning:
    @pytest.mark.parametrize("normalize_obs", [False, True])
    @pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Discrete(3, start=2), BOX])
    def test_does_what_the_data_did(
        self, train: Train, space: gym.Space[Any], normalize_obs: bool
    ) -> None:
        env = partial(Identity, space)
        run = train("a", env, updates=300, normalize_obs=normalize_obs)
        assert run.status == "done"
        # Eight steps of an episode, each worth 1 at best; 4.8 for always the middle of a Box.
        assert run.evaluate(10).mean > 7.5
        agent = assay.load(run.path)
        world = env()
        for _ in range(20):
            obs, _ = world.reset()
            action = agent.act(obs)
            assert world.action_space.contains(action)
            np.testing.assert_allclose(action, world.answers[world.context], atol=0.5)

    def test_no_environment_is_stepped(self, train: Train, tmp_path: Path) -> None:
        save(answers(Identity()), tmp_path / "answers.npz")
        run = train("a", Untouched())
        assert run.status == "done" and run.directory.evals()
        assert last_checkpoint(run.path)["run"]["env_steps"] == 0

    def test_normalisers_see_the_data_once(self, train: Train) -> None:
        run = train("a", normalize_obs=True)
        assert last_checkpoint(run.path)["normalisers"]["obs_norm"][""]["count"] == 200

    def test_schedules_run_over_updates(
        self, train: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        progress: list[float] = []
        update = OfflineLoop.iterate
        monkeypatch.setattr(
            OfflineLoop,
            "iterate",
            lambda self: (progress.append(self.clock.progress), update(self))[1],
        )
        train("a", updates=5)
        assert progress == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])

    def test_an_update_without_a_step_is_an_error(
        self, train: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry.get("bc"), "update", lambda self, data: None)
        with pytest.raises(AssayError, match=r"bc\.update took no optimizer step"):
            train("a")


class TestMoments:
    def test_are_counted_in_updates(self, train: Train) -> None:
        seen: list[tuple[str, int]] = []
        run = train(
            "a",
            callbacks=[lambda e: seen.append((type(e).__name__, e.clock.count))],
            log_every=20,
            eval_every=40,
            checkpoint_every=30,
        )
        assert seen == [
            ("RunStarted", 0), ("Logged", 20), ("CheckpointSaved", 30), ("Logged", 40),
            ("Evaluated", 40), ("Logged", 60), ("CheckpointSaved", 60), ("Logged", 80),
            ("Evaluated", 80), ("CheckpointSaved", 90), ("Logged", 100), ("Evaluated", 100),
            ("CheckpointSaved", 100), ("RunEnded", 100),
        ]  # fmt: skip
        names = sorted(path.name for path in run.directory.eval_path.iterdir())
        assert names == [f"{n:012d}-training.json" for n in (40, 80, 100)]
        evals = run.directory.evals()
        assert [e["updates"] for e in evals] == [40, 80, 100] and "env_steps" not in evals[0]
        kept = checkpoint.list_checkpoints(run.directory.checkpoints_path)
        assert [int(place.name) for place in kept] == [90, 100]
        manifest = checkpoint.read_manifest(kept[-1])
        assert manifest["updates"] == 100 and "env_steps" not in manifest
        assert [e["updates"] for e in run.directory.events()] == [0, 30, 60, 90, 100, 100]

    def test_intervals_follow_the_budget(self, train: Train) -> None:
        run = train("a", updates=50).config.run
        assert (run.eval_every, run.checkpoint_every, run.log_every) == (5, 5, 1)

    def test_metrics(self, train: Train) -> None:
        run = train("a", log_every=50, eval_every=50)
        records = list(read_records(run.directory.metrics_path))
        counts = [(r.env_steps, r.updates, r.episodes, r.count) for r in records]
        assert counts == [(0, 50, 0, 50)] * 2 + [(0, 100, 0, 100)] * 2
        named = {"train/bc_loss", "train/bc_grad_norm", "time/updates_per_second", "time/elapsed"}
        named |= {"time/update_share", "time/evaluation_share"}
        assert set(records[0].metrics) == named
        steps, values = run.metrics()["train/bc_loss"]
        assert steps.tolist() == [50, 100] and values[1] < values[0]
        steps, _ = run.metrics()["eval/return_mean"]
        assert steps.tolist() == [50, 100]


class TestResume:
    @pytest.mark.parametrize(
        "moment",
        [
            ("RunStarted", 0),
            ("Logged", 20),  # before there is a checkpoint: from the beginning
            ("CheckpointSaved", 30),
            ("Evaluated", 80),
            ("CheckpointSaved", 100),  # all is done but to say so
        ],
        ids=lambda moment: "-".join(map(str, moment)),
    )
    def test_a_killed_run_ends_like_the_undisturbed_one(
        self, train: Train, tmp_path: Path, moment: tuple[str, int]
    ) -> None:
        options = {**OFTEN, "normalize_obs": True, "lr": "linear:1e-2:0"}
        whole = train("whole", **options)
        with pytest.raises(KeyError, match="power"):
            train("killed", callbacks=[die_at(*moment)], **options)
        resumed = assay.resume(tmp_path / "killed", env=Identity)
        assert resumed.status == "done"
        assert_same_run(whole.path, resumed.path)

    def test_another_seed_is_another_run(self, train: Train) -> None:
        one, two, other = (last_checkpoint(train(str(s), seed=s % 2).path) for s in (1, 3, 2))
        for name, array in one["weights"]["net"].items():
            np.testing.assert_array_equal(array, two["weights"]["net"][name])
            assert not np.array_equal(array, other["weights"]["net"][name])

    @pytest.mark.parametrize("moment", [("Logged", 20), ("Logged", 80)])
    def test_changed_data_is_refused(
        self, train: Train, tmp_path: Path, moment: tuple[str, int]
    ) -> None:
        with pytest.raises(KeyError):
            train("a", callbacks=[die_at(*moment)], **OFTEN)
        path = tmp_path / "answers.npz"
        original = path.read_bytes()
        others = [
            dataclasses.replace(episode, reward=0 * episode.reward)
            for episode in answers(Identity()).episodes()
        ]
        spaces = Identity().observation_space, Identity().action_space
        save(from_episodes(others, *spaces), path)
        with pytest.raises(RunError, match=r"data='.*answers.npz' has changed since the run"):
            assay.resume(tmp_path / "a", env=Identity)
        path.unlink()
        with pytest.raises(DataError, match=r"There is no file '.*answers.npz'"):
            assay.resume(tmp_path / "a", env=Identity)
        path.write_bytes(original)
        assert assay.resume(tmp_path / "a", env=Identity).status == "done"

    def test_what_is_done_is_done(self, train: Train) -> None:
        run = train("a")
        with pytest.raises(RunError, match="is done: it reached updates=100"):
            assay.resume(run.path, env=Identity)

    def test_the_hash_of_the_data_is_in_the_provenance(self, train: Train, tmp_path: Path) -> None:
        run = train("a")
        path = tmp_path / "answers.npz"
        assert run.directory.provenance["files"] == {
            "data": {
                "path": str(path),
                "sha256": answers(Identity()).content_hash,
                "episodes": 25,
                "steps": 200,
            }
        }

    def test_the_same_content_in_another_file_goes_on(self, train: Train, tmp_path: Path) -> None:
        with pytest.raises(KeyError):
            train("a", callbacks=[die_at("Logged", 80)], **OFTEN)
        path = tmp_path / "answers.npz"
        with zipfile.ZipFile(path) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in arrays.items():
                archive.writestr(name, content)
        assert assay.resume(tmp_path / "a", env=Identity).status == "done"


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"num_envs": 4}, "num_envs=4: bc steps one environment at most"),
            ({"run": {"num_envs": 4}}, "num_envs=4: bc steps one"),
            ({"updates": 0}, "updates=0: input should be greater than 0"),
            ({"updates": True}, "updates=true"),
            ({"dta": "x.npz"}, "Did you mean 'data'"),
        ],
    )
    def test_of_another_loop_are_refused(
        self, train: Train, tmp_path: Path, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            train("a", **settings)
        assert not (tmp_path / "a").exists()

    @pytest.mark.parametrize(
        ("algorithm", "settings", "message"),
        [
            ("ppo", {"updates": 10}, "updates=10: ppo collects its data .* for env_steps"),
            ("dqn", {"run": {"updates": 10}}, "updates=10: dqn collects its data"),
            ("dqn", {"data": "x.npz"}, "data=x.npz: dqn takes no recorded data"),
        ],
    )
    def test_of_data_are_refused_by_those_that_collect(
        self, algorithm: str, settings: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            assay.train(algorithm, "CartPole-v1", root=tmp_path, **settings)

    def test_updates_stays_a_hyperparameter_of_those_that_have_it(self) -> None:
        from assay.loops.config import resolve

        config = resolve("dqn", "CartPole-v1", {"updates": 3})
        assert config.hyperparameters["updates"] == 3 and config.run.unit == "env_steps"
        nested = resolve("dqn", "CartPole-v1", {"hyperparameters": {"updates": 3}})
        assert nested.hyperparameters["updates"] == 3
        assert resolve("dqn", "CartPole-v1", config.to_dict()) == config

    def test_no_data(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"bc learns from recorded data, and no file"):
            assay.train("bc", Identity, updates=10, root=tmp_path)

    def test_missing_data_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with pytest.raises(AssayError, match=r"nowhere.npz"):
            assay.train("bc", Identity, name="a", root=tmp_path, updates=9, data="nowhere.npz")
        assert not (tmp_path / "a").exists()

    def test_data_of_another_environment(self, balance: Path, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"has the value 1 in 'action'; expected"):
            one = partial(Identity, spaces.Discrete(1))
            assay.train("bc", one, name="a", root=tmp_path, updates=9, data=str(balance))
        assert not (tmp_path / "a").exists()

    def test_what_a_run_wrote_starts_an_equal_run(self, train: Train) -> None:
        one = train("one")
        two = train("two", config=one.config.to_dict())
        assert two.config == one.config
        assert_same_run(one.path, two.path)

    def test_a_hyperparameter_with_the_name_of_a_run_setting(
        self, train: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from assay.core.config import Model

        class Clash(Model):
            data: int = 3

        monkeypatch.setattr(registry.get("bc"), "Hyperparameters", Clash)
        with pytest.raises(ConfigError, match="names of run settings: data"):
            train("a")


class TestReaders:
    def test_comparison(self, train: Train, tmp_path: Path) -> None:
        for name, lr in (("good", 1e-2), ("bad", 1e-6)):
            for seed in (1, 2, 3):
                train(f"{name}/seed-{seed}", seed=seed, lr=lr, updates=200)
        result = compare([tmp_path / "bad", tmp_path / "good"])
        assert (result.unit, result.total) == ("updates", 200)
        assert result.to_json()["updates"] == 200
        assert result.arms[0].curves[0][0].tolist() == list(range(20, 201, 20))
        assert read_unit([tmp_path / "bad"]) == "updates"

    def test_units_do_not_mix(self, train: Train, tmp_path: Path) -> None:
        train("offline")
        assay.train(
            "a2c", Identity, name="online", root=tmp_path, env_steps=100, horizon=5, sinks=(),
            eval_episodes=2, compile=False,
        )  # fmt: skip
        paths = [tmp_path / "offline", tmp_path / "online"]
        with pytest.raises(ConfigError, match=r"more than one unit of the budget"):
            compare(paths)
        with pytest.raises(ConfigError, match="others in updates"):
            read_unit(paths)

    def test_tensorboard(self, train: Train) -> None:
        accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        run = train("a", sinks=("tensorboard",), log_every=50)
        found = accumulators.EventAccumulator(str(run.directory.tensorboard_path)).Reload()
        assert [point.step for point in found.Scalars("train/bc_loss")] == [50, 100]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return `cli(*arguments) -> result`, which runs the command in this process."""
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


TRAIN = (
    "train", "bc", "CartPole-v1", "data=balance.npz", "eval_episodes=4", "sinks=[]", "lr=1e-2",
    "hidden=[16]", "batch_size=32",
)  # fmt: skip


class TestCommandLine:
    def test_train_and_look(self, cli: Callable[..., Any], balance: Path) -> None:
        done = cli(*TRAIN, "updates=2_000", "--name", "a", "--seed", "3")
        assert done.exit_code == 0, done.output
        plan = "bc on CartPole-v1: 2,000 updates, 1,000 transitions of balance.npz, on cpu"
        assert plan in done.output
        assert "2,000 of 2,000 updates (100%)" in done.output and "updates/s" in done.output
        assert "env_steps" not in done.output
        listed = cli("runs")
        assert "2,000 updates" in listed.output and "done" in listed.output
        shown = cli("runs", "show", "a")
        assert "updates:" in shown.output and "sha256" not in shown.output
        facts = json.loads(cli("runs", "show", "a", "--json").output)
        assert (facts["unit"], facts["total"], facts["updates"]) == ("updates", 2000, 2000)
        assert facts["evaluations"][-1]["updates"] == 2000
        assert facts["provenance"]["files"]["data"]["path"] == str(balance)
        measured = json.loads(cli("evaluate", "a", "--episodes", 10, "--json").output)
        assert measured["mean"] > 100  # acting at random: about 22
        assert (balance.parent / "runs/a/eval/000000002000-seed0.json").exists()
        again = cli("resume", "a")
        assert again.exit_code == 2 and "reached updates=2000" in again.output
        drawn = cli("plot", "a", "--text")
        assert "2k updates" in drawn.output

    def test_seeds(self, cli: Callable[..., Any], balance: Path) -> None:
        done = cli(*TRAIN, "updates=40", "--name", "g", "--seeds", 2, "--json", "--jobs", 2)
        assert done.exit_code == 0, done.output
        result = json.loads(done.stdout)
        assert [run["updates"] for run in result["runs"]] == [40, 40]
        assert all(run["updates_per_second"] > 0 for run in result["runs"])
        finished = cli("resume", "g")
        assert finished.exit_code == 2 and "larger budget" in finished.output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("num_envs=4",), "num_envs=4: bc steps one environment"),
            (("data=nowhere.npz",), "There is no file"),
            (("data=empty.npz",), "is empty: it has 0 bytes"),
        ],
    )
    def test_mistakes_are_found_before_the_run(
        self, cli: Callable[..., Any], balance: Path, arguments: tuple[str, ...], message: str
    ) -> None:
        (balance.parent / "empty.npz").touch()
        done = cli(*TRAIN, *arguments)
        assert done.exit_code == 2 and message in done.output.replace("\n", " "), done.output
        assert not (balance.parent / "runs").exists()

    def test_settings_are_listed(self, cli: Callable[..., Any]) -> None:
        facts = json.loads(cli("algorithms", "bc", "--json").output)
        assert {"updates", "data", "env_steps", "seed"} <= set(facts["run_settings"])
        assert "num_envs" not in facts["run_settings"]
        assert facts["loop"] == "offline"
        shown = cli("algorithms", "bc")
        assert shown.exit_code == 0 and "Dataset to learn from" in shown.output

    def test_killed_and_resumed(self, cli: Callable[..., Any], balance: Path) -> None:
        settings = ("updates=1_500", "checkpoint_every=100", "log_every=50", "compile=false")
        whole = cli(*TRAIN, *settings, "--name", "whole", "--quiet")
        assert whole.exit_code == 0, whole.output
        runs = balance.parent / "runs"
        for attempt in range(4):
            name = f"killed-{attempt}"
            if killed((*TRAIN, *settings, "--name", name, "--quiet"), runs / name):
                break
        else:
            pytest.fail("the run was over before it could be killed, four times")
        assert assay.open_run(runs / name).status == "interrupted"
        resumed = cli("resume", name)
        assert resumed.exit_code == 0, resumed.output
        assert "resumed at updates=" in resumed.output
        assert_same_run(runs / "whole", runs / name)


def killed(arguments: tuple[str, ...], path: Path) -> bool:
    """Start a run, kill it after a checkpoint, and return whether it came in time."""
    source = str(Path(assay.__file__).parents[1])
    paths = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, "-m", "assay", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while child.poll() is None and checkpoint.latest(path / "checkpoints") is None:
            assert time.monotonic() < deadline, f"no checkpoint in {path}"
            time.sleep(0.001)
    finally:
        child.kill()
        code = child.wait()
    assert code in (-signal.SIGKILL, 0), f"the process failed: {code}"
    return code != 0


def test_a_server_has_no_use_for_it() -> None:
    pytest.importorskip("grpc")
    from assay.server.client.spaces import make_spec
    from assay.server.learner.building import configure, read_settings

    env = Identity()
    spec = make_spec("p", env.observation_space, env.action_space, "bc", {})
    with pytest.raises(ConfigError, match="'bc' learns from a file, not from clients"):
        configure(spec, read_settings(""))


def test_clock() -> None:
    clock = Clock(50, env_steps=7, updates=10, unit="updates")
    assert (clock.count, clock.progress, clock.is_over) == (10, 0.2, False)
    clock.updates = 60
    assert clock.progress == 1.0 and clock.is_over
    clock = Clock(50, env_steps=5, updates=60)
    assert (clock.count, clock.progress, clock.total) == (5, 0.1, 50)


def test_a_loop_that_does_not_exist_is_refused_where_it_is_registered() -> None:
    with pytest.raises(ConfigError, match=r"loop='ofline', which does not exist[\s\S]*'offline'"):

        @registry.register(loop="ofline", actions=("Box",), family="x", paper="x")  # type: ignore[arg-type]
        class Misspelt:
            """A learner."""


def test_training_has_no_collector(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Training] = []
    original = Training.run
    monkeypatch.setattr(
        Training, "run", lambda self, *a: (made.append(self), original(self, *a))[1]
    )
    train("a", updates=3)
    assert isinstance(made[0].loop, OfflineLoop) and not hasattr(made[0].loop, "collector")
