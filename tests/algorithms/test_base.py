"""What all algorithms share: metrics, noise, normalisation, saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core import registry
from assay.core.errors import SpaceError
from assay.core.types import Clock, Spaces
from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import CannedReplay, make_algorithm, make_batch

BOX, OBS = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Box(-9.0, 9.0, (2,), np.float32)
ITEMS = make_batch(
    obs=[[1.0, 2.0], [3.0, 4.0]], action=[[0.5], [-0.5]], reward=[1.0, 40.0],
    next_obs=[[5.0, 6.0], [7.0, 8.0]], discount=[0.9, 0.9],
)  # fmt: skip


def td3(**settings: Any) -> Any:
    return make_algorithm("td3", OBS, BOX, hidden=(4,), batch_size=2, **settings)


class Reported:
    """A step that reports what it is given."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def metrics(self, vector: torch.Tensor) -> dict[str, float]:
        return dict(zip(self.names, vector.tolist(), strict=True))


class TestMetrics:
    def test_mean_since_the_last_time(self) -> None:
        algorithm, step = td3(), Reported("loss", "norm")
        for loss, norm in ((1.0, 4.0), (2.0, 4.0), (6.0, 1.0)):
            algorithm.record(step, torch.tensor([loss, norm]))
        assert algorithm.drain_metrics() == {"train/loss": 3.0, "train/norm": 3.0}
        assert algorithm.clock.updates == 3
        assert algorithm.drain_metrics() == {}

    def test_two_steps_that_report_one_name(self) -> None:
        algorithm, critic, full = td3(), Reported("critic"), Reported("critic", "actor")
        for value in (1.0, 2.0, 3.0):
            algorithm.record(critic, torch.tensor([value]))
        algorithm.record(full, torch.tensor([10.0, 5.0]))
        # (1 + 2 + 3 + 10) / 4; the actor was updated once
        assert algorithm.drain_metrics() == {"train/critic": 4.0, "train/actor": 5.0}

    def test_the_last_note_counts(self) -> None:
        algorithm = td3()
        algorithm.note(share=1.0)
        algorithm.note(share=2.0)
        assert algorithm.drain_metrics() == {"train/share": 2.0}
        assert algorithm.drain_metrics() == {}

    def test_what_is_not_drained_is_saved(self) -> None:
        one, two = td3(), td3(seed=2)
        for _ in range(3):
            one.update(CannedReplay(ITEMS))
        one.note(share=0.5)
        two.load_state(one.state())
        found, expected = two.drain_metrics(), one.drain_metrics()
        assert found == expected and {"train/critic_loss", "train/share"} <= set(expected)


