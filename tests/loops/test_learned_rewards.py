"""Runs that learn from a learned reward: what they learn from, and what they keep."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import assay
from assay.buffers.replay import ReplayBuffer
from assay.core.errors import ConfigError, RunError, SpaceError
from assay.core.types import Spaces, Transition
from assay.loops.config import resolve
from assay.loops.events import Event, Logged
from assay.loops.learned_rewards import LearnedRewards, RewardedReplay
from assay.loops.run_settings import RewardedSettings
from assay.testing.algorithms import assert_same_run

sys.path.append(str(Path(__file__).parents[1] / "preferences"))
from preference_samples import linear

RUN: dict[str, Any] = {
    "hidden": (8,), "num_envs": 1, "sinks": (), "preset": False, "compile": False, "eval_every": 0,
    "eval_episodes": 1,
}  # fmt: skip
PPO = RUN | {"horizon": 64, "minibatch_size": 64, "epochs": 1, "env_steps": 256, "log_every": 64}
SAC = RUN | {
    "batch_size": 8, "learning_starts": 20, "buffer_size": 1000, "env_steps": 450, "log_every": 50,
    "checkpoint_every": 100, "train_every": 5,
}  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(env: str, name: str, reward: float, **options: Any) -> Path:
    """Write a model that gives every step the same reward."""
    made = gym.make(env)
    actions = made.action_space
    width = int(np.prod(made.observation_space.shape or ()))
    width += int(actions.n) if isinstance(actions, gym.spaces.Discrete) else int(actions.shape[0])
    model = linear(made.observation_space, actions, ([0.0] * width, reward), **options)
    model.save(Path(name), {})
    return Path(name)


def last(run: assay.Run, name: str) -> float:
    return float(run.metrics()[name][1][-1])


class TestWhatIsLearnedFrom:
    def test_ppo_learns_from_the_model_and_reports_both_returns(self) -> None:
        model = save("CartPole-v1", "model", 0.5)
        run = assay.train("ppo", "CartPole-v1", name="a", reward_model=str(model), **PPO)
        # Every step of CartPole gives 1, and the model half of that.
        true, learned = (last(run, f"rollout/{n}return_mean") for n in ("", "learned_"))
        assert learned == pytest.approx(0.5 * true) and true == last(run, "rollout/length_mean")
        facts = run.directory.provenance["files"]["reward_model"]
        assert facts["sha256"] == assay.learned_reward(model).identity
        assert run.evaluate(1).mean >= 1.0 and Path(facts["path"]).is_absolute()

    def test_ppo_sees_the_models_rewards_and_no_others(self, monkeypatch: Any) -> None:
        from assay.algorithms.ppo import PPO as Algorithm

        seen: list[Any] = []
        monkeypatch.setattr(
            Algorithm, "update", lambda self, data: seen.append(data.reward[data.valid].copy())
        )
        model = save("CartPole-v1", "model", -0.25)
        assay.train("ppo", "CartPole-v1", reward_model=str(model), **PPO)
        assert len(seen) == 4 and all((one == -0.25).all() for one in seen)

    def test_the_reward_scaler_sees_the_models_rewards(self) -> None:
        found = []
        for reward in (0.5, 50.0):
            model = save("Pendulum-v1", f"model{reward}", reward)
            run = assay.train(
                "sac", "Pendulum-v1", reward_model=str(model), normalize_reward=True,
                **SAC | {"env_steps": 60},
            )  # fmt: skip
            scaler: Any = assay.load(run.path).algorithm.reward_scale
            found.append(float(scaler.moments.mean))
        assert found[1] == pytest.approx(100 * found[0]) and found[0] > 0

    def test_sac_learns_from_the_model_and_its_replay_keeps_the_environments(self) -> None:
        model = save("Pendulum-v1", "model", 0.5)
        run = assay.train("sac", "Pendulum-v1", name="a", reward_model=str(model), **SAC)
        assert last(run, "rollout/learned_return_mean") == pytest.approx(0.5 * 200)
        assert last(run, "rollout/return_mean") < -100
        held = assay.record(run, "held.npz", quality="replay")
        assert held.returns[0] == pytest.approx(last(run, "rollout/return_mean"), rel=0.5)
        assert (held.episode(0).reward < 0).all()

    def test_a_batch_is_worth_what_the_model_says_by_now(self) -> None:
        spaces = Spaces(gym.spaces.Box(-2, 2, (2,)), gym.spaces.Box(-1, 1, (1,)))
        replay = ReplayBuffer(spaces, 10, rng=np.random.default_rng(0))
        model = linear(spaces.observation, spaces.action, ([1.0, 0.0, -1.0], 0.0))
        rewarded = RewardedReplay(replay, LearnedRewards(model, spaces, 1, CPU))
        for x in (0.5, 1.5):
            row = np.array([[x, 0.0]], np.float32)
            rewarded.add(
                Transition(
                    row, np.array([[0.25]], np.float32), np.array([7.0]), row,
                    np.zeros(1, bool), np.zeros(1, bool),
                )
            )  # fmt: skip
        batch = rewarded.sample(16)
        assert torch.allclose(batch.reward, batch.obs[:, 0] - 0.25)
        assert set(batch.reward.tolist()) == {0.25, 1.25}
        assert replay.history(0).reward.tolist() == [7.0, 7.0]

    def test_running_statistics_go_on_from_the_data(self) -> None:
        spaces = Spaces(gym.spaces.Box(-9, 9, (1,)), gym.spaces.Box(-1, 1, (1,)))
        model = linear(
            spaces.observation, spaces.action, ([1.0, 0.0], 0.0), bound="running", running=2
        )
        rewards = LearnedRewards(model, spaces, 2, CPU)
        row, flags = np.array([[4.0], [4.0]], np.float32), np.zeros(2, bool)
        rewards.see(Transition(row, np.zeros((2, 1), np.float32), flags, row, flags, flags))
        # Two of mean 0 and variance 1, and twice 4: mean 2, variance (2 * 1 + 4 * 4) / 4 = 4.5
        assert rewards.last.tolist() == pytest.approx([(4 - 2) / 4.5**0.5] * 2, rel=1e-5)


class TestResume:
    def test_a_killed_run_ends_as_one_that_was_not(self) -> None:
        model = save("Pendulum-v1", "model", 0.5, bound="running", running=100)

        def die(event: Event) -> None:
            if isinstance(event, Logged) and event.clock.count >= 250:
                raise KeyError("the power is out")

        options = SAC | {"reward_model": str(model)}
        whole = assay.train("sac", "Pendulum-v1", name="whole", **options)
        with pytest.raises(KeyError):
            assay.train("sac", "Pendulum-v1", name="killed", callbacks=[die], **options)
        assert_same_run(whole.path, assay.resume("runs/killed").path)

    def test_another_reward_is_refused_unless_it_is_asked_for(self) -> None:
        model, other = save("Pendulum-v1", "a", 0.5), save("Pendulum-v1", "b", -2.0)

        def stop(event: Event) -> Any:
            return assay.STOP if isinstance(event, Logged) and event.clock.count >= 250 else None

        run = assay.train("sac", "Pendulum-v1", name="r", reward_model="a", callbacks=[stop], **SAC)
        save("Pendulum-v1", "a", 0.75)
        with pytest.raises(RunError, match=r"reward_model=.* has changed") as refused:
            assay.resume(run.path)
        assert "--reward-model" in str(refused.value.fix)
        assay.resume(run.path, reward_model=other)
        config = run.directory.config["run"]
        assert Path(config["reward_model"]) == other.absolute()
        facts = run.directory.provenance["files"]["reward_model"]
        assert facts["sha256"] == assay.learned_reward(other).identity
        changed = [e for e in run.directory.events() if e["kind"] == "ConfigChanged"]
        assert changed[0]["reward_model"]["sha256"] == facts["sha256"]
        # The episode from 200 to 400 had two rewards, and counts for neither.
        assert "rollout/learned_return_mean" in run.metrics() and model.exists()
        counts, values = run.metrics()["rollout/learned_return_mean"]
        assert dict(zip(counts, values, strict=True)).keys() == {200, 250}


class TestBadInput:
    def test_it_says_what_is_wrong(self) -> None:
        model = str(save("Pendulum-v1", "model", 0.5))
        with pytest.raises(SpaceError, match="was learned with"):
            assay.train("ppo", "CartPole-v1", reward_model=model, **PPO)
        with pytest.raises(ConfigError, match="neither a reward model nor a run"):
            assay.train("ppo", "CartPole-v1", reward_model="nowhere", **PPO)
        with pytest.raises(ConfigError, match="does not work with n_step"):
            assay.train("sac", "Pendulum-v1", reward_model=model, n_step=3, **SAC)
        # Without a preset n_step would be 3.
        assert resolve("sac", "Pendulum-v1", {"reward_model": model}).hyperparameters["n_step"] == 1
        with pytest.raises(ConfigError, match="dqn takes no learned reward"):
            resolve("dqn", "CartPole-v1", {"reward_model": model})
        assert not list(Path("runs").glob("*"))

    def test_a_run_without_one_cannot_change_to_one(self) -> None:
        run = assay.train("ppo", "CartPole-v1", name="a", **PPO)
        with pytest.raises(ConfigError, match="learns from its environment's reward"):
            assay.resume(run.path, budget=512, reward_model="x")

    def test_settings_are_read_again_as_they_were(self) -> None:
        config = resolve("ppo", "CartPole-v1", {"reward_model": "somewhere"})
        assert isinstance(config.run, RewardedSettings)
        assert type(config).from_dict(config.to_dict()) == config
        older = {**config.to_dict(), "run": {**config.to_dict()["run"]}}
        del older["run"]["reward_model"]  # of a run before there were any
        assert type(config).from_dict(older).run.env_steps == config.run.env_steps


def test_the_reward_of_an_imitator_is_one_as_well() -> None:
    gail = assay.train(
        "gail", "CartPole-v1", name="gail", expert="random", disc_hidden=(8,), disc_updates=1,
        disc_batch_size=8, **PPO,
    )  # fmt: skip
    run = assay.train("ppo", "CartPole-v1", name="a", reward_model="gail", **PPO)
    facts = run.directory.provenance["files"]["reward_model"]
    assert facts["path"] == str(gail.path.absolute()) and len(facts["sha256"]) == 64
    assert last(run, "rollout/learned_return_mean") > 0  # softplus
