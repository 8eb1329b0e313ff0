"""The optimizer step as one native function, or as one CUDA graph.

A `CompiledStep` does what `Step` does, with the same result to floating-point tolerance: compiled
by AOTInductor and kept in a cache on disk, so that the second run starts at once, or recorded once
as a CUDA graph. It may begin eagerly and be compiled from some update on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from assay.core.types import State
from assay.optim import compile_cache, cuda_graph
from assay.optim.compile_cache import Compiled, CompileError, Program
from assay.optim.mode import Mode
from assay.optim.objective import Objective, gathered, gradients
from assay.optim.parameters import partly, step_shares, swapped, views_of
from assay.optim.update import Step
from assay.optim.wide import wide_products

Runner = Callable[[list[Tensor]], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Signature:
    """What a step is called with, as far as it shapes the compiled one.

    Attributes:
        names: Of the batch.
        inputs: Shape and type of each tensor: the batch, the noise, and the index if there is one.
        gather: Whether there is an index.
    """

    names: tuple[str, ...]
    inputs: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    gather: bool


class CompiledStep(Step):
    """A step that is compiled or graphed, now or as soon as that costs no time.

    Args:
        objectives: As of `Step`.
        mode: How to run; see `choose_mode`.
        key: Everything that shapes the losses besides their source: hyperparameters and spaces.
        options: The other arguments of `Step`.

    Attributes:
        compiled_from: The update from which on a step that began eagerly is compiled, once that
            is decided.
        seen: What an "auto" step was first called with in this process.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        *,
        mode: Mode = "eager",
        key: str = "",
        **options: Any,
    ) -> None:
        super().__init__(objectives, **options)
        self.mode = mode
        self.auto = mode == "auto"
        self.seen: Signature | None = None
        self.key = key
        self._lr = torch.zeros(len(self.objectives), device=self.device)
        self._lr_values: tuple[float, ...] = ()
        self._runners: dict[tuple[Any, ...], Runner] = {}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned, in place.

        Compiled numbers differ in the last bits, so a run that was eager stays eager until it is
        decided otherwise, whatever is in the cache by now. One that was compiled cannot always stay
        so.
        """
        super().load_state(state)
        if state["mode"] == "eager" or (self.auto and state["mode"] == "compiled"):
            self.mode = state["mode"]
        if state.get("compiled_from") is not None:
            self.compiled_from = int(state["compiled_from"])

    def _run(
        self, batch: Mapping[str, Tensor], rates: Sequence[float], index: Tensor | None
    ) -> Sequence[Tensor]:
        if rates != self._lr_values:
            self._lr.copy_(torch.tensor(rates))
            self._lr_values = tuple(rates)
        if index is not None and self._lr.device.type == "cpu":
            # Inside a compiled step each loop would look its rows up again, one by one.
            batch, index = gathered(batch, index), None
        drawn: dict[str, Tensor] = {}
        if self.noise is not None and self.mode != "cuda_graph":  # a graph draws its own
            drawn = self.noise.draw()
        if self.auto and self.seen is None:
            self._begin(batch, drawn, index)
        if self.updates == self.compiled_from and self.mode == "eager":
            self.mode = "compiled"
        if self.mode != "eager":
            inputs = [*batch.values(), *drawn.values()]
            inputs += [] if index is None else [index]
            runner = self._runner([*batch], inputs, index is not None)
            if runner is not None:
                with wide_products(self.wide):  # of those products that are not our own
                    return runner(inputs)
        return self._uncompiled(gathered(batch, index) | drawn, rates)

    def _functional(self, state: list[Tensor], batch: dict[str, Tensor]) -> list[Tensor]:
        """Do the same on explicit tensors, writing results back with one `copy_` each.

        Parameters and moments come one by one, as views of the flat buffers, so that a compiled
        step moves each as soon as its gradient is there and never gathers the gradient.
        """
        tensors = iter(state)
        old = {m: list(islice(tensors, len(list(m.parameters())))) for m in self.flats}
        moments: dict[str, list[dict[str, Tensor]]] = {}  # of each parameter, by name
        for o in self.objectives:
            names, size = self.moments[o.name], len(old[o.module])
            columns = [list(islice(tensors, size)) for _ in names]
            rows = zip(*columns, strict=True)
            moments[o.name] = [dict(zip(names, row, strict=True)) for row in rows]
        counts = {o.name: next(tensors) for o in self.objectives}
        *buffers, lr = tensors
        metrics: dict[str, Tensor] = {}
        new = dict(old)
        for i, o in enumerate(self.objectives):
            views = new | {o.module: [p.detach().requires_grad_() for p in new[o.module]]}
            with swapped(views, self.modules, buffers):
                loss, extra = self._loss(o, batch)
            grads = gradients(loss, views[o.module])
            norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
            grads = o.rule.clip(grads, new[o.module], norm)
            count = counts[o.name] + 1
            rate = o.rule.rate(lr[i], count)
            shares = step_shares(o.module, o.shares)
            rows = zip(new[o.module], grads, moments[o.name], shares, strict=True)
            new[o.module] = [
                partly(p, o.rule.moved(p, g, m, rate, count), share) for p, g, m, share in rows
            ]
            counts[o.name].copy_(count)
            metrics |= self._collect(o, loss, norm, extra)
        for soft in self.polyak:
            pairs = zip(new[soft.target], new[soft.source], strict=True)
            new[soft.target] = [torch.lerp(t, s, soft.tau) for t, s in pairs]
        for module, before in old.items():
            if new[module] is not before:
                for place, value in zip(before, new[module], strict=True):
                    place.copy_(value)
        return self._stack(metrics)

    def _state_tensors(self) -> list[Tensor]:
        """Return what `_functional` takes apart: the same tensors, in the same order."""
        parameters = [v for m, flat in self.flats.items() for v in views_of(flat, m)]
        moments = [
            v
            for o in self.objectives
            for tensor in self.moments[o.name].values()
            for v in views_of(tensor, o.module)
        ]
        counts = [self.counts[o.name] for o in self.objectives]
        buffers = [b for m in self.modules for b in m.buffers()]
        return [*parameters, *moments, *counts, *buffers, self._lr]

    def _program(self, names: list[str], gather: bool) -> Program:
        """Return the update as a function of the state, the batch, its noise and its index."""
        size = len(self._state_tensors())
        noisy = [] if self.noise is None else list(self.noise.specs)

        def program(*tensors: Tensor) -> list[Tensor]:
            state, given = tensors[:size], tensors[size:]
            rows = dict(zip(names, given, strict=False))
            batch = gathered(rows, given[-1] if gather else None)
            if self.mode == "cuda_graph":  # in place: one kernel for all parameters of a module
                drawn = {} if self.noise is None else self.noise.draw()
                return self._eager(batch | drawn, self._lr.unbind())
            drawn = dict(zip(noisy, given[len(names) :], strict=False))
            return self._functional(list(state), batch | drawn)

        return program

    def _begin(
        self, batch: Mapping[str, Tensor], drawn: Mapping[str, Tensor], index: Tensor | None
    ) -> None:
        """Decide how an "auto" step begins: compiled if it lies in the cache, else eagerly."""
        inputs = [*batch.values(), *drawn.values(), *([] if index is None else [index])]
        shapes = tuple((tuple(t.shape), t.dtype) for t in inputs)
        self.seen = Signature(tuple(batch), shapes, gather=index is not None)
        if self.mode != "auto":  # the run is resumed, and goes on as it was
            return
        if self.compiled_from is None and self.is_cached:
            self.compiled_from = self.updates
        self.mode = "eager"

    @property
    def awaits_compiled(self) -> bool:
        """Return whether it runs eagerly only until there is a compiled step."""
        return self.auto and self.seen is not None and self.compiled_from is None

    @property
    def cache_name(self) -> str:
        """Return the name of the compiled step in the cache; it must have been called before."""
        assert self.seen is not None
        return self._cache_name(self.seen)

    @property
    def is_cached(self) -> bool:
        """Return whether the compiled step lies in the cache."""
        return compile_cache.find(self.cache_name) is not None

    def prepare(self, signature: Signature) -> None:
        """Compile for calls of a signature into the cache, if it is not there yet.

        Raises:
            CompileError: Torch cannot compile it here.
            OSError: The cache cannot be written.
        """
        inputs = [torch.zeros(shape, dtype=t, device=self.device) for shape, t in signature.inputs]
        self._compiled(signature, inputs)

    def _runner(self, names: list[str], inputs: list[Tensor], gather: bool) -> Runner | None:
        """Return what does an update of such inputs, or None if that cannot be compiled."""
        key = (tuple(names), tuple((tuple(t.shape), t.dtype) for t in inputs))
        runner = self._runners.get(key)
        if runner is None:
            try:
                runner = self._make_runner(Signature(*key, gather), inputs)
            except (CompileError, OSError, RuntimeError) as error:
                if self.mode != "compiled":
                    raise
                reason = str(error).strip().partition("\n")[0]
                warnings.warn(f"{reason} Optimizer steps run eagerly.", stacklevel=4)
                self.mode = "eager"
                return None
            self._runners[key] = runner
        return runner

    def _make_runner(self, signature: Signature, inputs: list[Tensor]) -> Runner:
        state, gather = self._state_tensors(), signature.gather
        if self.mode == "cuda_graph":
            program = self._program(list(signature.names), gather)
            generator = None if self.noise is None else self.noise.generator
            return cuda_graph.record(program, state, inputs, repeated=gather, generator=generator)
        found = self._compiled(signature, inputs)
        self.metric_names, self.output_names = found.metrics, found.outputs
        run = compile_cache.load(found.path)
        # The state tensors never move (all updates are in place), so they are bound once. What is
        # compiled reads rows one behind the other, and does not look at strides.
        return lambda batch: run([*state, *(t.contiguous() for t in batch)])

    def _compiled(self, signature: Signature, inputs: list[Tensor]) -> Compiled:
        return compile_cache.compiled(
            self._program(list(signature.names), signature.gather),
            [*self._state_tensors(), *inputs],
            name=self._cache_name(signature),
            names=lambda: (self.metric_names, self.output_names),
        )

    def _cache_name(self, signature: Signature) -> str:
        rules = [(o.name, o.loss.__qualname__, o.rule, o.shares) for o in self.objectives]
        taus = [p.tau for p in self.polyak]
        key = repr([self.key, list(signature.names), rules, taus, self.low_precision])
        packages = {o.loss.__module__.partition(".")[0] for o in self.objectives} - {"assay"}
        shapes = [(tuple(t.shape), t.dtype) for t in self._state_tensors()]
        return compile_cache.step_name([*shapes, *signature.inputs], key=key, packages=packages)
