"""Gradient attacks and bounds on the policies of all algorithms, or the reason why not."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from assay.core import registry
from assay.core.errors import ConfigError
from assay.robustness.bounds import Certifier
from assay.robustness.disturbed import Room
from assay.robustness.gradients import GradientAttack, GradientPath
from assay.testing.algorithms import make_algorithm

SEEN = gym.spaces.Box(-5, 5, (3,), np.float32)
ACTIONS = {
    "Discrete": gym.spaces.Discrete(3),
    "Box": gym.spaces.Box(-2, 2, (2,), np.float32),
    "MultiDiscrete": gym.spaces.MultiDiscrete([2, 3]),
    "MultiBinary": gym.spaces.MultiBinary(3),
}
SMALL: dict[str, dict[str, Any]] = {
    "dreamerv3": {"size": "nano"},
    "recurrent_ppo": {"memory_size": 8},
    "r2d2": {"memory_size": 8},
    "dt": {"width": 16, "heads": 2},
    "paired": {"adversary": "minimax"},  # for one environment
}
PLANS = ("tdmpc2", "alphazero")
BOUNDED = {
    "a2c", "bc", "cql", "dagger", "ddpg", "dqn", "gail", "airl", "impala", "iql", "mbpo", "mopo",
    "paired", "ppo", "qrdqn", "rebrac", "redq", "sac", "td3", "td3_bc", "tqc",
}  # fmt: skip


def cases() -> list[tuple[str, str]]:
    found = []
    for name in sorted(registry.built_in()):
        spec = registry.get(name).spec
        if spec.agents == "one" and spec.loop != "game" and name not in PLANS:
            found += [(name, kind) for kind in spec.actions]
    return found


@pytest.mark.parametrize(("name", "kind"), cases())
def test_gradients_move_what_the_policy_prefers(name: str, kind: str) -> None:
    policy = make_algorithm(name, SEEN, ACTIONS[kind], **SMALL.get(name, {})).policy
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(6, 3)).astype(np.float32)
    carry = policy.initial_carry(6)
    one = policy.initial_carry(1)
    room = Room({"": SEEN}, {"": np.ones(3, np.float32)})
    path = GradientPath(policy, room, [(row[None], one) for row in obs])

    def against(seen: np.ndarray) -> np.ndarray:
        fixed, state = path.tensors(obs), path.tensors(carry)
        best = path.best(path.numbers(fixed, state), fixed)
        return path.against(path.numbers(path.tensors(seen), state), fixed, best).detach().numpy()

    seen = GradientAttack(path, 0.2, 4, rng)(obs, carry)
    assert np.abs(seen - obs).max() <= 0.2 + 1e-6
    after, before = against(seen), against(obs)
    assert (after >= before - 1e-6).all() and after.mean() > before.mean()
    try:
        certifier = Certifier(path)
    except ConfigError as error:
        assert "no certified bound for" in error.message
        assert name not in BOUNDED or kind not in ("Discrete", "Box")
        return
    assert name in BOUNDED
    narrow, wide = (certifier.bound(obs, budget) for budget in (0.01, 0.5))
    assert np.isfinite(narrow).all()
    assert (narrow >= wide).all() if kind == "Discrete" else (narrow <= wide).all()


def test_policies_that_plan_are_refused() -> None:
    policy = make_algorithm("tdmpc2", SEEN, ACTIONS["Box"]).policy
    room = Room({"": SEEN}, {"": np.ones(3, np.float32)})
    with pytest.raises(ConfigError, match="no gradients to attack it by: it plans"):
        GradientPath(policy, room, [(np.zeros((1, 3), np.float32), policy.initial_carry(1))])
