"""Recorded data beside a replay: SAC and REDQ with `data`, half and half."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymnasium import spaces
from offline_data import BOX, trainer

import assay
from assay.buffers.mixed import MixedReplay
from assay.core.errors import ConfigError, DataError, RunError
from assay.data.files import save
from assay.loops import events
from assay.loops.config import resolve
from assay.loops.off_policy import OffPolicyLoop
from assay.loops.run_settings import MixedSettings
from assay.testing.algorithms import assert_same_run
from assay.testing.envs import Identity
from assay.testing.offline import record

SMALL: dict[str, Any] = {
    "hidden": (16,), "batch_size": 16, "env_steps": 100, "learning_starts": 10, "sinks": (),
    "eval_episodes": 2, "compile": False, "device": "cpu", "preset": False,
    "log_every": 20, "eval_every": 50, "checkpoint_every": 30,
}  # fmt: skip
Train = Callable[..., Any]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Return a function that trains SAC in an `Identity` environment, beside random data."""
    return trainer(tmp_path, "sac", SMALL)


def die(event: events.Event) -> None:
    if isinstance(event, events.Logged) and event.clock.count >= 80:
        raise KeyError("the power is out")


@pytest.mark.parametrize(
    ("algorithm", "space", "options"),
    [
        ("sac", BOX, {}),
        ("sac", spaces.Discrete(4), {"layer_norm": True}),
        ("redq", BOX, {"updates": 2, "n_critics": 3, "layer_norm": True}),
    ],
)
def test_half_of_every_batch_is_recorded(
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    space: Any,
    options: dict[str, Any],
) -> None:
    made: list[OffPolicyLoop] = []
    start = OffPolicyLoop.start
    monkeypatch.setattr(OffPolicyLoop, "start", lambda self: (made.append(self), start(self))[1])
    run = train("a", algorithm, partial(Identity, space), **options)
    assert run.status == "done"
    [loop] = made
    assert isinstance(loop.replay, MixedReplay)
    assert len(loop.replay.replay) == 100 and len(loop.replay.dataset) == 200
    counts = []
    for _ in range(5):
        old = loop.replay.dataset._rng.bit_generator.state
        batch = loop.replay.sample(16)
        loop.replay.dataset._rng.bit_generator.state = old
        again = loop.replay.dataset.sample(8)
        counts.append(bool((batch.reward[:8] == again.reward).all()))
    assert all(counts)


@pytest.mark.parametrize("saves", [True, False], ids=["env_saves", "env_cannot_save"])
def test_a_killed_run_ends_like_the_undisturbed_one(
    train: Train, tmp_path: Path, saves: bool
) -> None:
    env = partial(Identity, BOX, saves=saves)
    whole = train("whole", env=env)
    with pytest.raises(KeyError, match="power"):
        train("killed", env=env, callbacks=[die])
    resumed = assay.resume(tmp_path / "killed", env=env)
    assert resumed.status == "done"
    assert_same_run(whole.path, resumed.path)


def test_the_data_is_known_to_the_run(train: Train, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        train("a", callbacks=[die])
    run = assay.open_run(tmp_path / "a")
    facts = run.directory.provenance["files"]["data"]
    assert facts["steps"] == 200 and len(facts["sha256"]) == 64
    save(record(partial(Identity, BOX), seed=5), tmp_path / "random.npz")
    with pytest.raises(RunError, match=r"data='.*random.npz' has changed since the run"):
        assay.resume(tmp_path / "a", env=partial(Identity, BOX))


def test_what_a_run_wrote_starts_an_equal_run(train: Train) -> None:
    one = train("one", data_share=0.25)
    written = yaml.safe_load((one.path / "config.yaml").read_text())
    two = train("two", data_share=0.25, config=written)
    assert two.config == one.config and isinstance(two.config.run, MixedSettings)
    assert_same_run(one.path, two.path)


def test_without_data_it_is_the_run_it_was() -> None:
    run = resolve("sac", "Pendulum-v1").run
    assert isinstance(run, MixedSettings) and run.data is None and run.files() == {}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"data": None, "data_share": 0.3}, ConfigError, "data_share=0.3 has no effect on sac"),
        ({"data_share": 1}, ConfigError, "data_share=1: input should be less than 1"),
        ({"data": "nowhere.npz"}, DataError, r"nowhere.npz"),
        ({"her": "future"}, ConfigError, "her=future does not work with data"),
        ({"network": "simba", "layer_norm": True}, ConfigError, "layer_norm"),
    ],
)
def test_mistakes(
    train: Train, tmp_path: Path, settings: dict[str, Any], error: Any, message: str
) -> None:
    from assay.testing.envs import Reach

    env = partial(Identity, BOX) if "her" not in settings else Reach
    with pytest.raises(error, match=message):
        train("a", env=env, **settings)
    assert not (tmp_path / "a").exists()


def test_data_of_another_environment(train: Train, tmp_path: Path) -> None:
    save(record(partial(Identity, spaces.Discrete(4))), tmp_path / "random.npz")
    with pytest.raises(DataError, match="action"):
        train("a")
    assert not (tmp_path / "a").exists()
