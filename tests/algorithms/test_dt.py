"""Decision Transformer: the contract, its numbers by hand, and that it follows returns."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import assay
from assay.algorithms.dt import DT
from assay.cli.app import app
from assay.core.errors import ConfigError
from assay.core.types import tree_map
from assay.data.collect import from_episodes
from assay.data.dataset import Dataset, Episode
from assay.data.files import save
from assay.evaluation.evaluate import evaluate
from assay.testing.algorithms import make_algorithm
from assay.testing.offline import OfflineContract, OfflineRig, record

SMALL: dict[str, Any] = {
    "width": 16, "layers": 1, "heads": 2, "context": 4, "batch_size": 8, "warmup": 2, "lr": 1e-3,
}  # fmt: skip
OBS, CHOICE = spaces.Box(-10.0, 10.0, (2,), np.float32), spaces.Discrete(3)
BOX = spaces.Box(0.0, 4.0, (1,), np.float32)


class TestContract(OfflineContract):
    algorithm = "dt"
    settings = SMALL


def make(action: Any = BOX, **settings: Any) -> DT:
    """Return a small one whose embeddings are far from 0, so that every input counts."""
    options = {**SMALL, "normalize_obs": False, **settings}
    algorithm = make_algorithm("dt", OBS, action, **options)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in algorithm.net.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    algorithm.returns.see(np.array([10.0, -20.0]), np.array([10.0, -5.0]))
    return algorithm


def sequence(steps: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return one sequence of unit actions, without padding."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(steps, 2, generator=rng),
        "action": torch.rand(1, steps, 1, generator=rng) * 2 - 1,
        "returns": torch.randn(1, steps, generator=rng),
        "timestep": torch.arange(7, 7 + steps)[None],
        "valid": torch.ones(1, steps),
    }


def predict(algorithm: DT, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return algorithm.net(*(batch[name] for name in batch))


class TestNetwork:
    def test_sees_the_past_and_the_return_and_nothing_else(self) -> None:
        """What an action is predicted from: earlier steps, this return and observation."""
        algorithm, base = make(), sequence(4)
        before = predict(algorithm, base)
        for name, row in (("obs", 2), ("returns", 2), ("action", 2), ("timestep", 2)):
            changed = {key: value.clone() for key, value in base.items()}
            at = (row,) if name == "obs" else (0, row)
            changed[name][at] += 1
            same = torch.isclose(predict(algorithm, changed), before, atol=1e-6).flatten().tolist()
            # Its own action is not seen by step 2; all else of step 2 is, and all of it by step 3.
            assert same == [True, True, name == "action", False], name

    def test_padding_on_the_left_changes_nothing(self) -> None:
        algorithm, short = make(), sequence(2)
        padded = {
            "obs": torch.cat([torch.full((2, 2), 9.0), short["obs"]]),
            "action": torch.cat([torch.full((1, 2, 1), 0.9), short["action"]], 1),
            "returns": torch.cat([torch.full((1, 2), 5.0), short["returns"]], 1),
            "timestep": torch.cat([torch.zeros(1, 2, dtype=torch.int64), short["timestep"]], 1),
            "valid": torch.tensor([[0.0, 0.0, 1.0, 1.0]]),
        }
        torch.testing.assert_close(predict(algorithm, padded)[2:], predict(algorithm, short))

    def test_late_steps_look_like_the_last_one_that_is_told_apart(self) -> None:
        algorithm, batch = make(max_timestep=9), sequence(1)
        late = (
            {**batch, "timestep": torch.tensor([[8]])},
            {**batch, "timestep": torch.tensor([[90]])},
        )
        torch.testing.assert_close(*(predict(algorithm, one) for one in late))

    def test_heads_divide_the_width(self) -> None:
        with pytest.raises(ConfigError, match="heads=3 does not divide width=16"):
            make(heads=3)


class TestActing:
    def test_is_what_was_learned_from(self) -> None:
        """Acting step by step gives the actions that the whole sequence gives at once."""
        algorithm = make()
        obs = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
        rewards = [1.0, -2.0, 0.5, 4.0, 0.0, 1.0]
        carry = algorithm.initial_carry(1)
        actions, to_go = [], []
        for seen, reward in zip(obs, rewards, strict=True):
            to_go.append(carry["to_go"].item())
            choice = algorithm.act(seen[None], carry, False)
            actions.append(choice.action[0])
            carry = algorithm.rewarded(choice.carry, np.array([reward]))
        # The best return of the data is 10; the largest size of a return to go, 20, is the scale.
        sums = np.cumsum([0.0, *rewards[:-1]])
        assert to_go == pytest.approx(((10 - sums) / 20).tolist())
        for last in (2, 3, 6):  # a window that is not full, a full one, and one that has moved
            first = max(0, last - 4)
            batch = {
                "obs": torch.from_numpy(obs[first:last]),
                "action": torch.from_numpy(np.array(actions[first:last]) / 2 - 1)[None],
                "returns": torch.tensor([to_go[first:last]]),
                "timestep": torch.arange(first, last)[None],
                "valid": torch.ones(1, last - first),
            }
            unit = predict(algorithm, batch)[-1].numpy()
            np.testing.assert_allclose(actions[last - 1], 2 + 2 * unit, rtol=1e-4, atol=1e-5)

    def test_choices_enter_the_window_as_taken(self) -> None:
        observation = spaces.Dict({"x": OBS, "action_mask": spaces.MultiBinary(3)})
        algorithm = make_algorithm("dt", observation, CHOICE, **SMALL)
        with torch.no_grad():
            algorithm.net.head[0].bias.copy_(torch.tensor([3.0, 2.0, 1.0]))
            algorithm.net.head[0].weight.zero_()
        obs = {"x": np.zeros((2, 2), np.float32), "action_mask": np.array([[1, 1, 1], [0, 1, 1]])}
        choice = algorithm.act(obs, algorithm.initial_carry(2), False)
        assert choice.action.tolist() == [0, 1]
        assert choice.carry["actions"][:, -1].tolist() == [[1, 0, 0], [0, 1, 0]]
        assert choice.carry["t"].tolist() == [1, 1]

    def test_a_target_is_asked_for(self) -> None:
        assert make(target_return=-5.0).initial_carry(2)["to_go"].tolist() == [-0.25, -0.25]


class TestLoss:
    def test_box_by_hand(self) -> None:
        algorithm = make()
        with torch.no_grad():
            algorithm.net.head[0].weight.zero_()
            algorithm.net.head[0].bias.fill_(math.log(3))  # tanh: 0.8
        batch = sequence(4) | {
            "action": torch.tensor([[[0.0], [0.3], [1.0], [-0.2]]]),
            "valid": torch.tensor([[0.0, 1.0, 1.0, 1.0]]),
        }
        loss, _ = algorithm._loss(batch)
        assert loss.item() == pytest.approx((0.25 + 0.04 + 1.0) / 3)  # the padding does not count

    def test_discrete_by_hand(self) -> None:
        algorithm = make(CHOICE)
        with torch.no_grad():
            algorithm.net.head[0].weight.zero_()
            algorithm.net.head[0].bias.copy_(torch.tensor([2.0, 1.0, 1.0]).log())
        batch = sequence(3) | {
            "action": torch.tensor([[1, 0, 2]]),
            "valid": torch.tensor([[0.0, 1.0, 1.0]]),
        }
        loss, _ = algorithm._loss(batch)
        assert loss.item() == pytest.approx(-(math.log(0.5) + math.log(0.25)) / 2, rel=1e-5)


class Walk(gym.Env[Any, Any]):
    """Ten steps, each worth what the action says: the return is what somebody asks for."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t / 10, np.float32), float(action), False, self.t == 10, {}


