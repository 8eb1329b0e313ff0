"""Eager updates without Python: their kernels are recorded once, then repeated by an interpreter.

Most of a small update is not arithmetic. It is Python, and what autograd notes down to find the
gradient. Both do the same at every update. So after some hundred updates the operations of one are
recorded, its gradient included, as a TorchScript function. That needs no compiler, and it calls
the kernels that the eager update calls, in their order and on the same memory: the numbers are the
same to the bit. That is checked, at the first recorded update and again ever more rarely.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from assay.optim.rules import Rate

Update = Callable[[dict[str, Tensor], Sequence[Rate]], list[Tensor]]
Key = tuple[tuple[str, torch.Size, tuple[int, ...], torch.dtype], ...]

EAGER_UPDATES = 100  # before the first recording, which takes as long as some dozen updates
MOST_SHAPES = 16  # batches of ever new shapes are not worth recording

_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1,
    torch.channels_last: 2, torch.channels_last_3d: 3,
}  # fmt: skip

_OF_VALUES = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
_READS = {
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__bool__, Tensor.__float__,
    Tensor.__int__, Tensor.__index__, Tensor.__dlpack__, Tensor.__repr__, Tensor.__format__,
}  # fmt: skip


class CannotRecord(RuntimeError):
    """An update is more than a fixed sequence of operations on its batch and its state."""


class Recorder:
    """An eager update, recorded for each shape of batch that comes often.

    What a loss must not do is found when it is recorded, or when a recording is compared with an
    eager update; but values that it reads in a gradient of its own are seen by nobody.

    Args:
        update: Takes a batch and the learning rates, moves the state in place, and returns results.
        state: Returns all tensors that an update may read or move besides the batch.
        modules: All that hold them.

    Attributes:
        reason: Why nothing more is recorded, once that is so.
        recorded: How many updates had a recording, those included that were compared with it.
    """

    def __init__(
        self,
        update: Update,
        state: Callable[[], Sequence[Tensor]],
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self._update, self._state = update, state
        self._layers = [layer for module in modules for layer in module.modules()]
        self._parameters = [p for module in modules for p in module.parameters()]
        self._looked: list[Any] = []
        self._seen: Counter[Key] = Counter()
        self._recordings: dict[Key, Recording] = {}
        self.reason = ""
        self.recorded = 0

    def __call__(self, batch: dict[str, Tensor], rates: Sequence[float]) -> list[Tensor]:
        """Do one update."""
        if self.reason and not self._recordings:
            return self._update(batch, rates)
        key = tuple((name, t.shape, t.stride(), t.dtype) for name, t in batch.items())
        if self._recordings and self._look() != self._looked:
            self._recordings.clear()
            self._seen.clear()
        recording = self._recordings.get(key) or self._begin(key, batch, rates)
        if recording is None:
            return self._update(batch, rates)
        self.recorded += 1
        recording.calls += 1
        if recording.calls & (recording.calls - 1):  # not a power of two
            return recording(batch, rates)
        return self._checked(recording, batch, rates)

    def _look(self) -> list[Any]:
        """Return what shapes an update and is no number: modes, what is frozen, which buffers."""
        modes = [layer.training for layer in self._layers]
        moving = [p.requires_grad for p in self._parameters]
        buffers = [b for layer in self._layers for b in layer._buffers.values() if b is not None]
        return modes + moving + [b.data_ptr() for b in buffers]

    def _begin(
        self, key: Key, batch: dict[str, Tensor], rates: Sequence[float]
    ) -> Recording | None:
        """Return a new recording, if a batch has come often enough to be worth one."""
        self._seen[key] += 1
        if self.reason or self._seen[key] <= EAGER_UPDATES:
            if len(self._seen) > MOST_SHAPES:
                self.reason = f"batches came in more than {MOST_SHAPES} shapes"
            return None
        self._looked = self._look()
        try:
            made = record(self._update, batch, rates, self._state)
            if self._look() != self._looked:
                raise CannotRecord("a loss replaces a buffer of a module; write into it")
        except Exception as error:
            # What torch cannot repeat it can still do, and the update says itself what is wrong.
            self.reason = str(error).strip().partition("\n")[0] or type(error).__name__
            return None
        self._recordings[key] = made
        return made

    def _checked(
        self, recording: Recording, batch: dict[str, Tensor], rates: Sequence[float]
    ) -> list[Tensor]:
        """Do one update eagerly, and compare what the recording makes of copies of all."""
        given, copies = _copies([*batch.values()]), _copies(recording.captured)
        own = [*batch.values()]
        with torch.random.fork_rng(devices=[]):
            found = recording(dict(zip(batch, given, strict=True)), rates, copies)
        results = self._update(batch, rates)
        ours, theirs = [*copies, *given, *found], [*recording.captured, *own, *results]
        if all(_same(one, two) for one, two in zip(ours, theirs, strict=True)):
            return results
        self.reason = "a recorded update differed from the eager one"
        self._recordings.clear()
        if recording.calls > 1:
            warnings.warn(
                "A loss reads what is in no module and not in its batch, and that has changed: "
                f"some of the last {recording.calls // 2} updates used the old value. Put it into "
                "the batch, or set compile=false. Optimizer steps run eagerly from here on.",
                stacklevel=6,
            )
        return results


@dataclass(slots=True)
class Recording:
    """The operations of one update.

    Attributes:
        function: Takes learning rates, batch and captured tensors, and returns the results.
        captured: What it reads or moves besides the batch: tensors that never change their place.
        rates: Where learning rates are put.
        calls: How often it was asked for.
    """

    function: Callable[..., list[Tensor]]
    captured: list[Tensor]
    rates: list[Tensor]
    calls: int = 0

    def __call__(
        self,
        batch: Mapping[str, Tensor],
        rates: Sequence[float],
        captured: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Do one update, of the captured tensors or of others in their place."""
        for place, rate in zip(self.rates, rates, strict=True):
            place.fill_(rate)
        with torch.no_grad(), torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self.function(*self.rates, *batch.values(), *(captured or self.captured))


