"""Memory modules: what they compute, at episode boundaries above all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.networks.rnn import GRU, LSTM, Memory, Transformer, make_memory
from assay.optim.compiled_step import CompiledStep
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.from_torch import describe
from assay.policies.numpy_network import NumpyNetwork
from assay.testing.algorithms import require_compiled, traced_steps

KINDS = ["lstm", "gru", "transformer"]
STEPS, BATCH, FEATURES, SIZE = 9, 3, 5, 8


def build(kind: str, layers: int = 2) -> Memory:
    """Return a memory whose gates and attention are not near any neutral point."""
    torch.manual_seed(1)
    memory = make_memory(kind, FEATURES, SIZE, layers=layers, heads=2, context=4)  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return memory


def start(memory: Memory, n: int = BATCH) -> dict[str, Tensor]:
    return {k: torch.from_numpy(v) for k, v in memory.initial(n).items()}


def sequence(seed: int = 0, steps: int = STEPS) -> Tensor:
    return torch.randn(steps, BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))


def beginnings(*places: tuple[int, int], steps: int = STEPS) -> Tensor:
    first = torch.zeros(steps, BATCH)
    for t, n in places:
        first[t, n] = 1.0
    return first


RESETS = beginnings((0, 0), (3, 1), (4, 1), (8, 2))


@pytest.mark.parametrize("kind", KINDS)
class TestAll:
    @pytest.mark.parametrize("resets", [torch.zeros(STEPS, BATCH), RESETS], ids=["none", "some"])
    def test_unrolling_is_stepping(self, kind: str, resets: Tensor) -> None:
        memory, x = build(kind), sequence()
        _, begun = memory(sequence(7), start(memory), torch.zeros(STEPS, BATCH))
        whole, last = memory(x, begun, resets)
        carry, outputs = begun, []
        for t in range(STEPS):
            y, carry = memory(x[t : t + 1], carry, resets[t : t + 1])
            outputs.append(y[0])
        torch.testing.assert_close(whole, torch.stack(outputs))
        torch.testing.assert_close(last, carry)

    def test_chunks_are_the_whole(self, kind: str) -> None:
        memory, x = build(kind), sequence()
        whole, last = memory(x, start(memory), RESETS)
        one, carry = memory(x[:4], start(memory), RESETS[:4])
        two, carry = memory(x[4:], carry, RESETS[4:])
        torch.testing.assert_close(whole, torch.cat([one, two]))
        torch.testing.assert_close(last, carry)

    def test_a_reset_forgets_everything(self, kind: str) -> None:
        memory, first = build(kind), beginnings((5, 0), (5, 1), (5, 2))
        x, other = sequence(0), sequence(1)
        other[5:] = x[5:]
        _, begun = memory(sequence(7), start(memory), torch.zeros(STEPS, BATCH))
        one, one_last = memory(x, start(memory), first)
        two, two_last = memory(other, begun, first)
        assert not torch.allclose(one[:5], two[:5], atol=1e-2)
        # Bit for bit: not a trace of the other episode is left.
        assert torch.equal(one[5:], two[5:])
        alone, alone_last = memory(x[5:], start(memory), torch.zeros(4, BATCH))
        torch.testing.assert_close(one[5:], alone)
        for last in (one_last, two_last):
            following, _ = memory(x[:1], last, torch.zeros(1, BATCH))
            expected, _ = memory(x[:1], alone_last, torch.zeros(1, BATCH))
            torch.testing.assert_close(following, expected)

    def test_no_gradient_passes_a_reset(self, kind: str) -> None:
        memory = build(kind)
        x = sequence().requires_grad_()
        carry = {k: v.requires_grad_() for k, v in start(memory).items()}
        y, _ = memory(x, carry, beginnings((5, 1)))
        (gradient,) = torch.autograd.grad(y[5:].square().sum(), [x], retain_graph=True)
        reached = gradient.abs().sum(2) > 0
        assert reached[5:].all()
        assert not reached[:5, 1].any()
        assert reached[4, 0] and reached[4, 2]
        if kind != "transformer":
            (to_carry,) = torch.autograd.grad(y[5:].square().sum(), [carry["h"]])
            assert (to_carry.abs().sum((1, 2)) > 0).tolist() == [True, False, True]

    def test_environments_do_not_mix(self, kind: str) -> None:
        memory, x = build(kind), sequence()
        other = x.clone()
        other[:, 0] += 1.0
        one, _ = memory(x, start(memory), RESETS)
        two, _ = memory(other, start(memory), RESETS)
        torch.testing.assert_close(one[:, 1:], two[:, 1:])
        assert not torch.allclose(one[:, 0], two[:, 0], atol=1e-2)

    def test_initial_carry(self, kind: str) -> None:
        memory = build(kind)
        for array in memory.initial(3).values():
            assert array.dtype == np.float32 and len(array) == 3
        _, after = memory(sequence(), start(memory), RESETS)
        assert {k: v.shape for k, v in after.items()} == {
            k: v.shape for k, v in start(memory).items()
        }
        assert memory.out_features == SIZE


@pytest.mark.parametrize("layers", [1, 2])
class TestRecurrent:
    def test_lstm_is_torchs(self, layers: int) -> None:
        memory, reference = LSTM(FEATURES, SIZE, layers), nn.LSTM(FEATURES, SIZE, layers)
        with torch.no_grad():
            for i in range(layers):
                # torch's order is input, forget, new, output
                order = torch.arange(4 * SIZE).view(4, SIZE)[[0, 1, 3, 2]].reshape(-1)
                getattr(reference, f"weight_ih_l{i}").copy_(memory.inputs[i].weight[order])
                getattr(reference, f"weight_hh_l{i}").copy_(memory.weights[i][order])
                getattr(reference, f"bias_ih_l{i}").copy_(memory.inputs[i].bias[order])
                getattr(reference, f"bias_hh_l{i}").zero_()
        x = sequence()
        y, carry = memory(x, start(memory), torch.zeros(STEPS, BATCH))
        expected, (h, c) = reference(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(carry, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)})

    def test_gru_is_torchs(self, layers: int) -> None:
        memory, reference = GRU(FEATURES, SIZE, layers), nn.GRU(FEATURES, SIZE, layers)
        with torch.no_grad():
            for i in range(layers):
                getattr(reference, f"weight_ih_l{i}").copy_(memory.inputs[i].weight)
                getattr(reference, f"weight_hh_l{i}").copy_(memory.weights[i])
                getattr(reference, f"bias_ih_l{i}").copy_(memory.inputs[i].bias)
                getattr(reference, f"bias_hh_l{i}").zero_()
        x = sequence()
        y, carry = memory(x, start(memory), torch.zeros(STEPS, BATCH))
        expected, h = reference(x)
        torch.testing.assert_close(y, expected)
        torch.testing.assert_close(carry["h"], h.transpose(0, 1))

    @pytest.mark.parametrize("kind", ["lstm", "gru"])
    def test_gradients(self, kind: str, layers: int) -> None:
        """The gradients are written by hand; they are those of the numbers."""
        memory = build(kind, layers).double()
        inputs = [v.double().add(0.1).requires_grad_() for v in start(memory).values()]
        x, names = sequence(steps=4).double().requires_grad_(), list(memory.initial(1))
        first = beginnings((0, 0), (2, 1), (3, 1), steps=4)

        def unroll(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            carry = dict(zip(names, rest[: len(names)], strict=True))
            tensors = dict(zip(dict(memory.named_parameters()), rest[len(names) :], strict=True))
            y, after = torch.func.functional_call(memory, tensors, (x, carry, first))
            return y, *after.values()

        assert torch.autograd.gradcheck(unroll, (x, *inputs, *memory.parameters()))

    @pytest.mark.parametrize("kind", ["lstm", "gru"])
    def test_numpy_step(self, kind: str, layers: int) -> None:
        memory = build(kind, layers)
        step = NumpyNetwork(describe(memory)).step
        for update in range(2):  # the weights are shared: a change is seen
            carry, carried = memory.initial(BATCH), start(memory)
            for t in range(STEPS):
                x = sequence()[t]
                given = {k: v.copy() for k, v in carry.items()}
                y, after = step(x.numpy(), carry)
                expected, carried = memory(x[None], carried, torch.zeros(1, BATCH))
                np.testing.assert_allclose(y, expected[0].detach(), rtol=1e-5, atol=1e-6)
                for name, array in carry.items():
                    np.testing.assert_array_equal(array, given[name])  # a carry is not written
                carry = after
            with torch.no_grad():
                memory.weights[update % layers].mul_(0.5)

    @pytest.mark.parametrize("kind", ["lstm", "gru"])
    def test_initialisation(self, kind: str, layers: int) -> None:
        memory = make_memory(kind, FEATURES, SIZE, layers=layers)  # type: ignore[arg-type]
        for weight, inputs in zip(memory.weights, memory.inputs, strict=True):
            for block in weight.split(SIZE):
                scales = torch.linalg.svdvals(block)
                torch.testing.assert_close(scales, torch.ones_like(scales))
            assert inputs.bias.view(-1, SIZE).mean(1).tolist()[:3] == [0.0, 1.0, 0.0]


class TestTransformer:
    def test_remembers_exactly_the_context(self) -> None:
        memory = build("transformer", 1)  # with one layer the reach is the context: 4 steps
        x = sequence(steps=12).requires_grad_()
        y, _ = memory(x, start(memory), torch.zeros(12, BATCH))
        (gradient,) = torch.autograd.grad(y[7, 0].sum(), [x])
        reached = (gradient[:, 0].abs().sum(1) > 0).tolist()
        assert reached == [3 <= t <= 7 for t in range(12)]

    def test_no_gradient_into_the_carry(self) -> None:
        memory = build("transformer")
        carry = {k: v.requires_grad_() for k, v in start(memory).items()}
        y, after = memory(sequence(), carry, torch.zeros(STEPS, BATCH))
        (gradient,) = torch.autograd.grad(y.sum(), [carry["inputs"]], allow_unused=True)
        assert gradient is None
        assert not after["inputs"].requires_grad

    def test_attention_by_hand(self) -> None:
        memory = Transformer(1, 2, layers=1, heads=1, context=2)
        block = memory.blocks[0]
        with torch.no_grad():
            for parameter in block.parameters():
                parameter.zero_()
            block.position.copy_(torch.tensor([[[5.0, 0.0], [7.0, 0.0], [11.0, 0.0]]]))
            block.position_bias[0, 0, 0] = math.sqrt(2.0)
            block.keys_values.weight[2:].copy_(torch.eye(2))  # values are what is seen
            block.out.weight.copy_(torch.eye(2))
        seen = torch.arange(1.0, 9.0).view(1, 4, 2)  # two of the memory, two new
        filled = torch.tensor([1.0])
        unseen = memory._unseen(torch.zeros(1, 2), filled)
        assert unseen[0, 0].tolist() == [[True, False, False, True], [True, False, False, False]]
        y = block._attend(seen, unseen)[0, :, 0].tolist()
        # Scores are those of the places: 11 for oneself, 7 for the step before, 5 for two before.
        # Query 0 sees itself and one more, query 1 itself and two more; first components 3, 5, 7.
        a, b, c = (math.exp(score - 11) for score in (11, 7, 5))
        assert y[0] == pytest.approx((5 * a + 3 * b) / (a + b))
        assert y[1] == pytest.approx((7 * a + 5 * b + 3 * c) / (a + b + c))

    def test_gate_by_hand(self) -> None:
        gate = Transformer(1, 1, heads=1).blocks[0].gate
        with torch.no_grad():
            gate.from_y.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
            gate.from_x.weight.copy_(torch.tensor([[4.0], [5.0]]))
            gate.from_rx.weight.fill_(6.0)
        x, y = 0.5, -0.25
        r = 1 / (1 + math.exp(-(1 * y + 4 * x)))
        z = 1 / (1 + math.exp(-(2 * y + 5 * x - 2)))  # the bias of 2 keeps the stream
        h = math.tanh(3 * y + 6 * r * x)
        found = gate(torch.tensor([[x]]), torch.tensor([[y]])).item()
        assert found == pytest.approx((1 - z) * x + z * h)

    def test_refuses_heads_that_do_not_divide(self) -> None:
        with pytest.raises(ConfigError, match="heads=3"):
            make_memory("transformer", 4, 8, heads=3)

    def test_refuses_an_unknown_kind(self) -> None:
        with pytest.raises(ConfigError, match="lstn"):
            make_memory("lstn", 4, 8)  # type: ignore[arg-type]


def test_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other kinds are compiled in the contract suite of recurrent PPO, one to machine code."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    results = []
    for mode in ("eager", "compiled"):
        memory = build("gru")

        def loss(
            batch: dict[str, Tensor], memory: Memory = memory
        ) -> tuple[Tensor, dict[str, Tensor]]:
            carry = {k: batch[k] for k in memory.initial(1)}
            y, _ = memory(batch["x"], carry, batch["first"])
            return y.square().mean(), {}

        objective = Objective("fit", memory, loss, Adam(max_grad_norm=0.5))
        step = CompiledStep([objective], mode=mode, key="gru")  # type: ignore[arg-type]
        batch = {"x": sequence(steps=2), "first": RESETS[2:4], **start(memory)}
        with traced_steps():
            metrics = [step.metrics(step(batch, 0.01))["fit_loss"] for _ in range(3)]
        if mode == "compiled":
            require_compiled(step)
        results.append(metrics)
    assert results[0] == pytest.approx(results[1], rel=1e-4)
    assert results[0][2] < results[0][0]
