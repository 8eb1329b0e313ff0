"""Learning from recorded data first, and then with an environment, in one run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces
from offline_data import BOX, trainer

import assay
from assay.core.errors import ConfigError, RunError
from assay.data.files import save
from assay.loops import events
from assay.loops.config import RunConfig, resolve
from assay.loops.fine_tune import FineTuneLoop
from assay.loops.run_settings import FineTuneSettings, OfflineSettings
from assay.runs import checkpoint
from assay.runs.metrics import read_records
from assay.testing.algorithms import assert_same_run, last_checkpoint
from assay.testing.envs import Identity
from assay.testing.offline import record

SMALL: dict[str, Any] = {
    "hidden": (16,), "batch_size": 16, "updates": 40, "env_steps": 60, "eval_episodes": 2,
    "sinks": (), "compile": False, "device": "cpu", "preset": False,
}  # fmt: skip
OFTEN = {"log_every": 20, "eval_every": 50, "checkpoint_every": 20}
Train = Callable[..., Any]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that trains on random actions in an `Identity` environment, and goes on."""
    return trainer(tmp_path, "td3_bc", SMALL)


def die_at(kind: str, updates: int) -> Callable[[events.Event], None]:
    def callback(event: events.Event) -> None:
        if (type(event).__name__, event.clock.updates) == (kind, updates):
            raise KeyError("the power is out")

    return callback


