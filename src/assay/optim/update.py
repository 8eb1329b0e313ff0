"""One optimizer step as one thing.

A loss is a plain function of a batch over modules. `Step` turns one or more losses into the whole
update (gradient, clipping, an optimizer's rule on one flat buffer per module, Polyak averaging of
targets) and runs it eagerly, compiled as one native function (AOTInductor, kept in a cache on
disk, so that the second run starts at once), or as one CUDA graph, with the same result to
floating-point tolerance. A step may begin eagerly and be compiled from some update on.

A loss must be pure: no random numbers of its own (noise is part of the batch), no branching on
values, no tensors that change other than module parameters, module buffers and the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.core.types import State
from assay.optim import compile_cache, cuda_graph
from assay.optim.compile_cache import Compiled, CompileError, Program
from assay.optim.memory import keep_freed_memory
from assay.optim.mode import Mode
from assay.optim.noise import NoiseSource, NoiseSpec
from assay.optim.objective import Objective as Objective
from assay.optim.objective import Polyak as Polyak
from assay.optim.objective import gathered, gradients, joined
from assay.optim.parameters import (
    flat_shares,
    flatten_parameters,
    partly,
    parts_in_place,
    step_shares,
    swapped,
    views_of,
)
from assay.optim.rules import Rate

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


class Step:
    """The update of one or several modules, ready to be called.

    A metric with one value is summed until it is drained; one with more (a TD error per item) is
    left in `outputs`. A loss may leave tensors in the batch for the losses after it.

    Args:
        objectives: Applied in order; a later loss sees the parameters an earlier one moved.
        reads: Further modules that the losses read (targets, frozen networks).
        polyak: Target averages after the objectives.
        mode: How to run; see `choose_mode`.
        key: Everything that shapes the losses besides their source: hyperparameters and spaces.
        noise: Random numbers that every update draws on the device and adds to the batch, by name.
        seed: Of the noise.
        low_precision: A type of half the width, in which the losses do what bears it, such as
            `torch.bfloat16` (see `torch.autocast`); parameters and gradients stay as they are.
        share: A step whose optimizer state this one continues (for delayed updates).

    Attributes:
        updates: How often it was called, checkpoints included.
        outputs: What the last call reported of each item.
        compiled_from: The update from which on a step that began eagerly is compiled, once that
            is decided.
        seen: What an "auto" step was first called with in this process.

    Example:
        >>> net = nn.Linear(1, 1, bias=False)
        >>> loss = lambda b: ((net(b["x"]) - b["y"]).square().mean(), {})
        >>> step = Step([Objective("fit", net, loss)])
        >>> batch = {"x": torch.ones(4, 1), "y": torch.zeros(4, 1)}
        >>> before = net.weight.abs().item()
        >>> for _ in range(5): _ = step(batch, lr=0.01)
        >>> net.weight.abs().item() < before
        True
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        *,
        reads: Sequence[nn.Module] = (),
        polyak: Sequence[Polyak] = (),
        mode: Mode = "eager",
        key: str = "",
        noise: Mapping[str, NoiseSpec] | None = None,
        seed: int = 0,
        low_precision: torch.dtype | None = None,
        share: Step | None = None,
    ) -> None:
        self.objectives = list(objectives)
        self.polyak = list(polyak)
        self.mode: Mode = mode
        self.auto = mode == "auto"
        self.compiled_from: int | None = None
        self.seen: Signature | None = None
        self.key = key
        self.low_precision = low_precision
        self.updates = 0
        self.metric_names: list[str] = []
        self.output_names: list[str] = []
        self.outputs: dict[str, Tensor] = {}
        modules = [o.module for o in objectives] + [p.target for p in polyak]
        read = [part for module in reads for part in parts_in_place(module)]
        self.modules = list(dict.fromkeys([*modules, *(p.source for p in polyak), *read]))
        owned = [id(p) for m in self.modules for p in m.parameters()]
        if len(set(owned)) != len(owned):
            # Each would move them into a flat buffer of its own, and all but one would be dead.
            raise ValueError("Two modules of a step hold the same parameters; name only one.")
        self.flats = {m: flatten_parameters(m) for m in self.modules if list(m.parameters())}
        device = next(iter(self.flats.values())).device
        if device.type == "cpu":
            keep_freed_memory()
        self.moments = {o.name: o.rule.init(self.flats[o.module]) for o in self.objectives}
        self.counts = {name: torch.zeros((), device=device) for name in self.moments}
        if share is not None:
            for name in self.moments.keys() & share.moments.keys():
                self.moments[name], self.counts[name] = share.moments[name], share.counts[name]
        self.noise = NoiseSource(noise, device, seed) if noise else None
        # Listing them takes longer than some losses.
        self._parameters = {o.name: list(o.module.parameters()) for o in self.objectives}
        self._shares = {o.name: step_shares(o.module, o.shares) for o in self.objectives}
        self._flat_shares = {
            o.name: flat_shares(self.flats[o.module], o.module, self._shares[o.name])
            for o in self.objectives
            if o.shares
        }
        self._lr = torch.zeros(len(self.objectives), device=device)
        self._lr_values: tuple[float, ...] = ()
        self._runners: dict[tuple[Any, ...], Runner] = {}
        self._total: Tensor | None = None  # the sum of all metrics vectors since the last `drain`
        self._summed = 0

    def __call__(
        self, batch: Mapping[str, Tensor], lr: float | Sequence[float], index: Tensor | None = None
    ) -> Tensor:
        """Do one update and return the metrics as one vector (named by `metric_names`).

        A batch is tensors of one leading size, and scalars; `lr` is one learning rate, or one per
        objective. Of the batch, only the rows `index` count, if given; on a GPU, gathering them is
        part of the step.
        """
        rates = (lr,) * len(self.objectives) if isinstance(lr, (int, float)) else tuple(lr)
        if rates != self._lr_values:
            self._lr.copy_(torch.tensor(rates))
            self._lr_values = rates
        vector, *outputs = self._run(batch, rates, index)
        if self.output_names:
            self.outputs = dict(zip(self.output_names, outputs, strict=True))
        self.updates += 1
        self._total = vector if self._total is None else self._total + vector
        self._summed += 1
        return vector

    def metrics(self, vector: Tensor) -> dict[str, float]:
        """Return a metrics vector as named floats (this is where a GPU is waited for)."""
        return dict(zip(self.metric_names, vector.tolist(), strict=True))

    def drain(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each metric since the last time and of how many calls it is."""
        if self._total is None:
            return {}
        drained = {k: (v, self._summed) for k, v in self.metrics(self._total).items()}
        self._total, self._summed = None, 0
        return drained

    def forget_overflow(self) -> int:
        """Reset moments that are not finite any more, and return how many.

        A gradient whose square overflows leaves an infinity behind, with which its parameter would
        never move again.
        """
        lost = 0
        for o in self.objectives:
            moments = self.moments[o.name]
            bad = ~torch.stack([torch.isfinite(m) for m in moments.values()]).all(0)
            lost += int(bad.sum())
            for name, initial in o.rule.init(self.flats[o.module]).items():
                moments[name].copy_(torch.where(bad, initial, moments[name]))
        return lost

    def state(self) -> State:
        """Return the optimizer state, metrics that are not drained, and how steps were executed."""
        moments = {
            name: {k: v.cpu().numpy() for k, v in [*tensors.items(), ("count", self.counts[name])]}
            for name, tensors in self.moments.items()
        }
        metrics = None
        if self._total is not None:
            total = self._total.cpu().numpy()
            metrics = {"names": self.metric_names, "total": total, "count": self._summed}
        noise = None if self.noise is None else self.noise.state()
        return {
            "mode": self.mode, "compiled_from": self.compiled_from, "updates": self.updates,
            "moments": moments, "metrics": metrics, "noise": noise,
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        """Restore what `state` returned, in place.

        Compiled numbers differ in the last bits, so a run that was eager stays eager until it is
        decided otherwise, whatever is in the cache by now. One that was compiled cannot always stay
        so.

        Raises:
            CheckpointError: An earlier version of Assay saved it.
        """
        if "updates" not in state:
            raise CheckpointError(
                "The checkpoint was written by an earlier version of Assay: its optimizer state "
                "has no count of updates.",
                "Go on with the version that wrote it, or start the run again. Loading it to act "
                "works.",
            )
        if state["mode"] == "compiled" and self.mode == "eager":
            warnings.warn(
                "This run's optimizer steps were compiled; from now on they run eagerly, because "
                "compile=false or ASSAY_COMPILE=false. That is slower and differs in the last "
                "bits.",
                stacklevel=2,
            )
        if state["mode"] == "eager" or (self.auto and state["mode"] == "compiled"):
            self.mode = state["mode"]
        if state.get("compiled_from") is not None:
            self.compiled_from = int(state["compiled_from"])
        self.updates = int(state["updates"])
        for name, tensors in self.moments.items():
            saved = state["moments"][name]
            for key, tensor in [*tensors.items(), ("count", self.counts[name])]:
                tensor.copy_(torch.as_tensor(saved[key]).reshape(tensor.shape))
        self._total, self._summed = None, 0
        if state["metrics"] is not None:
            self.metric_names = list(state["metrics"]["names"])
            self._total = torch.as_tensor(state["metrics"]["total"], device=self._lr.device)
            self._summed = int(state["metrics"]["count"])
        if self.noise is not None:
            self.noise.load_state(state["noise"])

    # ------------------------------------------------------------------ the step itself

    def _run(
        self, batch: Mapping[str, Tensor], rates: Sequence[float], index: Tensor | None
    ) -> Sequence[Tensor]:
        drawn: dict[str, Tensor] = {}
        if index is not None and self._lr.device.type == "cpu":
            # Inside a compiled step each loop would look its rows up again, one by one.
            batch, index = gathered(batch, index), None
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
                return runner(inputs)
        return self._eager(gathered(batch, index) | drawn, rates)

    def _eager(self, batch: dict[str, Tensor], rates: Sequence[Rate]) -> list[Tensor]:
        metrics: dict[str, Tensor] = {}
        for o, lr in zip(self.objectives, rates, strict=True):
            loss, extra = self._loss(o, batch)
            grads = gradients(loss, self._parameters[o.name])
            with torch.no_grad():
                norm = self._move(o, grads, lr)
            metrics |= self._collect(o, loss, norm, extra)
        with torch.no_grad():
            for p in self.polyak:
                self.flats[p.target].lerp_(self.flats[p.source], p.tau)
        return self._stack(metrics)

    def _loss(self, o: Objective, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if self.low_precision is None:
            return o.loss(batch)
        with torch.autocast(self._lr.device.type, self.low_precision):
            return o.loss(batch)

    def _move(self, o: Objective, grads: list[Tensor], lr: Rate) -> Tensor:
        """Move the parameters of an objective in place, and return the norm of its gradient."""
        flat, count, grad = self.flats[o.module], self.counts[o.name], joined(grads)
        norm = torch.linalg.vector_norm(grad)
        if o.rule.agc is None:
            [grad] = o.rule.clip([grad], [flat], norm)
        else:  # each tensor has a bound of its own
            grad = joined(o.rule.clip(grads, self._parameters[o.name], norm))
        count.add_(1)
        before = flat.clone() if o.shares else None
        o.rule.move(flat, grad, self.moments[o.name], o.rule.rate(lr, count), count)
        if before is not None:
            flat.copy_(torch.lerp(before, flat, self._flat_shares[o.name]))
        return norm

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
            rows = zip(new[o.module], grads, moments[o.name], self._shares[o.name], strict=True)
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

    def _collect(
        self, o: Objective, loss: Tensor, norm: Tensor, extra: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        own = {f"{o.name}_loss": loss, f"{o.name}_grad_norm": norm}
        return {k: v.detach() for k, v in (own | extra).items()}

    def _stack(self, metrics: dict[str, Tensor]) -> list[Tensor]:
        scalars = {k: v for k, v in metrics.items() if v.ndim == 0}
        outputs = {k: v for k, v in metrics.items() if v.ndim > 0}
        self.metric_names, self.output_names = list(scalars), list(outputs)
        return [torch.stack([v.float() for v in scalars.values()]), *outputs.values()]

    # ------------------------------------------------------------------ compiled and graphed

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
        device = self._lr.device
        inputs = [torch.zeros(shape, dtype=kind, device=device) for shape, kind in signature.inputs]
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


def mean_metrics(steps: Iterable[Step]) -> dict[str, float]:
    """Return the mean of each metric over all calls of the steps since the last time.

    Two steps may report one name: a critic's loss, with and without the actor's.
    """
    sums: dict[str, tuple[float, int]] = {}
    for step in steps:
        for name, (total, count) in step.drain().items():
            before, calls = sums.get(name, (0.0, 0))
            sums[name] = (before + total, calls + count)
    return {name: total / count for name, (total, count) in sums.items()}
