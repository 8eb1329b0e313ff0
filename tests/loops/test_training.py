"""A run from beginning to end: what happens when, and what is left when something goes wrong."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from threadpoolctl import threadpool_info, threadpool_limits

import assay
from assay.api import evaluation_vector
from assay.buffers.rollout import Rollout
from assay.core.errors import AssayError, ConfigError, EnvError, RunError
from assay.core.types import tree_leaves
from assay.evaluation import evaluate
from assay.loops import events
from assay.loops.config import resolve
from assay.loops.training import Due, Training, choose_device
from assay.optim.update import Step
from assay.runs import checkpoint
from assay.runs.directory import RunDirectory
from assay.runs.metrics import read_records
from assay.testing.algorithms import (
    Rig,
    assert_same,
    assert_same_run,
    last_checkpoint,
    run_metrics,
    stop_when_called,
)
from assay.testing.envs import Counting, Identity

# Ten environment steps per iteration.
SMALL: dict[str, Any] = {
    "horizon": 5, "num_envs": 2, "hidden": (8,), "env_steps": 100, "eval_episodes": 2, "sinks": (),
    "preset": False, "compile": False,
}  # fmt: skip


Train = Callable[..., Any]


def stop_in_step(monkeypatch: pytest.MonkeyPatch, *at: int) -> list[None]:
    """Stop runs in these steps of rollouts; return a list that counts the steps."""
    return stop_when_called(monkeypatch, Rollout, "write", *at)


def stop_in_evaluation(monkeypatch: pytest.MonkeyPatch, *at: int) -> list[None]:
    """Stop runs in these steps of evaluations; return a list that counts the steps."""
    return stop_when_called(monkeypatch, evaluate, "clip_to_space", *at)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that trains A2C on an `Identity` environment; None unsets a setting."""

    def run(name: str, env: Any = Identity, algorithm: str = "a2c", **options: Any) -> Any:
        settings = {k: v for k, v in (SMALL | options).items() if v is not None}
        return assay.train(algorithm, env, name=name, root=tmp_path, **settings)

    return run


class Watch:
    """Note every event as (kind, env_steps), and do something at one of them."""

    def __init__(self, at: tuple[str, int] | None = None, act: Any = None) -> None:
        self.events: list[tuple[str, int]] = []
        self.at, self.act = at, act

    def __call__(self, event: events.Event) -> Any:
        what = (type(event).__name__, event.clock.env_steps)
        self.events.append(what)
        return self.act() if what == self.at else None


def fail() -> None:
    raise KeyError("the power is out")


