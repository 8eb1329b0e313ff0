"""What tests of related algorithms share: settings, batches, contracts, and what all must do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from assay.core.types import Batch
from assay.networks.noisy import resample_noise
from assay.optim.parameters import flatten_parameters
from assay.policies.from_torch import describe
from assay.policies.numpy_network import NumpyNetwork
from assay.testing.algorithms import AlgorithmContract, CannedReplay, Case, Rig, make_batch
from assay.testing.envs import Corridor, Identity

STATES, ACTIONS = spaces.Discrete(2), spaces.Discrete(2)
MASKED_STATES = spaces.Dict({"obs": STATES, "action_mask": spaces.MultiBinary(2)})
BOX = spaces.Box(0.0, 4.0, (1,), np.float32)


def put(parameter: torch.Tensor, values: Any) -> None:
    """Overwrite a parameter."""
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


# ---------------------------------------------------------------------- actions in a box


def box_items() -> Batch:
    """Return a plain step, a truncated one and a terminated one; unit actions 1/2, 0, -1."""
    return make_batch(
        obs=[0, 1, 0], action=[[3.0], [2.0], [0.0]], reward=[1.0, 0.0, -1.0], next_obs=[0, 1, 1],
        terminated=[0, 0, 1], truncated=[0, 1, 0], discount=[0.5, 0.5, 0.5],
    )  # fmt: skip


def log_pi(noise: float, u: float) -> float:
    """Return log N(noise) - log(1 - tanh(u)^2): a standard deviation of 1, squashed."""
    return -0.5 * noise**2 - 0.5 * math.log(2 * math.pi) - math.log(1 - math.tanh(u) ** 2)


# ---------------------------------------------------------------------- DQN and its relatives

SMALL = {
    "buffer_size": 150, "learning_starts": 12, "batch_size": 8, "train_every": 2,
    "target_every": 2, "hidden": (16,),
}  # fmt: skip
OPTIONS = {"double": True, "dueling": True, "noisy": True, "n_step": 3, "prioritized": True}
QUICK = {
    "num_envs": 2, "buffer_size": 2000, "learning_starts": 100, "train_every": 2, "lr": 0.005,
    "target_every": 10, "hidden": (32,), "epsilon": "linear:1:0.05:0.5", "gamma": 0.9,
}  # fmt: skip
WITHOUT_EFFECT = [
    ({"priority_alpha": 0.7}, "priority_alpha=.* has no effect with prioritized=false"),
    ({"priority_beta": 0.5}, "priority_beta=.* has no effect with prioritized=false"),
    ({"tau": 0.01, "target_every": 5}, "target_every=.* has no effect with tau=0.01"),
    ({"noisy": True, "epsilon": 0.1}, "epsilon=.* has no effect with noisy=true"),
]


class ContractOfEveryOption(AlgorithmContract):
    """The contract for settings whose compiled step the plain contract has."""

    test_compiled_step_does_what_the_eager_one_does = None  # it takes its time

    def cases(self) -> Iterator[Case]:
        yield Case("discrete", spaces.Discrete(4))  # what the long tests run on
        yield Case("sees_dict_masked", spaces.Discrete(4), "dict", masked=True)


def four_steps(reward: list[float], **more: Any) -> Batch:
    """Return a plain step, a terminated one, a truncated one, and one of a longer return."""
    columns = {
        "obs": [0, 0, 1, 1],
        "action": [0, 1, 0, 1],
        "reward": reward,
        "next_obs": [1, 1, 0, 0],
        "terminated": [0, 1, 0, 0],
        "truncated": [0, 0, 1, 0],
        "discount": [0.5, 0.5, 0.5, 0.25],
    }
    return make_batch(**(columns | more))


def two_steps(**more: Any) -> Batch:
    """Return a step that goes on (truncated, so that it bootstraps) and a terminated one."""
    columns = {
        "obs": [0, 0], "action": [0, 1], "reward": [1.0, 1.5], "next_obs": [1, 1],
        "terminated": [0, 1], "truncated": [1, 0], "discount": [0.5, 0.5],
    }  # fmt: skip
    return make_batch(**(columns | more))


def mask_next(batch: Batch, masks: list[list[int]]) -> Batch:
    """Allow all actions, and `masks` in the next states."""
    assert isinstance(batch.obs, torch.Tensor)
    every = torch.ones(len(batch.obs), 2)
    batch.obs = {"obs": batch.obs, "action_mask": every}
    batch.next_obs = {"obs": batch.next_obs, "action_mask": torch.tensor(masks)}
    return batch


def check_target_is_copied(algorithm: Any, batch: Callable[[], Batch], every: int) -> None:
    """Check that the target stands still, and is the online network after every so many updates."""
    before = flatten_parameters(algorithm.target).clone()
    for update in range(1, 2 * every + 1):
        algorithm.update(CannedReplay(batch()))
        online, target = (flatten_parameters(m) for m in (algorithm.q, algorithm.target))
        if update % every:
            assert torch.equal(target, before) and not torch.equal(target, online)
        else:
            assert torch.equal(target, online)
            before = target.clone()


def check_target_follows(algorithm: Any, batch: Batch) -> None:
    """Check one update with tau=0.25."""
    before = flatten_parameters(algorithm.target).clone()
    algorithm.update(CannedReplay(batch))
    online, target = (flatten_parameters(m) for m in (algorithm.q, algorithm.target))
    torch.testing.assert_close(target, 0.75 * before + 0.25 * online)


def check_numpy_acts_as_torch(network: nn.Module, atol: float) -> None:
    """Check a network of three numbers, which may be noisy."""
    fast = NumpyNetwork(describe(network, noisy=True)).call
    rng = np.random.default_rng(0)
    for n in (1, 5, 200):
        resample_noise(network, rng)  # of a noisy network, which starts silent
        obs = rng.standard_normal((n, 3), dtype=np.float32)
        with torch.no_grad():
            expected = network(torch.from_numpy(obs)).numpy()
        np.testing.assert_allclose(fast(obs), expected, rtol=1e-4, atol=atol)


def calm(settings: dict[str, Any]) -> dict[str, Any]:
    """Leave epsilon out of noisy settings: the noise takes its place."""
    return {k: v for k, v in settings.items() if k != "epsilon" or not settings.get("noisy")}


class Learning:
    """It finds the right answer, and looks ahead, plain and with every option."""

    algorithm: str
    quick: dict[str, Any] = QUICK
    options: dict[str, Any] = OPTIONS
    steps: tuple[int, int] = (600, 800)  # for the two tasks
    highest_returns: tuple[float | None, float | None] = (None, None)  # `v_max` of them

    def learns(
        self, env: Any, steps: int, best: float, v_max: float | None, settings: dict[str, Any]
    ) -> bool:
        """Return whether an agent that does not begin with the best policy finds it."""
        options = calm(settings) | ({} if v_max is None else {"v_max": v_max})
        rigs = (Rig(self.algorithm, env, seed=s, env_steps=steps, **options) for s in range(1, 20))
        return next(rig for rig in rigs if rig.score() < best).train().score() == best

    @pytest.mark.parametrize("masked", [False, True])
    def test_the_right_answer(self, masked: bool) -> None:
        env = partial(Identity, spaces.Discrete(4), masked=masked)
        assert self.learns(env, self.steps[0], 8.0, self.highest_returns[0], self.quick)

    @pytest.mark.parametrize("every_option", [False, True])
    def test_to_look_ahead(self, every_option: bool) -> None:
        settings = self.quick | (self.options if every_option else {})
        assert self.learns(Corridor, self.steps[1], 1.0, self.highest_returns[1], settings)
