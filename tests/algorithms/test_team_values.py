"""Agents of VDN and QMIX with a memory each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from test_r2d2 import Tally
from test_team_memory import cue

from assay.algorithms.qmix import QMIX
from assay.algorithms.shared import team_values
from assay.core.errors import ConfigError
from assay.core.types import Problem, SequenceBatch, Spaces, Team, pack, tree_map
from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import CannedReplay, Rig
from assay.testing.teams import Signals, TeamContract

SMALL = {
    "hidden": (8,), "batch_size": 4, "learning_starts": 8, "train_every": 8, "tau": 0.1,
    "memory": "gru", "memory_size": 8, "sequence": 3, "burn_in": 1,
}  # fmt: skip


class TestVDN(TeamContract):
    algorithm = "vdn"
    settings: ClassVar = {**SMALL, "prioritized": True, "n_step": 2, "dueling": True}
    compiled_settings: ClassVar = {"sequence": 2}
    case = "come_and_go_masked"

    def cases(self) -> Iterator[Any]:
        """Yield one environment: what memories change is the same in all."""
        return (case for case in super().cases() if case.name == self.case)


class TestQMIX(TestVDN):
    algorithm = "qmix"
    settings: ClassVar = {**SMALL, "memory": "lstm"}
    case = "unequal_with_state"
    test_compiled_step_does_what_the_eager_one_does = None  # done above, and it takes its time


# ---------------------------------------------------------------------- the loss by hand


def two_agents() -> Spaces:
    """Return the spaces of two agents that see one number each and choose between two actions."""
    one, choice = spaces.Box(-9, 9, (1,), np.float32), spaces.Discrete(2)
    joint = {
        "obs": spaces.Box(-9, 9, (2, 1), np.float32),
        "alive": spaces.MultiBinary(2),
        "action_mask": spaces.MultiBinary(4),
        "state": spaces.Box(-9, 9, (1,), np.float32),
    }
    team = Team(("a_0", "a_1"), ("a", "a"), (one, one), (choice, choice), True, True)
    return Spaces(spaces.Dict(joint), spaces.MultiDiscrete([2, 2]), team)


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a learner whose agents remember the sum of what they saw."""
    monkeypatch.setattr(team_values, "make_memory", Tally)

    def make(algorithm: str, **more: Any) -> Any:
        run = {"env_steps": 100, "num_envs": 1, "seed": 1, "device": "cpu", "compile": False}
        settings = {
            "memory": "gru", "hidden": (), "agent_id": False, "gamma": 0.5, "batch_size": 2,
            "sequence": 3, "burn_in": 0, **more,
        }  # fmt: skip
        if algorithm == "qmix":
            settings |= {"mixer_embed": 1, "mixer_hidden": 0}
        config = resolve(algorithm, "none", run, settings, use_preset=False)
        found: Any = build_algorithm(config, two_agents(), config.run.clock())
        # Online Q = s, 3 - s. Target Q = s - 1, 5.
        for q, slope, bias in (
            (found.q, [1.0, -1.0], [0.0, 3.0]), (found.target, [1.0, 0.0], [-1.0, 5.0])
        ):  # fmt: skip
            with torch.no_grad():
                layer = q.nets[0].head[0]
                layer.weight.copy_(torch.tensor(slope).unsqueeze(1))
                layer.bias.copy_(torch.tensor(bias))
                if algorithm == "qmix":  # Q_tot = 1/2 ELU(Q_0 + Q_1) + 1
                    for parameter in q.mixer.parameters():
                        parameter.zero_()
                    q.mixer.weights_1[0].bias.fill_(1.0)
                    q.mixer.weights_2[0].bias.fill_(-0.5)
                    q.mixer.value[-1].bias.fill_(1.0)
        return found

    return make


