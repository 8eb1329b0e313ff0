"""Parameters as views of one flat tensor, and which modules are whose."""

from __future__ import annotations

import copy

import torch
from optim_support import net
from torch import nn

from assay.optim.parameters import flatten_parameters, modules_besides, swapped


class TestFlat:
    def test_parameters_are_views(self) -> None:
        module = net()
        before = {k: v.clone() for k, v in module.state_dict().items()}
        flat = flatten_parameters(module)
        assert flat.numel() == sum(p.numel() for p in module.parameters())
        assert list(module.state_dict()) == list(before)  # the flat tensor is not saved twice
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])
        flat.fill_(2.0)
        assert all((p == 2.0).all() for p in module.parameters())

    def test_memory_never_moves_again(self) -> None:
        """Acting holds views of the parameters; whoever asks for a flat tensor gets the same."""
        module = net()
        flat = flatten_parameters(module)
        for part in (module, nn.Sequential(module), module[2], nn.Sequential(module[0])):
            again = flatten_parameters(part)
            assert again.numel() == sum(p.numel() for p in part.parameters())
            again.mul_(2.0)
            assert torch.equal(again[0], next(part.parameters()).flatten()[0])
        assert [p.untyped_storage().data_ptr() for p in module.parameters()] == [
            flat.untyped_storage().data_ptr()
        ] * 4

    def test_parts_in_another_order_are_laid_out_again(self) -> None:
        module = net()
        flatten_parameters(module)
        swapped = nn.Sequential(module[2], module[0])
        flat = flatten_parameters(swapped)
        assert torch.equal(flat, torch.cat([p.flatten() for p in swapped.parameters()]))
        flat.zero_()
        assert not any(p.any() for p in module.parameters())

    def test_a_copy_has_memory_of_its_own(self) -> None:
        module = net()
        flatten_parameters(module)
        other = copy.deepcopy(module)
        flatten_parameters(other).zero_()
        assert all(p.any() for p in module.parameters())

    def test_a_loss_may_be_computed_before_its_module_is_moved(self) -> None:
        """The flat tensor does not count as a change to what autograd has saved."""
        module = nn.Linear(2, 1, bias=False)
        flat = flatten_parameters(module)
        loss = module(torch.ones(1, 2, requires_grad=True)).sum()  # whose gradient is the weight
        flat.add_(1.0)
        loss.backward()


class TestBesides:
    def test_what_overlaps_is_taken_apart(self) -> None:
        whole = nn.ModuleDict({"own": net(0), "other": net(1)})
        plain, wrapped = net(2), nn.Sequential(net(3))
        buffers = nn.BatchNorm1d(2, affine=False)
        found = [whole, plain, nn.Sequential(plain), wrapped, wrapped[0], buffers, whole["own"]]
        rest = modules_besides([whole["own"]], found)
        assert rest == [whole["other"], plain, wrapped, buffers]

    def test_what_is_owned_is_left_out(self) -> None:
        module = net()
        assert modules_besides([module], [module, module[0], nn.Sequential(module)]) == []


def test_tied_weights_are_swapped_in_every_place() -> None:
    """Otherwise a compiled step would go on with those that it was traced with."""
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    shared = nn.Sequential(module[0], module[0])
    weight = module[0].weight
    for tied in (module, shared):
        with swapped({tied: [2 * torch.eye(2)]}, [], []):
            assert torch.equal(tied(torch.ones(1, 2)), torch.full((1, 2), 4.0))
        assert tied[0].weight is weight and tied[1].weight is weight
