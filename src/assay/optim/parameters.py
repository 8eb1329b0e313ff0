"""Parameters of modules as views of one flat tensor, and modules that compute with other tensors.

An optimizer moves a flat tensor in one operation, and the memory never moves, so that whoever
reads it (the NumPy policy of a collector, a compiled step) reads what was learned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_flats = WeakIdKeyDictionary()  # the flat tensors that somebody has


def flatten_parameters(module: nn.Module) -> Tensor:
    """Make all parameters of a module views of one flat tensor, and return that tensor.

    Parameters that lie one after another already, for instance because a module around this one
    was flattened, stay where they are.

    Raises:
        ValueError: Some are part of another flat tensor that is in use, which would lose them.
    """
    parameters = list(module.parameters())
    flat = _as_one(parameters)
    if flat is None:
        if _in_use(parameters):
            raise ValueError(
                f"Another step moves parts of {type(module).__name__}. Make the step of the larger "
                "module first, or give both the same parts."
            )
        flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        for p, view in zip(parameters, views_of(flat, module), strict=True):
            p.data = view
    _flats[flat] = None
    return flat


def parts_in_place(module: nn.Module) -> list[nn.Module]:
    """Return a module, or those parts of it that other steps move by themselves."""
    parameters = list(module.parameters())
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if own or not parameters or _as_one(parameters) is not None or not _in_use(parameters):
        return [module]
    return [part for child in module.children() for part in parts_in_place(child)]


def _in_use(parameters: Sequence[nn.Parameter]) -> bool:
    places = {flat.untyped_storage().data_ptr() for flat in _flats}
    return any(p.untyped_storage().data_ptr() in places for p in parameters)


def _as_one(parameters: Sequence[nn.Parameter]) -> Tensor | None:
    """Return the tensor of which the parameters are consecutive views, if there is one."""
    memory = parameters[0].untyped_storage().data_ptr()
    start = end = parameters[0].storage_offset()
    for p in parameters:
        elsewhere = p.untyped_storage().data_ptr() != memory or p.storage_offset() != end
        if elsewhere or not p.is_contiguous():
            return None
        end += p.numel()
    return parameters[0].data.as_strided((end - start,), (1,), start)


def views_of(flat: Tensor, module: nn.Module) -> list[Tensor]:
    """Return the parts of a flat tensor in the shapes of a module's parameters."""
    shapes = [p.shape for p in module.parameters()]
    return [v.view(s) for v, s in zip(flat.split([s.numel() for s in shapes]), shapes, strict=True)]


def step_shares(module: nn.Module, shares: Sequence[tuple[str, float]]) -> list[float]:
    """Return by how much of a step each parameter moves: 1, or the share of its child."""
    given = dict(shares)
    unknown = given.keys() - {name for name, _ in module.named_children()}
    if unknown:
        raise ValueError(f"{type(module).__name__} has no child {sorted(unknown)}.")
    return [given.get(name.partition(".")[0], 1.0) for name, _ in module.named_parameters()]


def flat_shares(module: nn.Module, shares: Sequence[tuple[str, float]]) -> Tensor:
    """Return what `step_shares` does for each number of a module's flat tensor."""
    each = zip(module.parameters(), step_shares(module, shares), strict=True)
    return torch.cat([torch.full((p.numel(),), share, device=p.device) for p, share in each])


def partly(before: Tensor, after: Tensor, share: float) -> Tensor:
    """Return a parameter that moved by a share of its step."""
    return after if share == 1.0 else torch.lerp(before, after, share)


def modules_besides(owned: Iterable[nn.Module], found: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the modules in `found`, or parts of them, that share no tensor with any other one."""
    taken = {tensor for module in owned for tensor in _tensor_ids(module)}
    rest: list[nn.Module] = []

    def visit(module: nn.Module) -> None:
        own = _tensor_ids(module)
        if own & taken:
            for child in module.children():
                visit(child)
        elif own:
            taken.update(own)
            rest.append(module)

    for module in found:
        visit(module)
    return rest


def _tensor_ids(module: nn.Module) -> set[int]:
    return {id(tensor) for tensor in (*module.parameters(), *module.buffers())}


@contextlib.contextmanager
def swapped(
    parameters: dict[nn.Module, list[Tensor]], modules: list[nn.Module], buffers: Sequence[Tensor]
) -> Iterator[None]:
    """Let modules compute with the given tensors in place of their parameters and buffers."""
    undo: list[tuple[dict[str, Any], str, Any]] = []

    def put(table: dict[str, Any], name: str, tensor: Tensor) -> None:
        undo.append((table, name, table[name]))
        table[name] = tensor

    try:
        for module, tensors in parameters.items():
            given = dict(zip(module.parameters(), tensors, strict=True))
            # One parameter may have several names, as where weights are tied.
            for name, parameter in [*module.named_parameters(remove_duplicate=False)]:
                owner, leaf = _owner(module, name)
                put(owner._parameters, leaf, given[parameter])
        names = [(m, n) for m in modules for n, _ in m.named_buffers()]
        for (module, name), tensor in zip(names, buffers, strict=True):
            owner, leaf = _owner(module, name)
            put(owner._buffers, leaf, tensor)
        yield
    finally:
        for table, name, original in reversed(undo):
            table[name] = original


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf
