"""Whom a run imitates: where an expert comes from, what is kept of it, and bad ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import assay
from assay import data
from assay.cli.app import app
from assay.core.errors import ConfigError, DataError, RunError, SpaceError
from assay.loops.config import RunConfig, resolve
from assay.loops.events import Event, Logged
from assay.loops.run_settings import EpisodeSettings
from assay.testing.algorithms import assert_same_run
from assay.testing.envs import Identity
from assay.testing.offline import record

GAIL: dict[str, Any] = {
    "horizon": 8, "minibatch_size": 8, "epochs": 1, "hidden": (8,), "disc_hidden": (8,),
    "disc_updates": 1, "disc_batch_size": 8, "num_envs": 1, "env_steps": 64, "sinks": (),
    "preset": False, "compile": False, "eval_every": 0, "eval_episodes": 2, "log_every": 16,
    "checkpoint_every": 16,
}  # fmt: skip
DAGGER: dict[str, Any] = {
    "hidden": (8,), "batch_size": 8, "train_every": 8, "updates": 2, "num_envs": 1,
    "env_steps": 64, "sinks": (), "preset": False, "compile": False, "eval_every": 0,
    "eval_episodes": 2, "log_every": 16, "checkpoint_every": 16,
}  # fmt: skip


def die(event: Event) -> None:
    if isinstance(event, Logged) and event.clock.count >= 40:
        raise KeyError("the power is out")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ppo() -> assay.Run:
    return assay.train(
        "ppo", "CartPole-v1", name="expert", env_steps=64, num_envs=1, horizon=64,
        minibatch_size=64, epochs=1, hidden=(8,), preset=False, eval_every=0, sinks=(),
        compile=False,
    )  # fmt: skip


def balance(obs: Any) -> int:
    """Push towards where the pole falls."""
    return int(obs[2] + obs[3] > 0)


class TestEpisodes:
    def test_a_dataset_gives_its_first_episodes_and_is_in_the_provenance(self) -> None:
        recorded = record(Identity, episodes=7)
        data.save(recorded, "set.npz")
        run = assay.train("gail", Identity, name="a", expert="set.npz", expert_episodes=3, **GAIL)
        facts = run.directory.provenance["files"]["expert"]
        assert facts["path"].endswith("set.npz") and facts["episodes"] == 3
        kept = data.load(run.path / "expert.npz")
        assert kept.content_hash == facts["sha256"]
        np.testing.assert_array_equal(kept.episode(2).obs, recorded.episode(2).obs)

    def test_a_dataset_by_name_by_object_and_of_minari_is_the_same(self, place: Path) -> None:
        recorded = record(Identity, episodes=3)
        data.save(recorded, place / "data" / "set.npz")
        data.save(recorded, place / "maze" / "human-v0")
        runs = [
            assay.train("gail", Identity, name=str(k), expert=expert, **GAIL)
            for k, expert in enumerate(("set", recorded, "maze/human-v0"))
        ]
        digests = {run.directory.provenance["files"]["expert"]["sha256"] for run in runs}
        assert len(digests) == 1
        assert_same_run(runs[0].path, runs[1].path)

    def test_a_run_is_played_with_a_fixed_seed(self, ppo: assay.Run) -> None:
        runs = [
            assay.train("gail", "CartPole-v1", name=n, expert="expert", expert_episodes=2, **GAIL)
            for n in ("a", "b")
        ]
        kept = [data.load(run.path / "expert.npz") for run in runs]
        assert kept[0].num_episodes == 2 and kept[0].content_hash == kept[1].content_hash
        returns = [episode.reward.sum() for episode in kept[0].episodes()]
        assert returns == ppo.evaluate(2, seed=0).returns.tolist()

    def test_random_is_played_in_the_environment(self) -> None:
        run = assay.train("gail", "CartPole-v1", expert="random", expert_episodes=2, **GAIL)
        kept = data.load(run.path / "expert.npz")
        assert kept.num_episodes == 2
        assert set(kept.transitions(np.arange(len(kept)))["action"]) == {0, 1}

    def test_the_configuration_is_read_again(self) -> None:
        run = assay.train("gail", Identity, name="a", expert="random", **GAIL)
        again = RunConfig.from_dict(run.directory.config)
        assert isinstance(again.run, EpisodeSettings) and again.run.expert == "random"
        assert again == run.config

    def test_a_resumed_run_has_its_episodes_even_if_the_source_is_gone(self) -> None:
        data.save(record(Identity, episodes=3), "set.npz")
        options = {**GAIL, "expert": "set.npz"}
        whole = assay.train("gail", Identity, name="whole", **options)
        with pytest.raises(KeyError):
            assay.train("gail", Identity, name="killed", callbacks=[die], **options)
        Path("set.npz").unlink()
        assert_same_run(whole.path, assay.resume("runs/killed", env=Identity).path)

    def test_changed_episodes_are_refused(self) -> None:
        with pytest.raises(KeyError):
            assay.train("gail", Identity, name="a", expert="random", callbacks=[die], **GAIL)
        data.save(record(Identity, episodes=3, seed=5), "runs/a/expert.npz")
        with pytest.raises(RunError, match=r"expert='random' has changed since the run"):
            assay.resume("runs/a", env=Identity)


class TestTeachers:
    def test_a_run_answers_with_its_policy(self, ppo: assay.Run) -> None:
        run = assay.train("dagger", "CartPole-v1", expert="expert", beta=1.0, **DAGGER)
        assert len(run.directory.provenance["files"]["expert"]["sha256"]) == 64

    def test_an_exported_policy_answers_as_the_run_does(self, ppo: assay.Run) -> None:
        pytest.importorskip("onnxruntime")
        from assay.policies.export import export_policy

        export_policy(assay.load(ppo.path).policy, Path("policy.onnx"))
        one = assay.train("dagger", "CartPole-v1", name="a", expert="expert", **DAGGER)
        two = assay.train("dagger", "CartPole-v1", name="b", expert="policy.onnx", **DAGGER)
        assert_same_run(one.path, two.path)

    def test_a_function_by_name_or_as_an_object(self, place: Path) -> None:
        (place / "my_controller.py").write_text(
            "def balance(obs):\n    return int(obs[2] + obs[3] > 0)\n"
        )
        one = assay.train(
            "dagger", "CartPole-v1", name="a", expert="my_controller:balance", **DAGGER
        )
        two = assay.train("dagger", "CartPole-v1", name="b", expert=balance, **DAGGER)
        assert_same_run(one.path, two.path)
        assert two.config.run.expert == "object:balance"  # type: ignore[union-attr]

    def test_a_function_is_given_again_to_go_on(self) -> None:
        options = {**DAGGER, "expert": balance}
        whole = assay.train("dagger", "CartPole-v1", name="whole", **options)
        with pytest.raises(KeyError):
            assay.train("dagger", "CartPole-v1", name="killed", callbacks=[die], **options)
        with pytest.raises(ConfigError, match="given as an object, which is not stored"):
            assay.resume("runs/killed")
        assert_same_run(whole.path, assay.resume("runs/killed", expert=balance).path)

    def test_a_changed_expert_is_refused(self, ppo: assay.Run) -> None:
        with pytest.raises(KeyError):
            assay.train(
                "dagger", "CartPole-v1", name="a", expert="expert", callbacks=[die], **DAGGER
            )
        shutil.rmtree(ppo.path)
        other = {"hidden": (8,), "preset": False, "eval_every": 0, "sinks": (), "compile": False}
        shape = {"num_envs": 1, "horizon": 64, "minibatch_size": 64, "epochs": 1}
        assay.train("ppo", "CartPole-v1", name="expert", env_steps=64, seed=2, **shape, **other)
        with pytest.raises(RunError, match=r"expert='.*expert' has changed since the run"):
            assay.resume("runs/a")

    def test_answers_in_the_environments_own_units(self) -> None:
        space = gym.spaces.Discrete(3, start=2)
        run = assay.train(
            "dagger", lambda: Identity(space), expert=lambda obs: 2 + int(obs.argmax()) % 3,
            **(DAGGER | {"env_steps": 200, "updates": 20, "lr": 0.01}),
        )  # fmt: skip
        assert run.evaluate(5).mean > 7


def failed(*words: str) -> str:
    """Return the one message of a command that the user got wrong."""
    settings = [
        f"{k}={v}".replace("(", "[").replace(",)", "]")
        for k, v in {**GAIL, "sinks": "[]", "hidden": "[8]", "disc_hidden": "[8]"}.items()
        if k != "preset"
    ]
    result = CliRunner().invoke(app, ["train", *words, *settings, "--no-preset"])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    assert not list(Path("runs").glob("*/run.json")) or "expert" in str(
        list(Path("runs").iterdir())
    )
    return str(result.stderr)


class TestBadInput:
    def test_no_expert(self) -> None:
        assert "gail imitates an expert, and none is given" in failed("gail", "CartPole-v1")

    def test_neither_run_nor_dataset(self) -> None:
        message = failed("gail", "CartPole-v1", "expert=nobody")
        assert "expert='nobody': there is neither a run nor a dataset of this name" in message

    def test_a_file_that_is_no_data(self) -> None:
        Path("broken.npz").write_bytes(b"")
        message = failed("gail", "CartPole-v1", "expert=broken.npz")
        assert "broken.npz' is empty: it has 0 bytes" in message

    def test_foreign_spaces(self) -> None:
        data.save(record("Pendulum-v1", episodes=1), "pendulum.npz")
        message = " ".join(failed("gail", "CartPole-v1", "expert=pendulum.npz").split())
        named = f"expert='{Path('pendulum.npz').resolve()}'"
        assert f"A row of 'obs' of {named} has the shape (3,); expected (4,)" in message

    def test_a_set_without_steps(self) -> None:
        with pytest.raises(DataError, match="has no steps to imitate"):
            assay.train("gail", Identity, expert=_nothing(), **GAIL)

    def test_a_run_of_another_environment(self, ppo: assay.Run) -> None:
        message = failed("gail", "Acrobot-v1", "expert=expert")
        assert "was trained in 'CartPole-v1', and this run is in 'Acrobot-v1'" in message

    def test_an_object_that_was_not_given_again(self) -> None:
        run = assay.train("gail", Identity, name="a", expert=record(Identity), **GAIL)
        options = {k: v for k, v in run.config.to_dict().items() if k in ("run", "hyperparameters")}
        with pytest.raises(ConfigError, match="given as an object, which is not stored"):
            assay.train("gail", Identity, config=options, preset=False)

    def test_no_episodes(self) -> None:
        message = failed("gail", "CartPole-v1", "expert=random", "expert_episodes=0")
        assert "expert_episodes=0" in message

    def test_an_algorithm_that_imitates_nobody(self) -> None:
        with pytest.raises(ConfigError, match="ppo imitates nobody"):
            resolve("ppo", "CartPole-v1", {"expert": "random"})
        with pytest.raises(ConfigError, match="dagger takes no episodes of an expert"):
            resolve("dagger", "CartPole-v1", {"expert": "random", "expert_episodes": 3})

    @pytest.mark.parametrize(
        ("expert", "message"),
        [
            ("nobody", "expert='nobody': there is no run of this name"),
            ("policy.onnx", "policy.onnx': there is no such file"),
            ("nowhere:act", "cannot be imported"),
            ("json:nothing", "'json' has no function 'nothing'"),
            (7, "expert is a int; expected a run, a file or a function"),
            (lambda obs: 5, "answered 5; expected a value of Discrete"),
            (lambda obs: [0, 1], r"answered with the shape \(2,\); expected \(\)"),
            (lambda obs: 1 / 0, "failed: ZeroDivisionError"),
        ],
    )
    def test_teachers(self, expert: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            assay.train("dagger", "CartPole-v1", expert=expert, **DAGGER)

    def test_episodes_do_not_answer(self, place: Path) -> None:
        data.save(record("CartPole-v1", episodes=1), place / "set.npz")
        with pytest.raises(ConfigError, match="recorded episodes cannot answer") as caught:
            assay.train("dagger", "CartPole-v1", expert="set.npz", **DAGGER)
        assert "gail, airl and bc imitate episodes" in str(caught.value)

    def test_a_teacher_of_another_environment(self, ppo: assay.Run) -> None:
        with pytest.raises(ConfigError, match="was trained in 'CartPole-v1'"):
            assay.train("dagger", "Acrobot-v1", expert="expert", **DAGGER)

    def test_a_teacher_with_a_memory(self) -> None:
        assay.train(
            "recurrent_ppo", "CartPole-v1", name="memory", env_steps=16, num_envs=1, horizon=16,
            chunk=8, minibatch_size=16, epochs=1, preset=False, eval_every=0, sinks=(),
            compile=False,
        )  # fmt: skip
        with pytest.raises(ConfigError, match="has a memory"):
            assay.train("dagger", "CartPole-v1", expert="memory", **DAGGER)


def _nothing() -> data.Dataset:
    from assay.data.combine import first

    return first(record(Identity, episodes=1), 0)


class TestLearnedReward:
    def test_it_is_frozen_and_replaces_the_environments(self) -> None:
        data.save(record("Pendulum-v1", episodes=1), "set.npz")
        run = assay.train("gail", "Pendulum-v1", name="a", expert="set.npz", **GAIL)
        reward = assay.learned_reward(run)
        env = reward.wrap(gym.make("Pendulum-v1", g=5.0))
        obs, _ = env.reset(seed=1)
        _, first, _, _, info = env.step(np.array([0.5], np.float32))
        assert first == pytest.approx(reward(obs, np.array([0.5], np.float32)))
        assert info["env_reward"] < 0 < first  # softplus
        again = assay.train(
            "ppo", lambda: reward.wrap(gym.make("Pendulum-v1")), env_steps=64, num_envs=1,
            horizon=64, minibatch_size=64, epochs=1, preset=False, eval_every=0, eval_episodes=1,
            sinks=(), compile=False,
        )  # fmt: skip
        assert again.status == "done" and again.evaluate(1).mean > 0

    @pytest.mark.parametrize("algorithm", ["gail", "airl"])
    def test_it_sees_observations_as_the_discriminator_did(self, algorithm: str) -> None:
        run = assay.train(algorithm, "Pendulum-v1", name="a", expert="random", **GAIL)
        reward = assay.learned_reward(run)
        learned: Any = reward.agent.algorithm
        mean, factor = learned.disc_inputs.norm.applied("")
        # Statistics of the rollout and of the expert came with the checkpoint.
        assert np.abs(mean).max() > 0 and np.abs(factor - 1).max() > 0
        obs, action = np.array([0.5, 0.5, 3.0], np.float32), np.array([1.0], np.float32)
        seen = torch.from_numpy((obs - mean) * factor)[None]
        right = learned.learned_reward(seen, torch.from_numpy(action)[None])
        assert reward(obs, action) == pytest.approx(right[0], abs=1e-5)

    def test_other_spaces_and_other_algorithms_are_refused(self, ppo: assay.Run) -> None:
        with pytest.raises(ConfigError, match="ppo, which learns no reward"):
            assay.learned_reward(ppo)
        run = assay.train("gail", "CartPole-v1", name="a", expert="random", **GAIL)
        with pytest.raises(SpaceError, match="same observations and actions"):
            assay.learned_reward(run.path).wrap(gym.make("Acrobot-v1"))


def test_a_server_refuses_an_imitator() -> None:
    from assay.server.learner.building import configure
    from assay.server.learner.messages import LearnerSettings

    class Spec:
        algorithm = "gail"

    with pytest.raises(ConfigError, match="'gail' imitates an expert, which a server does not"):
        configure(Spec(), LearnerSettings())  # type: ignore[arg-type]
