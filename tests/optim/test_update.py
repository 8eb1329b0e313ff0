"""One optimizer step: the same numbers eager, traced and compiled, and those of the textbook."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
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

from assay.core.errors import CheckpointError, ConfigError
from assay.optim import compile_cache
from assay.optim.compile_cache import CompileError
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import has_compiler
from assay.optim.parameters import flatten_parameters
from assay.optim.rules import Adam, RMSprop, Rule
from assay.optim.update import Objective, Polyak, Step, mean_metrics
from assay.runs.checkpoint import state_from_bytes, state_to_bytes
from assay.testing.algorithms import quick_compiler, require_compiled, session_cache


def laid_out(batch: dict[str, Tensor], way: int) -> dict[str, Tensor]:
    """Return the same numbers as every second row of a tensor, transposed, or one by one."""
    if way % 3 == 0:
        return {name: torch.stack([x, x + 1.0], 1)[:, 0] for name, x in batch.items()}
    if way % 3 == 1:
        return {name: x.mT.contiguous().mT if x.ndim > 1 else x for name, x in batch.items()}
    return batch


class TestNumbers:
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

    def test_a_child_moves_by_a_share_of_each_step(self) -> None:
        """The rest moves as it would alone; traced and eager agree."""
        pair = [net() for _ in range(3)]
        before = pair[0][0].weight.detach().clone()
        steps = [
            CompiledStep([Objective("fit", one, squared(one), shares=shares)])
            for one, shares in zip(pair, ((), (("0", 0.25),), (("0", 0.25),)), strict=True)
        ]
        batch = data()
        for step in steps[:2]:
            step(batch, 0.1)
        full, part = (one[0].weight.detach() - before for one in pair[:2])
        torch.testing.assert_close(part, 0.25 * full)
        torch.testing.assert_close(pair[0][2].weight, pair[1][2].weight)
        traced, (x, y) = steps[2], (batch["x"], batch["y"])
        traced._lr.fill_(0.1)
        traced._program(["x", "y"], False)(*traced._state_tensors(), x, y)
        torch.testing.assert_close(traced.flats[pair[2]], steps[1].flats[pair[1]])
        with pytest.raises(ValueError, match="Sequential has no child"):
            Step([Objective("fit", pair[0], squared(pair[0]), shares=(("encoder", 0.3),))])

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

    def test_modules_that_overlap_are_refused(self) -> None:
        module = net()
        with pytest.raises(ValueError, match="the same parameters"):
            Step([Objective("a", module, squared(module))], reads=[module[0]])

    def test_two_steps_on_one_module_share_it(self) -> None:
        module = net()
        steps = [Step([Objective("a", module, squared(module))]) for _ in range(2)]
        assert steps[0].flats[module].data_ptr() == steps[1].flats[module].data_ptr()

    def test_a_step_that_reads_all_leaves_others_what_they_move(self) -> None:
        one, two, third = net(), net(), net()
        steps = [Step([Objective("a", one, squared(one))])]
        steps += [Step([Objective("a", third, squared(third))], reads=[nn.ModuleList([one, two])])]
        before = one[0].weight.detach().clone()
        steps[0](data(0), 0.1)
        assert not torch.equal(one[0].weight, before)

    def test_a_step_that_would_take_from_another_is_refused(self) -> None:
        pair = nn.ModuleList([net(), net()])
        step = Step([Objective("a", pair[0], squared(pair[0]))])
        with pytest.raises(ValueError, match="Another step moves parts of ModuleList"):
            Step([Objective("b", pair, squared(pair[1]))])
        del step
        Step([Objective("b", pair, squared(pair[1]))])  # nobody else has them


def reported(*names: str) -> tuple[Step, Callable[..., None]]:
    """Return a step that reports what it is told to, and how to tell it."""
    module = Scalar(0.0)

    def loss(batch: Batch) -> tuple[Tensor, Batch]:
        return module.w.sum(), {name: batch[name] for name in names}

    step = Step([Objective("fit", module, loss)])

    def tell(*values: float) -> None:
        step({name: torch.tensor(v) for name, v in zip(names, values, strict=True)}, 0.0)

    return step, tell


class TestLoss:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda loss: loss, r"returned a Tensor of shape \[\] and metrics of type NoneType"),
            (lambda loss: (loss.expand(3), {}), r"a Tensor of shape \[3\]"),
            (lambda loss: (loss.item(), {}), "returned a float"),
            (lambda loss: (loss, [loss]), "metrics of type list"),
            (lambda loss: (loss.detach(), {}), "does not depend on any parameter"),
            (lambda loss: (loss, {"size": 3.0}), "metric 'size' of the objective 'fit' is a float"),
        ],
    )
    def test_what_is_no_loss_is_named(self, change: Any, words: str) -> None:
        module = nn.Linear(1, 1)
        step = Step([Objective("fit", module, lambda b: change(module(b["x"]).mean()))])
        with pytest.raises(ConfigError, match=words):
            step({"x": torch.ones(2, 1)}, 0.1)


class TestMetrics:
    def test_mean_since_the_last_time(self) -> None:
        step, tell = reported("loss", "norm")
        for loss, norm in ((1.0, 4.0), (2.0, 4.0), (6.0, 1.0)):
            tell(loss, norm)
        found = mean_metrics([step])
        assert (found["loss"], found["norm"]) == (3.0, 3.0)
        assert mean_metrics([step]) == {}
        tell(5.0, 7.0)
        assert mean_metrics([step])["norm"] == 7.0

    def test_two_steps_that_report_one_name(self) -> None:
        (critic, tell_critic), (full, tell_full) = reported("loss"), reported("loss", "actor")
        for value in (1.0, 2.0, 3.0):
            tell_critic(value)
        tell_full(10.0, 5.0)
        found = mean_metrics([critic, full])
        # (1 + 2 + 3 + 10) / 4; the actor was updated once
        assert (found["loss"], found["actor"]) == (4.0, 5.0)

    def test_what_is_not_drained_is_saved(self) -> None:
        one, tell = reported("loss")
        tell(1.0)
        tell(4.0)
        two, tell_two = reported("loss")
        tell_two(100.0)  # whatever it knows must go
        two.load_state(state_from_bytes(state_to_bytes({"step": one.state()}))["step"])
        assert two.updates == 2
        tell_two(10.0)
        assert mean_metrics([two])["loss"] == 5.0  # (1 + 4 + 10) / 3
        mean_metrics([one])
        two.load_state(one.state())
        assert mean_metrics([two]) == {}

    def test_it_counts_its_own_updates(self) -> None:
        step, tell = reported("loss")
        for count in range(1, 4):
            tell(0.0)
            assert step.updates == count
        mean_metrics([step])
        assert step.updates == 3

    def test_the_state_of_an_earlier_version_is_refused(self) -> None:
        step, _ = reported("loss")
        old = {key: value for key, value in step.state().items() if key in ("mode", "moments")}
        with pytest.raises(CheckpointError, match="earlier version of Assay") as caught:
            step.load_state(old)
        assert "Go on with the version that wrote it" in str(caught.value.fix)


CLIPPED = Adam(max_grad_norm=0.1)


class Buffered(nn.Module):
    """A network with a buffer that changes between updates, as noise does."""

    noise: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.inner = net(seed)
        self.register_buffer("noise", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.noise


def pair(rule: Rule, mode: Any = "eager", key: str = "") -> tuple[CompiledStep, ...]:
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
            Objective("critic", critic, critic_loss, rule),
            Objective("actor", actor, actor_loss, rule),
            Objective("soft", soft, soft_loss),
        ]
        polyak = [Polyak(target, critic, 0.3)]
        steps.append(CompiledStep(objectives, polyak=polyak, mode=kind, key=key))
        steps[-1].buffered = critic  # type: ignore[attr-defined]
    return tuple(steps)


class TestWays:
    @pytest.mark.parametrize("gather", [False, True])
    @pytest.mark.parametrize("rule", [Adam(), CLIPPED, RMSprop(max_grad_norm=0.1)], ids=repr)
    def test_traced_is_eager(self, rule: Rule, gather: bool) -> None:
        """What is compiled is this graph: it must do what the eager step does, on any data."""
        eager, other = pair(rule)
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
        _, step = pair(CLIPPED)
        before = [t.clone() for t in step._state_tensors()]
        program = step._program(["x", "y"], False)
        compile_cache._trace(program, [*step._state_tensors(), *data().values()])
        assert all(torch.equal(a, b) for a, b in zip(before, step._state_tensors(), strict=True))

    def test_a_tensor_that_would_be_frozen_is_refused(self) -> None:
        module, forgotten = net(), net(1)
        loss = lambda b: ((module(b["x"]) - forgotten(b["x"])).square().mean(), {})  # noqa: E731
        step = CompiledStep([Objective("a", module, loss)])
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
        eager, other = pair(CLIPPED, "compiled")
        with pytest.warns(UserWarning, match=r"on holiday. Optimizer steps run eagerly."):
            first = other(data(), 0.05)
        assert torch.equal(first, eager(data(), 0.05))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            assert torch.equal(other(data(1), 0.05), eager(data(1), 0.05))
        assert_same_steps(eager, other, rtol=0, atol=0)

    def test_options_of_the_compiler_name_the_binary(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else a binary that another release compiled with other options would be run."""
        monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
        monkeypatch.setattr(compile_cache, "_build", lambda graph, example, path, _: path.touch())

        def found(name: str) -> Path:
            one, nothing = [torch.zeros(2)], ([], [])
            program = lambda x: [x.tanh()]  # noqa: E731
            return compile_cache.compiled(program, one, name=name, names=lambda: nothing).path

        usual = found("usual")
        assert found("again") == usual
        monkeypatch.setattr(compile_cache, "_options", dict)
        assert found("other") != usual

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
        self, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not has_compiler():
            pytest.skip("no C++ compiler")
        monkeypatch.setenv("ASSAY_CACHE", str(session_cache(tmp_path_factory)))
        for attempt in range(2):
            eager, compiled = pair(CLIPPED, "compiled", key="once")
            for seed in range(4):
                for step in (eager, compiled):
                    step.buffered.noise.fill_(float(seed))  # type: ignore[attr-defined]
                rate = 0.05 / (1 + seed)  # a new rate is not a new program
                with quick_compiler():
                    found = compiled(laid_out(data(seed), seed), rate)
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
        _, changed = pair(CLIPPED, "compiled", key="other")
        with pytest.raises(AssertionError, match="second run"):
            changed(data(), 0.05)