class TestMoments:
    def test_in_order(self, train: Train) -> None:
        watch = Watch()
        run = train("a", callbacks=[watch], log_every=20, eval_every=40, checkpoint_every=30)
        assert watch.events == [
            ("RunStarted", 0), ("Logged", 20), ("CheckpointSaved", 30), ("Logged", 40),
            ("Evaluated", 40), ("Logged", 60), ("CheckpointSaved", 60), ("Logged", 80),
            ("Evaluated", 80), ("CheckpointSaved", 90), ("Logged", 100), ("Evaluated", 100),
            ("CheckpointSaved", 100), ("RunEnded", 100),
        ]  # fmt: skip
        assert run.status == "done"
        assert [r["env_steps"] for r in run.directory.evals()] == [40, 80, 100]
        kept = checkpoint.list_checkpoints(run.directory.checkpoints_path)
        assert [int(place.name) for place in kept] == [90, 100]  # keep_checkpoints is 2

    def test_what_falls_on_the_end_happens_once(self, train: Train) -> None:
        watch = Watch()
        train("a", callbacks=[watch], log_every=50, eval_every=50, checkpoint_every=50)
        once = ["Logged", "Evaluated", "CheckpointSaved"]
        assert [kind for kind, steps in watch.events if steps == 50] == once
        assert [kind for kind, steps in watch.events if steps == 100] == [*once, "RunEnded"]

    def test_only_at_the_end(self, train: Train) -> None:
        watch = Watch()
        train("a", callbacks=[watch], log_every=100, eval_every=0, checkpoint_every=0)
        assert watch.events == [
            ("RunStarted", 0), ("Logged", 100), ("Evaluated", 100), ("CheckpointSaved", 100),
            ("RunEnded", 100),
        ]  # fmt: skip

    def test_a_stride_over_several_moments_is_one(self, train: Train) -> None:
        watch = Watch()
        train("a", callbacks=[watch], log_every=3, eval_every=0, checkpoint_every=0, env_steps=40)
        logged = [steps for kind, steps in watch.events if kind == "Logged"]
        assert logged == [10, 20, 30, 40]

    def test_due(self) -> None:
        due = Due(30, done=0)
        assert [n for n in range(10, 200, 10) if due(n)] == [30, 60, 90, 120, 150, 180]
        due = Due(30, done=45)  # after a resume
        assert [n for n in (50, 55, 61, 89, 200, 209, 210) if due(n)] == [61, 200, 210]
        assert not any(Due(0, done=0)(n) for n in range(1000))

    def test_metrics_are_named_and_counted(self, train: Train) -> None:
        run = train("a", log_every=50, eval_every=50)
        records = list(read_records(run.directory.metrics_path))
        assert [(r.env_steps, r.updates, r.episodes) for r in records] == [
            (50, 5, 6), (50, 5, 6), (100, 10, 12), (100, 10, 12),
        ]  # fmt: skip
        logged, evaluated = records[0].metrics, records[1].metrics
        assert {name.split("/")[0] for name in logged} == {"train", "rollout", "time"}
        assert {"rollout/return_mean", "rollout/length_mean", "train/a2c_loss"} <= set(logged)
        assert logged["rollout/length_mean"] == 8.0
        assert set(evaluated) == {"eval/return_mean", "eval/return_iqm", "eval/length_mean"}

    def test_speed_is_of_the_clock_that_was_given(self, tmp_path: Path) -> None:
        options = {k: v for k, v in SMALL.items() if k != "preset"}
        config = resolve("a2c", "none", options, {"log_every": 50}, use_preset=False)
        directory = RunDirectory.create(
            tmp_path, "a", algorithm="a2c", env="none", config=config.to_dict(), seed=1
        )
        times = iter([100.0, 104.0, 108.0])
        Training(config, directory, env=Identity, now=lambda: next(times)).run()
        found = [r.metrics for r in read_records(directory.metrics_path)]
        assert [m["time/elapsed"] for m in found] == [4.0, 8.0]
        assert [m["time/env_steps_per_second"] for m in found] == [12.5, 12.5]


class TestNothingDisturbsLearning:
    def test_looking_does_not_change_the_result(self, train: Train) -> None:
        """When it is logged, evaluated and saved is not part of what is learned."""
        often = train("often", log_every=10, eval_every=10, checkpoint_every=10)
        never = train("never", log_every=100, eval_every=0, checkpoint_every=0)
        for section in ("weights", "optimizer", "collector"):
            assert_same(last_checkpoint(often.path)[section], last_checkpoint(never.path)[section])

    def test_one_seed_one_result(self, train: Train) -> None:
        one, two, other = (train(str(i), seed=s) for i, s in enumerate((1, 1, 2)))
        assert_same_run(one.path, two.path)
        assert run_metrics(one.path) != run_metrics(other.path)

    def test_evaluation_plays_with_fresh_environments(self, train: Train) -> None:
        made: list[Identity] = []

        def factory() -> Identity:
            made.append(Identity())
            return made[-1]

        train("a", factory, num_envs=2, eval_episodes=3)
        assert len(made) == 6  # one to look at, two to train, three to evaluate


