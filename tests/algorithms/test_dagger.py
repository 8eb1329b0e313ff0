"""DAgger: the contract, its numbers by hand, and that it learns from answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from assay.core.errors import ConfigError
from assay.experts.teachers import FunctionTeacher, RandomTeacher
from assay.testing.algorithms import (
    AlgorithmContract,
    CannedReplay,
    Rig,
    make_algorithm,
    make_batch,
)
from assay.testing.envs import Identity

STATES, BOX = spaces.Discrete(2), spaces.Box(0.0, 4.0, (1,), np.float32)
SMALL = {"hidden": (16,), "batch_size": 8, "train_every": 4, "updates": 2}


class TaughtRig(Rig):
    """A `Rig` with a teacher: a function of one observation, or chance."""

    def __init__(self, *args: Any, answer: Callable[[Any], Any] | None = None, **options: Any):
        self._answer = answer
        super().__init__(*args, **options)

    def expert(self, env: Any) -> Any:
        if self._answer is None:
            return lambda vector: RandomTeacher(vector.spaces)
        return lambda vector: FunctionTeacher(self._answer, vector, "answer")


class TestContract(AlgorithmContract):
    algorithm = "dagger"
    settings = SMALL
    make_rig: ClassVar[type[Rig]] = TaughtRig

    def budget(self, factory: Callable[[], Any], directory: Path, total: int) -> dict[str, Any]:
        return {**super().budget(factory, directory, total), "expert": "random"}


def put(parameter: torch.Tensor, values: Any) -> None:
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))


class Constant:
    """Always says the same."""

    def __init__(self, answer: float) -> None:
        self.answer = answer

    def label(self, obs: Any, rng: np.random.Generator) -> Any:
        return np.full((len(obs), 1), self.answer, np.float32)


def acting(**settings: Any) -> Any:
    """Return an algorithm that says 2 everywhere, with an expert that says 3."""
    algorithm = make_algorithm("dagger", STATES, BOX, hidden=(), **settings)
    for parameter in algorithm.net.parameters():
        put(parameter, np.zeros(parameter.shape, np.float32))
    algorithm.teacher = Constant(3.0)
    return algorithm


class TestActing:
    @pytest.mark.parametrize(("beta", "action"), [(1.0, 3.0), (0.0, 2.0)])
    def test_beta_says_who_acts_and_the_answer_is_kept_either_way(
        self, beta: float, action: float
    ) -> None:
        choice = acting(beta=beta).act(np.array([0, 1]), None, True)
        assert choice.action.tolist() == [[action]] * 2
        assert choice.extras["label"].tolist() == [[3.0]] * 2

    def test_the_expert_takes_its_share(self) -> None:
        choice = acting(beta=0.25).act(np.zeros(4000, np.int64), None, True)
        assert (choice.action == 3.0).mean() == pytest.approx(0.25, abs=0.03)

    def test_beta_falls_over_the_run(self) -> None:
        algorithm = acting(env_steps=100)
        shares = []
        for done in (0, 25, 50, 90):
            algorithm.clock.env_steps = done
            choice = algorithm.act(np.zeros(4000, np.int64), None, True)
            shares.append(float((choice.action == 3.0).mean()))
        assert shares == pytest.approx([1.0, 0.5, 0.0, 0.0], abs=0.03)

    def test_the_policy_alone_is_evaluated(self) -> None:
        algorithm = acting(beta=1.0)
        algorithm.teacher = None
        choice = algorithm.act(np.array([0, 1]), None, False)
        assert choice.action.tolist() == [[2.0]] * 2 and choice.extras == {}


class TestLoss:
    def test_the_answer_is_learned_not_the_action(self) -> None:
        algorithm = make_algorithm("dagger", STATES, BOX, hidden=())
        put(algorithm.net[1][0].weight, [0.0, math.log(3)])
        put(algorithm.net[1][0].bias, [0.0])
        batch = make_batch(
            obs=[0, 1], action=[[0.0], [0.0]], reward=[9.0, 9.0], next_obs=[0, 0],
            label=[[3.0], [4.0]],
        )  # fmt: skip
        tensors = algorithm.replay_tensors(batch) | batch.extras
        # Unit answers 1/2 and 1; the policy says 0 and tanh(log 3) = 0.8: 0.25 and 0.04
        assert algorithm._loss(tensors)[0].item() == pytest.approx(0.29 / 2)
        algorithm.update(CannedReplay(batch))
        assert algorithm.net[1][0].bias.item() > 0  # towards the answers

    def test_discrete_by_hand(self) -> None:
        algorithm = make_algorithm("dagger", STATES, spaces.Discrete(2), hidden=())
        put(algorithm.net[1][0].weight, [[0.0, math.log(3)], [0.0, 0.0]])
        put(algorithm.net[1][0].bias, [0.0, 0.0])
        batch = make_batch(
            obs=[0, 1], action=[0, 1], reward=[0.0, 0.0], next_obs=[0, 0], label=[1, 0]
        )
        tensors = algorithm.replay_tensors(batch) | batch.extras
        # State 0: 1/2 each; state 1: 3/4 for action 0
        assert algorithm._discrete_loss(tensors)[0].item() == pytest.approx(
            -math.log(0.5 * 0.75) / 2
        )


def test_answers_are_about_the_states_that_were_met_and_all_are_kept() -> None:
    asked: list[int] = []

    def answer(obs: Any) -> int:
        asked.append(int(obs.argmax()))
        return int((obs.argmax() + 1) % 4)

    rig = TaughtRig("dagger", Identity, answer=answer, env_steps=60, beta=0.0, **SMALL).train()
    assert len(rig.loop.replay) == rig.clock.env_steps == len(asked) == 60
    batch = rig.loop.replay.sample(256)
    labels = batch.extras["label"]
    assert torch.equal(labels, (batch.obs.argmax(1) + 1) % 4)
    assert (labels != batch.action).any()  # the learner acted, and its own acts are not learned


def test_a_discount_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma=0.5 has no effect because dagger reads no"):
        make_algorithm("dagger", STATES, BOX, gamma=0.5)


class TestLearns:
    @pytest.mark.parametrize(
        "space", [spaces.Discrete(4), spaces.Box(-3.0, 1.0, (2,), np.float32)], ids=str
    )
    def test_what_was_answered(self, space: Any) -> None:
        env = partial(Identity, space)
        answers = env().answers
        rig = TaughtRig(
            "dagger", env, answer=lambda obs: answers[obs.argmax()], env_steps=800, lr=0.01,
            hidden=(16,), batch_size=32, train_every=50, updates=25,
        )  # fmt: skip
        # Eight steps, each worth 1 at best; always the same action gives 2 (Box: 5.3).
        assert rig.train().score() > 7.5