def items(**more: Any) -> SequenceBatch:
    """Return two sequences of three steps.

    The sums of the first, which goes on before and after: 1, 2, 2, then 3 of agent 0, and 2, 2, 3,
    then 3 of agent 1, which is not alive at the last step. The second begins and ends its episode:
    sums 1, 2, then 2 and 0, 1, then 1; its last step is padding (with something to trip over).
    """
    columns = {
        "obs": {
            "obs": [
                [[[0], [1]], [[1], [0]], [[0], [1]], [[1], [0]]],
                [[[1], [0]], [[1], [1]], [[0], [0]], [[9], [9]]],
            ],
            "alive": [[[1, 1], [1, 1], [1, 0], [1, 1]], [[1, 1]] * 4],
            # In the first one, agent 0 may not take action 0 in the second step.
            "action_mask": [[[1] * 4, [0, 1, 1, 1], [1] * 4, [1] * 4], [[1] * 4] * 4],
            "state": [[[0]] * 4] * 2,
        },
        "action": [[[0, 0], [1, 0], [0, 1]], [[0, 1], [1, 0], [1, 1]]],
        "reward": [[1, 1, 3], [4, 5, 50]],
        "terminated": [[0, 0, 0], [0, 1, 0]],
        "truncated": [[0, 0, 0], [0, 0, 0]],
        "is_first": [[0, 0, 0], [1, 0, 0]],
        "valid": [[1, 1, 1], [1, 1, 0]],
        "carry": {"a/sum": [[[1.0], [1.0]], [[7.0], [7.0]]]},  # forgotten where an episode begins
        "weight": [1.0, 1.0],
        "index": [7, 3],
    }
    named = {k: tree_map(lambda x: torch.tensor(x).float(), v) for k, v in (columns | more).items()}
    return SequenceBatch(**named | {k: named[k].long() for k in ("action", "index")})


# Values of what was done, agent by agent: 1 + 2, (3 - 2) + 2, 2 + 0 (dead); and, in the second
# sequence, 1 + (3 - 0), (3 - 2) + 1.
TAKEN = np.array([3.0, 3.0, 2.0, 4.0, 2.0])
# What agents prefer next, by the online values (s, 3 - s), at the target's values (s - 1, 5):
# first: sums 2, 2: agent 0 may only take action 1: 5; agent 1 takes 0: 1. Sums 2, -: 1 + 0 (dead).
# Sums 3, 3: 2 + 2. Second: sums 2, 1: 1 + 5; and its end, which counts nothing.
AHEAD = np.array([6.0, 1.0, 4.0, 6.0])


def mixed(algorithm: str, x: np.ndarray) -> np.ndarray:
    return x if algorithm == "vdn" else 0.5 * x + 1.0  # ELU(x) = x: all are positive


def loss_of(found: Any, batch: SequenceBatch) -> tuple[float, CannedReplay]:
    replay = CannedReplay(batch)
    found.update(replay)
    return found.drain_metrics()["train/q_loss"], replay


@pytest.mark.parametrize("algorithm", ["vdn", "qmix"])
def test_the_loss_of_sequences_is_the_one_computed_by_hand(algorithm: str, learner: Any) -> None:
    total, ahead = mixed(algorithm, TAKEN), mixed(algorithm, AHEAD)
    y = np.array([1, 1, 3, 4, 5]) + 0.5 * np.array([*ahead, 0.0])
    loss, _ = loss_of(learner(algorithm), items())
    assert loss == pytest.approx(0.5 * np.square(total - y).mean(), rel=1e-6)


def test_n_steps_weights_and_priorities_by_hand(learner: Any) -> None:
    found = learner("vdn", n_step=2, prioritized=True)
    loss, replay = loss_of(found, items(weight=[2.0, 0.5]))
    # First: 1 + 1/2 + 1/4 = 1.75; 1 + 3/2 + 4/4 = 3.5; and 3 + 4/2 = 5, one step being left.
    # Second: 4 + 5/2 = 6.5; 5.
    first, second = np.array([3 - 1.75, 3 - 3.5, 2 - 5.0]), np.array([4 - 6.5, 2 - 5.0])
    expected = 0.5 * (2 * np.square(first).sum() + 0.5 * np.square(second).sum()) / 5
    assert loss == pytest.approx(expected, rel=1e-6)
    wanted = [0.9 * np.abs(x).max() + 0.1 * np.abs(x).mean() for x in (first, second)]
    [(index, priorities)] = replay.priorities
    assert index == [7, 3] and priorities == pytest.approx(wanted, rel=1e-6)