class TestStop:
    def test_a_callback_may_end_it(self, train: Train, tmp_path: Path) -> None:
        watch = Watch(("Logged", 40), lambda: assay.STOP)
        run = train("a", callbacks=[watch], log_every=20, eval_every=0, checkpoint_every=0)
        assert run.status == "interrupted"
        # It was logged already: not again.
        assert watch.events[-3:] == [("Logged", 40), ("CheckpointSaved", 40), ("RunEnded", 40)]
        assert [r[0] for r in run_metrics(run.path)] == [20, 40]
        resumed = assay.resume(run.path, env=Identity)
        whole = train("whole", log_every=20, eval_every=0, checkpoint_every=0)
        assert resumed.status == "done"
        assert_same_run(whole.path, resumed.path)

    def test_between_two_lines(self, train: Train) -> None:
        """A stop leaves no trace: the resumed run logs when it would have."""
        watch = Watch(("CheckpointSaved", 30), lambda: assay.STOP)
        options = {"log_every": 20, "eval_every": 0, "checkpoint_every": 30}
        run = train("a", callbacks=[watch], **options)
        assert [r[0] for r in run_metrics(run.path)] == [20]
        resumed = assay.resume(run.path, env=Identity)
        whole = train("whole", **options)
        assert run_metrics(resumed.path) == run_metrics(whole.path)
        assert_same(last_checkpoint(whole.path), last_checkpoint(resumed.path))

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_signal_ends_it_well(self, train: Train, number: int) -> None:
        before = signal.getsignal(number)
        watch = Watch(("Logged", 40), lambda: os.kill(os.getpid(), number))
        run = train("a", callbacks=[watch], log_every=20)
        assert run.status == "interrupted" and watch.events[-1] == ("RunEnded", 40)
        assert checkpoint.latest(run.directory.checkpoints_path).name.endswith("40")
        assert signal.getsignal(number) is before

    def test_a_signal_in_a_rollout_is_heard_at_the_next_step(
        self, train: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps = stop_in_step(monkeypatch, 7)
        run = train("a", horizon=25)
        assert len(steps) == 7 and run.status == "interrupted"
        assert assay.resume(run.path, env=Identity).status == "done"
        assert len(steps) == 2 * 25
        assert_same_run(train("whole", horizon=25).path, run.path)

    @pytest.mark.parametrize("at", [3, 12], ids=["between", "last"])
    def test_a_signal_in_an_evaluation_is_heard_at_its_next_step(
        self, train: Train, monkeypatch: pytest.MonkeyPatch, at: int
    ) -> None:
        """The evaluation is made after the resume, in its place among the lines."""
        options = {"log_every": 20, "eval_every": 50, "checkpoint_every": 30}
        whole = train("whole", **options)
        steps = stop_in_evaluation(monkeypatch, at)
        run = train("a", **options)
        assert len(steps) == at and run.status == "interrupted"
        assert len(list(run.directory.evals())) == at // 10
        again = assay.resume(run.path, env=Identity)
        assert again.status == "done" and len(list(run.directory.evals())) == 2
        assert_same_run(whole.path, again.path)

    def test_a_resumed_evaluation_can_be_stopped_again(
        self, train: Train, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = train("whole")
        steps = stop_in_evaluation(monkeypatch, 3, 5)
        run = train("a")
        assert assay.resume(run.path, env=Identity).status == "interrupted" and len(steps) == 5
        assert assay.resume(run.path, env=Identity).status == "done"
        assert_same_run(whole.path, run.path)

    def test_a_callback_that_stops_at_the_last_line_does_not_cost_the_evaluation(
        self, train: Train
    ) -> None:
        run = train("a", callbacks=[Watch(("Logged", 100), lambda: assay.STOP)])
        assert run.status == "done" and len(list(run.directory.evals())) == 10

    def test_the_second_one_at_once(self, train: Train, tmp_path: Path) -> None:
        def twice() -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)

        watch = Watch(("Logged", 40), twice)
        with pytest.raises(KeyboardInterrupt):
            train("a", callbacks=[watch], log_every=20)
        assert assay.open_run(tmp_path / "a").status == "interrupted"

    def test_in_a_thread_there_are_no_signals(self, train: Train) -> None:
        runs: list[Any] = []
        thread = threading.Thread(target=lambda: runs.append(train("a")))
        thread.start()
        thread.join()
        assert runs[0].status == "done"


OFTEN = {"log_every": 20, "eval_every": 40, "checkpoint_every": 30}


class TestResume:
    @pytest.mark.parametrize(
        "moment",
        [
            ("RunStarted", 0),
            ("Logged", 20),  # before there is a checkpoint: from the beginning
            ("CheckpointSaved", 30),
            ("Evaluated", 40),
            ("Logged", 60),
            ("CheckpointSaved", 60),
            ("Logged", 80),
            ("CheckpointSaved", 90),
            ("Logged", 100),
            ("Evaluated", 100),
            ("CheckpointSaved", 100),  # all is done but to say so
        ],
        ids=lambda moment: "-".join(map(str, moment)),
    )
    @pytest.mark.parametrize("saves", [True, False], ids=["env_saves", "env_cannot_save"])
    def test_from_any_moment(
        self, train: Train, tmp_path: Path, moment: tuple[str, int], saves: bool
    ) -> None:
        env = partial(Identity, saves=saves)
        whole = train("whole", env, **OFTEN)
        with pytest.raises(KeyError, match="power"):
            train("killed", env, callbacks=[Watch(moment, fail)], **OFTEN)
        assert assay.open_run(tmp_path / "killed").status == "failed"
        resumed = assay.resume(tmp_path / "killed", env=env)
        assert resumed.status == "done"
        assert_same_run(whole.path, resumed.path)

    def test_more_than_once(self, train: Train, tmp_path: Path) -> None:
        whole = train("whole", **OFTEN)
        with pytest.raises(KeyError):
            train("killed", callbacks=[Watch(("Logged", 40), fail)], **OFTEN)
        with pytest.raises(KeyError):
            again = Watch(("Logged", 80), fail)
            assay.resume(tmp_path / "killed", env=Identity, callbacks=[again])
        assert again.events[0] == ("RunStarted", 30)
        assert_same_run(whole.path, assay.resume(tmp_path / "killed", env=Identity).path)

    def test_a_damaged_checkpoint_is_named_and_the_one_before_offered(
        self, train: Train, tmp_path: Path
    ) -> None:
        whole = train("whole", **OFTEN)
        with pytest.raises(KeyError):
            train("killed", callbacks=[Watch(("Logged", 80), fail)], **OFTEN)
        path = tmp_path / "killed"
        newest = checkpoint.latest(path / "checkpoints")
        weights = newest / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"!")
        with pytest.raises(AssayError, match=r"weights.safetensors[\s\S]*000000000030"):
            assay.resume(path, env=Identity)
        resumed = assay.resume(path, env=Identity, force=True)
        assert_same_run(whole.path, resumed.path)

    def test_what_is_done_is_done(self, train: Train) -> None:
        run = train("a")
        with pytest.raises(AssayError, match="is done: it reached env_steps=100"):
            assay.resume(run.path, env=Identity)


