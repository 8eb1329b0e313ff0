"""One optimizer step: the same numbers eager, traced and compiled, and those of the textbook."""

from __future__ import annotations

import math
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.optim import compile_cache
from assay.optim import update as step_module
from assay.optim.update import (
    CompileError,
    Objective,
    Polyak,
    Step,
    choose_mode,
    flatten_parameters,
    has_compiler,
)
from assay.testing.algorithms import quick_compiler, require_compiled

CPU = torch.device("cpu")
Batch = dict[str, Tensor]


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def data(seed: int = 0, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randn(size, 3, generator=generator),
        "y": torch.randn(size, 1, generator=generator),
    }


def squared(module: nn.Module) -> Callable[[Batch], tuple[Tensor, Batch]]:
    return lambda batch: ((module(batch["x"]) - batch["y"]).square().mean(), {})


class Scalar(nn.Module):
    """One number, as a network."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([value]))


def slope(module: Scalar, gradient: float) -> Callable[[Batch], tuple[Tensor, Batch]]:
    return lambda batch: (gradient * module.w.sum(), {})


class TestNumbers:
    def test_adam_is_adam(self) -> None:
        ours, theirs = net(), net()
        step = Step([Objective("fit", ours, squared(ours), eps=1e-5)])
        reference = torch.optim.Adam(theirs.parameters(), lr=0.01, eps=1e-5)
        for seed in range(5):
            step(data(seed), 0.01)
            reference.zero_grad()
            squared(theirs)(data(seed))[0].backward()
            reference.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two)

    def test_adam_by_hand(self) -> None:
        module = Scalar(1.0)
        step = Step([Objective("a", module, slope(module, 3.0))])
        step({}, 0.1)
        # m / (1 - 0.9) = g and v / (1 - 0.999) = g^2: the first step is the rate, whatever g
        assert module.w.item() == pytest.approx(0.9, abs=1e-6)

    @pytest.mark.parametrize("functional", [False, True])
    def test_adam_keeps_its_betas(self, functional: bool) -> None:
        ours, theirs = net(), net()
        step = Step([Objective("fit", ours, squared(ours), betas=(0.5, 0.9))])
        step._lr.fill_(0.01)
        reference = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.5, 0.9))
        for seed in range(4):
            if functional:  # what is compiled, and what a CUDA graph records
                step._functional(step._state_tensors(), data(seed))
            else:
                step(data(seed), 0.01)
            reference.zero_grad()
            squared(theirs)(data(seed))[0].backward()
            reference.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two)

    def test_rmsprop_by_hand(self) -> None:
        module = Scalar(1.0)
        step = Step([Objective("a", module, slope(module, 3.0), eps=0.5, rule="rmsprop")])
        step({}, 0.1)
        # v = 0.99 * 1 + 0.01 * 9 = 1.08, and epsilon is inside the root
        first = 1 - 0.1 * 3 / math.sqrt(1.58)
        assert module.w.item() == pytest.approx(first, abs=1e-6)
        step({}, 0.1)
        # v = 0.99 * 1.08 + 0.09 = 1.1592
        assert module.w.item() == pytest.approx(first - 0.1 * 3 / math.sqrt(1.6592), abs=1e-6)

    def test_clips_the_global_norm(self) -> None:
        module = nn.ParameterDict({"a": torch.zeros(1), "b": torch.zeros(1)})

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            return 3.0 * module["a"].sum() + 4.0 * module["b"].sum(), {}

        objective = Objective("o", module, loss, max_grad_norm=1.0, eps=0.0, rule="rmsprop")
        step = Step([objective])
        metrics = step.metrics(step({}, 1.0))
        assert metrics["o_grad_norm"] == pytest.approx(5.0)  # as it was before the clip
        # The gradient (3, 4) becomes (0.6, 0.8); v = 0.99 + 0.01 g^2
        assert module["a"].item() == pytest.approx(-0.6 / math.sqrt(0.9936), abs=1e-5)
        assert module["b"].item() == pytest.approx(-0.8 / math.sqrt(0.9964), abs=1e-5)

    def test_a_small_gradient_is_not_blown_up(self) -> None:
        module = Scalar(0.0)
        objective = Objective("o", module, slope(module, 0.1), 1.0, eps=0.0, rule="rmsprop")
        Step([objective])({}, 1.0)
        assert module.w.item() == pytest.approx(-0.1 / math.sqrt(0.9901), abs=1e-5)

    def test_a_later_loss_sees_what_an_earlier_one_moved(self) -> None:
        first, second = Scalar(1.0), Scalar(0.0)

        def follow(batch: Batch) -> tuple[Tensor, Batch]:
            return second.w.sum() * first.w.sum().detach(), {"seen": first.w.sum()}

        step = Step([Objective("a", first, slope(first, 1.0)), Objective("b", second, follow)])
        assert step.metrics(step({}, 0.25))["seen"] == pytest.approx(0.75)

    def test_targets_follow_what_has_moved(self) -> None:
        source, target = Scalar(1.0), Scalar(10.0)
        objective = Objective("a", source, slope(source, 1.0))
        step = Step([objective], polyak=[Polyak(target, source, 0.25)])
        step({}, 0.2)
        assert target.w.item() == pytest.approx(0.75 * 10 + 0.25 * 0.8)

    def test_one_rate_for_each(self) -> None:
        one, two = Scalar(0.0), Scalar(0.0)
        step = Step([Objective(n, m, slope(m, 1.0)) for n, m in (("a", one), ("b", two))])
        step({}, (0.1, 0.2))
        assert (one.w.item(), two.w.item()) == (pytest.approx(-0.1), pytest.approx(-0.2))
        step({}, 0.0)
        assert one.w.item() == pytest.approx(-0.1)

    def test_what_a_loss_does_not_use_stays(self) -> None:
        module = nn.ParameterDict({"used": torch.ones(2), "idle": torch.ones(3)})
        step = Step([Objective("a", module, lambda batch: (module["used"].sum(), {}))])
        step({}, 0.1)
        assert module["idle"].tolist() == [1.0] * 3
        assert module["used"].tolist() == pytest.approx([0.9] * 2)

    def test_modules_that_are_only_read_stay(self) -> None:
        moved, read = net(0), net(1)
        before = flatten_parameters(read).clone()
        loss = lambda b: ((moved(b["x"]) - read(b["x"])).square().mean(), {})  # noqa: E731
        Step([Objective("a", moved, loss)], reads=[read])(data(), 0.1)
        assert torch.equal(flatten_parameters(read), before)
        assert all(p.grad is None for p in read.parameters())


class TestCall:
    def test_rows_by_index(self) -> None:
        one, two = net(), net()
        rows = torch.tensor([5, 0, 2])
        batch = data() | {"scale": torch.tensor(2.0)}  # a scalar has no rows

        def scaled(module: nn.Module) -> Callable[[Batch], tuple[Tensor, Batch]]:
            return lambda b: (b["scale"] * squared(module)(b)[0], {})

        first = Step([Objective("a", one, scaled(one))])(batch, 0.1, rows)
        chosen = {k: v[rows] if v.ndim else v for k, v in batch.items()}
        second = Step([Objective("a", two, scaled(two))])(chosen, 0.1)
        assert torch.equal(first, second)
        assert torch.equal(flatten_parameters(one), flatten_parameters(two))

    def test_metrics_and_outputs(self) -> None:
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            error = (module(batch["x"]) - batch["y"]).squeeze(1)
            return error.square().mean(), {"mean": error.mean(), "error": error}

        step = Step([Objective("fit", module, loss)])
        expected, extra = loss(data())
        vector = step(data(), 0.1)
        assert not vector.requires_grad
        metrics = step.metrics(vector)
        assert list(metrics) == ["fit_loss", "fit_grad_norm", "mean"]
        assert metrics["fit_loss"] == pytest.approx(expected.item())
        assert metrics["mean"] == pytest.approx(extra["mean"].item())
        torch.testing.assert_close(step.outputs["error"], extra["error"].detach())

    def test_a_loss_may_leave_something_for_the_next(self) -> None:
        one, two = Scalar(3.0), Scalar(1.0)

        def leave(batch: Batch) -> tuple[Tensor, Batch]:
            batch["found"] = one.w.detach().sum()
            return one.w.sum(), {}

        step = Step(
            [
                Objective("a", one, leave),
                Objective("b", two, lambda b: (two.w.sum() * b["found"], {"found": b["found"]})),
            ]
        )
        batch: Batch = {}
        assert step.metrics(step(batch, 0.1))["found"] == 3.0
        assert batch == {}  # the caller's batch is left alone

    def test_a_shared_optimizer_goes_on(self) -> None:
        module = net()
        first = Step([Objective("fit", module, squared(module))])
        second = Step([Objective("fit", module, squared(module))], share=first)
        other = net()
        alone = Step([Objective("fit", other, squared(other))])
        for seed in range(4):
            (first if seed % 2 else second)(data(seed), 0.1)
            alone(data(seed), 0.1)
        assert torch.equal(flatten_parameters(module), flatten_parameters(other))
        assert int(first.state()["moments"]["fit"]["count"]) == 4

    @pytest.mark.parametrize("rule", ["adam", "rmsprop"])
    def test_state_goes_round(self, rule: Any) -> None:
        one, two = net(0), net(1)
        steps = [Step([Objective("fit", m, squared(m), rule=rule)]) for m in (one, two)]
        for seed in range(3):
            steps[0](data(seed), 0.1)
        steps[1](data(9), 0.1)
        steps[1].load_state(steps[0].state())
        two.load_state_dict(one.state_dict())
        for step in steps:
            step(data(5), 0.1)
        assert torch.equal(flatten_parameters(one), flatten_parameters(two))


class TestFlat:
    def test_parameters_are_views(self) -> None:
        module = net()
        before = {k: v.clone() for k, v in module.state_dict().items()}
        flat = flatten_parameters(module)
        assert flat.numel() == sum(p.numel() for p in module.parameters())
        assert list(module.state_dict()) == list(before)  # the flat tensor is not saved twice
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])
        flat.fill_(2.0)
        assert all((p == 2.0).all() for p in module.parameters())
        assert flatten_parameters(module) is flat

    def test_modules_that_overlap_are_refused(self) -> None:
        module = net()
        with pytest.raises(ValueError, match="the same parameters"):
            Step([Objective("a", module, squared(module))], reads=[module[0]])

    def test_two_steps_on_one_module_share_it(self) -> None:
        module = net()
        steps = [Step([Objective("a", module, squared(module))]) for _ in range(2)]
        assert steps[0].flats[module] is steps[1].flats[module]


class Buffered(nn.Module):
    """A network with a buffer that changes between updates, as noise does."""

    noise: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = net(seed)
        self.register_buffer("noise", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.noise


def pair(rule: Any, clip: float | None, mode: Any = "eager", key: str = "") -> tuple[Step, ...]:
    """Return two equal steps of everything at once, one eager and one of `mode`."""
    steps = []
    for kind in ("eager", mode):
        critic, actor, target = Buffered(3), net(1), Buffered(2)
        soft = Scalar(0.5)

        def critic_loss(batch: Batch, critic: Any = critic, target: Any = target) -> Any:
            with torch.no_grad():
                goal = target(batch["x"]) + batch["y"]
            error = (critic(batch["x"]) - goal).squeeze(1)
            return error.square().mean(), {"error": error}

        def actor_loss(batch: Batch, actor: Any = actor, critic: Any = critic) -> Any:
            value = critic(batch["x"] + actor(batch["x"]))
            batch["value"] = value.mean().detach()
            return -value.mean(), {}

        def soft_loss(batch: Batch, soft: Any = soft) -> Any:
            return soft.w.sum() * batch["value"], {}

        objectives = [
            Objective("critic", critic, critic_loss, clip, rule=rule),
            Objective("actor", actor, actor_loss, clip, rule=rule),
            Objective("soft", soft, soft_loss),
        ]
        polyak = [Polyak(target, critic, 0.3)]
        steps.append(Step(objectives, polyak=polyak, mode=kind, key=key))
        steps[-1].buffered = critic  # type: ignore[attr-defined]
    return tuple(steps)


def assert_same_steps(one: Step, two: Step, **tolerance: float) -> None:
    for a, b in zip(one.flats.values(), two.flats.values(), strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    for name, moments in one.moments.items():
        for a, b in zip(moments, two.moments[name], strict=True):
            torch.testing.assert_close(a, b, **tolerance)


TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}


class TestWays:
    @pytest.mark.parametrize("gather", [False, True])
    @pytest.mark.parametrize(("rule", "clip"), [("adam", None), ("adam", 0.1), ("rmsprop", 0.1)])
    def test_traced_is_eager(self, rule: str, clip: float | None, gather: bool) -> None:
        """What is compiled is this graph: it must do what the eager step does, on any data."""
        eager, other = pair(rule, clip)
        rows = torch.tensor([1, 3, 3, 0])
        inputs = [*data().values(), *([rows] if gather else [])]
        program = other._program(["x", "y"], gather)
        graph = compile_cache._trace(program, [*other._state_tensors(), *inputs])
        other._lr.fill_(0.05)
        for seed in range(3):
            for step in (eager, other):
                step.buffered.noise.fill_(float(seed))  # type: ignore[attr-defined]
            expected = eager(data(seed), 0.05, rows if gather else None)
            inputs = [*data(seed).values(), *([rows] if gather else [])]
            found, error = graph(*other._state_tensors(), *inputs)
            torch.testing.assert_close(found, expected, **TOLERANCE)
            torch.testing.assert_close(error, eager.outputs["error"], **TOLERANCE)
        assert_same_steps(eager, other, **TOLERANCE)

    def test_tracing_leaves_the_weights_alone(self) -> None:
        _, step = pair("adam", 0.1)
        before = [t.clone() for t in step._state_tensors()]
        program = step._program(["x", "y"], False)
        compile_cache._trace(program, [*step._state_tensors(), *data().values()])
        assert all(torch.equal(a, b) for a, b in zip(before, step._state_tensors(), strict=True))

    def test_a_tensor_that_would_be_frozen_is_refused(self) -> None:
        module, forgotten = net(), net(1)
        loss = lambda b: ((module(b["x"]) - forgotten(b["x"])).square().mean(), {})  # noqa: E731
        step = Step([Objective("a", module, loss)])
        program = step._program(["x", "y"], False)
        with pytest.raises(TypeError, match="frozen into the compiled step"):
            compile_cache._trace(program, [*step._state_tensors(), *data().values()])

    def test_what_cannot_be_compiled_runs_eagerly(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

        def fail(*args: Any) -> None:
            raise CompileError("The compiler is on holiday.")

        monkeypatch.setattr(compile_cache, "_build", fail)
        eager, other = pair("adam", 0.1, "compiled")
        with pytest.warns(UserWarning, match=r"on holiday. Optimizer steps run eagerly."):
            first = other(data(), 0.05)
        assert torch.equal(first, eager(data(), 0.05))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            assert torch.equal(other(data(1), 0.05), eager(data(1), 0.05))
        assert_same_steps(eager, other, rtol=0, atol=0)

    def test_a_torch_that_crashes_on_loading_is_found_out_in_a_child(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        codes = iter([-11, -11, 0])
        asked = []

        def run(*args: Any, **options: Any) -> Any:
            asked.append(args)
            return subprocess.CompletedProcess(args, next(codes))

        monkeypatch.setattr(compile_cache.subprocess, "run", run)
        for _ in range(2):  # a crash is not taken for a proof
            with pytest.raises(CompileError, match="cannot load a step that it compiled"):
                compile_cache._try_to_load(tmp_path / "step.pt2", tmp_path)
        for _ in range(2):  # what went well once is not tried again
            compile_cache._try_to_load(tmp_path / "step.pt2", tmp_path)
        assert len(asked) == 3

    @pytest.mark.slow
    def test_compiled_is_eager_and_is_compiled_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not has_compiler():
            pytest.skip("no C++ compiler")
        monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
        for attempt in range(2):
            eager, compiled = pair("adam", 0.1, "compiled", key="once")
            for seed in range(4):
                for step in (eager, compiled):
                    step.buffered.noise.fill_(float(seed))  # type: ignore[attr-defined]
                rate = 0.05 / (1 + seed)  # a new rate is no new program
                with quick_compiler():
                    found = compiled(data(seed), rate)
                torch.testing.assert_close(found, eager(data(seed), rate), **TOLERANCE)
                error = eager.outputs["error"]
                torch.testing.assert_close(compiled.outputs["error"], error, **TOLERANCE)
            require_compiled(compiled)
            assert compiled.metric_names == eager.metric_names
            assert_same_steps(eager, compiled, **TOLERANCE)
            if attempt == 0:

                def refuse(*args: Any) -> None:
                    raise AssertionError("the second run must find the first one's program")

                monkeypatch.setattr(compile_cache, "_build", refuse)
                monkeypatch.setattr(compile_cache, "_trace", refuse)
        # Another key is another graph as far as anyone knows: it is traced again.
        _, changed = pair("adam", 0.1, "compiled", key="other")
        with pytest.raises(AssertionError, match="second run"):
            changed(data(), 0.05)

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
    def test_a_cuda_graph_is_eager(self) -> None:
        modules = [net().cuda() for _ in range(2)]
        steps = [
            Step([Objective("fit", m, squared(m), 0.1)], mode=mode)
            for m, mode in zip(modules, ("eager", "cuda_graph"), strict=True)
        ]
        for seed in range(4):
            batch = {k: v.cuda() for k, v in data(seed).items()}
            one, two = (step(batch, 0.05 / (1 + seed)) for step in steps)
            torch.testing.assert_close(one, two, **TOLERANCE)
        assert_same_steps(*steps, **TOLERANCE)


class TestChoice:
    @pytest.mark.parametrize(
        ("compile", "device", "updates", "compiler", "mode"),
        [
            (False, "cpu", 10**9, True, "eager"),
            (False, "cuda", 10**9, True, "eager"),
            (True, "cpu", 1, True, "compiled"),
            ("auto", "cpu", step_module.UPDATES_THAT_PAY, True, "compiled"),
            ("auto", "cpu", step_module.UPDATES_THAT_PAY - 1, True, "eager"),
            ("auto", "cpu", 10**9, False, "eager"),
            ("auto", "cuda", 1, False, "cuda_graph"),
            ("auto", "mps", 10**9, True, "eager"),
        ],
    )
    def test_mode(
        self,
        compile: Any,
        device: str,
        updates: int,
        compiler: bool,
        mode: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(step_module, "has_compiler", lambda: compiler)
        assert choose_mode(compile, torch.device(device), updates) == mode

    def test_compiling_on_demand_needs_a_compiler(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step_module, "has_compiler", lambda: False)
        with pytest.raises(ConfigError, match="compile=true needs a C\\+\\+ compiler"):
            choose_mode(True, torch.device("cpu"), 1)

    def test_a_run_that_began_eager_stays_eager(self) -> None:
        """A compiler that appears between kill and resume must not change the numbers."""
        module = net()
        eager = Step([Objective("fit", module, squared(module))])
        compiled = Step([Objective("fit", module, squared(module))], mode="compiled")
        compiled.load_state(eager.state())
        assert compiled.mode == "eager"

    def test_a_compiled_run_says_that_it_goes_on_eagerly(self) -> None:
        module = nn.Linear(1, 1)
        compiled, eager = (
            Step([Objective("fit", module, squared(module))], mode=mode)
            for mode in ("compiled", "eager")
        )
        with pytest.warns(UserWarning, match=r"were compiled, .* no C\+\+ compiler .* eagerly"):
            eager.load_state(compiled.state())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            eager.load_state(compiled.state(), learns=False)  # an agent that was loaded to act
            compiled.load_state(compiled.state())
            eager.load_state(eager.state())

    def test_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CXX", raising=False)
        assert not has_compiler()
        fake = tmp_path / "clang++"
        fake.touch(0o755)
        assert has_compiler()


def test_moments_that_overflow_begin_anew() -> None:
    module = net()
    step = Step([Objective("fit", module, squared(module))])
    step(data(), 0.01)
    before = [parameter.clone() for parameter in module.parameters()]
    assert step.forget_overflow() == 0
    batch = data()
    step(batch | {"y": torch.full_like(batch["y"], 1e25)}, 0.0)  # its square is beyond a float
    _, second, _ = step.moments["fit"]
    assert torch.isinf(second).any()
    assert step.forget_overflow() > 0 and step.forget_overflow() == 0
    step(data(), 0.01)
    for old, parameter in zip(before, module.parameters(), strict=True):
        assert not torch.equal(old, parameter) and torch.isfinite(parameter).all()
