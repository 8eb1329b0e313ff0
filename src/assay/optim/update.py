"""One optimizer step as one thing.

A loss is a plain function of a batch over modules. `Step` turns one or more losses into the whole
update: gradient, clipping, an optimizer's rule on one flat buffer per module, Polyak averaging of
targets. `assay.optim.compiled_step` runs the same update compiled or as a CUDA graph.

A loss must be pure: no random numbers of its own (noise is part of the batch), no branching on
values, no tensors that change other than module parameters, module buffers and the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from assay.core.errors import CheckpointError
from assay.core.types import State
from assay.optim.memory import keep_freed_memory
from assay.optim.mode import Mode
from assay.optim.noise import NoiseSource, NoiseSpec
from assay.optim.objective import Objective as Objective
from assay.optim.objective import Polyak as Polyak
from assay.optim.objective import gathered, gradients, joined, require_loss
from assay.optim.parameters import flat_shares, flatten_parameters, parts_in_place
from assay.optim.recorded import Recorder
from assay.optim.rules import Rate
from assay.optim.wide import has_wide_layers, wide_products


class Step:
    """The update of one or several modules, ready to be called.

    A metric with one value is summed until it is drained; one with more (a TD error per item) is
    left in `outputs`. A loss may leave tensors in the batch for the losses after it.

    Args:
        objectives: Applied in order; a later loss sees the parameters an earlier one moved.
        reads: Further modules that the losses read (targets, frozen networks).
        polyak: Target averages after the objectives.
        noise: Random numbers that every update draws on the device and adds to the batch, by name.
        seed: Of the noise.
        low_precision: A type of half the width, in which the losses do what bears it, such as
            `torch.bfloat16` (see `torch.autocast`); parameters and gradients stay as they are.
        share: A step whose optimizer state this one continues (for delayed updates).
        record: Whether eager updates on a CPU may be recorded, once there were some hundred; see
            `Recorder`.

    Attributes:
        updates: How often it was called, checkpoints included.
        wide: Whether products of its layers are left to the library for wide ones.
        outputs: What the last call reported of each item.

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

    mode: Mode = "eager"
    auto = False  # whether it may be compiled later on
    compiled_from: int | None = None

    def __init__(
        self,
        objectives: Sequence[Objective],
        *,
        reads: Sequence[nn.Module] = (),
        polyak: Sequence[Polyak] = (),
        noise: Mapping[str, NoiseSpec] | None = None,
        seed: int = 0,
        low_precision: torch.dtype | None = None,
        share: Step | None = None,
        record: bool = False,
    ) -> None:
        self.objectives, self.polyak = list(objectives), list(polyak)
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
        self.device = next(iter(self.flats.values())).device
        self.wide = has_wide_layers(self.modules)
        if self.device.type == "cpu":
            keep_freed_memory()
        self.moments = {o.name: o.rule.init(self.flats[o.module]) for o in self.objectives}
        self.counts = {name: torch.zeros((), device=self.device) for name in self.moments}
        if share is not None:
            for name in self.moments.keys() & share.moments.keys():
                self.moments[name], self.counts[name] = share.moments[name], share.counts[name]
        self.noise = NoiseSource(noise, self.device, seed) if noise else None
        # Listing them takes longer than some losses.
        self._parameters = {o.name: list(o.module.parameters()) for o in self.objectives}
        self._shares = {o.name: flat_shares(o.module, o.shares) for o in objectives if o.shares}
        self._total: Tensor | None = None  # the sum of all metrics vectors since the last `drain`
        self._summed = 0
        records = record and self.device.type == "cpu"
        self.recorder = Recorder(self._eager, self._tensors, self.modules) if records else None

    def __call__(
        self, batch: Mapping[str, Tensor], lr: float | Sequence[float], index: Tensor | None = None
    ) -> Tensor:
        """Do one update and return the metrics as one vector (named by `metric_names`).

        A batch is tensors of one leading size, and scalars; `lr` is one learning rate, or one per
        objective. With `index`, an update is on these rows of the batch.
        """
        rates = (lr,) * len(self.objectives) if isinstance(lr, (int, float)) else tuple(lr)
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
        self.updates = int(state["updates"])
        for name, tensors in self.moments.items():
            saved = state["moments"][name]
            for key, tensor in [*tensors.items(), ("count", self.counts[name])]:
                tensor.copy_(torch.as_tensor(saved[key]).reshape(tensor.shape))
        self._total, self._summed = None, 0
        if state["metrics"] is not None:
            self.metric_names = list(state["metrics"]["names"])
            self._total = torch.as_tensor(state["metrics"]["total"], device=self.device)
            self._summed = int(state["metrics"]["count"])
        if self.noise is not None:
            self.noise.load_state(state["noise"])

    # ------------------------------------------------------------------ the step itself

    def _run(
        self, batch: Mapping[str, Tensor], rates: Sequence[float], index: Tensor | None
    ) -> Sequence[Tensor]:
        drawn = {} if self.noise is None else self.noise.draw()
        return self._uncompiled(gathered(batch, index) | drawn, rates)

    def _uncompiled(self, batch: dict[str, Tensor], rates: Sequence[float]) -> list[Tensor]:
        update = self._eager if self.recorder is None else self.recorder
        with wide_products(self.wide):
            return update(batch, rates)

    def _tensors(self) -> list[Tensor]:
        """Return every tensor that losses may read or an update moves, besides the batch."""
        groups: list[Mapping[Any, Tensor]] = [
            self.flats, self.counts, self._shares, *self.moments.values(),
        ]  # fmt: skip
        buffers = [b for module in self.modules for b in module.buffers()]
        return [*(tensor for group in groups for tensor in group.values()), *buffers]

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
            found = o.loss(batch)
        else:
            with torch.autocast(self.device.type, self.low_precision):
                found = o.loss(batch)
        if not self.metric_names:  # the first time
            require_loss(o.name, found)
        return found

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
            flat.copy_(torch.lerp(before, flat, self._shares[o.name]))
        return norm

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