class Broken(Identity):
    """Goes wrong at its `n`-th step."""

    def __init__(self, what: str, n: int = 30) -> None:
        super().__init__()
        self.what, self.n, self.steps = what, n, 0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.steps += 1
        if self.steps == self.n:
            if self.what == "raises":
                raise ZeroDivisionError("the pantry is empty")
            if self.what == "reward":
                reward = float("nan")
            if self.what == "observation":
                obs = obs * np.nan
        return obs, reward, *rest


Continuous = partial(Identity, spaces.Box(-1.0, 1.0, (1,), np.float32))


class TestFailure:
    @pytest.mark.parametrize(
        ("what", "message"),
        [
            ("raises", "the pantry is empty"),
            ("reward", r"Environment 0 .* returned the reward nan at step 30"),
            ("observation", r"Environment 0 .* observation .* nan at step 30"),
        ],
    )
    def test_of_the_environment(
        self, train: Train, tmp_path: Path, what: str, message: str
    ) -> None:
        with pytest.raises(EnvError, match=message):
            train("a", partial(Broken, what), checkpoint_every=20, eval_every=0)
        run = RunDirectory.open(tmp_path / "a")
        assert run.status == "failed" and run.info["error"]
        place = checkpoint.latest(run.checkpoints_path)
        assert place is not None and int(place.name) == 40
        checkpoint.verify_checkpoint(place)
        assay.load(tmp_path / "a")  # the agent of that checkpoint is whole

    def test_of_learning(self, train: Train, tmp_path: Path) -> None:
        """A NaN in the weights is found, and never reaches a checkpoint."""

        def poison() -> None:
            with torch.no_grad():
                net = training[0].algorithm.net
                next(net.parameters()).fill_(float("nan"))

        training: list[Training] = []
        original = Training.run

        def keep(self: Training, *args: Any) -> Any:
            training.append(self)
            return original(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "run", keep)
            for name, log_every in (("log", 10), ("save", 100)):
                training.clear()
                watch = Watch(("CheckpointSaved", 20), poison)
                said = r"not finite at env_steps=[34]0.*\.\nLower lr or max_grad_norm, or set norm"
                with pytest.raises(AssayError, match=said):
                    train(
                        name, callbacks=[watch], checkpoint_every=20, log_every=log_every,
                        eval_every=0,
                    )  # fmt: skip
                run = RunDirectory.open(tmp_path / name)
                assert run.status == "failed"
                place = checkpoint.latest(run.checkpoints_path)
                assert place is not None and int(place.name) == 20
                weights = checkpoint.read_checkpoint(place)["weights"]
                assert all(np.isfinite(a).all() for a in tree_leaves(weights))

    def test_of_callbacks_does_not_hide_the_first_error(self, train: Train, tmp_path: Path) -> None:
        """One that raises at every event raises at the end, too; the others still hear of it."""

        def always(event: events.Event) -> None:
            raise KeyError(f"at {type(event).__name__}")

        watch = Watch()
        with pytest.raises(KeyError, match="at RunStarted") as caught:
            train("a", callbacks=[always, watch])
        assert caught.value.__notes__ == [
            "A callback failed at the end as well: KeyError('at RunEnded')"
        ]
        assert watch.events == [("RunEnded", 0)]
        assert RunDirectory.open(tmp_path / "a").info["error"] == "'at RunStarted'"

    def test_of_closing_does_not_hide_the_first_error(
        self, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(self: Any) -> None:
            raise RunError("The metrics cannot be closed.")

        monkeypatch.setattr("assay.runs.metrics.MetricsWriter.close", refuse)
        with pytest.raises(KeyError, match="power") as caught:
            train("a", callbacks=[Watch(("Logged", 40), fail)], log_every=20)
        assert "Closing the run failed as well" in caught.value.__notes__[0]
        with pytest.raises(RunError, match="cannot be closed"):  # alone it is the error
            train("b")
        assert assay.open_run(tmp_path / "a").status == "failed"  # and it is not locked

    @pytest.mark.parametrize(
        "mistake",
        [
            {"lr": -1},
            {"algorithm": "dqn", "env": Continuous, "horizon": None},
            {"env": "NoSuchThing-v0"},
            {"env": partial(Broken, "raises", n=-1), "backend": "native"},
        ],
        ids=["setting", "space", "id", "backend"],
    )
    def test_a_mistake_leaves_nothing_behind(
        self, train: Train, tmp_path: Path, mistake: dict[str, Any]
    ) -> None:
        with pytest.raises(AssayError):
            train("a", **mistake)
        assert not (tmp_path / "a").exists()


class TestDevice:
    def test_unknown(self) -> None:
        with pytest.raises(ConfigError, match="device='banana' is not a device"):
            choose_device("banana")

    def test_unsupported(self) -> None:
        with pytest.raises(ConfigError, match="device='meta' is not supported"):
            choose_device("meta")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_missing(self) -> None:
        with pytest.raises(ConfigError, match="torch sees 0 CUDA GPUs"):
            choose_device("cuda")
        assert choose_device("auto") == choose_device("cpu") == torch.device("cpu")


class TestLoading:
    def test_an_agent_that_acts_needs_neither_compiler_nor_optimizer(
        self, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        train("a", eval_every=0)
        config = tmp_path / "a" / "config.yaml"
        config.write_text(config.read_text().replace("compile: false", "compile: true"))
        monkeypatch.setattr("assay.optim.mode.has_compiler", lambda: False)
        read: list[set[str]] = []
        original = checkpoint.read_checkpoint

        def spy(path: Path, sections: Any = None) -> Any:
            read.append(set(sections))
            return original(path, sections)

        monkeypatch.setattr(checkpoint, "read_checkpoint", spy)
        agent = assay.load(tmp_path / "a")
        assert agent.algorithm.context.compile is True and agent.algorithm.mode() == "eager"
        assert [names & {"optimizer", "weights"} for names in read] == [{"weights"}]


def test_an_on_policy_loop_counts_the_optimizer_steps_of_a_rollout() -> None:
    rig = Rig("ppo", Identity, num_envs=2, horizon=4, minibatch_size=2, epochs=3, hidden=(4,))
    for rollouts in (1, 2):
        rig.loop.iterate()
        assert rig.clock.updates == rig.algorithm.updates == rollouts * 3 * 4


class TestOffPolicy:
    @pytest.mark.parametrize(
        ("num_envs", "train_every", "updates"), [(1, 1, 1), (3, 4, 2), (8, 2, 1), (2, 16, 16)]
    )
    def test_updates_are_owed_by_steps(self, num_envs: int, train_every: int, updates: int) -> None:
        rig = Rig(
            "dqn", Identity, num_envs=num_envs, train_every=train_every, updates=updates,
            learning_starts=10, buffer_size=200, batch_size=4, hidden=(4,),
        )  # fmt: skip
        for _ in range(20):
            rig.loop.iterate()
            rounds = max(0, rig.clock.env_steps - 10) // train_every
            assert rig.clock.updates == updates * rounds

    def test_a_barrier_ends_the_trajectories(self, tmp_path: Path) -> None:
        """Where the environments are reset for a checkpoint, no n-step return reaches across."""
        options = {
            "env_steps": 80, "num_envs": 2, "checkpoint_every": 14, "eval_every": 0, "n_step": 3,
            "gamma": 0.5, "buffer_size": 200, "learning_starts": 79, "sinks": (),
        }  # fmt: skip
        config = resolve("dqn", "none", options, use_preset=False)
        directory = RunDirectory.create(
            tmp_path, "a", algorithm="dqn", env="none", config=config.to_dict(), seed=1
        )
        training = Training(config, directory, env=partial(Counting, 1000))
        training.run()
        batch = training.loop.replay.sample(2000)  # type: ignore[attr-defined]
        steps = (batch.next_obs - batch.obs).squeeze(1)
        # Each row counts on by as many steps as its discount says: 1/2, 1/4 or 1/8.
        assert torch.equal(0.5**steps, batch.discount)
        assert set(steps.tolist()) == {1.0, 2.0, 3.0}
        # Seven steps of each environment lie between two checkpoints.
        assert int(batch.next_obs.max()) == 7
        assert batch.truncated.any() and not batch.terminated.any()

    def test_actions_are_random_until_learning_starts(self) -> None:
        rig = Rig(
            "dqn", Identity, num_envs=4, learning_starts=10, buffer_size=200, batch_size=4,
            hidden=(4,), epsilon=0.0,
        )  # fmt: skip
        asked: list[int] = []
        act = rig.algorithm.act
        rig.algorithm.act = lambda *a: asked.append(rig.clock.env_steps) or act(*a)  # type: ignore[method-assign, func-returns-value]
        rig.train(24)
        assert asked == [12, 16, 20]


class TestSchedules:
    """Update k of K reads a schedule at (k - 1) / K, whatever the loop."""

    def learned(self, rig: Rig, iterations: int) -> list[float]:
        """Iterate and return the learning rate of every optimizer step."""
        rates: list[float] = []
        original = Step.__call__

        def spy(step: Step, batch: Any, lr: float, *rest: Any) -> Any:
            rates.append(lr)
            return original(step, batch, lr, *rest)

        with mock.patch.object(Step, "__call__", spy):
            for _ in range(iterations):
                rig.loop.iterate()
        return rates

    def test_on_policy(self) -> None:
        rig = Rig("a2c", Identity, horizon=5, hidden=(4,), env_steps=40, lr="linear:0.4:0")
        assert self.learned(rig, 4) == pytest.approx([0.4, 0.3, 0.2, 0.1])
        assert rig.clock.progress == 1.0

    def test_off_policy(self) -> None:
        rig = Rig(
            "dqn", Identity, num_envs=2, env_steps=8, learning_starts=0, train_every=2,
            buffer_size=20, batch_size=4, hidden=(4,), lr="linear:0.4:0",
        )  # fmt: skip
        assert self.learned(rig, 4) == pytest.approx([0.4, 0.3, 0.2, 0.1])
        assert rig.clock.progress == 1.0

    @pytest.mark.parametrize("algorithm", ["a2c", "ppo", "impala", "recurrent_ppo"])
    def test_a_run_of_one_rollout_learns(self, algorithm: str) -> None:
        sizes = {"ppo": {"minibatch_size": 10}, "recurrent_ppo": {"minibatch_size": 10, "chunk": 5}}
        rig = Rig(
            algorithm, Identity, horizon=5, hidden=(4,), env_steps=10, lr="linear:1e-2:0",
            **sizes.get(algorithm, {}),
        )  # fmt: skip
        before = rig.weights()
        rig.train()
        moved = [name for name, array in rig.weights().items() if (array != before[name]).any()]
        assert rig.clock.env_steps == 10 and moved


class TestStatistics:
    """When normalisers see what was collected."""

    def order(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        order: list[str] = []
        for name in ("update_reward_stats", "update", "update_obs_stats"):
            method = getattr(rig.algorithm, name)
            monkeypatch.setattr(
                rig.algorithm, name, lambda *a, n=name, m=method: order.append(n) or m(*a)
            )
        rig.loop.iterate()
        return order

    def test_on_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Acting on a rollout and learning from it see the same normaliser."""
        rig = Rig("a2c", Identity, horizon=5, hidden=(4,), normalize_obs=True)
        order = self.order(rig, monkeypatch)
        assert order == ["update_reward_stats", "update", "update_obs_stats"]
        assert rig.algorithm.obs_norm.state()[""]["count"] == 10

    def test_off_policy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No update draws an observation that the normaliser has not seen."""
        rig = Rig(
            "dqn", Identity, num_envs=2, learning_starts=0, train_every=2, buffer_size=200,
            batch_size=4, hidden=(4,), normalize_obs=True, normalize_reward=True,
        )  # fmt: skip
        order = self.order(rig, monkeypatch)
        assert order == ["update_reward_stats", "update_obs_stats", "update"]
        assert rig.algorithm.obs_norm.state()[""]["count"] == 2

    def test_nothing_is_shown_where_there_are_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rig = Rig("a2c", Identity, horizon=5, hidden=(4,))
        assert self.order(rig, monkeypatch) == ["update"]


class TestEnvironments:
    def test_an_environment(self, train: Train) -> None:
        run = train("a", Identity(), num_envs=1, eval_every=0)
        assert run.config.run.num_envs == 1 and run.status == "done"

    def test_a_vector_environment_says_how_many(self, train: Train) -> None:
        env = SyncVectorEnv(
            [partial(gym.make, "CartPole-v1")] * 3, autoreset_mode=AutoresetMode.NEXT_STEP
        )
        with pytest.warns(UserWarning, match="no evaluations"):
            run = train("a", env, num_envs=None, env_steps=60)
        assert run.config.run.num_envs == 3 and run.status == "done"
        # 15 rows per iteration; those that only reset are not steps, so it takes more of them.
        assert run_metrics(run.path)[-1][0] >= 60

    def test_what_cannot_be_copied_is_not_evaluated(self, train: Train) -> None:
        class Handle(Counting):
            def __deepcopy__(self, memo: Any) -> None:
                raise TypeError("a handle cannot be copied")

        with pytest.warns(UserWarning, match="give a factory"):
            run = train("a", Handle(), num_envs=1)
        assert run.status == "done" and run.directory.evals() == []

    def test_a_copy_that_is_no_environment_says_why(self) -> None:
        """Only a refused copy means "no evaluations"; any other error is the user's to see."""

        class Odd(Counting):
            def __deepcopy__(self, memo: Any) -> Any:
                self.observation_space = spaces.Sequence(spaces.Discrete(2))
                return self

        config = resolve("a2c", "none", {"env_steps": 100}, use_preset=False, env_is_object=True)
        with pytest.raises(AssayError, match="Sequence"):
            evaluation_vector(config, Odd(), 2)


class TestObjects:
    """Environments that are given as objects, with the shipped presets."""

    @pytest.mark.parametrize("make", [gym.make, lambda name: gym.make_vec(name, 4)])
    def test_a_preset_for_another_number_of_environments_still_fits(
        self, make: Any, tmp_path: Path
    ) -> None:
        run = assay.train("ppo", make("CartPole-v1"), env_steps=1024, root=tmp_path)
        assert run.status == "done" and run.config.hyperparameters["epochs"] == 7

    def test_a_number_of_environments_that_the_object_has_not_is_refused(
        self, tmp_path: Path
    ) -> None:
        with pytest.raises(EnvError, match="num_envs=8"):
            assay.train("ppo", gym.make("CartPole-v1"), num_envs=8, root=tmp_path)

    def test_evaluation_is_in_the_same_task(self, tmp_path: Path) -> None:
        """The settings of a vector environment go with it."""
        env = gym.make_vec("FrozenLake-v1", 2, vectorization_mode="sync", is_slippery=False)
        run = assay.train("dqn", env, env_steps=150, learning_starts=50, root=tmp_path)
        vector = evaluation_vector(run.config, env, 1)
        assert vector is not None
        places = set()
        for seed in range(20):
            vector.reset(seed)
            places.add(int(vector.step(np.array([2]))[0][0]))
        assert places == {1}  # to the right of the start; on slippery ice also elsewhere

    def test_the_object_is_asked_for_again(self, tmp_path: Path) -> None:
        run = assay.train("ppo", gym.make("CartPole-v1"), env_steps=256, root=tmp_path)
        with pytest.raises(RunError, match="as an object, which is not stored"):
            assay.open_run(run.path).evaluate(1)


def test_nothing_to_learn_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="learning_starts=100 leaves nothing"):
        assay.train(
            "dqn", "CartPole-v1", env_steps=100, learning_starts=100, preset=False, root=tmp_path
        )
    assert not list(tmp_path.iterdir())


def arithmetic_threads() -> dict[str, int]:
    """Return how many threads torch and each library behind NumPy use."""
    libraries = threadpool_info()
    found = {one["filepath"]: one["num_threads"] for one in libraries if one["user_api"] == "blas"}
    return found | {"torch": torch.get_num_threads()}


@pytest.mark.parametrize(("threads", "used"), [(0, 1), (2, 2)])
@pytest.mark.parametrize("broken", [False, True])
def test_threads_are_of_torch_and_numpy_and_only_while_a_run_trains(
    train: Train, threads: int, used: int, broken: bool
) -> None:
    seen = []

    def look(event: Any) -> None:
        seen.append(arithmetic_threads())
        if broken:
            raise RuntimeError("a callback that fails")

    with threadpool_limits(3, user_api="blas"):
        before = arithmetic_threads()
        assert len(before) > 1 and 3 in before.values()
        with pytest.raises(RuntimeError, match="fails") if broken else contextlib.nullcontext():
            train("threads", threads=threads, callbacks=[look])
        assert arithmetic_threads() == before
    assert seen and {*seen[0].values()} == {used}


def test_what_cannot_be_learned_leaves_no_environment_open(tmp_path: Path) -> None:
    made = []

    class Watched(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            self.open = True

        def close(self) -> None:
            self.open = False

    gym.register("Watched-v0", Watched, max_episode_steps=50)
    try:
        with pytest.raises(ConfigError, match="leaves nothing"):
            assay.train("dqn", "Watched-v0", env_steps=99, learning_starts=99, root=tmp_path)
    finally:
        del gym.registry["Watched-v0"]
    assert made and not any(env.open for env in made)


def test_what_happened_is_in_the_events(train: Train) -> None:
    run = train("a", checkpoint_every=50)
    kinds = [event["kind"] for event in run.directory.events()]
    assert kinds == ["RunStarted", "CheckpointSaved", "CheckpointSaved", "RunEnded"]


class FromElsewhere(gym.Env[Any, Any]):
    """Show one of 2, 3 and 4; the right answer to it is -3, -2 or -1."""

    observation_space, action_space = spaces.Discrete(3, start=2), spaces.Discrete(3, start=-3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._show(), {}

    def _show(self) -> int:
        self.shown = int(self.np_random.integers(2, 5))
        return self.shown

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        right = int(action) == self.shown - 5
        self.t += 1
        return self._show(), float(right), self.t == 8, False, {}


@pytest.mark.parametrize("algorithm", ["ppo", "dqn", "sac"])
def test_spaces_that_do_not_start_at_0(train: Train, tmp_path: Path, algorithm: str) -> None:
    settings: dict[str, Any] = {"lr": 0.01, "gamma": 0.0, "hidden": (16,)}
    if algorithm == "ppo":
        settings |= {"horizon": 32, "minibatch_size": 16}
    else:
        settings |= {"horizon": None, "learning_starts": 50, "buffer_size": 2000}
    run = train("a", FromElsewhere, algorithm, env_steps=1500, eval_episodes=5, **settings)
    assert run.evaluate(episodes=5).mean > 7.5  # the best is 8, chance 2.7
    agent = assay.load(tmp_path / "a")
    assert [agent.act(shown) for shown in (2, 3, 4)] == [-3, -2, -1]
    assert agent.act(np.array([4, 2])).tolist() == [-1, -3]


def test_an_agent_that_learned_with_masks_asks_for_them(tmp_path: Path) -> None:
    settings = {"env_steps": 64, "horizon": 8, "num_envs": 2, "minibatch_size": 16}
    run = assay.train("ppo", "Taxi-v4", root=tmp_path, preset=False, **settings)
    agent = run.agent()
    only = np.eye(6, dtype=np.int8)[3]
    assert agent.act(17, mask=only) == 3
    assert agent.act([17, 18], mask=[only, only]).tolist() == [3, 3]
    with pytest.raises(AssayError, match=r"(?s)trained with action masks.*info\['action_mask'\]"):
        agent.act(17)
    with pytest.raises(AssayError, match="shape \\(5,\\); expected 6 entries"):
        agent.act(17, mask=only[:5])


def test_an_agent_that_learned_without_masks_takes_none(tmp_path: Path) -> None:
    run = assay.train("ppo", "CartPole-v1", root=tmp_path, preset=False, env_steps=64, horizon=8)
    with pytest.raises(AssayError, match="was trained in has none"):
        run.agent().act(np.zeros(4), mask=[1, 1])
