"""Datasets that are recorded from runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

import assay
from assay import data, recording
from assay.cli.app import app
from assay.core.errors import ConfigError, DataError
from assay.testing.envs import Identity

SMALL: dict[str, Any] = {"sinks": (), "compile": False, "device": "cpu", "eval_episodes": 2}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def dqn(place: Path) -> Path:
    """Return a run that knows the answers of an environment which starts at 2."""
    env = "assay-tests/Identity-v0"
    gym.register(env, entry_point=lambda: Identity(spaces.Discrete(3, start=2)))
    settings = {"env_steps": 600, "num_envs": 2, "learning_starts": 50, "buffer_size": 500}
    known = assay.train("dqn", env, name="dqn", root=place, lr=1e-2, **settings, **SMALL)
    return known.path


@pytest.fixture(scope="module")
def ppo(place: Path) -> Path:
    settings = {"env_steps": 256, "num_envs": 4, "horizon": 16, "minibatch_size": 32}
    return assay.train("ppo", "CartPole-v1", name="ppo", root=place, **settings, **SMALL).path


def test_expert_is_the_deterministic_policy(dqn: Path, tmp_path: Path) -> None:
    made = assay.record(dqn, tmp_path / "expert.npz", episodes=20)
    assert made.num_episodes == 20 and made.metadata["quality"] == "expert"
    assert data.validate(made, "assay-tests/Identity-v0") == []
    assert made.schema.action == spaces.Discrete(3, start=2)
    returns = data.summarise(made).returns
    expected = assay.open_run(dqn).evaluate(20, seed=0).returns
    np.testing.assert_allclose(returns, expected)  # the same seeds: the same episodes
    agent = assay.load(dqn)
    one = made.episode(3)
    np.testing.assert_array_equal(agent.act(one.obs[:-1]), one.action)


def test_random_is_uniform(dqn: Path, tmp_path: Path) -> None:
    made = assay.record(dqn, tmp_path / "random.npz", episodes=60, quality="random", seed=1)
    counts = data.summarise(made).actions
    assert counts is not None and counts.sum() == len(made)
    assert counts.min() / counts.sum() > 0.25


def test_the_same_seed_gives_the_same_content(dqn: Path, tmp_path: Path) -> None:
    one, two, other = (
        assay.record(dqn, tmp_path / f"{i}.npz", episodes=5, quality="random", seed=seed)
        for i, seed in enumerate((3, 3, 4))
    )
    assert one.content_hash == two.content_hash != other.content_hash


def test_medium_is_half_way(dqn: Path, tmp_path: Path) -> None:
    made = assay.record(dqn, tmp_path / "medium.npz", episodes=60, quality="medium")
    facts = made.metadata
    assert "medium" in facts and abs(facts["share"] - 0.5) <= 0.15
    share = (data.summarise(made).returns.mean() - facts["random_return"]) / (
        facts["final_return"] - facts["random_return"]
    )
    assert 0.25 < share < 0.75


@pytest.mark.parametrize("power", [0.25, 1.0, 4.0])
def test_the_noise_that_leads_half_way_is_found(power: float) -> None:
    """Random actions cost much at once (0.25), in proportion, or little at first (4)."""
    epsilon, share = recording._half_way(lambda x: 10 - 8 * x**power, low=2.0, high=10.0)
    assert abs(share - 0.5) <= 0.1 and share == pytest.approx(1 - epsilon**power)


@pytest.mark.parametrize(("older", "chosen"), [(5.9, True), (7.0, False)])
def test_a_kept_checkpoint_is_taken_if_it_is_near_half_way(
    dqn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: float, chosen: bool
) -> None:
    means = iter([0.0, 10.0, older, 5.0])  # at random, at the end, before, with noise
    monkeypatch.setattr(
        recording, "evaluate", lambda *a, **k: type("Result", (), {"mean": next(means)})()
    )
    made = assay.record(dqn, tmp_path / "a.npz", episodes=2, quality="medium")
    kept = sorted(path.name for path in (dqn / "checkpoints").iterdir() if path.is_dir())
    expected = (
        f"checkpoint {kept[-2]}, a random action at 20.0% of the steps"
        if chosen
        else "a random action at 50.0% of the steps"
    )
    assert made.metadata["medium"] == expected
    assert made.metadata["share"] == pytest.approx(older / 10 if chosen else 0.5)


def test_replay_is_what_the_run_collected(dqn: Path, tmp_path: Path) -> None:
    made = assay.record(dqn, tmp_path / "replay.npz", quality="replay")
    assert len(made) == 500  # its size; 600 steps were taken
    assert not [one for one in data.validate(made) if one.level == "error"]
    world = Identity(spaces.Discrete(3, start=2))
    lengths = made.lengths.tolist()
    assert max(lengths) == 8 and lengths.count(8) > len(lengths) * 0.8
    assert made.schema.observation == world.observation_space
    some = assay.record(dqn, tmp_path / "some.npz", quality="replay", episodes=4)
    assert some.num_episodes == 4


def test_no_replay(ppo: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ppo keeps no replay[\s\S]*random, medium or expert"):
        assay.record(ppo, tmp_path / "replay.npz", quality="replay")
    assert not list(tmp_path.iterdir())


def test_the_last_observation_is_the_true_one(ppo: Path, tmp_path: Path) -> None:
    """Not the first of the next episode, which environments that reset themselves return."""
    made = assay.record(ppo, tmp_path / "a.npz", episodes=6, quality="random")
    for one in made.episodes():
        assert one.terminated[-1] and one.reward.sum() == one.steps
        assert abs(one.obs[-1, 2]) > 0.2095 or abs(one.obs[-1, 0]) > 2.4  # where CartPole ends
        assert (np.abs(one.obs[:-1, 2]) <= 0.2095).all()


def test_nothing_is_half_way_for_a_policy_that_is_no_better(
    dqn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "evaluate", lambda *a, **k: type("Result", (), {"mean": 1.0})())
    with pytest.raises(DataError, match="nothing is half-way"):
        assay.record(dqn, tmp_path / "a.npz", quality="medium")


def test_probabilities_of_who_acted_are_recorded_if_asked_for(dqn: Path, tmp_path: Path) -> None:
    def logs(quality: Any) -> tuple[Any, Any]:
        path = tmp_path / f"{quality}.npz"
        made = assay.record(dqn, path, episodes=20, quality=quality, log_prob=True)
        rows = made.transitions(np.arange(len(made)))
        return made, rows

    _, random = logs("random")
    np.testing.assert_allclose(random["extras"]["log_prob"], np.log(1 / 3))
    _, expert = logs("expert")
    np.testing.assert_array_equal(expert["extras"]["log_prob"], 0.0)
    made, medium = logs("medium")
    epsilon = made.metadata["epsilon"]
    best = assay.load(dqn).act(medium["obs"])
    expected = (1 - epsilon) * (medium["action"] == best) + epsilon / 3
    np.testing.assert_allclose(np.exp(medium["extras"]["log_prob"]), expected)
    plain = assay.record(dqn, tmp_path / "plain.npz", episodes=20, quality="medium")
    assert not plain.schema.extras
    rows = plain.transitions(np.arange(len(plain)))
    np.testing.assert_array_equal(rows["action"], medium["action"])  # the same episodes
    with pytest.raises(ConfigError, match="replay does not hold"):
        assay.record(dqn, tmp_path / "a.npz", quality="replay", log_prob=True)


def test_a_box_has_no_probabilities_to_record(tmp_path: Path) -> None:
    settings = {"env_steps": 20, "num_envs": 1, "learning_starts": 10}
    run = assay.train("td3", "Pendulum-v1", root=tmp_path, preset=False, **settings, **SMALL)
    with pytest.raises(ConfigError, match="of Discrete actions, and these are Box"):
        assay.record(run, tmp_path / "a.npz", episodes=1, log_prob=True)


def test_mistakes(dqn: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="quality='best': expected random, medium"):
        assay.record(dqn, tmp_path / "a.npz", quality="best")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="episodes=0"):
        assay.record(dqn, tmp_path / "a.npz", episodes=0)
    with pytest.raises(DataError, match="no ending"):
        assay.record(dqn, tmp_path / "a.txt", episodes=1)


def test_command(ppo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "sets"))
    plain = CliRunner().invoke(app, ["data", "record", str(ppo), "--episodes", "2"])
    assert plain.exit_code == 0, plain.output
    assert data.load("ppo-expert").metadata["quality"] == "expert"
    out = tmp_path / "a.npz"
    words = ["data", "record", str(ppo), str(out), "--episodes", "3", "--quality", "random"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["episodes"] == 3 and facts["path"] == str(out)
    replay = CliRunner().invoke(app, [*words[:-1], "replay"])
    assert replay.exit_code == 2 and "keeps no replay" in replay.stderr
