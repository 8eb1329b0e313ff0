"""The ensemble of dynamics: its numbers by an independent formula, and members by themselves."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from assay.networks.dynamics import DynamicsEnsemble, layer_decays


def ensemble(members: int = 3, elites: int = 2, beta: float = 0.0) -> DynamicsEnsemble:
    torch.manual_seed(0)
    return DynamicsEnsemble(2, 1, members=members, elites=elites, hidden=(5, 4), beta=beta)


def alone(model: DynamicsEnsemble, member: int, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what one member says, layer by layer, as the paper writes it."""
    x = (inputs - model.input_mean) / model.input_std
    for i, (weight, bias) in enumerate(zip(model.weights, model.biases, strict=True)):
        x = x @ weight[member] + bias[member]
        if i < 2:
            x = x / (1 + torch.exp(-x))  # swish
    mean, log_var, end = x[:, :3], x[:, 3:6], x[:, 6]
    high, low = model.max_log_var, model.min_log_var
    log_var = high - torch.log(1 + torch.exp(high - log_var))
    log_var = low + torch.log(1 + torch.exp(log_var - low))
    return mean, log_var, end


def test_members_are_computed_together_as_if_alone() -> None:
    model = ensemble()
    inputs = torch.randn(3, 6, 3)
    found = model(inputs)
    for member in range(3):
        for one, two in zip(alone(model, member, inputs[member]), found, strict=True):
            torch.testing.assert_close(one, two[member])


def test_loss_is_the_likelihood_with_bounds_and_decay() -> None:
    model = ensemble()
    inputs, targets, ended = torch.randn(3, 4, 3), torch.randn(3, 4, 3), torch.ones(3, 4)
    model.standardise(torch.randn(20, 3) * 2 + 1, torch.randn(20, 3) * 3 - 1, keep=False)
    loss, _ = model.loss(inputs, targets, ended, torch.tensor(0.5))
    expected = 0.0
    for member in range(3):
        mean, log_var, end = alone(model, member, inputs[member])
        wanted = (targets[member] - model.target_mean) / model.target_std
        # -2 log N(y; mu, sigma^2) less the constant, and -log P(end)
        gauss = torch.distributions.Normal(mean, torch.exp(0.5 * log_var))
        density = -2 * gauss.log_prob(wanted) - math.log(2 * math.pi)
        expected += density.mean() - 0.5 * torch.sigmoid(end).log().mean()
    expected += 0.01 * (3 * 0.5 + 3 * 10.0)  # the bounds begin at 0.5 and -10
    for decay, weight in zip((2.5e-5, 5e-5, 1e-4), model.weights, strict=True):
        expected += decay * 0.5 * weight.square().sum()
    torch.testing.assert_close(loss, expected)


def test_with_beta_1_the_means_learn_as_by_squared_errors() -> None:
    inputs, targets, ended = torch.randn(3, 4, 3), torch.randn(3, 4, 3), torch.zeros(3, 4)
    model = ensemble(beta=1.0)
    loss, _ = model.loss(inputs, targets, ended, torch.tensor(0.0))
    [gradient] = torch.autograd.grad(loss, [model.biases[-1]])
    errors = (model(inputs).mean - targets).mean(1, keepdim=True) * 2 / 3
    torch.testing.assert_close(gradient[..., :3], errors)


def test_decays_of_the_authors() -> None:
    assert layer_decays(5) == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4])


def test_log_variance_stays_within_its_soft_bounds() -> None:
    model = ensemble()
    with torch.no_grad():
        model.biases[-1][:, :, 3:6] = torch.tensor([1000.0, -1000.0, 0.0])
    log_var = model(torch.randn(3, 4, 3)).log_var
    assert torch.allclose(log_var[..., 0], torch.tensor(0.5), atol=0.01)
    assert torch.allclose(log_var[..., 1], torch.tensor(-10.0), atol=0.01)


def test_errors_are_those_on_the_mean() -> None:
    model = ensemble()
    inputs, targets = torch.randn(5, 3), torch.randn(5, 3)
    ended = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    plain = model.errors(inputs, targets, ended, torch.tensor(0.0))
    both = model.errors(inputs, targets, ended, torch.tensor(1.0))
    for member in range(3):
        mean, _, end = alone(model, member, inputs)
        mse = (mean - targets).square().mean()
        torch.testing.assert_close(plain[member], mse)
        bce = F.binary_cross_entropy(torch.sigmoid(end), ended)
        torch.testing.assert_close(both[member], mse + bce)