class TestPhases:
    def test_the_clock_counts_updates_in_both(self, train: Train) -> None:
        seen: list[tuple[str, int, int]] = []

        def note(event: events.Event) -> None:
            seen.append((type(event).__name__, event.clock.updates, event.clock.env_steps))

        run = train("a", callbacks=[note], **OFTEN)
        assert run.config.run.total == 100
        assert seen == [
            ("RunStarted", 0, 0), ("Logged", 20, 0), ("CheckpointSaved", 20, 0),
            ("Logged", 40, 0), ("CheckpointSaved", 40, 0), ("Evaluated", 50, 10),
            ("Logged", 60, 20), ("CheckpointSaved", 60, 20), ("Logged", 80, 40),
            ("CheckpointSaved", 80, 40), ("Logged", 100, 60), ("Evaluated", 100, 60),
            ("CheckpointSaved", 100, 60), ("RunEnded", 100, 60),
        ]  # fmt: skip
        records = list(read_records(run.directory.metrics_path))
        assert "rollout/return_mean" not in records[0].metrics
        assert "rollout/return_mean" in records[-2].metrics
        assert records[-1].episodes == 60 // 8

    def test_schedules_run_over_both(self, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
        progress: list[float] = []
        iterate = FineTuneLoop.iterate
        monkeypatch.setattr(
            FineTuneLoop,
            "iterate",
            lambda self: (progress.append(self.clock.progress), iterate(self))[1],
        )
        train("a", updates=2, env_steps=2)
        assert progress == pytest.approx([0.0, 0.25, 0.5, 0.75])

    def test_several_updates_for_a_step(self, train: Train) -> None:
        run = train("a", updates=10, env_steps=6, updates_per_step=5)
        saved = last_checkpoint(run.path)["run"]
        assert (saved["updates"], saved["env_steps"]) == (40, 6)
        assert run.directory.budget == ("updates", 40)

    def test_batches_have_both(self, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[FineTuneLoop] = []
        start = FineTuneLoop.start
        monkeypatch.setattr(FineTuneLoop, "start", lambda self: (made.append(self), start(self))[1])
        train("a", data_share=0.25)
        [loop] = made
        assert len(loop.replay.replay) == 60 and len(loop.replay.dataset) == 200
        collected = set(loop.replay.replay.history(0).reward.tolist())
        batch = loop.replay.sample(16)
        assert sum(reward in collected for reward in batch.reward.tolist()) == 12

    def test_statistics_stay_those_of_the_data(self, train: Train) -> None:
        normalisers = last_checkpoint(train("a", normalize_obs=True).path)["normalisers"]
        assert normalisers["obs_norm"][""]["count"] == 200

    @pytest.mark.parametrize(
        ("algorithm", "space"),
        [
            ("bc", BOX),
            ("bc", spaces.Discrete(3, start=2)),
            ("iql", BOX),
            ("iql", spaces.Discrete(4)),
            ("cql", BOX),
            ("cql", spaces.Discrete(4)),
            ("td3_bc", BOX),
            ("rebrac", BOX),
        ],
    )
    def test_all_that_can(self, train: Train, algorithm: str, space: Any) -> None:
        run = train("a", algorithm, partial(Identity, space))
        assert run.status == "done"
        assert last_checkpoint(run.path)["run"]["env_steps"] == 60

    def test_what_is_collected_teaches(self, train: Train) -> None:
        """Data of one wrong answer teaches nothing; with an environment all answers are found."""
        wrong = record(partial(Identity), behaviour=lambda obs, rng: np.zeros(len(obs), np.int64))
        path = train("a", "cql", Identity, updates=1, env_steps=1).path.parent / "wrong.npz"
        save(wrong, path)
        options = {
            "updates": 200, "lr": 3e-3, "gamma": 0.0, "epsilon": 0.3, "cql_alpha": 0.1,
            "data": str(path), "env_steps": 600,
        }  # fmt: skip
        run = train("b", "cql", Identity, eval_every=200, **options)
        first, *_, last = [e["mean"] for e in run.directory.evals()]
        assert first < 4 and last > 7  # of 8


class TestResume:
    @pytest.mark.parametrize("saves", [True, False], ids=["env_saves", "env_cannot_save"])
    @pytest.mark.parametrize(
        "moment",
        [
            ("Logged", 20),  # before there is a checkpoint
            ("CheckpointSaved", 20),
            ("CheckpointSaved", 40),  # the last update on data alone
            ("Evaluated", 50),
            ("Logged", 80),
            ("CheckpointSaved", 100),
        ],
        ids=lambda moment: "-".join(map(str, moment)),
    )
    def test_a_killed_run_ends_like_the_undisturbed_one(
        self, train: Train, tmp_path: Path, moment: tuple[str, int], saves: bool
    ) -> None:
        env = partial(Identity, BOX, saves=saves)
        options = {**OFTEN, "normalize_obs": True, "normalize_reward": True, "env": env}
        whole = train("whole", **options)
        with pytest.raises(KeyError, match="power"):
            train("killed", callbacks=[die_at(*moment)], **options)
        resumed = assay.resume(tmp_path / "killed", env=env)
        assert resumed.status == "done"
        assert_same_run(whole.path, resumed.path)

    def test_what_a_run_wrote_starts_an_equal_run(self, train: Train) -> None:
        one = train("one")
        written = yaml.safe_load((one.path / "config.yaml").read_text())
        two = train("two", config=written)
        assert two.config == one.config and isinstance(two.config.run, FineTuneSettings)
        assert_same_run(one.path, two.path)

    def test_changed_data_is_refused_while_collecting(self, train: Train, tmp_path: Path) -> None:
        with pytest.raises(KeyError):
            train("a", callbacks=[die_at("Logged", 80)], **OFTEN)
        save(record(partial(Identity, BOX), seed=5), tmp_path / "random.npz")
        with pytest.raises(RunError, match="has changed since the run"):
            assay.resume(tmp_path / "a", env=partial(Identity, BOX))

    def test_the_replay_is_in_the_checkpoint_from_the_first_step_on(self, train: Train) -> None:
        run = train("a", keep_checkpoints=9, **OFTEN)
        parts = {
            int(place.name): set(checkpoint.read_checkpoint(place))
            for place in checkpoint.list_checkpoints(run.directory.checkpoints_path)
        }
        assert [n for n, names in parts.items() if "collector" in names] == [60, 80, 100]
        assert all("dataset" in names for names in parts.values())


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"env_steps": -1}, "env_steps=-1: input should be greater than or equal to 0"),
            ({"data_share": 1.0}, "data_share=1.0: input should be less than 1"),
            ({"updates_per_step": 0}, "updates_per_step=0"),
            ({"env_steps": 0, "data_share": 0.3}, "data_share=0.3 has no effect .* env_steps"),
            ({"env_steps": 0, "updates_per_step": 2}, "updates_per_step=2 has no effect"),
            ({"env_steps": 0, "exploration_noise": 0.3}, "exploration_noise=0.3 has no effect"),
            ({"num_envs": 4}, "num_envs=4: td3_bc steps one environment"),
        ],
    )
    def test_mistakes(
        self, train: Train, tmp_path: Path, settings: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            train("a", **settings)
        assert not (tmp_path / "a").exists()

    def test_without_steps_it_is_the_run_it_was(self) -> None:
        config = resolve("iql", "Pendulum-v1", {"data": __file__, "updates": 50})
        assert isinstance(config.run, FineTuneSettings) and config.run.total == 50
        assert RunConfig.from_dict(config.to_dict()) == config
        earlier = config.to_dict()
        for name in ("env_steps", "updates_per_step", "data_share"):
            del earlier["run"][name]
        assert type(RunConfig.from_dict(earlier).run) is OfflineSettings