class TestChoice:
    def test_a_run_that_began_eager_stays_eager(self) -> None:
        """A compiler that appears between kill and resume must not change the numbers."""
        module = net()
        eager = Step([Objective("fit", module, squared(module))])
        compiled = CompiledStep([Objective("fit", module, squared(module))], mode="compiled")
        compiled.load_state(eager.state())
        assert compiled.mode == "eager"

    def test_a_compiled_run_says_that_it_goes_on_eagerly(self) -> None:
        module = nn.Linear(1, 1)
        compiled = CompiledStep([Objective("fit", module, squared(module))], mode="compiled")
        eager = Step([Objective("fit", module, squared(module))])
        with pytest.warns(UserWarning, match=r"were compiled; .* eagerly, .* compile=false"):
            eager.load_state(compiled.state())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compiled.load_state(compiled.state())
            eager.load_state(eager.state())


def auto(module: nn.Module | None = None) -> CompiledStep:
    module = net() if module is None else module
    return CompiledStep([Objective("fit", module, squared(module))], mode="auto", key="auto")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[CompiledStep], None]:
    """Let the traced program stand for the compiled one; return what puts a step in the cache."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))

    def runner(self: CompiledStep, signature: Any, inputs: list[Tensor]) -> Any:
        assert self.is_cached, "this would be compiled while the run waits"
        state = self._state_tensors()
        program = self._program(list(signature.names), signature.gather)
        return lambda batch: program(*state, *batch)

    monkeypatch.setattr(CompiledStep, "_make_runner", runner)

    def put(step: CompiledStep) -> None:
        directory = compile_cache.steps_path()
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "it.pt2").touch()
        (directory / f"{step.cache_name}.graph").write_text('["it", [], []]')

    return put


class TestAuto:
    def test_it_begins_eagerly_and_changes_where_it_is_told(
        self, fake: Callable[[CompiledStep], None]
    ) -> None:
        module = net()
        eager, step = Step([Objective("fit", module, squared(module))]), auto()
        assert not step.awaits_compiled  # nobody knows what to compile yet
        for seed in range(3):
            assert torch.equal(step(data(seed), 0.05), eager(data(seed), 0.05))
            assert step.mode == "eager" and step.awaits_compiled
        fake(step)
        step(data(3), 0.05)
        assert step.mode == "eager"  # what is in the cache changes nothing by itself
        step.compiled_from = step.updates + 1
        step(data(4), 0.05)
        assert step.mode == "eager" and not step.awaits_compiled
        step(data(5), 0.05)
        assert step.mode == "compiled"

    def test_what_is_cached_is_used_at_once(self, fake: Callable[[CompiledStep], None]) -> None:
        first, second = auto(), auto()
        first(data(), 0.05)
        fake(first)
        second(data(), 0.05)
        assert (second.mode, second.compiled_from) == ("compiled", 0)
        assert_same_steps(first, second, **TOLERANCE)
        other = auto()
        other(data(size=9), 0.05)  # of another shape, it is another program
        assert other.mode == "eager"

    def test_a_resumed_step_goes_on_as_it_was(self, fake: Callable[[CompiledStep], None]) -> None:
        step = auto()
        step(data(), 0.05)
        fake(step)
        resumed = auto()
        resumed.load_state(step.state())
        resumed(data(1), 0.05)
        assert resumed.mode == "eager" and resumed.awaits_compiled
        resumed.compiled_from = resumed.updates
        resumed(data(1), 0.05)
        again = auto()
        again.load_state(resumed.state())
        assert (again.mode, again.compiled_from) == ("compiled", 2)
        again(data(2), 0.05)
        assert again.mode == "compiled" and not again.awaits_compiled

    def test_an_eager_step_stays_eager_where_the_saved_one_was_to_be_compiled(
        self, fake: Callable[[CompiledStep], None]
    ) -> None:
        step = auto()
        step(data(), 0.05)
        fake(step)
        step.compiled_from = step.updates + 1
        module = net()
        eager = Step([Objective("fit", module, squared(module))])  # as with compile=false
        eager.load_state(step.state())
        for seed in range(1, 4):
            eager(data(seed), 0.05)
        assert (eager.mode, eager.updates) == ("eager", 4)

    def test_a_step_that_was_saved_before_its_first_update_is_still_open(
        self, fake: Callable[[CompiledStep], None]
    ) -> None:
        step = auto()
        step.load_state(state_from_bytes(state_to_bytes(auto().state())))
        assert step.mode == "auto"

    def test_a_cache_that_cannot_be_written_can_be_read(
        self, fake: Callable[[CompiledStep], None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        step = auto()
        step(data(), 0.05)
        fake(step)

        def refuse(*args: Any, **options: Any) -> None:
            raise OSError("read-only file system")

        monkeypatch.setattr(Path, "mkdir", refuse)
        assert step.seen is not None
        step.prepare(step.seen)  # it is there already

    def test_what_a_killed_compiler_left_is_removed(self, tmp_path: Path) -> None:
        left, other = tmp_path / "it.abc.build", tmp_path / "other.abc.build"
        for directory in (left, other):
            directory.mkdir()
        with compile_cache._scratch(tmp_path, "it") as scratch:
            assert scratch.is_dir() and not left.exists() and other.is_dir()
        assert not scratch.exists()

    def test_a_damaged_note_is_no_cached_step(self, fake: Callable[[CompiledStep], None]) -> None:
        step = auto()
        step(data(), 0.05)
        fake(step)
        assert step.is_cached
        note = compile_cache.steps_path() / f"{step.cache_name}.graph"
        note.write_text('["it", [')
        assert not step.is_cached
        note.write_text('["gone", [], []]')
        assert not step.is_cached