def walks() -> Dataset:
    """Return episodes that earn from 0 to 10, at once and then nothing."""
    rng, made = np.random.default_rng(0), []
    for _ in range(200):
        reward = (np.arange(10) < rng.integers(11)).astype(np.float64)
        obs = (np.arange(11)[:, None] / 10).astype(np.float32)
        over = np.arange(10) == 9
        made.append(Episode(obs, reward.astype(np.int64), reward, np.zeros(10, bool), over))
    return from_episodes(made, Walk.observation_space, Walk.action_space)


QUICK: dict[str, Any] = {**SMALL, "batch_size": 32, "lr": 3e-3, "warmup": 50}


class TestLearns:
    def test_gets_the_return_that_it_is_asked_for(self) -> None:
        """Whoever does not subtract what was earned never stops earning."""
        algorithm = OfflineRig("dt", Walk, data=walks(), updates=800, **QUICK).train().algorithm
        reached = []
        for target in (2.0, 5.0, 8.0, None):
            algorithm.returns.target = target
            reached.append(evaluate(algorithm, Walk, episodes=2, seed=0).mean)
        assert reached == pytest.approx([2.0, 5.0, 8.0, 10.0], abs=1.0)

    def test_a_target_for_a_run(self, tmp_path: Any) -> None:
        path = save(walks(), tmp_path / "walks.npz")
        run = assay.train(
            "dt", Walk, name="a", root=tmp_path, data=str(path), updates=800, sinks=(),
            compile=False, eval_every=0, **QUICK,
        )  # fmt: skip
        low, high = (run.evaluate(2, settings={"target_return": t}).mean for t in (1.0, 9.0))
        assert low < 3 and high > 7
        names = {place.name for place in run.directory.eval_path.iterdir()}
        assert "000000000800-seed0-target_return=1.0.json" in names
        agent = assay.load(run.path, settings={"target_return": 9.0})
        total, obs, reward, over = 0.0, Walk().reset()[0], None, False
        world = Walk()
        world.reset()
        while not over:
            obs, reward, _, over, _ = world.step(agent.act(obs, reward=reward))
            total += reward
        assert total == run.evaluate(2, settings={"target_return": 9.0}).mean
        with pytest.raises(ConfigError, match=r"lr=1: dt cannot change it after training"):
            run.evaluate(2, settings={"lr": 1})
        with pytest.raises(ConfigError, match="target_return"):
            run.evaluate(2, settings={"target_return": "high"})


