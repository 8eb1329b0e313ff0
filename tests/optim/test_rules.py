"""Optimizer rules: torch's numbers or numbers by hand, the same eager as in what is compiled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from optim_support import (
    TOLERANCE,
    Batch,
    Scalar,
    assert_same_steps,
    data,
    net,
    slope,
    squared,
)
from torch import Tensor, nn

from assay.optim import compile_cache
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import has_compiler
from assay.optim.rules import Adam, AdamW, LaProp, RMSprop, Rule
from assay.optim.update import Objective, Step
from assay.testing.algorithms import quick_compiler, require_compiled, session_cache

# Every rule, and every option with one that has its own way through the eager step.
RULES = [
    Adam(eps=1e-5),
    Adam(betas=(0.5, 0.9), max_grad_norm=0.1),
    Adam(agc=0.05, max_grad_norm=0.3),
    Adam(warmup=3),
    AdamW(weight_decay=0.3, warmup=2),
    RMSprop(eps=1e-3, max_grad_norm=0.1),
    RMSprop(agc=0.05, warmup=3),
    LaProp(),
    LaProp(eps=1e-3, betas=(0.8, 0.99), agc=0.05, warmup=3),
]


def functional(step: CompiledStep) -> Callable[[Batch, float], None]:
    """Return what is compiled, and what a CUDA graph records, as a function of batch and rate."""

    def run(batch: Batch, lr: float) -> None:
        step._lr.fill_(lr)
        step._functional(step._state_tensors(), dict(batch))

    return run


WAYS: dict[str, Callable[[CompiledStep], Callable[[Batch, float], Any]]] = {
    "eager": lambda step: step,
    "functional": functional,
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> Any:
    return WAYS[request.param]


def moved(way: Any, rule: Rule, gradients: list[float], lr: float = 0.1) -> list[float]:
    """Return where a parameter of 1 is after each gradient."""
    module = Scalar(1.0)
    loss = lambda batch: (batch["g"] * module.w.sum(), {})  # noqa: E731
    update = way(CompiledStep([Objective("a", module, loss, rule)]))
    places = []
    for gradient in gradients:
        update({"g": torch.tensor(gradient)}, lr)
        places.append(module.w.item())
    return places


class TestTorch:
    """The rules that torch has as well."""

    @pytest.mark.parametrize(
        ("rule", "reference"),
        [
            (Adam(eps=1e-5), lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-5)),
            (Adam(betas=(0.5, 0.9)), lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9))),
            (
                AdamW(weight_decay=0.3, eps=1e-5),
                lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.3, eps=1e-5),
            ),
            (AdamW(), lambda p: torch.optim.AdamW(p, lr=0.01)),
        ],
        ids=["adam", "adam_betas", "adamw", "adamw_defaults"],
    )
    def test_same_numbers(self, way: Any, rule: Rule, reference: Any) -> None:
        ours, theirs = net(), net()
        update = way(CompiledStep([Objective("fit", ours, squared(ours), rule)]))
        optimizer = reference(theirs.parameters())
        for seed in range(5):
            update(data(seed), 0.01)
            optimizer.zero_grad()
            squared(theirs)(data(seed))[0].backward()
            optimizer.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two)


class TestByHand:
    def test_adam(self, way: Any) -> None:
        # m / (1 - 0.9) = g and v / (1 - 0.999) = g^2: the first step is the rate, whatever g
        assert moved(way, Adam(), [3.0]) == [pytest.approx(0.9, abs=1e-6)]

    def test_adamw_takes_its_share_off_the_parameter(self, way: Any) -> None:
        # 1 - 0.1 * 0.5 * 1, then Adam's 0.1
        assert moved(way, AdamW(weight_decay=0.5), [3.0]) == [pytest.approx(0.85, abs=1e-6)]
        # Without a gradient there is only the decay, and it does not enter the moments.
        assert moved(way, AdamW(weight_decay=0.5), [0.0] * 3) == pytest.approx(
            [0.95, 0.95**2, 0.95**3]
        )

    def test_rmsprop(self, way: Any) -> None:
        # v = 0.99 * 1 + 0.01 * 9 = 1.08, and epsilon is inside the root; then
        # v = 0.99 * 1.08 + 0.09 = 1.1592
        first = 1 - 0.1 * 3 / math.sqrt(1.58)
        second = first - 0.1 * 3 / math.sqrt(1.6592)
        assert moved(way, RMSprop(eps=0.5), [3.0, 3.0]) == pytest.approx([first, second], abs=1e-6)

    def test_laprop(self, way: Any) -> None:
        rule = LaProp(betas=(0.5, 0.75), eps=0.0)
        # v = 9/4, over 1 - 3/4: 9. g / 3 = 1, m = 1/2, over 1 - 1/2: 1. The rate is the first step.
        # g = -1: v = 3/4 * 9/4 + 1/4 = 31/16, over 1 - 9/16: 31/7. m = 1/4 - sqrt(7/31) / 2,
        # over 1 - 1/4.
        change = (1 / 4 - math.sqrt(7 / 31) / 2) / (3 / 4)
        expected = [0.9, 0.9 - 0.1 * change]
        assert moved(way, rule, [3.0, -1.0]) == pytest.approx(expected, abs=1e-6)

    def test_laprop_adds_epsilon_to_the_root(self, way: Any) -> None:
        # g / (3 + 1) = 3/4
        assert moved(way, LaProp(eps=1.0), [3.0]) == [pytest.approx(1 - 0.075, abs=1e-6)]

    def test_laprop_does_not_let_one_gradient_outweigh_the_rest(self, way: Any) -> None:
        """What tells it from Adam: momentum is of gradients that were scaled already."""
        gradients = [1e-3] * 20 + [-1e3]
        adam, laprop = (moved(way, rule, gradients) for rule in (Adam(), LaProp()))
        # The mean of raw gradients is all the last one's. Scaled, that is -1000 / sqrt(1e6 * 0.001
        # / (1 - 0.999^21)) = -4.6, and 0.9 * 0.88 - 0.1 * 4.6 is still positive.
        assert adam[-1] > adam[-2] and laprop[-1] < laprop[-2]

    def test_warm_up_is_counted_in_the_rules_own_updates(self, way: Any) -> None:
        places = moved(way, Adam(warmup=4), [2.0] * 6)
        steps = [a - b for a, b in zip([1.0, *places], places, strict=False)]
        assert steps == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1], abs=1e-6)

    def test_warm_up_goes_on_after_a_checkpoint(self) -> None:
        one, two = Scalar(0.0), Scalar(0.0)
        steps = [Step([Objective("a", m, slope(m, 1.0), Adam(warmup=4))]) for m in (one, two)]
        for _ in range(3):
            steps[0]({}, 0.1)
        steps[1].load_state(steps[0].state())
        steps[1]({}, 0.1)
        assert two.w.item() == pytest.approx(-0.1, abs=1e-6)  # the fourth: the full rate


def pair_of_slopes(a: float, b: float, at: float = 0.0) -> tuple[nn.ParameterDict, Any]:
    """Return two numbers with constant gradients a and b, and their loss."""
    module = nn.ParameterDict({"a": torch.full((1,), at), "b": torch.full((1,), at)})

    def loss(batch: Batch) -> tuple[Tensor, Batch]:
        return a * module["a"].sum() + b * module["b"].sum(), {}

    return module, loss


class TestClipping:
    def test_the_global_norm(self, way: Any) -> None:
        module, loss = pair_of_slopes(3.0, 4.0)
        step = CompiledStep([Objective("o", module, loss, RMSprop(max_grad_norm=1.0, eps=0.0))])
        way(step)({}, 1.0)
        # The gradient (3, 4) becomes (0.6, 0.8); v = 0.99 + 0.01 g^2
        assert module["a"].item() == pytest.approx(-0.6 / math.sqrt(0.9936), abs=1e-5)
        assert module["b"].item() == pytest.approx(-0.8 / math.sqrt(0.9964), abs=1e-5)

    def test_the_reported_norm_is_that_before_the_clip(self) -> None:
        for rule in (Adam(max_grad_norm=1.0), Adam(agc=0.1)):
            module, loss = pair_of_slopes(3.0, 4.0)
            step = Step([Objective("o", module, loss, rule)])
            assert step.metrics(step({}, 1.0))["o_grad_norm"] == pytest.approx(5.0)

    def test_a_small_gradient_is_not_blown_up(self, way: Any) -> None:
        module = Scalar(0.0)
        rule = RMSprop(max_grad_norm=1.0, eps=0.0)
        way(CompiledStep([Objective("o", module, slope(module, 0.1), rule)]))({}, 1.0)
        assert module.w.item() == pytest.approx(-0.1 / math.sqrt(0.9901), abs=1e-5)

    def test_adaptive_by_hand(self, way: Any) -> None:
        """A gradient has at most 0.3 of its own tensor's norm, which counts as 0.001 or more."""
        module = nn.ParameterDict(
            {
                "large": torch.tensor([3.0, 4.0]),
                "small": torch.tensor([0.5]),
                "zero": torch.zeros(1),
            }
        )

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            parts = 6.0 * module["large"][0] + 8.0 * module["large"][1]
            return parts + 0.1 * module["small"].sum() - 2.0 * module["zero"].sum(), {}

        rule = RMSprop(agc=0.3, eps=0.0)
        before = {name: p.detach().clone() for name, p in module.items()}
        way(CompiledStep([Objective("o", module, loss, rule)]))({}, 1.0)
        # (6, 8) of norm 10 may have 0.3 * 5 = 1.5: (0.9, 1.2). 0.1 may have 0.15: it stays.
        # -2 may have 0.3 * 0.001.
        for name, gradient in (("large", [0.9, 1.2]), ("small", [0.1]), ("zero", [-3e-4])):
            change = [g / math.sqrt(0.99 + 0.01 * g * g) for g in gradient]
            found = (before[name] - module[name]).tolist()
            assert found == pytest.approx(change, rel=1e-4)

    def test_the_global_norm_comes_first(self, way: Any) -> None:
        module, loss = pair_of_slopes(3.0, 4.0, at=1.0)
        rule = RMSprop(max_grad_norm=1.0, agc=0.7, eps=0.0)
        way(CompiledStep([Objective("o", module, loss, rule)]))({}, 1.0)
        # (0.6, 0.8) after the global norm; each may have 0.7 of 1
        for name, g in (("a", 0.6), ("b", 0.7)):
            expected = 1 - g / math.sqrt(0.99 + 0.01 * g * g)
            assert module[name].item() == pytest.approx(expected, abs=1e-5)


