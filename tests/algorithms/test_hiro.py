"""HIRO: the contract, its numbers by hand, and that both levels learn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import assay
from assay.algorithms.hiro import HIGH, HIRO, LOW
from assay.core.errors import ConfigError, SpaceError
from assay.core.types import SequenceBatch
from assay.evaluation.evaluate import evaluate
from assay.functional import subgoals
from assay.networks.subgoals import GoalView
from assay.policies.export import export_policy
from assay.policies.subgoals import GOAL
from assay.testing.algorithms import AlgorithmContract, CannedReplay, Case, Rig, make_algorithm

SMALL: dict[str, Any] = {
    "hidden": (16,), "batch_size": 8, "learning_starts": 12, "buffer_size": 60, "interval": 3,
    "high_every": 1, "policy_delay": 1, "candidates": 2,
}  # fmt: skip
OBS, BOX = spaces.Box(-9.0, 9.0, (3,), np.float32), spaces.Box(0.0, 4.0, (2,), np.float32)


class TestContract(AlgorithmContract):
    algorithm = "hiro"
    settings = SMALL

    def cases(self) -> Iterator[Case]:
        """Leave out what has no vector of floats."""
        blind = ("sees_discrete", "sees_image")
        yield from (case for case in super().cases() if case.name not in blind)


class TestMaths:
    def test_goal_transition_by_hand(self) -> None:
        """The place stays: seen from (2, 3), what was 4 right of (1, 1) is 3 right and 2 below."""
        s, goal, next_s = (torch.tensor([x]) for x in ((1.0, 1.0), (4.0, 0.0), (2.0, 3.0)))
        assert subgoals.goal_transition(s, goal, next_s).tolist() == [[3.0, -2.0]]
        # -sqrt(9 + 4)
        assert subgoals.intrinsic_reward(s, goal, next_s).item() == pytest.approx(-(13**0.5))

    def test_candidates_by_hand(self) -> None:
        goal, s, last = torch.tensor([[5.0]]), torch.tensor([[1.0]]), torch.tensor([[2.5]])
        noise = torch.tensor([[[1.0], [-4.0], [2.0]]])
        found = subgoals.goal_candidates(goal, s, last, torch.tensor([2.0]), noise)
        # 5 is left as it is; 1.5; 1.5 + 1 is clipped to 2; 1.5 - 4 to -2; 1.5 + 2 to 2
        assert found[0, :, 0].tolist() == [5.0, 1.5, 2.0, -2.0, 2.0]

    def test_likelihood_by_hand(self) -> None:
        """The second step of the second row is padding."""
        action = torch.tensor([[[1.0], [0.0]], [[1.0], [9.0]]])
        mean = torch.tensor([[[[0.0], [0.0]], [[1.0], [3.0]]], [[[3.0], [0.0]], [[1.5], [0.0]]]])
        valid = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
        found = subgoals.action_likelihood(mean, action, valid)
        assert found.tolist() == [[-0.5, -4.5], [-2.0, -0.125]]
        goals = torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
        assert subgoals.likeliest_goal(goals, found).tolist() == [[1.0], [4.0]]


class Linear(nn.Module):
    """A lower level that does half of the subgoal, in the unit box."""

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        return (seen["subgoal"] * 0.5).clamp(-1.0, 1.0)


def intervals() -> SequenceBatch:
    """Return two intervals of three steps, the second one cut short by a termination."""
    obs = torch.zeros(2, 4, 3)
    obs[0, :, 0] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    obs[1, :, 1] = torch.tensor([1.0, 0.5, 0.0, 0.0])
    obs[1, 2:, 2] = 7.0
    goal = torch.zeros(2, 3, 2)
    goal[0, :, 0] = torch.tensor([4.0, 3.0, 2.0])
    goal[1, :, 0] = torch.tensor([2.0, 2.0, 0.0])
    return SequenceBatch(
        obs=obs,
        action=torch.full((2, 3, 2), 2.0),  # 0 in the unit box
        reward=torch.tensor([[1.0, 2.0, 3.0], [5.0, -1.0, 99.0]]),
        terminated=torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        truncated=torch.zeros(2, 3),
        is_first=torch.zeros(2, 3),
        valid=torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]),
        extras={GOAL: goal},
    )


def known(**settings: Any) -> Any:
    """Return HIRO whose subgoals are of two of three numbers, up to 4."""
    given = SMALL | {"goal_dims": (0, 1), "goal_scale": 4.0} | settings
    return make_algorithm("hiro", OBS, BOX, **given)


class TestBatches:
    def test_a_step_of_the_lower_level(self, monkeypatch: pytest.MonkeyPatch) -> None:
        algorithm = known(low_gamma=0.8)
        # The second of three steps, and the second of two.
        monkeypatch.setattr(algorithm, "rng", _Draws([0.5, 0.9]))
        batch = algorithm._low_batch(intervals())
        assert batch["obs/observation"].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]
        assert batch["next_obs/observation"].tolist() == [[2.0, 0.0, 0.0], [0.0, 0.0, 7.0]]
        assert batch["obs/subgoal"].tolist() == [[0.75, 0.0], [0.5, 0.0]]  # in units of 4
        assert batch["next_obs/subgoal"].tolist() == [[0.5, 0.0], [0.5, 0.125]]
        assert batch["reward"].tolist() == pytest.approx([-2.0, -((4.0 + 0.25) ** 0.5)])
        assert batch["terminated"].tolist() == [0.0, 0.0]
        assert batch["discount"].tolist() == pytest.approx([0.8, 0.8])
        assert batch["action"].tolist() == [[0.0, 0.0], [0.0, 0.0]]

    def test_an_interval_of_the_higher_level(self) -> None:
        batch = known(correction=False, candidates=8, high_reward_scale=0.5, gamma=0.9)._high_batch(
            intervals()
        )
        assert batch["obs"].tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
        assert batch["next_obs"].tolist() == [[3.0, 0.0, 0.0], [0.0, 0.0, 7.0]]
        assert batch["reward"].tolist() == [3.0, 2.0]  # half of 1 + 2 + 3, and of 5 - 1
        assert batch["terminated"].tolist() == [0.0, 1.0]
        assert batch["action"].tolist() == [[1.0, 0.0], [0.5, 0.0]]

    def test_the_correction_by_hand(self) -> None:
        """Nothing was done, so the likeliest goal is where the way lay: half a goal is an action.

        Of row 0 the stored goal 4 leaves 4, 3 and 2 to go, so that the lower level would have done
        0.5, 0.375 and 0.25; what was achieved, 3, leaves 3, 2 and 1, and is likelier.
        """
        algorithm = known(candidates=0)
        algorithm.low_actor = Linear()
        batch = algorithm._high_batch(intervals())
        # Row 1: (2, 0) with 2 and 2.06 to go against (0, -1) with 1 and 0.5 to go.
        assert batch["action"].tolist() == [[0.75, 0.0], [0.0, -0.25]]
        assert algorithm.drain_metrics()["train/corrected_share"] == 1.0

    def test_a_corrected_goal_is_at_least_as_likely(self) -> None:
        algorithm, sample = known(candidates=8), intervals()
        sample.action = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0)) * 4
        stored, s = sample.extras[GOAL][:, 0], sample.obs[:, :3, :2]

        def likelihood(goal: Tensor) -> Tensor:
            mean = algorithm._low_actions(sample.obs[:, :-1].flatten(0, 1), s, goal)
            unit = sample.action / 2 - 1
            return subgoals.action_likelihood(mean.unsqueeze(1), unit, sample.valid)[:, 0]

        with torch.no_grad():
            found = algorithm._high_batch(sample)["action"] * 4.0
            assert (likelihood(found) >= likelihood(stored)).all()
            assert (likelihood(found) > likelihood(stored)).any()

    def test_losses_are_those_of_td3(self) -> None:
        algorithm = known()
        for level, batch in (
            (LOW, algorithm._low_batch(intervals())), (HIGH, algorithm._high_batch(intervals())),
        ):  # fmt: skip
            batch["noise"] = torch.tensor([[1.0, -9.0], [0.0, 0.5]])
            loss, metrics = algorithm._critic_loss(level, batch)
            seen = {"obs": "obs", "next": "next_obs"}
            for name, prefix in seen.items():
                found = {k.split("/")[1]: v for k, v in batch.items() if k.startswith(prefix + "/")}
                seen[name] = found or batch[prefix]
            actor, critic, slow, target = (
                getattr(algorithm, level + name)
                for name in ("actor", "critic", "target_actor", "target_critic")
            )
            with torch.no_grad():
                after = slow(seen["next"]) + torch.tensor([[0.2, -0.5], [0.0, 0.1]])
                low = target(seen["next"], after.clamp(-1, 1)).amin(0)
                y = batch["reward"] + batch["discount"] * (1 - batch["terminated"]) * low
                q = critic(seen["obs"], batch["action"])
                expected = ((q[0] - y) ** 2).mean() + ((q[1] - y) ** 2).mean()
                best = -critic(seen["obs"], actor(seen["obs"]))[0].mean()
            torch.testing.assert_close(loss.detach(), expected)
            assert metrics[f"{level}q_mean"].item() == pytest.approx(q.mean().item())
            torch.testing.assert_close(algorithm._actor_loss(level, batch)[0].detach(), best)

    def test_subgoals_before_tanh_can_be_penalised(self) -> None:
        plain, kept = known(), known(goal_penalty=0.5)
        batch = kept._high_batch(intervals())
        with torch.no_grad():
            before = torch.atanh(kept.high_actor(batch["obs"]))
        differences = {}
        for level, seen in ((LOW, kept._low_batch(intervals())), (HIGH, batch)):
            losses = [one._actor_loss(level, seen)[0].item() for one in (kept, plain)]
            differences[level] = losses[0] - losses[1]
        # 0.5 times the mean square, of the higher level alone
        assert differences[LOW] == 0.0
        assert differences[HIGH] == pytest.approx(0.5 * before.square().mean().item(), rel=1e-4)


class _Draws:
    def __init__(self, values: list[float]) -> None:
        self.values = np.array(values, np.float32)

    def random(self, size: int, dtype: Any) -> np.ndarray:
        return self.values


class TestUpdate:
    def test_levels_learn_at_their_own_pace(self) -> None:
        algorithm = known(high_every=3, policy_delay=2, batch_size=2)
        for _ in range(6):
            algorithm.update(CannedReplay(intervals()))
        steps = ("low_step", "low_full_step", "high_step", "high_full_step")
        assert [algorithm.steps[name].updates for name in steps] == [3, 3, 1, 1]

    def test_the_critics_have_a_rate_of_their_own(self) -> None:
        algorithm = known(lr=0.1, critic_lr=0.2)
        for level in ("low", "high"):
            assert algorithm.hp.rates(algorithm.steps[f"{level}_full_step"], 0.0) == [0.2, 0.1]


class TestActing:
    def test_a_subgoal_is_carried_and_moves_by_h(self) -> None:
        algorithm = known()
        carry, goals, places = algorithm.initial_carry(1), [], []
        for t in range(7):
            place = np.array([[0.5 * t, -0.25 * t, 0.0]], np.float32)
            choice = algorithm.act(place, carry, True)
            goals.append(choice.extras[GOAL][0])
            places.append(place[0, :2])
            carry = choice.carry
        for t in (1, 2, 4, 5):
            np.testing.assert_allclose(goals[t], places[t - 1] + goals[t - 1] - places[t])
        for t in (3, 6):  # every third is new
            assert not np.allclose(goals[t], places[t - 1] + goals[t - 1] - places[t])
        assert max(np.abs(goals[t]).max() for t in (0, 3, 6)) <= 4.0

    def test_intervals_of_the_replay_are_those_of_subgoals(self) -> None:
        rig = Rig("hiro", Case("box", BOX).factory(length=8), **SMALL, num_envs=2)
        rig.learn(30)
        sample = rig.loop.replay.sample(64)
        whole = sample.valid.sum(1) == 3
        assert whole.any() and (~whole).any()  # 8 steps are two intervals and two steps
        s, goal = sample.obs[:, :-1], sample.extras[GOAL]
        moved = s[:, :-1] + goal[:, :-1] - s[:, 1:]
        torch.testing.assert_close((moved - goal[:, 1:])[whole], torch.zeros_like(moved)[whole])

    def test_both_levels_are_exported(self, tmp_path: Path) -> None:
        written = export_policy(known().policy, tmp_path / "policy.pt", "torchscript")
        assert written.max_difference < 1e-3 and written.observations > 1
        names = [name for name, *_ in written.inputs]
        assert names == ["observation", "carry/step", "carry/target"]

    def test_clients_without_torch_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="two levels") as caught:
            known().policy.snapshot("hiro", version=1)
        assert "assay export" in caught.value.fix


class TestGoals:
    def test_the_achieved_goal_is_the_default(self) -> None:
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        space = spaces.Dict(
            {"achieved_goal": box, "desired_goal": box, "observation": OBS, "extra": OBS}
        )
        view = GoalView(space)
        assert view.keys == ("achieved_goal",) and view.default_scale().tolist() == [1.0, 1.0]
        assert set(view.low_space.spaces) == {"achieved_goal", "observation", "extra", "subgoal"}

    def test_vectors_are_joined_and_bounds_scale(self) -> None:
        one = spaces.Box(0.0, np.array([8.0, np.inf], np.float32))
        view = GoalView(spaces.Dict({"b": one, "a": OBS, "n": spaces.Discrete(3)}), (0, 3, 4))
        assert view.keys == ("a", "b") and view.default_scale().tolist() == [4.5, 2.0, 1.0]
        obs = {"a": np.array([[1, 2, 3]]), "b": np.array([[4, 5]]), "n": np.array([0])}
        assert view(obs).tolist() == [[1, 4, 5]]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"goal_dims": (0, 3)}, r"goal_dims=\(0, 3\): expected different indices from 0 to 2"),
            ({"goal_dims": (1, 1)}, "expected different indices"),
            ({"goal_scale": 0.0}, "goal_scale=0.0: expected a number above 0"),
            ({"goal_scale": (1.0, 2.0, 3.0)}, "or 2 of them"),
            ({"n_step": 3}, "n_step=3 has no effect"),
            ({"correction": False}, "candidates=2 has no effect with correction=false"),
        ],
    )
    def test_refuses_what_cannot_be(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            known(**settings)

    def test_refuses_observations_without_vectors(self) -> None:
        with pytest.raises(SpaceError, match="no vector of floats"):
            make_algorithm("hiro", spaces.Discrete(3), BOX, **SMALL)


class Plane(gym.Env[Any, Any]):
    """A plane with a place to go to, eight moves away; the reward is the negative distance."""

    observation_space = spaces.Box(-3.0, 3.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    goal = np.array([1.5, -1.0])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.t = self.np_random.uniform(-0.5, 0.5, 2), 0
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + 0.2 * np.asarray(action, np.float64), -3.0, 3.0)
        self.t += 1
        away = float(np.linalg.norm(self.place - self.goal))
        return self.place.astype(np.float32), -away, False, self.t >= 24, {}


LEARNS: dict[str, Any] = {
    "num_envs": 4, "hidden": (32, 32), "batch_size": 64, "lr": 2e-3, "tau": 0.02, "interval": 4,
    "goal_scale": 0.8, "learning_starts": 200, "train_every": 2, "high_every": 2, "gamma": 0.9,
    "low_gamma": 0.8, "candidates": 4, "high_reward_scale": 0.2,
}  # fmt: skip


def test_learns_on_both_levels() -> None:
    # It gets -8, and standing still -43. With subgoals that do not move by h it is -17, with a
    # correction that takes any candidate -36, with the lower level's reward turned round -72.
    rig = Rig("hiro", Plane, env_steps=2000, **LEARNS).train()
    result = evaluate(rig.algorithm, Plane, episodes=20, seed=0)
    assert result.mean > -12.0
    assert result.figures["subgoal_distance"] < 0.1


def test_evaluations_and_runs_tell_of_both_levels(tmp_path: Path) -> None:
    run = assay.train(
        "hiro", Plane, env_steps=60, root=tmp_path, preset=False, eval_every=30, eval_episodes=2,
        sinks=(), **SMALL,
    )  # fmt: skip
    levels = run.evaluate(episodes=3).to_json()["levels"]
    assert set(levels) == {"intrinsic_return", "subgoal_distance", "subgoals_reached"}
    agent = assay.load(run.path)
    assert isinstance(agent.algorithm, HIRO)
    obs = np.array([0.5, -0.5], np.float32)
    first = agent.act(obs)
    agent.reset()
    np.testing.assert_array_equal(first, agent.act(obs))