def test_burnt_in_steps_are_not_learned_from_but_at_an_episode_s_start(learner: Any) -> None:
    loss, _ = loss_of(learner("vdn", sequence=2, burn_in=1), items())
    # Without the first step of the first sequence, which is 3 - (1 + 6/2) = -1 off.
    errors = TAKEN - (np.array([1, 1, 3, 4, 5]) + 0.5 * np.array([*AHEAD, 0.0]))
    assert loss == pytest.approx(0.5 * np.square(errors[1:]).sum() / 4, rel=1e-6)


# ---------------------------------------------------------------------- acting and learning


def rig(algorithm: str, steps: int = 200, **settings: Any) -> Rig:
    options = {
        "gamma": 1.0, "lr": 3e-3, "hidden": (16,), "batch_size": 32, "learning_starts": 128,
        "train_every": 16, "tau": 0.05, "epsilon": "linear:1:0.1:0.5", "buffer_size": 4000,
    }  # fmt: skip
    return Rig(algorithm, cue, num_envs=16, env_steps=steps, **(options | settings))


REMEMBER = {"memory": "gru", "memory_size": 16, "sequence": 4, "burn_in": 0}


@pytest.mark.parametrize("algorithm", ["vdn", "qmix"])
def test_agents_remember_a_cue(algorithm: str) -> None:
    assert rig(algorithm, 3_000, **REMEMBER).train().score(50) > 0.95


def test_without_a_memory_the_cue_is_forgotten() -> None:
    assert rig("vdn", 3_000).train().score(50) < 0.75  # 0.5 by chance


@pytest.mark.parametrize("memory", ["lstm", "transformer"])
def test_learning_unrolls_what_acting_computed(memory: str) -> None:
    """Greedy actions of replayed sequences are those that acting chose, also in their middle."""

    def signals() -> Signals:
        return Signals([spaces.Discrete(3)] * 2 + [spaces.Discrete(2)], moving=True, length=5)

    more = {"heads": 2, "context": 4} if memory == "transformer" else {}
    settings = {**SMALL, "memory": memory, "memory_size": 16, "epsilon": 0.0, **more}
    found = Rig("vdn", signals, num_envs=4, **settings | {"learning_starts": 0})
    for _ in range(40):
        found.collector.collect_step(found.loop.replay, False)
    sample = found.loop.replay.sample(64)
    assert 0 < sample.is_first[:, 0].sum() < 64
    batch = pack("obs", sample.obs)
    joint = {k.partition("/")[2]: x.transpose(0, 1).flatten(0, 1) for k, x in batch.items()}
    q = found.algorithm.q
    with torch.no_grad():
        values = q.unrolled(joint, sample.carry, sample.is_first.t())
    for crew, own in zip(q.crews, values, strict=True):
        best = own.view(5, 64, crew.size, -1)[:-1].argmax(-1).transpose(0, 1)  # [B, L, k]
        done = sample.action[..., list(crew.members)]
        counts = (sample.obs["alive"][:, :-1, list(crew.members)] * sample.valid[..., None]) > 0
        assert bool((best == done)[counts].all())


def test_each_agent_has_a_memory_of_its_own() -> None:
    found = rig("qmix", **REMEMBER)
    assert {k: x.shape for k, x in found.algorithm.initial_carry(16).items()} == {
        "agent/h": (16, 2, 1, 16)
    }
    found.collector.collect_step(found.loop.replay, False)
    before = found.collector.carry["agent/h"]
    assert before[:, 0].any() and not np.allclose(before[:, 0], before[:, 1])
    for _ in range(3):  # to the end of the episode
        found.collector.collect_step(found.loop.replay, False)
    assert not found.collector.carry["agent/h"].any()


def test_settings_of_a_memory_fit_it_and_are_refused_without_one() -> None:
    fitted = QMIX.Hyperparameters.fitted
    problem = Problem(two_agents(), 10_000, 25)
    assert fitted(problem, {"memory": "gru"})["train_every"] == 16
    assert fitted(problem, {})["train_every"] == 4
    with pytest.raises(ConfigError, match="memory_size"):
        rig("qmix", memory_size=16)
    with pytest.raises(ConfigError, match="noisy"):
        rig("qmix", **REMEMBER, noisy=True)
    with pytest.raises(ConfigError, match="n_step=5 is longer than sequence=4"):
        rig("qmix", **REMEMBER, n_step=5)
