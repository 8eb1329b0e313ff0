"""Agents of IPPO and MAPPO with a memory each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from assay.algorithms.shared.team_memory import _prepare
from assay.core.errors import ConfigError
from assay.core.types import unpack
from assay.envs.native.team import NativeTeam, SingleTeam
from assay.testing.algorithms import Rig
from assay.testing.teams import Signals, TeamContract

SMALL = {"horizon": 8, "minibatch_size": 16, "chunk": 4, "hidden": (16,), "memory_size": 16}


class TestIPPO(TeamContract):
    algorithm = "ippo"
    settings: ClassVar = {
        "hidden": (16,), "horizon": 4, "minibatch_size": 4, "epochs": 2, "memory": "lstm",
        "memory_size": 8, "chunk": 2,
    }  # fmt: skip
    case = "come_and_go_masked"

    def cases(self) -> Iterator[Any]:
        """Yield one environment: what memories change is the same in all."""
        return (case for case in super().cases() if case.name == self.case)


class TestMAPPO(TestIPPO):
    algorithm = "mappo"
    settings: ClassVar = {**TestIPPO.settings, "memory": "gru"}
    case = "box_unequal"


class Cue(NativeTeam):
    """Each of two agents sees a cue in the first step, and is paid for repeating it in the last.

    What it sees: the cue as one of two, or nothing, and whether it is the last step.
    """

    def __init__(self, num_envs: int = 1, length: int = 4) -> None:
        self.length = length
        agents = {f"agent_{i}": (3, Discrete(2)) for i in range(2)}
        super().__init__(num_envs, 100, agents, variables=3)

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        return np.array([*rng.integers(2, size=2), 0.0])

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        self._variables[:, 2] += 1
        over = self._variables[:, 2] == self.length
        return (actions == self._variables[:, :2]) * over[:, None] * 1.0, over

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], None]:
        seen = np.zeros((len(variables), 2, 3), np.float32)
        shown = (variables[:, 2] == 0)[:, None, None]
        seen[..., :2] = np.eye(2)[variables[:, :2].astype(int)] * shown
        seen[..., 2] = (variables[:, 2] == self.length - 1)[:, None]
        return seen, None


def cue() -> SingleTeam:
    return SingleTeam(Cue())


def learner(algorithm: str, steps: int = 100, **settings: Any) -> Rig:
    options = {"gamma": 1.0, "lr": 3e-3, "epochs": 4, "entropy_coef": 0.01, "hidden": (16,)}
    sizes = {"horizon": 16, "minibatch_size": 64}
    return Rig(algorithm, cue, num_envs=16, env_steps=steps, **(options | sizes | settings))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
def test_agents_remember_a_cue(algorithm: str) -> None:
    rig = learner(algorithm, 2_500, memory="gru", memory_size=16, chunk=8)
    assert rig.train().score(50) > 0.95


def test_without_a_memory_the_cue_is_forgotten() -> None:
    assert learner("ippo", 2_500).train().score(50) < 0.75  # 0.5 by chance


def test_each_agent_has_a_memory_of_its_own() -> None:
    rig = learner("ippo", memory="gru", memory_size=16, chunk=8)
    carry = rig.algorithm.initial_carry(16)
    assert {name: x.shape for name, x in carry.items()} == {"agent/h": (16, 2, 1, 16)}
    after = rig.algorithm.act(rig.obs, carry, False).carry["agent/h"]
    seen = rig.obs["obs"].copy()
    seen[:, 1, :2] = 1 - seen[:, 1, :2]  # only what the second agent sees is another
    other = rig.algorithm.act({**rig.obs, "obs": seen}, carry, False).carry["agent/h"]
    np.testing.assert_allclose(after[:, 0], other[:, 0], atol=1e-6)
    assert (np.abs(after[:, 1] - other[:, 1]).max(-1) > 1e-4).all()


@pytest.mark.parametrize("algorithm", ["ippo", "mappo"])
@pytest.mark.parametrize("memory", ["lstm", "transformer"])
def test_learning_unrolls_what_acting_computed(algorithm: str, memory: str) -> None:
    """Ratios are 1 before the first step: log-probabilities are those that acting gave."""

    def signals() -> Signals:
        return Signals([spaces.Discrete(3)] * 2 + [spaces.Discrete(2)], moving=True, length=3)

    options = {**SMALL, "heads": 2, "context": 4} if memory == "transformer" else SMALL
    rig = Rig(algorithm, signals, num_envs=4, memory=memory, **options)
    rig.collector.collect_rollout(rig.loop.rollout)
    learned: Any = rig.algorithm
    batch = _prepare(learned, rig.loop.rollout)
    batch |= {"clip": torch.tensor(0.2), "entropy_coef": torch.tensor(0.0)}
    for crew, net in zip(learned.crews, learned.nets, strict=True):
        _, metrics = learned._loss(crew, net, batch)
        found = unpack(crew.name, metrics)
        assert abs(found["approx_kl"].item()) < 1e-6 and found["clip_fraction"].item() == 0.0


def test_a_memory_restarts_with_the_episode() -> None:
    rig = learner("ippo", memory="gru", memory_size=16, chunk=8)
    rig.collector.collect_rollout(rig.loop.rollout)  # 16 steps: 4 whole episodes
    assert not rig.collector.carry["agent/h"].any()
    assert rig.loop.rollout.restarts()[:, 0].tolist() == [0.0, 0, 0, 0, *([1.0, 0, 0, 0] * 3)]


def test_bad_chunks_and_settings_without_a_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="chunk=3 does not divide horizon=16"):
        learner("ippo", memory="gru", chunk=3)
    with pytest.raises(ConfigError, match="memory_size"):
        learner("ippo", memory_size=16)
