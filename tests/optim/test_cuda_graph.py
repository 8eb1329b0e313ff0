"""CUDA graphs: where their inputs lie, and that they do what the eager step does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optim_support import (
    NOISE,
    TOLERANCE,
    Batch,
    assert_same_steps,
    data,
    net,
    noisy_step,
    squared,
)
from torch import Tensor

from assay.optim.compiled_step import CompiledStep

# Nothing here needs more than torch, so that it can be run on a machine that has only that.
from assay.optim.cuda_graph import StaticInputs
from assay.optim.rules import Adam, AdamW, LaProp, RMSprop, Rule
from assay.optim.update import Objective, Step
from assay.runs.checkpoint import state_from_bytes, state_to_bytes


class Counted:
    """A place of a graph that counts what is copied to it."""

    def __init__(self) -> None:
        self.copies: list[list[float]] = []

    def copy_(self, source: Tensor) -> None:
        self.copies.append(source.tolist())


def counted(repeated: bool) -> tuple[StaticInputs, list[Counted]]:
    inputs = StaticInputs([torch.zeros(2), torch.zeros(1)], repeated=repeated)
    places = [Counted(), Counted()]
    inputs.tensors = places  # type: ignore[assignment]
    return inputs, places


class TestInputs:
    def test_a_rollout_is_copied_once_for_all_its_minibatches(self) -> None:
        inputs, (rollout, index) = counted(repeated=True)
        rows = torch.tensor([1.0, 2.0])
        for k in range(3):
            inputs.fill([rows, torch.tensor([float(k)])])
        assert rollout.copies == [[1.0, 2.0]]
        assert index.copies == [[0.0], [1.0], [2.0]]

    def test_the_next_rollout_is_copied(self) -> None:
        inputs, (rollout, _) = counted(repeated=True)
        for k in range(3):  # each may lie where the last one lay, which is gone
            inputs.fill([torch.tensor([float(k), 0.0]), torch.zeros(1)])
        assert rollout.copies == [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]

    def test_what_was_changed_in_place_is_copied_again(self) -> None:
        inputs, (rollout, _) = counted(repeated=True)
        rows, index = torch.tensor([1.0, 2.0]), torch.zeros(1)
        inputs.fill([rows, index])
        rows.add_(1.0)
        inputs.fill([rows, index])
        assert rollout.copies == [[1.0, 2.0], [2.0, 3.0]]

    def test_batches_that_are_not_repeated_are_always_copied(self) -> None:
        inputs, (batch, _) = counted(repeated=False)
        rows = torch.tensor([1.0, 2.0])
        for _ in range(2):
            inputs.fill([rows, torch.zeros(1)])
        assert len(batch.copies) == 2

    def test_nothing_is_kept_alive(self) -> None:
        inputs, _ = counted(repeated=True)
        rows = torch.zeros(2)
        inputs.fill([rows, torch.zeros(1)])
        held = inputs._held[0][0]
        assert held() is rows
        del rows
        assert held() is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestGraph:
    def steps(self, rule: Rule) -> list[Step]:
        modes: list[Any] = ["eager", "cuda_graph"]
        modules = [net().cuda() for _ in modes]
        return [
            CompiledStep([Objective("fit", m, squared(m), rule)], mode=mode)
            for m, mode in zip(modules, modes, strict=True)
        ]

    @pytest.mark.parametrize(
        "rule",
        [
            Adam(max_grad_norm=0.1),
            AdamW(warmup=3),
            RMSprop(agc=0.05, warmup=3),
            LaProp(agc=0.05, warmup=3),
        ],
        ids=repr,
    )
    def test_a_graph_is_eager(self, rule: Rule) -> None:
        steps = self.steps(rule)
        for seed in range(4):
            batch = {k: v.cuda() for k, v in data(seed).items()}
            one, two = (step(batch, 0.05 / (1 + seed)) for step in steps)
            torch.testing.assert_close(one, two, **TOLERANCE)
        assert_same_steps(*steps, **TOLERANCE)

    def test_minibatches_of_several_rollouts(self) -> None:
        steps = self.steps(Adam())
        for seed in range(3):
            rollout = {k: v.cuda() for k, v in data(seed, size=32).items()}
            rollout["scale"] = torch.tensor(float(seed), device="cuda")
            order = torch.randperm(32, generator=torch.Generator().manual_seed(seed)).cuda()
            for index in order.split(8):
                one, two = (step(rollout, 0.05, index) for step in steps)
                torch.testing.assert_close(one, two, **TOLERANCE)
        assert_same_steps(*steps, **TOLERANCE)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
class TestNoise:
    """The same stream inside a CUDA graph, where every replay draws new numbers."""

    def steps(self) -> list[Step]:
        return [noisy_step(mode, module=net().cuda()) for mode in ("eager", "cuda_graph")]

    def batch(self) -> Batch:
        return {name: tensor.cuda() for name, tensor in data(size=4).items()}

    def test_a_graph_draws_what_the_eager_step_draws(self) -> None:
        eager, graph = self.steps()
        seen = []
        for _ in range(4):
            one, two = (step(self.batch(), 0.1) for step in (eager, graph))
            torch.testing.assert_close(one, two, **TOLERANCE)
            for name in NOISE:
                assert torch.equal(eager.outputs[name], graph.outputs[name])
            seen.append(graph.outputs["eps"])
        assert not torch.equal(seen[0], seen[1])
        assert_same_steps(eager, graph, **TOLERANCE)

    def test_it_goes_on_from_a_checkpoint(self) -> None:
        one, two = (self.steps()[1] for _ in range(2))
        for _ in range(3):
            one(self.batch(), 0.1)
        two(self.batch(), 0.1)
        two.load_state(state_from_bytes(state_to_bytes(one.state())))
        for mine, theirs in zip(two.flats.values(), one.flats.values(), strict=True):
            mine.copy_(theirs)
        for _ in range(2):
            assert torch.equal(one(self.batch(), 0.1), two(self.batch(), 0.1))
            assert torch.equal(one.outputs["eps"], two.outputs["eps"])

    def test_two_shapes_share_one_stream(self) -> None:
        """A second graph, recorded in between, takes nothing from the stream."""
        eager, graph = self.steps()
        index = torch.tensor([7, 0, 3, 3], device="cuda")
        wide = {name: tensor.cuda() for name, tensor in data(size=8).items()}
        for _ in range(3):
            for batch, rows_of in ((self.batch(), None), (wide, index)):
                for step in (eager, graph):
                    step(batch, 0.1, rows_of)
                assert torch.equal(eager.outputs["eps"], graph.outputs["eps"])
