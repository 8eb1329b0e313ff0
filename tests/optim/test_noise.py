"""Noise that is drawn where the networks are: its kinds, and one stream whatever the mode."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from optim_support import (
    NOISE,
    TOLERANCE,
    Batch,
    Scalar,
    assert_same_steps,
    data,
    net,
    noisy_step,
)
from torch import Tensor

from assay.optim import compile_cache
from assay.optim.compile_cache import CompileError
from assay.optim.noise import NoiseSource, NoiseSpec
from assay.optim.update import Objective, Step
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.testing.algorithms import require_compiled, traced_steps

CPU = torch.device("cpu")


def source(seed: int = 1, **specs: NoiseSpec) -> NoiseSource:
    return NoiseSource(specs or NOISE, CPU, seed)


class TestSource:
    def test_kinds(self) -> None:
        size = 100_000
        specs = {
            "normal": NoiseSpec((size,)),
            "uniform": NoiseSpec((size,), "uniform"),
            "gumbel": NoiseSpec((size,), "gumbel"),
        }
        drawn = source(**specs).draw()
        # Mean and standard deviation of the three, and four standard errors of the mean.
        euler = 0.5772156649
        moments = {
            "normal": (0.0, 1.0),
            "uniform": (0.5, math.sqrt(1 / 12)),
            "gumbel": (euler, math.pi / math.sqrt(6)),
        }
        for name, (mean, deviation) in moments.items():
            assert drawn[name].dtype == torch.float32
            assert drawn[name].mean().item() == pytest.approx(mean, abs=4 * deviation / size**0.5)
            assert drawn[name].std().item() == pytest.approx(deviation, rel=0.02)
        assert drawn["uniform"].min() >= 0 and drawn["uniform"].max() < 1
        assert torch.isfinite(drawn["gumbel"]).all()

    def test_the_seed_says_it_all(self) -> None:
        one, two, other = source(1), source(1), source(2)
        torch.manual_seed(0)  # the global generator has no part in it
        first = one.draw()
        torch.manual_seed(1)
        assert torch.equal(first["eps"], two.draw()["eps"])
        assert not torch.equal(first["eps"], other.draw()["eps"])
        assert not torch.equal(first["eps"], one.draw()["eps"])

    def test_the_stream_goes_on_from_a_checkpoint(self) -> None:
        one, two = source(1), source(2)
        one.draw()
        two.load_state(state_from_bytes(state_to_bytes(one.state())))
        for _ in range(3):
            assert torch.equal(one.draw()["u"], two.draw()["u"])

    def test_the_state_of_another_device_starts_another_stream(self) -> None:
        saved = {"generator": np.arange(16, dtype=np.uint8)}  # as long as that of a GPU
        drawn = []
        for seed in (1, 2):
            one = source(seed)
            with pytest.warns(UserWarning, match="another type of device than 'cpu'"):
                one.load_state(saved)
            drawn.append(one.draw()["eps"])
        assert torch.equal(*drawn)


def rows() -> Batch:
    return data(size=4)


class TestStep:
    def test_a_loss_finds_it_in_its_batch(self) -> None:
        step, expected = noisy_step(), source()
        for _ in range(3):
            batch = rows()
            step(batch, 0.1)
            drawn = expected.draw()
            assert torch.equal(step.outputs["eps"], drawn["eps"])
            assert torch.equal(step.outputs["u"], drawn["u"])
            assert set(batch) == {"x", "y"}  # the caller's batch is left alone

    def test_rows_are_gathered_and_noise_is_not(self) -> None:
        step, expected = noisy_step(), source()
        step(data(size=8), 0.1, torch.tensor([7, 0, 3, 3]))
        assert torch.equal(step.outputs["eps"], expected.draw()["eps"])

    def test_traced_takes_it_from_outside(self) -> None:
        """What is compiled draws nothing: the same program, with other noise each time."""
        eager, other, outside = noisy_step(), noisy_step(), source()
        program = other._program(["x", "y"], True)
        index = torch.tensor([7, 0, 3, 3])

        def inputs(drawn: Batch) -> list[Tensor]:
            return [*other._state_tensors(), *data(size=8).values(), *drawn.values(), index]

        graph = compile_cache._trace(program, inputs(source().draw()))
        other._lr.fill_(0.1)
        for _ in range(3):
            expected = eager(data(size=8), 0.1, index)
            found, *_ = graph(*inputs(outside.draw()))
            torch.testing.assert_close(found, expected, **TOLERANCE)
        assert_same_steps(eager, other, **TOLERANCE)

    def test_the_checkpoint_holds_the_stream(self) -> None:
        one, two = noisy_step(), noisy_step(seed=2, module=net(1))
        one(rows(), 0.1)
        two(rows(), 0.1)
        two.load_state(one.state())
        for mine, theirs in zip(two.flats.values(), one.flats.values(), strict=True):
            mine.copy_(theirs)
        for _ in range(2):
            assert torch.equal(one(rows(), 0.1), two(rows(), 0.1))
        assert_same_steps(one, two, rtol=0, atol=0)

    def test_a_step_that_cannot_be_compiled_draws_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

        def fail(*args: Any) -> None:
            raise CompileError("No.")

        monkeypatch.setattr(compile_cache, "_build", fail)
        eager, other = noisy_step(), noisy_step("compiled")
        with pytest.warns(UserWarning, match="run eagerly"):
            first = other(rows(), 0.1)
        assert torch.equal(first, eager(rows(), 0.1))
        assert torch.equal(other(rows(), 0.1), eager(rows(), 0.1))

    def test_compiled_is_eager(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """SAC's contract suite has a step with noise compiled to machine code."""
        monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
        eager, compiled = noisy_step(), noisy_step("compiled")
        with traced_steps():
            for _ in range(3):
                one, two = (step(rows(), 0.1) for step in (eager, compiled))
                torch.testing.assert_close(one, two, **TOLERANCE)
                assert torch.equal(eager.outputs["eps"], compiled.outputs["eps"])
        require_compiled(compiled)
        assert_same_steps(eager, compiled, **TOLERANCE)


def test_no_noise_is_no_state() -> None:
    module = Scalar(0.0)
    step = Step([Objective("a", module, lambda batch: (module.w.sum(), {}))])
    assert step.noise is None and step.state()["noise"] is None