def traced(step: CompiledStep) -> Callable[[Batch, float], None]:
    program = step._program(["x", "y"], False)
    graph = compile_cache._trace(program, [*step._state_tensors(), *data().values()])

    def run(batch: Batch, lr: float) -> None:
        step._lr.fill_(lr)
        graph(*step._state_tensors(), *batch.values())

    return run


class TestWays:
    @pytest.mark.parametrize("rule", RULES, ids=repr)
    def test_traced_is_eager(self, rule: Rule) -> None:
        """What is compiled is this graph: it must do what the eager step does, on any data."""
        steps = [CompiledStep([Objective("fit", m, squared(m), rule)]) for m in (net(), net())]
        run = traced(steps[1])
        for seed in range(5):
            rate = 0.05 / (1 + seed)
            steps[0](data(seed), rate)
            run(data(seed), rate)
        assert_same_steps(*steps, **TOLERANCE)

    @pytest.mark.slow
    def test_compiled_is_eager(
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All rules as objectives of one step, since compiling takes long."""
        if not has_compiler():
            pytest.skip("no C++ compiler")
        monkeypatch.setenv("ASSAY_CACHE", str(session_cache(tmp_path_factory)))
        steps = []
        for mode in ("eager", "compiled"):
            torch.manual_seed(0)
            modules = [nn.Linear(3, 1) for _ in RULES]
            objectives = [
                Objective(f"part{i}", module, squared(module), rule)
                for i, (module, rule) in enumerate(zip(modules, RULES, strict=True))
            ]
            steps.append(CompiledStep(objectives, mode=mode, key="rules"))  # type: ignore[arg-type]
        with quick_compiler():
            for seed in range(5):
                one, two = (step(data(seed), 0.02) for step in steps)
                torch.testing.assert_close(one, two, **TOLERANCE)
        require_compiled(steps[1])
        assert_same_steps(*steps, **TOLERANCE)

    @pytest.mark.parametrize("rule", [Adam(), AdamW(), RMSprop(), LaProp()], ids=repr)
    def test_state_goes_round(self, rule: Rule) -> None:
        one, two = net(0), net(1)
        steps = [CompiledStep([Objective("fit", m, squared(m), rule)]) for m in (one, two)]
        for seed in range(3):
            steps[0](data(seed), 0.1)
        steps[1](data(9), 0.1)
        steps[1].load_state(steps[0].state())
        two.load_state_dict(one.state_dict())
        for step in steps:
            step(data(5), 0.1)
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)

    def test_another_rule_is_another_program(self) -> None:
        """The key of a compiled step holds the settings of its rules."""
        assert repr(Adam(warmup=2)) != repr(Adam()) != repr(AdamW()) != repr(RMSprop())


def test_moments_that_overflow_are_what_they_were_at_first() -> None:
    module = Scalar(0.0)
    for rule, first in ((Adam(), 0.0), (RMSprop(), 1.0), (LaProp(), 0.0)):
        loss = lambda batch: (batch["g"] * module.w.sum(), {})  # noqa: E731
        step = Step([Objective("fit", module, loss, rule)])
        step({"g": torch.tensor(1e25)}, 0.0)  # its square is beyond a float
        assert torch.isinf(step.moments["fit"]["second"]).any()
        assert step.forget_overflow() == 1 and step.forget_overflow() == 0
        assert step.moments["fit"]["second"].item() == first
