import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from assay.core.errors import SpaceError
from assay.functional.distributions import policy_distribution
from assay.networks.heads import (
    ActionScale,
    DuelingHead,
    EnsembleMLP,
    GaussianHead,
    QEnsemble,
    SquashedGaussianHead,
    policy_head,
)
from assay.networks.mlp import mlp
from assay.networks.noisy import NoisyLinear

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Discrete(3), nn.Linear),
        (spaces.MultiDiscrete([2, 3]), nn.Linear),
        (spaces.MultiBinary(3), nn.Linear),
        (BOX, GaussianHead),
    ],
)
def test_policy_head_fits_its_distribution(space, kind, assert_traces):
    dist = policy_distribution(space)
    head = policy_head(dist, 6)
    assert isinstance(head, kind)
    assert head(torch.randn(4, 6)).shape == (4, dist.param_size)
    assert_traces(head, (torch.randn(4, 6),), (torch.randn(4, 6),))


def test_gaussian_head_has_one_log_std_for_all_states():
    head = GaussianHead(3, 2, log_std_init=-0.5)
    out = head(torch.randn(5, 3))
    torch.testing.assert_close(out[:, 2:], torch.full((5, 2), -0.5))
    torch.testing.assert_close(out[:, :2], head.mean(torch.zeros(5, 3)) + out[:, :2])
    out[:, 2:].sum().backward()
    assert head.log_std.grad.tolist() == [5, 5]


def test_squashed_head_clamps_the_log_std_alone():
    head = SquashedGaussianHead(1, 1)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[100.0], [100.0]]))
        head.linear.bias.zero_()
    assert head(torch.tensor([[1.0], [-1.0]])).tolist() == [[100, 2], [-100, -20]]


def test_dueling_by_hand():
    head = DuelingHead(1, 3)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.zero_()
        head.value[0].weight.fill_(2.0)
        head.advantage[0].weight.copy_(torch.tensor([[1.0], [2.0], [6.0]]))
    # V = 2, A = (1, 2, 6), mean 3
    assert head(torch.ones(1, 1)).tolist() == [[0, 1, 5]]
    assert isinstance(DuelingHead(1, 3, hidden=(4,), noisy=True).value[0], NoisyLinear)


def test_ensemble_equals_its_members_one_by_one():
    torch.manual_seed(0)
    ensemble = EnsembleMLP(3, (4, 8, 8, 2), "silu")
    x = torch.randn(5, 4)
    out = ensemble(x)
    assert out.shape == (3, 5, 2)
    for i in range(3):
        single = mlp((4, 8, 8, 2), "silu")
        linears = [m for m in single if isinstance(m, nn.Linear)]
        with torch.no_grad():
            for k, linear in enumerate(linears):
                linear.weight.copy_(ensemble.weights[k][i].T)
                linear.bias.copy_(ensemble.biases[k][i, 0])
        torch.testing.assert_close(single(x), ensemble(x)[i])


def test_ensemble_is_normalised_behind_each_activation():
    torch.manual_seed(0)
    ensemble = EnsembleMLP(2, (3, 4, 4, 1), layer_norm=True)
    with torch.no_grad():
        for i, parameter in enumerate([*ensemble.gains, *ensemble.shifts]):
            parameter.copy_(torch.rand(parameter.shape) + i)
    x = torch.randn(5, 3)
    for member in range(2):
        y = x
        for layer in range(2):
            y = torch.relu(y @ ensemble.weights[layer][member] + ensemble.biases[layer][member])
            centred = y - y.mean(1, keepdim=True)
            y = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
            y = y * ensemble.gains[layer][member] + ensemble.shifts[layer][member]
        y = y @ ensemble.weights[2][member] + ensemble.biases[2][member]
        torch.testing.assert_close(ensemble(x)[member], y)
    torch.testing.assert_close(ensemble(x, torch.tensor([1]))[0], ensemble(x)[1])


def test_ensemble_members_start_apart():
    ensemble = EnsembleMLP(2, (16, 8, 1))
    assert not torch.equal(ensemble.weights[0][0], ensemble.weights[0][1])
    assert ensemble.weights[0].abs().max() <= 0.25


def test_a_loss_on_one_member_leaves_the_others_alone():
    critics = QEnsemble(BOX, 2, members=2, hidden=(8,))
    critics(torch.randn(4, 2), torch.randn(4, 2))[0].sum().backward()
    grad = critics.ensemble.weights[0].grad
    assert grad[0].abs().sum() > 0
    assert grad[1].abs().sum() == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden": (8, 8)},
        {"hidden": (8, 8), "layer_norm": True},
        {"hidden": ()},
        {"hidden": (8,), "network": "simba"},
    ],
)
def test_many_actions_of_a_state_are_valued_as_each_by_itself(settings):
    critics = QEnsemble(BOX, 2, **settings)
    obs, actions = torch.randn(3, 2), torch.randn(3, 5, 2)
    many = critics.of_many(obs, actions)
    each = torch.stack([critics(obs, actions[:, n]) for n in range(5)], dim=2)
    assert many.shape == (2, 3, 5)
    torch.testing.assert_close(many, each, rtol=1e-4, atol=1e-4)
    weights = torch.randn(2, 3, 5)
    for one, other in zip(
        *(torch.autograd.grad((q * weights).sum(), [*critics.parameters()]) for q in (many, each)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "space", [BOX, spaces.Dict({"a": BOX, "image": spaces.Box(0, 255, (12, 12, 3), np.uint8)})]
)
def test_critics_trace_with_gradients(space, assert_traces):
    critics = QEnsemble(space, 2, members=2, hidden=(8, 8), cnn="impala")

    def inputs():
        box, action = torch.randn(4, 2), torch.randn(4, 2)
        if isinstance(space, spaces.Box):
            return box, action
        pixels = torch.randint(0, 256, (4, 12, 12, 3), dtype=torch.uint8)
        return {"a": box, "image": pixels}, action

    def fn(obs, action):
        action = action.detach().requires_grad_()
        q = critics(obs, action)
        return q, *torch.autograd.grad(q.square().mean(), [action, *critics.parameters()])

    assert fn(*inputs())[0].shape == (2, 4)
    assert_traces(fn, inputs(), inputs())


@pytest.mark.parametrize(
    "head", [DuelingHead(3, 4, hidden=(8,)), GaussianHead(3, 2), SquashedGaussianHead(3, 2)]
)
def test_heads_trace_with_gradients(head, assert_traces):
    def fn(x):
        out = head(x)
        return out, *torch.autograd.grad(out.square().mean(), list(head.parameters()))

    assert_traces(fn, (torch.randn(4, 3),), (torch.randn(4, 3),))


def test_action_scale():
    scale = ActionScale(spaces.Box(np.array([-2, 0]), np.array([2, 10]), dtype=np.float32))
    action = torch.tensor([[-2.0, 0.0], [1.0, 5.0]])
    assert scale.to_unit(action).tolist() == [[-1, -1], [0.5, 0]]
    assert scale.state_dict() == {}
    with pytest.raises(SpaceError, match="infinite or empty range"):
        ActionScale(spaces.Box(-np.inf, 1.0, (2,), np.float32))
