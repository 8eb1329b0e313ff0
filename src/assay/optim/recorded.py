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
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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
    Tensor.__int__, Tensor.__index__,
}  # fmt: skip


class CannotRecord(RuntimeError):
    """An update is more than a fixed sequence of operations on its batch and its state."""


class Recorder:
    """An eager update, recorded for each shape of batch that comes often.

    Args:
        update: Takes a batch and the learning rates, moves the state in place, and returns results.
        state: Returns all tensors that an update may read or move besides the batch.

    Attributes:
        reason: Why nothing is recorded any more, once that is so.
    """

    def __init__(self, update: Update, state: Callable[[], Sequence[Tensor]]) -> None:
        self._update, self._state = update, state
        self._seen: Counter[Key] = Counter()
        self._recordings: dict[Key, Recording] = {}
        self.reason = ""

    @property
    def recorded(self) -> int:
        """Return how many updates were done by a recording."""
        return sum(r.calls for r in self._recordings.values())

    def __call__(self, batch: dict[str, Tensor], rates: Sequence[float]) -> list[Tensor]:
        """Do one update."""
        if self.reason:
            return self._update(batch, rates)
        key = tuple((name, t.shape, t.stride(), t.dtype) for name, t in batch.items())
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._begin(key, batch, len(rates))
        if recording is None:
            return self._update(batch, rates)
        recording.calls += 1
        if recording.calls & (recording.calls - 1):  # not a power of two
            return recording(batch, rates)
        return self._checked(recording, batch, rates)

    def _begin(self, key: Key, batch: dict[str, Tensor], rates: int) -> Recording | None:
        """Return a new recording, if a batch has come often enough to be worth one."""
        self._seen[key] += 1
        if self._seen[key] <= EAGER_UPDATES:
            if len(self._seen) > MOST_SHAPES:
                self.reason = f"batches came in more than {MOST_SHAPES} shapes"
            return None
        try:
            self._recordings[key] = record(self._update, batch, rates, self._state())
        except Exception as error:
            # What torch cannot trace it can still do, and the update says itself what is wrong.
            self.reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return self._recordings.get(key)

    def _checked(
        self, recording: Recording, batch: dict[str, Tensor], rates: Sequence[float]
    ) -> list[Tensor]:
        """Do one update eagerly, and compare what the recording makes of a copy of the state."""
        copies = _copies(recording.captured)
        with torch.random.fork_rng(devices=[]):
            found = recording(batch, rates, copies)
        results = self._update(batch, rates)
        pairs = [*zip(copies, recording.captured, strict=True), *zip(found, results, strict=True)]
        if all(_same(one, two) for one, two in pairs):
            return results
        self.reason = "a recorded update differed from the eager one"
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
    update: Update, batch: Mapping[str, Tensor], rates: int, state: Sequence[Tensor]
) -> Recording:
    """Return the operations of an update of such a batch; nothing has moved afterwards.

    Raises:
        CannotRecord: It reads something that might be another tensor the next time, or a value.
        Exception: Whatever torch says of what cannot be repeated.
    """
    # As an operand, a scalar tensor of double precision is rounded as a Python number is.
    places = [torch.zeros((), dtype=torch.float64) for _ in range(rates)]
    before = [tensor.clone() for tensor in state]
    tape = _Tape([*places, *batch.values()], state)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _NoValues(), tape:
                results = update(dict(batch), places)
        finally:
            for tensor, values in zip(state, before, strict=True):
                tensor.copy_(values)
    return Recording(tape.function(results), tape.captured, places)


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
        self._made: dict[int, Any] = {}  # the value in the graph of each tensor, by its id
        self._alive: list[Tensor] = []  # or another tensor would get the id
        self._known = {t.untyped_storage().data_ptr() for t in state}
        for tensor in given:
            self._is(tensor, self._script.addInput())

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # asked by torch, which imports Dynamo otherwise
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _depends_on_values(func, args):
            raise CannotRecord(f"what {func} returns depends on values")
        with torch._C.DisableTorchFunction():
            results = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default:  # nothing is differentiated any more
            self._is(results, self._value_of(args[0]))
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

    def _is(self, tensor: Tensor, value: Any) -> None:
        self._made[id(tensor)] = value
        self._alive.append(tensor)

    def _value_of(self, tensor: Tensor) -> Any:
        if id(tensor) not in self._made:
            if tensor.untyped_storage().data_ptr() not in self._known:
                raise CannotRecord("a loss reads a tensor of no module and not of its batch")
            self.captured.append(tensor.detach())
            self._is(tensor, self._script.addInput())
        return self._made[id(tensor)]

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
                self._is(result, out)
            elif isinstance(result, (list, tuple)):
                parts = self._script.create("prim::ListUnpack", [out], len(result))
                for part, one in zip(self._script.insertNode(parts).outputs(), result, strict=True):
                    self._is(one, part)

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
    """Return whether an operation returns a number, or a tensor whose shape the values decide."""
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