def test_predictions_are_in_units_of_the_environment() -> None:
    model = ensemble()
    model.standardise(torch.randn(20, 3) * 2 + 1, torch.randn(20, 3) * 3 - 1, keep=False)
    inputs = torch.randn(4, 3)
    found = model.all_members(inputs)
    mean, log_var, end = alone(model, 1, inputs)
    torch.testing.assert_close(found.mean[1], mean * model.target_std + model.target_mean)
    std = torch.exp(0.5 * log_var) * model.target_std
    torch.testing.assert_close(torch.exp(0.5 * found.log_var[1]), std)
    torch.testing.assert_close(found.end[1], end)


def test_new_statistics_can_keep_every_prediction() -> None:
    """A fit begins with what the last one ended with, whatever was collected since."""
    model = ensemble()
    inputs, targets = torch.randn(30, 3) * 2 + 1, torch.randn(30, 3) * 3 - 1
    inputs[:, 2] = 7.0  # does not vary yet
    model.standardise(inputs, targets, keep=False)
    query = torch.randn(5, 3)
    before = model.all_members(query)
    more = torch.randn(30, 3) * 0.5 - 4
    model.standardise(torch.cat([inputs, more]), torch.cat([targets, more * 9]), keep=True)
    for one, two in zip(before, model.all_members(query), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
    scaled = (torch.cat([inputs, more]) - model.input_mean) / model.input_std
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(3))


@pytest.mark.parametrize("rows", [1, 3, 4, 7])
def test_rows_are_dealt_to_one_member_each(rows: int) -> None:
    model = ensemble(members=4, elites=2)
    members = torch.tensor([3, 1])
    inputs = torch.randn(rows, 3)
    order = torch.randperm(rows)
    found = model.dealt(inputs, order, members)
    each = model.all_members(inputs)
    half = -(-rows // 2)
    for place, row in enumerate(order.tolist()):
        member = members[place // half]
        torch.testing.assert_close(found.mean[row], each.mean[member, row])
        torch.testing.assert_close(found.end[row], each.end[member, row])


def test_some_members_are_copied() -> None:
    one, two = ensemble(), ensemble()
    with torch.no_grad():
        for parameter in two.parameters():
            parameter.add_(1.0)
    one.copy_members(two, torch.tensor([True, False, True]))
    plain = ensemble()
    for mine, theirs, old in zip(one.weights, two.weights, plain.weights, strict=True):
        assert torch.equal(mine[0], theirs[0]) and torch.equal(mine[2], theirs[2])
        assert torch.equal(mine[1], old[1])


def test_what_never_changed_stays() -> None:
    """A goal does not move: a model need not learn that, and has no doubt about it."""
    model = ensemble()
    inputs, targets = torch.randn(20, 3), torch.randn(20, 3)
    targets[:, 1] = 0.25
    model.standardise(inputs, targets, keep=False)
    found = model.all_members(inputs)
    assert (found.mean[..., 1] == 0.25).all()
    assert (torch.exp(0.5 * found.log_var[..., 1]) == 0.0).all()
    three = [part.expand(3, *part.shape) for part in (inputs, targets, torch.zeros(20))]
    loss, _ = model.loss(*three, torch.tensor(0.0))
    [gradient] = torch.autograd.grad(loss, [model.biases[-1]])
    assert (gradient[..., [1, 4]] == 0).all() and gradient[..., [0, 2, 3, 5]].abs().min() > 0
    model.standardise(inputs, torch.randn(20, 3), keep=True)  # it varies after all
    assert torch.isfinite(model.all_members(inputs).mean).all()


def test_units_do_not_matter() -> None:
    """Micrometres and metres, amperes and nanoamperes: what is learned is the same."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.rand(2, 50, 3, generator=generator)
    unit = torch.tensor([1e-8, 1e8])
    sizes = torch.cat([unit, torch.ones(1)]), torch.cat([torch.tensor([1e-9]), unit])
    plain, other = ensemble(), ensemble()
    plain.standardise(inputs, targets, keep=False)
    other.standardise(inputs * sizes[0], targets * sizes[1], keep=False)
    torch.testing.assert_close(other.input_std, plain.input_std * sizes[0])
    torch.testing.assert_close(other.target_std, plain.target_std * sizes[1])
    found, expected = other.all_members(inputs * sizes[0]), plain.all_members(inputs)
    torch.testing.assert_close(found.mean, expected.mean * sizes[1])


def test_rounding_is_no_change() -> None:
    """A clock that always moves by 0.01 does so but for its digits."""
    time = torch.arange(1000, dtype=torch.float64) * 0.01 + 50.0
    clock = torch.stack([time, time * 2], 1).float()
    inputs = torch.cat([clock[:-1], torch.rand(999, 1)], 1)
    targets = torch.cat([torch.rand(999, 1), clock[1:] - clock[:-1]], 1)
    assert targets[:, 1].std() > 0
    model = ensemble()
    model.standardise(inputs, targets, keep=False)
    assert model.target_std[0] > 0 and model.target_std[1:].tolist() == [0.0, 0.0]
