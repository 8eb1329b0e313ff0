"""Updates that are recorded do what eager ones do, to the bit, or are not recorded."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from optim_support import NOISE, Batch, Scalar, data, net, squared
from torch import Tensor, nn

from assay.networks.mlp import mlp
from assay.optim import recorded
from assay.optim.compiled_step import CompiledStep
from assay.optim.rules import Adam, AdamW, LaProp, RMSprop, Rule
from assay.optim.update import Objective, Polyak, Step

RULES = {
    "adam": Adam(max_grad_norm=0.5),
    "warm": AdamW(warmup=7, weight_decay=0.01),
    "rmsprop": RMSprop(),
    "bounded": LaProp(agc=0.3, warmup=5),
}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "EAGER_UPDATES", 2)


def pair(make: Callable[[bool], Step]) -> tuple[Step, Step]:
    """Return a step that is recorded and one that is not, from the same weights."""
    return make(True), make(False)


def assert_equal(one: Step, two: Step) -> None:
    for a, b in zip(one._tensors(), two._tensors(), strict=True):
        assert torch.equal(a, b)


def reason(step: Step) -> str:
    assert step.recorder is not None
    return step.recorder.reason


def done(step: Step) -> int:
    """Return how many updates a recording did."""
    assert step.recorder is not None
    return step.recorder.recorded


class TestNumbers:
    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
    def test_recorded_is_eager_to_the_bit(self, rule: Rule) -> None:
        """With normalisation, targets, noise, rows by index, two losses, a falling rate."""

        def make(record: bool) -> Step:
            torch.manual_seed(0)
            module = nn.Sequential(net(), nn.BatchNorm1d(1))
            target, scale = copy.deepcopy(module), Scalar(0.5)

            def fit(batch: Batch) -> tuple[Tensor, Batch]:
                error = module(batch["x"] + batch["eps"]) - target(batch["x"]).detach()
                batch["error"] = error.square().mean().detach()
                loss = (scale.w.detach().exp() * error.square()).mean() * batch["u"].mean()
                return loss, {"each": error.detach().squeeze(1), "size": error.abs().mean()}

            def tune(batch: Batch) -> tuple[Tensor, Batch]:
                return (scale.w * (batch["error"] - batch["goal"])).sum(), {}

            objectives = [
                Objective("fit", module, fit, rule),
                Objective("tune", scale, tune, Adam()),
            ]
            polyak = [Polyak(target, module, 0.1)]
            return Step(objectives, polyak=polyak, noise=NOISE, seed=3, record=record)

        one, two = pair(make)
        rows = torch.tensor([5, 0, 2, 7])
        for k in range(20):
            batch = data(k) | {"goal": torch.tensor(0.3)}
            found = [step(batch, (0.1 / (k + 1), 0.01), rows) for step in (one, two)]
            assert torch.equal(*found)
            assert torch.equal(one.outputs["each"], two.outputs["each"])
        assert_equal(one, two)
        assert (done(one), reason(one)) == (18, "")
        assert one.drain() == two.drain()

    def test_a_share_of_each_step(self) -> None:
        def make(record: bool) -> Step:
            module = net()
            return Step(
                [Objective("fit", module, squared(module), shares=(("0", 0.25),))], record=record
            )

        one, two = pair(make)
        for k in range(8):
            one(data(k), 0.1), two(data(k), 0.1)
        assert_equal(one, two)
        assert done(one) == 6

    def test_each_shape_is_recorded_when_it_has_come_often(self) -> None:
        one, two = pair(lambda record: plain_step(record))
        for k in range(16):
            batch = data(k, size=4 if k % 4 == 3 else 8)
            one(batch, 0.1), two(batch, 0.1)
        assert_equal(one, two)
        assert done(one) == (12 - 2) + (4 - 2)

    def test_large_layers_of_tanh(self) -> None:
        """NumPy computes them, eagerly and recorded."""

        def make(record: bool) -> Step:
            torch.manual_seed(0)
            module = mlp((3, 64, 64, 1), "tanh")
            return Step([Objective("fit", module, squared(module))], record=record)

        one, two = pair(make)
        for k in range(8):
            one(data(k, size=64), 0.1), two(data(k, size=64), 0.1)
        assert_equal(one, two)
        assert (done(one), reason(one)) == (6, "")

    def test_a_batch_that_a_loss_writes_into(self) -> None:
        def make(record: bool) -> Step:
            module = net()

            def loss(batch: Batch) -> tuple[Tensor, Batch]:
                scaled = batch["eps"].mul_(0.1)
                batch["seen"].add_(1)
                return (module(batch["x"]) + scaled).square().mean(), {}

            torch.manual_seed(0)
            return Step([Objective("fit", module, loss)], noise=NOISE, seed=3, record=record)

        one, two = pair(make)
        seen = [torch.zeros(()), torch.zeros(())]
        for k in range(20):
            for step, count in zip((one, two), seen, strict=True):
                step(data(k, size=4) | {"seen": count}, 0.1)
        assert [count.item() for count in seen] == [20, 20]
        assert_equal(one, two)

    def test_one_tensor_under_two_names(self) -> None:
        def make(record: bool) -> Step:
            module = net()

            def loss(batch: Batch) -> tuple[Tensor, Batch]:
                return (module(batch["x"]) * batch["w"] * batch["mask"]).square().mean(), {}

            return Step([Objective("fit", module, loss)], record=record)

        one, two = pair(make)
        ones = torch.ones(8, 1)
        for k in range(12):
            more = {"w": ones if k < 6 else ones / 2, "mask": ones}
            one(data(k, size=8) | more, 0.1), two(data(k, size=8) | more, 0.1)
        assert_equal(one, two)
        assert done(one) == 10

    @pytest.mark.parametrize("change", ["mode", "buffer", "frozen"])
    def test_modules_that_are_changed_between_updates(self, change: str) -> None:
        def make(record: bool) -> Step:
            module = nn.Sequential(net(), nn.BatchNorm1d(1))
            return Step([Objective("fit", module, squared(module))], record=record)

        one, two = pair(make)
        for k in range(12):
            if k == 6:
                for step in (one, two):
                    norm = step.modules[0][1]  # type: ignore[index]
                    if change == "mode":
                        norm.eval()
                    elif change == "buffer":
                        norm.running_mean = torch.full((1,), 7.0)
                    else:
                        norm.weight.requires_grad_(False)
            frozen = change == "frozen" and k >= 6
            for step in (one, two):
                with pytest.raises(RuntimeError) if frozen else contextlib.nullcontext():
                    step(data(k), 0.1)
        assert_equal(one, two)
        assert one.modules[0][1].running_mean == two.modules[0][1].running_mean  # type: ignore[index]

    def test_recording_needs_no_compiler_of_torch(self) -> None:
        """Importing it takes seconds, which a short run would not get back."""
        script = (
            "import sys, torch; from torch import nn; from assay.optim import recorded; "
            "from assay.optim.update import Objective, Step; recorded.EAGER_UPDATES = 1; "
            "net = nn.Linear(1, 1); loss = lambda b: (net(b['x']).square().mean(), {}); "
            "step = Step([Objective('fit', net, loss)], record=True); "
            "[step({'x': torch.ones(4, 1)}, 0.1) for _ in range(4)]; "
            "print(step.recorder.recorded, 'torch._dynamo' in sys.modules)"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert found.stdout.split() == ["3", "False"], found.stderr

    def test_a_state_that_is_loaded_goes_on(self) -> None:
        one, two = pair(lambda record: plain_step(record))
        for k in range(6):
            one(data(k), 0.1)
            two(data(k), 0.1)
        saved = copy.deepcopy(one.state())
        for k in range(6, 9):
            one(data(k), 0.1)
        one.load_state(saved)
        with torch.no_grad():
            for a, b in zip(one.flats.values(), two.flats.values(), strict=True):
                a.copy_(b)
        one(data(9), 0.1), two(data(9), 0.1)
        assert_equal(one, two)

    def test_random_numbers_of_others_stay_theirs(self) -> None:
        step = plain_step(True)
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        for k in range(4):
            step(data(k), 0.1)
        assert torch.equal(torch.rand(3), expected)


def plain_step(record: bool) -> Step:
    module = net()
    return Step([Objective("fit", module, squared(module))], record=record)


class TestWhatIsNotRecorded:
    def test_a_tensor_that_is_in_no_module(self) -> None:
        """It might be another one the next time."""
        module, held = net(), [torch.ones(1)]

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            return (module(batch["x"]) * held[0]).square().mean(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(6):
            held[0] = torch.full((1,), float(k))
            step(data(k), 0.1)
        assert "of no module" in reason(step)
        assert done(step) == 0

    def test_a_branch_on_values(self) -> None:
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            error = (module(batch["x"]) - batch["y"]).square().mean()
            return (2 * error if error > 0.5 else error), {}

        step = Step([Objective("fit", module, loss)], record=True)
        before = module[0].weight.clone()
        for k in range(6):
            step(data(k), 0.1)
        assert reason(step) and done(step) == 0
        assert not torch.equal(module[0].weight, before)

    @pytest.mark.parametrize("read", [
        lambda x: float(x), lambda x: x.item(), lambda x: x.tolist(), lambda x: float(x.numpy()),
    ])  # fmt: skip
    def test_a_value_that_is_read(self, read: Callable[[Tensor], float]) -> None:
        """It would be the same for ever."""
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            scale = read(batch["y"].mean())
            return (module(batch["x"]) * scale).square().mean(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(6):
            step(data(k), 0.1)
        assert "reads the values" in reason(step)
        assert done(step) == 0

    @pytest.mark.parametrize("choose", [
        lambda error, mask: error[mask], lambda error, mask: error.masked_select(mask),
        lambda error, mask: error[mask.nonzero(as_tuple=True)],
    ])  # fmt: skip
    def test_rows_that_values_choose(self, choose: Callable[[Tensor, Tensor], Tensor]) -> None:
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            error = (module(batch["x"]) - batch["y"]).square()
            return choose(error, error > 0.01).sum(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(6):
            step(data(k), 0.1)
        assert "depends on values" in reason(step)
        assert done(step) == 0

    @pytest.mark.parametrize("scale", [True, 1j], ids=str)
    def test_constants_that_have_no_kernel(self, scale: bool | complex) -> None:
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            return (module(batch["x"]) * scale).abs().square().mean(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(6):
            step(data(k), 0.1)
        assert "Schema not found" in reason(step)
        assert done(step) == 0

    def test_a_buffer_that_is_replaced(self) -> None:
        def make(record: bool) -> Step:
            module = net()
            module.register_buffer("average", torch.zeros(()))

            def loss(batch: Batch) -> tuple[Tensor, Batch]:
                found = module(batch["x"])
                module.average = 0.9 * module.average + 0.1 * found.detach().mean()
                return (found - module.average).square().mean(), {}

            return Step([Objective("fit", module, loss)], record=record)

        one, two = pair(make)
        for k in range(8):
            one(data(k), 0.1), two(data(k), 0.1)
        assert_equal(one, two)
        assert "replaces a buffer" in reason(one)

    def test_a_shape_that_changes_in_place(self) -> None:
        module = net()

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            return (module(batch["x"]) - batch["y"].detach().t_().t_()).square().mean(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(6):
            step(data(k), 0.1)
        assert "another shape in place" in reason(step)

    def test_a_number_that_changes_is_noticed(self) -> None:
        """Of what no graph can see, at least the run is told."""
        module, held = net(), [1.0]

        def loss(batch: Batch) -> tuple[Tensor, Batch]:
            return (module(batch["x"]) * held[0]).square().mean(), {}

        step = Step([Objective("fit", module, loss)], record=True)
        for k in range(5):
            step(data(k), 0.1)
        held[0] = 2.0
        with pytest.warns(UserWarning, match=r"some of the last 2 updates used the old value"):
            step(data(5), 0.1)
        assert "differed" in reason(step)
        count = done(step)
        step(data(6), 0.1)
        assert done(step) == count

    def test_batches_of_ever_new_shapes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(recorded, "MOST_SHAPES", 3)
        step = plain_step(True)
        for size in range(2, 8):
            step(data(0, size), 0.1)
        assert "more than 3 shapes" in reason(step)

    def test_a_difference_is_noticed_where_there_are_nans(self) -> None:
        nan = torch.tensor([float("nan"), 1.0])
        assert recorded._same(nan, nan.clone())
        assert not recorded._same(nan, torch.tensor([0.0, 1.0]))
        assert not recorded._same(torch.tensor([float("inf")]), torch.tensor([3.4028235e38]))
        assert recorded._same(torch.tensor([True, False]), torch.tensor([True, False]))
        assert not recorded._same(torch.tensor([1, 2]), torch.tensor([1, 3]))

    def test_what_is_compiled_later_is_recorded_until_then(self) -> None:
        module = net()
        step = CompiledStep([Objective("fit", module, squared(module))], record=True)
        for k in range(5):
            step(data(k), 0.1)
        assert done(step) == 3
        program = step._program(["x", "y"], False)
        state = step._state_tensors()
        step._make_runner = lambda *given: lambda batch: program(*state, *batch)  # type: ignore
        step.mode = "compiled"
        step(data(5), 0.1)
        assert (done(step), step.updates) == (3, 6)