class TestData:
    def test_observations_and_rewards_are_normalised(self) -> None:
        algorithm = td3(normalize_obs=True, normalize_reward=True, gamma=0.5, num_envs=2)
        # Mean (2, 4), variance (1, 4)
        algorithm.update_obs_stats(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
        # Returns 2, 6, then 0 + 2/2 = 1 and 0 + 6/2 = 3: mean 3, variance (1 + 9 + 4 + 0) / 4
        algorithm.update_reward_stats(np.array([2.0, 6.0]), np.zeros(2, bool))
        algorithm.update_reward_stats(np.array([0.0, 0.0]), np.zeros(2, bool))
        batch = algorithm.replay_tensors(ITEMS)
        expected = torch.tensor([[-1.0, -1.0], [1.0, 0.0]])
        torch.testing.assert_close(batch["obs"], expected, atol=1e-4, rtol=0)
        expected = torch.tensor([[3.0, 1.0], [5.0, 2.0]])
        torch.testing.assert_close(batch["next_obs"], expected, atol=1e-4, rtol=0)
        # The mean is not subtracted; 40 is clipped to 10 standard deviations.
        expected = torch.tensor([1.0 / np.sqrt(3.5), 10.0], dtype=torch.float32)
        torch.testing.assert_close(batch["reward"], expected, atol=1e-4, rtol=0)
        assert ITEMS.reward.tolist() == [1.0, 40.0] and ITEMS.obs[0].tolist() == [1.0, 2.0]

    def test_acting_does_not_move_the_normaliser(self) -> None:
        algorithm = td3(normalize_obs=True)
        algorithm.update_obs_stats(np.ones((4, 2), np.float32))
        before = algorithm.state()["normalisers"]
        for explore in (True, False):
            algorithm.act(np.full((3, 2), 5.0, np.float32), None, explore)
        algorithm.update(CannedReplay(ITEMS))
        assert algorithm.state()["normalisers"]["obs_norm"][""]["count"] == 4
        np.testing.assert_array_equal(
            algorithm.state()["normalisers"]["obs_norm"][""]["mean"], before["obs_norm"][""]["mean"]
        )

    def test_dict_observations_keep_their_names(self) -> None:
        space = spaces.Dict({"arm": OBS, "leg": BOX})
        algorithm = make_algorithm("ddpg", space, BOX, hidden=(4,))
        batch = make_batch(
            obs={"arm": [[1.0, 2.0]], "leg": [[3.0]]},
            next_obs={"arm": [[4.0, 5.0]], "leg": [[6.0]]},
            action=[[0.0]], reward=[1.0], discount=[0.9],
        )  # fmt: skip
        named = algorithm.replay_tensors(batch)
        assert named["obs/leg"].tolist() == [[3.0]]
        assert named["next_obs/arm"].tolist() == [[4.0, 5.0]]

    def test_noise_comes_from_the_algorithms_own_stream(self) -> None:
        one, two = td3(), td3()
        torch.manual_seed(0)
        first = one.noise(3, 2)
        torch.manual_seed(1)
        assert first.shape == (3, 2) and torch.equal(first, two.noise(3, 2))
        assert not torch.equal(first, one.noise(3, 2))


class TestSpaces:
    @pytest.mark.parametrize(
        ("observation", "action"),
        [
            (OBS, spaces.Discrete(3, start=5)),
            (OBS, spaces.MultiDiscrete([2, 3], start=[0, -1])),
            (spaces.Discrete(4, start=1), spaces.Discrete(3)),
            (spaces.Dict({"kind": spaces.Discrete(4, start=-1)}), spaces.Discrete(3)),
        ],
    )
    def test_whole_numbers_are_counted_from_0(self, observation: Any, action: Any) -> None:
        with pytest.raises(AssertionError, match="not canonical"):
            make_algorithm("ppo", observation, action, hidden=(4,))


class TestState:
    def test_has_a_place_for_everything(self) -> None:
        state = td3(normalize_obs=True, normalize_reward=True).state()
        networks = {"actor", "critic", "target_actor", "target_critic"}
        assert networks <= set(state["weights"])
        assert set(state["optimizer"]) == {"critic_step", "full_step"}
        assert set(state["normalisers"]) == {"obs_norm", "reward_scale"}
        assert "rng" in state["algorithm"]

    def test_loading_writes_in_place(self) -> None:
        """The fast path of acting holds views of the weights: they must not move."""
        one, two = td3(), td3(seed=2)
        obs = np.ones((3, 2), np.float32)
        assert not np.allclose(two.act(obs, None, False).action, one.act(obs, None, False).action)
        places = [p.data_ptr() for p in two.actor.parameters()]
        two.load_state(one.state())
        assert [p.data_ptr() for p in two.actor.parameters()] == places
        np.testing.assert_array_equal(
            two.act(obs, None, False).action, one.act(obs, None, False).action
        )


@pytest.mark.parametrize("name", registry.names())
def test_every_algorithm_says_what_it_is(name: str) -> None:
    cls = registry.get(name)
    assert cls.spec.name == name and cls.spec.summary and cls.spec.paper
    for key, (_, _, meaning) in cls.Hyperparameters.meanings().items():
        assert meaning.endswith("."), f"{name}.{key} has no meaning"


@pytest.mark.parametrize("name", registry.names())
def test_an_unbounded_box_has_a_clear_answer(name: str) -> None:
    """Squashed policies need bounds; the others act without."""
    cls = registry.get(name)
    if "Box" not in cls.spec.actions:
        pytest.skip("no Box")
    free = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    config = resolve(name, "none", {"device": "cpu", "hidden": (4,)}, use_preset=False)
    if cls.spec.loop == "on_policy":
        algorithm = build_algorithm(config, Spaces(OBS, free), Clock(100))
        carry = algorithm.initial_carry(3)
        action = algorithm.act(np.zeros((3, 2), np.float32), carry, True).action
        assert action.shape == (3, 2) and np.isfinite(action).all()
    else:
        with pytest.raises(SpaceError, match="finite bounds"):
            build_algorithm(config, Spaces(OBS, free), Clock(100))