def record(
    update: Update,
    batch: Mapping[str, Tensor],
    rates: Sequence[float],
    state: Callable[[], Sequence[Tensor]],
) -> Recording:
    """Return the operations of an update of such a batch; the state is as before afterwards.

    Raises:
        CannotRecord: It reads something that might be another tensor the next time, or a value.
        Exception: Whatever torch says of what cannot be repeated.
    """
    # As an operand, a scalar tensor of double precision is rounded as a Python number mostly is.
    places = [torch.full((), float(rate), dtype=torch.float64) for rate in rates]
    old = [*state()]
    before = [tensor.clone() for tensor in old]
    given = _copies([*batch.values()])  # each of its own, also where two names have one tensor
    tape = _Tape([*places, *given], old)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _NoValues(), tape:
                results = update(dict(zip(batch, given, strict=True)), places)
        finally:
            for tensors in (old, state()):  # a loss may have put others in their place
                for tensor, values in zip(tensors, before, strict=True):
                    tensor.copy_(values)
        made = Recording(tape.function(results), tape.captured, places)
        # TorchScript looks for the kernels when it first runs, and may not find them.
        again = dict(zip(batch, _copies([*batch.values()]), strict=True))
        made(again, rates, _copies(tape.captured))
    return made


class _NoValues(TorchFunctionMode):
    """Refuses what takes numbers out of tensors, since they would be constants of a recording."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            raise CannotRecord(f"a loss reads the values of a tensor ({func.__name__})")
        return func(*args, **(kwargs or {}))


class _Tape(TorchDispatchMode):
    """Writes down operations as a TorchScript graph while they are done.

    `torch.jit.trace` would do, but it leaves out operations without a result, such as Adam's. What
    `torch.fx` traces it traces with a compiler's front end, which takes seconds to import.

    Args:
        given: The inputs of the graph, in order.
        state: Tensors that never change their place, of which views may be read as well.

    Attributes:
        captured: What was read of `state`: further inputs, in order.
    """

    def __init__(self, given: Sequence[Tensor], state: Sequence[Tensor]) -> None:
        super().__init__()
        self.captured: list[Tensor] = []
        self._script: Any = torch._C.Graph()
        self._made = WeakTensorKeyDictionary()  # the value in the graph of each tensor
        self._detached = WeakTensorKeyDictionary()  # tensors that share their value with another
        self._known = {t.untyped_storage().data_ptr() for t in state}
        for tensor in given:
            self._made[tensor] = self._script.addInput()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # asked by torch, which imports Dynamo otherwise
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _depends_on_values(func, args):
            raise CannotRecord(f"what {func} returns depends on values")
        if torch.Tag.inplace_view in func.tags and args[0] in self._detached:
            raise CannotRecord(f"{func} gives a tensor another shape in place")
        with torch._C.DisableTorchFunction():
            results = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:  # nothing is differentiated any more
            self._made[results] = self._value_of(args[0])
            self._detached[args[0]] = self._detached[results] = True
        else:
            self._write(func._schema, args, kwargs, results)
        return results

    def function(self, results: Sequence[Tensor]) -> Callable[..., list[Tensor]]:
        """Return all that was written down as one function of its inputs."""
        values = [self._value_of(result) for result in results]
        made = self._script.create("prim::ListConstruct", values, 1)
        self._script.insertNode(made).output().setType(torch._C.ListType.ofTensors())
        self._script.registerOutput(made.output())
        torch._C._jit_pass_lint(self._script)
        return torch._C._create_function_from_graph("update", self._script)

    def _value_of(self, tensor: Tensor) -> Any:
        if tensor not in self._made:
            if tensor.untyped_storage().data_ptr() not in self._known:
                raise CannotRecord("a loss reads a tensor of no module and not of its batch")
            self.captured.append(tensor.detach())
            self._made[tensor] = self._script.addInput()
        return self._made[tensor]

    def _write(self, schema: Any, args: Sequence[Any], kwargs: Any, results: Any) -> None:
        values = []
        for i, argument in enumerate(schema.arguments):
            default = argument.default_value if argument.has_default_value() else None
            given = args[i] if i < len(args) else kwargs.get(argument.name, default)
            values.append(self._argument(given, argument.type))
        call = self._script.insertNode(
            self._script.create(schema.name, values, len(schema.returns))
        )
        outputs = list(call.outputs())
        for out, returned in zip(outputs, schema.returns, strict=True):
            out.setType(returned.type)
        if len(outputs) == 1:
            results = [results]
        for out, result in zip(outputs, results or (), strict=True):
            if isinstance(result, Tensor):
                self._made[result] = out
            elif isinstance(result, (list, tuple)):
                parts = self._script.create("prim::ListUnpack", [out], len(result))
                for part, one in zip(self._script.insertNode(parts).outputs(), result, strict=True):
                    self._made[one] = part

    def _argument(self, given: Any, kind: Any) -> Any:
        """Return an argument of an operation as a value of the graph."""
        if isinstance(given, Tensor):
            return self._value_of(given)
        if kind.kind() == "ListType" and "Tensor" in str(kind):
            values = [self._argument(one, kind.getElementType()) for one in given]
            made = self._script.create("prim::ListConstruct", values, 1)
            self._script.insertNode(made).output().setType(kind)
            return made.output()
        if isinstance(given, torch.memory_format):
            given = _FORMATS[given]
        if isinstance(given, int) and not isinstance(given, bool) and "float" in str(kind):
            given = float(given)
        return self._script.insertConstant(given)


def _depends_on_values(func: Any, args: Sequence[Any]) -> bool:
    """Return whether values decide the shape of what is returned, or are returned."""
    if func is torch.ops.aten.index.Tensor:
        return any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return bool(_OF_VALUES & set(func.tags))


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of tensors; those that share memory share it as copies, too."""
    memories: dict[int, Any] = {}
    for t in tensors:
        memory = t.untyped_storage()
        if memory.data_ptr() not in memories:
            memories[memory.data_ptr()] = memory.clone()
    return [
        torch.empty(0, dtype=t.dtype).set_(
            memories[t.untyped_storage().data_ptr()], t.storage_offset(), t.shape, t.stride()
        )
        for t in tensors
    ]


def _same(one: Tensor, two: Tensor) -> bool:
    """Return whether tensors hold the same numbers; NaN is one of them."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=0.0, atol=0.0, equal_nan=True)
