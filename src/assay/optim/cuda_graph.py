"""A program of tensors as one CUDA graph: recorded once, replayed by one launch."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from assay.optim.compile_cache import Program

WARM_UPS = 3  # allocations and library handles may not happen while a graph is recorded


class StaticInputs:
    """The fixed places from which a graph reads.

    Args:
        inputs: Tensors of the shapes that will be given.
        repeated: The same tensors may be given several times in a row, as a rollout is for each of
            its minibatches: then they are copied the first time only.
    """

    def __init__(self, inputs: Sequence[Tensor], *, repeated: bool) -> None:
        self.tensors = [t.clone() for t in inputs]
        self._repeated = repeated
        # What lies in each place: the tensor it was copied from, and that tensor's version.
        self._held: list[tuple[Callable[[], Tensor | None], int]] = [
            (lambda: None, 0) for _ in inputs
        ]

    def fill(self, inputs: Sequence[Tensor]) -> None:
        """Copy the inputs to their places."""
        for i, (place, source) in enumerate(zip(self.tensors, inputs, strict=True)):
            held, version = self._held[i]
            if held() is source and version == source._version:
                continue
            place.copy_(source)
            if self._repeated:
                self._held[i] = (weakref.ref(source), source._version)


def record(
    program: Program,
    state: Sequence[Tensor],
    inputs: Sequence[Tensor],
    *,
    repeated: bool = False,
    generator: torch.Generator | None = None,
) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Return `inputs -> results` of a program as a CUDA graph.

    Args:
        program: Takes the tensors of `state` and of the inputs, and updates `state` in place.
        state: Tensors that stay where they are; recording leaves their values alone.
        inputs: Tensors of the shapes that will be given.
        repeated: See `StaticInputs`.
        generator: What the program draws from; recording leaves it where it was, and every replay
            moves it as a call of the program would.
    """
    static = StaticInputs(inputs, repeated=repeated)
    before = [t.clone() for t in state]
    drawn = None if generator is None else generator.get_state()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            program(*state, *static.tensors)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = program(*state, *static.tensors)
    for tensor, value in zip(state, before, strict=True):
        tensor.copy_(value)
    if generator is not None and drawn is not None:
        generator.set_state(drawn)

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        static.fill(given)
        graph.replay()
        return [t.clone() for t in out]

    return run


class ShapedGraphs:
    """CUDA graphs of one program, a graph for every set of shapes that it is given."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._graphs: dict[Any, Callable[[Sequence[Tensor]], list[Tensor]]] = {}

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return what the program returns for these inputs."""
        key = tuple((tuple(x.shape), x.dtype) for x in inputs)
        if key not in self._graphs:
            self._graphs[key] = record(self._program, [], inputs)
        return self._graphs[key](inputs)
