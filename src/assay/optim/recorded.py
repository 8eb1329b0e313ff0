"""Eager updates without Python: their kernels are recorded once, then repeated by an interpreter.

Most of a small update is not arithmetic. It is Python, and what autograd notes down to find the
gradient. Both do the same at every update. So after some hundred updates the operations of one are
recorded, its gradient included, as a TorchScript function. That needs no compiler, and it calls
the kernels that the eager update calls, in their order and on the same memory: the numbers are the
same to the bit. That is checked, at the first recorded update and again ever more rarely.
"""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay.optim.rules import Rate

Update = Callable[[dict[str, Tensor], Sequence[Rate]], list[Tensor]]
Key = tuple[tuple[str, torch.Size, tuple[int, ...], torch.dtype], ...]

EAGER_UPDATES = 500  # before the first recording, which takes as long as some dozen updates
MOST_SHAPES = 16  # batches of ever new shapes are not worth recording

_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1,
    torch.channels_last: 2, torch.channels_last_3d: 3,
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
        CannotRecord: It reads something that might be another tensor the next time.
        Exception: Whatever torch says of what it cannot trace, such as a branch on a value.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    names = list(batch)

    def program(*tensors: Tensor) -> list[Tensor]:
        return update(dict(zip(names, tensors[rates:], strict=True)), tensors[:rates])

    # As an operand, a scalar tensor of double precision is rounded as a Python number is.
    places = [torch.zeros((), dtype=torch.float64) for _ in range(rates)]
    before = [tensor.clone() for tensor in state]
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = make_fx(program, tracing_mode="fake", _allow_non_fake_inputs=True)
        try:
            module = traced(*places, *batch.values())
        finally:  # tracing computes with tensors of one element, such as counts, as with constants
            for tensor, values in zip(state, before, strict=True):
                tensor.copy_(values)
    targets = dict.fromkeys(n.target for n in module.graph.nodes if n.op == "get_attr")
    captured = {target: operator.attrgetter(target)(module).detach() for target in targets}
    known = {t.untyped_storage().data_ptr() for t in state}
    if any(t.untyped_storage().data_ptr() not in known for t in captured.values()):
        raise CannotRecord("a loss reads a tensor that is in no module and not in its batch")
    return Recording(_script(module.graph, list(captured)), [*captured.values()], places)


def _script(graph: Any, captured: Sequence[str]) -> Callable[..., list[Tensor]]:
    """Return a graph of ATen operations (`torch.fx.Graph`) as a TorchScript function."""
    # torch.jit.trace would do, but it leaves out operations without a result, such as Adam's.
    script = torch._C.Graph()
    made: dict[Any, Any] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            made[node] = script.addInput(node.name)
    attributes = {target: script.addInput(target) for target in captured}
    for node in graph.nodes:
        if node.op == "get_attr":
            made[node] = attributes[node.target]
        elif node.op == "call_function" and node.target is operator.getitem:
            made[node] = made[node.args[0]][node.args[1]]
        elif node.op == "call_function":
            made[node] = _operation(script, node, made)
        elif node.op == "output":
            results = script.create("prim::ListConstruct", [made[n] for n in node.args[0]], 1)
            script.insertNode(results).output().setType(torch._C.ListType.ofTensors())
            script.registerOutput(results.output())
    torch._C._jit_pass_lint(script)
    return torch._C._create_function_from_graph("update", script)


def _operation(script: Any, node: Any, made: Mapping[Any, Any]) -> Any:
    """Add an operation to a TorchScript graph, and return its result or results."""
    if not isinstance(node.target, torch._ops.OpOverload):
        raise CannotRecord(f"{node.target} is not an operation of torch's own")
    if node.target is torch.ops.aten.detach.default:  # nothing is differentiated any more
        return made[node.args[0]]
    schema = node.target._schema
    values = []
    for i, argument in enumerate(schema.arguments):
        default = argument.default_value if argument.has_default_value() else None
        given = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, default)
        values.append(_value(script, given, argument.type, made))
    call = script.insertNode(script.create(schema.name, values, len(schema.returns)))
    for out, returned in zip(call.outputs(), schema.returns, strict=True):
        out.setType(returned.type)
    results = list(call.outputs())
    if len(results) != 1:
        return results
    if results[0].type().kind() == "ListType":
        parts = script.create("prim::ListUnpack", results, len(node.meta["val"]))
        return list(script.insertNode(parts).outputs())
    return results[0]


def _value(script: Any, given: Any, kind: Any, made: Mapping[Any, Any]) -> Any:
    """Return an argument of an operation as a value of a TorchScript graph."""
    if isinstance(given, torch.fx.Node):
        return made[given]
    tensors = kind.kind() == "ListType" and "Tensor" in str(kind)
    if tensors:
        place = script.create("prim::ListConstruct", [
            _value(script, one, kind.getElementType(), made) for one in given
        ], 1)  # fmt: skip
        script.insertNode(place).output().setType(kind)
        return place.output()
    if isinstance(given, torch.memory_format):
        given = _FORMATS[given]
    if isinstance(given, int) and not isinstance(given, bool) and "float" in str(kind):
        given = float(given)
    return script.insertConstant(given)


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