def test_a_target_on_the_command_line(tmp_path: Any) -> None:
    path = save(record("Pendulum-v1", episodes=2), tmp_path / "tries.npz")
    assay.train(
        "dt", "Pendulum-v1", name="a", root=tmp_path, data=str(path), updates=3, sinks=(),
        eval_episodes=1, preset=False, compile=False, **SMALL,
    )  # fmt: skip

    def cli(*words: str) -> Any:
        command = ["evaluate", "a", "--root", str(tmp_path), "--episodes", "1", *words]
        return CliRunner().invoke(app, command)

    done = cli("--set", "target_return=-300", "--json")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "a/eval/000000000003-seed0-target_return=-300.json").exists()
    for words, message in (
        ("lr=1", "dt cannot change it after training"),
        ("target_return=high", "target_return"),
        ("target_return", "target_return"),
    ):
        wrong = cli("--set", words)
        assert wrong.exit_code == 2 and message in wrong.output.replace("\n", " "), wrong.output


def test_is_not_exported(tmp_path: Any) -> None:
    from assay.policies.export import export_policy

    with pytest.raises(ConfigError, match="by the return still to reach cannot be exported"):
        export_policy(make().policy, tmp_path / "a.onnx")


def test_learns_from_data_alone() -> None:
    with pytest.raises(ConfigError, match=r"env_steps=9: dt collects nothing"):
        make_algorithm("dt", OBS, BOX, env_steps=100, **SMALL, run={"env_steps": 9})


def test_a_carry_is_of_plain_arrays() -> None:
    carry = make().initial_carry(3)
    assert {len(part) for part in carry.values()} == {3}
    assert tree_map(lambda part: part.dtype, carry) == dict.fromkeys(carry, np.dtype("float32"))
