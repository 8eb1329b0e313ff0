import math

import numpy as np
import pytest
import torch

from assay.functional.losses import (
    approx_kl,
    explained_variance,
    huber,
    normalize_advantages,
    policy_terms,
    ppo_policy_loss,
    quantile_huber,
    value_loss,
    weighted_mean,
)


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_weighted_mean_by_hand():
    assert weighted_mean(t(1, 2, 6)).item() == 3
    assert weighted_mean(t(1, 2, 6), t(1, 1, 0)).item() == 1.5
    assert weighted_mean(t(1, 5), t(3, 1)).item() == 2
    assert weighted_mean(t(1, float("nan")), torch.tensor([True, False])).item() == 1
    assert weighted_mean(t(1, 2), t(0, 0)).item() == 0


def test_ppo_loss_by_hand():
    # ratios 1.5, 0.5, 1.5, 0.5 with advantages 1, 1, -1, -1 and clip 0.2:
    # min(1.5, 1.2) = 1.2; min(0.5, 0.8) = 0.5; min(-1.5, -1.2) = -1.5; min(-0.5, -0.8) = -0.8
    ratio = t(1.5, 0.5, 1.5, 0.5)
    result = ppo_policy_loss(ratio.log(), t(0, 0, 0, 0), t(1, 1, -1, -1), 0.2)
    assert result.loss.item() == pytest.approx(0.6 / 4, abs=1e-6)
    assert result.clip_fraction.item() == 1
    # k3 of 1.5 and 0.5
    expected = ((0.5 - math.log(1.5)) + (-0.5 - math.log(0.5))) / 2
    assert result.approx_kl.item() == pytest.approx(expected, abs=1e-6)


def test_ppo_loss_has_gradient_only_where_it_is_not_clipped():
    log_prob = t(1.5, 0.5, 1.1).log().requires_grad_()
    result = ppo_policy_loss(log_prob, t(0, 0, 0), t(1, 1, 1), 0.2)
    result.loss.backward()
    # d(-ratio A / 3) / d log_prob = -ratio / 3, and 0 for the clipped first item
    torch.testing.assert_close(log_prob.grad, t(0, -0.5 / 3, -1.1 / 3))
    assert not result.approx_kl.requires_grad
    assert not result.clip_fraction.requires_grad


def test_ppo_loss_leaves_out_items_of_weight_zero():
    args = (t(0.1, 5), t(0, 0), t(2, 7))
    weighted = ppo_policy_loss(*args, 0.2, t(1, 0))
    alone = ppo_policy_loss(*(a[:1] for a in args), 0.2)
    torch.testing.assert_close(weighted, alone)


@pytest.mark.parametrize("old", [-3e38, -1e6, -1000.0, 1000.0, 1e6, 3e38])
def test_ppo_loss_survives_whatever_was_recorded(old: float):
    log_prob = t(-1, -1, -0.5).requires_grad_()
    advantage = t(-1, 1, 1)
    result = ppo_policy_loss(log_prob, t(old, old, -0.5), advantage, 0.2)
    result.loss.backward()
    assert all(torch.isfinite(x) for x in result)
    # Where the ratio is absurd nothing is learned; the third item is unaffected.
    torch.testing.assert_close(log_prob.grad, t(0, 0, -1 / 3))


def test_ppo_loss_of_sane_ratios_is_what_it_was_bit_for_bit():
    generator = torch.Generator().manual_seed(0)
    log_prob, old = (torch.randn(1000, generator=generator) for _ in range(2))
    advantage = torch.randn(1000, generator=generator)
    log_prob.requires_grad_()
    result = ppo_policy_loss(log_prob, old, advantage, 0.2)
    (gradient,) = torch.autograd.grad(result.loss, log_prob)
    ratio = (log_prob - old).exp()
    plain = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    (expected,) = torch.autograd.grad(plain, log_prob)
    assert torch.equal(result.loss, plain) and torch.equal(gradient, expected)


def test_clip_may_be_a_tensor():
    args = (t(0.1, 0.5), t(0, 0), t(2, 7))
    torch.testing.assert_close(
        ppo_policy_loss(*args, torch.tensor(0.2)), ppo_policy_loss(*args, 0.2)
    )


def test_value_loss_by_hand():
    assert value_loss(t(1, 3), t(0, 0)).item() == 2.5
    # V_old = 0, clip 0.5: the first moves to 1 (clipped 0.5); target 2: max(1, 2.25) = 2.25.
    # The second moves to 0.2, within the clip: (0.2 - 1)^2 = 0.64.
    clipped = value_loss(t(1, 0.2), t(2, 1), old_value=t(0, 0), clip=0.5)
    assert clipped.item() == pytest.approx((2.25 + 0.64) / 4)
    with pytest.raises(ValueError, match="old_value"):
        value_loss(t(1), t(1), clip=0.1)


def test_huber_by_hand():
    torch.testing.assert_close(huber(t(-3, -0.5, 0, 1, 2)), t(2.5, 0.125, 0, 0.5, 1.5))
    torch.testing.assert_close(huber(t(3), delta=2.0), t(4))
    x = t(-3, -0.5, 0, 0.5, 3).requires_grad_()
    huber(x).sum().backward()
    torch.testing.assert_close(x.grad, t(-1, -0.5, 0, 0.5, 1))


def test_quantile_huber_by_hand():
    # One item, quantiles at tau 0.25 and 0.75 predicting 0 and 1, target samples 0.5 and 3.
    # Errors of the first: 0.5, 3 -> huber 0.125, 2.5, weights 0.25: mean 0.328125
    # Errors of the second: -0.5, 2 -> huber 0.125, 1.5, weights 0.25, 0.75: mean 0.578125
    loss = quantile_huber(t(0, 1)[None], t(0.5, 3)[None], t(0.25, 0.75))
    torch.testing.assert_close(loss, t(0.90625))
    same = quantile_huber(t(0, 1)[None], t(0.5, 3)[None], t(0.25, 0.75)[None])
    torch.testing.assert_close(same, loss)
    # Of masses 1/4 and 3/4: each target counts for half, and for one and a half, as much.
    uneven = quantile_huber(t(0, 1)[None], t(0.5, 3)[None], t(0.25, 0.75), 1.0, t(0.25, 0.75)[None])
    ends = [quantile_huber(t(0, 1)[None], t(y)[None], t(0.25, 0.75)) for y in (0.5, 3)]
    torch.testing.assert_close(uneven, 0.25 * ends[0] + 0.75 * ends[1])
    even = quantile_huber(t(0, 1)[None], t(0.5, 3)[None], t(0.25, 0.75), 1.0, t(0.5, 0.5)[None])
    torch.testing.assert_close(even, loss)
    # Summed over predicted quantiles, averaged over targets: a doubled target changes nothing.
    doubled = quantile_huber(t(0, 1)[None], t(0.5, 3, 0.5, 3)[None], t(0.25, 0.75))
    torch.testing.assert_close(doubled, loss)
    with pytest.raises(ValueError, match="tau has shape"):
        quantile_huber(torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(3))


def test_approx_kl_is_never_negative():
    assert (approx_kl(torch.linspace(-3, 3, 101)) >= 0).all()
    assert approx_kl(t(0)).item() == 0


def test_normalize_advantages_by_hand():
    # mean 2, unbiased std sqrt(((1)^2 + 0 + 1^2) / 2) = 1
    torch.testing.assert_close(normalize_advantages(t(1, 2, 3)), t(-1, 0, 1))
    weighted = normalize_advantages(t(1, 2, 3, 99), t(1, 1, 1, 0))
    torch.testing.assert_close(weighted, t(-1, 0, 1, 0))
    # eps joins the standard deviation, not the variance: equal advantages become 0.
    torch.testing.assert_close(normalize_advantages(t(5, 5)), t(0, 0))


def test_normalize_advantages_of_a_single_item():
    torch.testing.assert_close(normalize_advantages(t(7)), t(7))
    torch.testing.assert_close(normalize_advantages(t(7, 99), t(1, 0)), t(7, 0))
    torch.testing.assert_close(normalize_advantages(t(7, 99), t(0, 0)), t(0, 0))


def test_steps_of_others_count_in_the_mean_alone():
    # The third step was not the policy's, the fourth is not a transition.
    rows = (t(1, 3, 9, 99), t(2, 4, 6, 99), t(1, 1, 1, 0), t(1, 1, 0, 1))
    advantage, entropy = policy_terms(*rows, normalize=False)
    torch.testing.assert_close(advantage[:3], t(1, 3, 0))
    assert entropy.item() == 2  # (2 + 4 + 0) / 3
    # Of 1 and 3 alone: mean 2, deviation sqrt(2)
    advantage, entropy = policy_terms(*rows, normalize=True)
    torch.testing.assert_close(advantage, t(-1, 1, 0, 0) / math.sqrt(2))
    assert entropy.item() == 2


@pytest.mark.parametrize("normalize", [False, True])
def test_without_weights_every_step_is_the_policy_s(normalize):
    rows, ones = (t(1, 3, 8), t(2, 4, 6)), (t(1, 1, 1), t(1, 1, 1))
    found = policy_terms(*rows, None, None, normalize=normalize)
    expected = policy_terms(*rows, *ones, normalize=normalize)
    torch.testing.assert_close(found, expected)


def test_explained_variance_by_hand():
    # Var[target] = 2/3, residuals (0, 0, 1): variance 2/9 -> 1 - 1/3
    value = explained_variance(t(1, 2, 2), t(1, 2, 3))
    assert value.item() == pytest.approx(2 / 3)
    assert explained_variance(t(1, 2, 3), t(1, 2, 3)).item() == 1
    assert explained_variance(t(1, 2), t(5, 5)).item() == 0
    arrays = np.array([[1.0, 2.0, 2.0]]), np.array([[1.0, 2.0, 3.0]])
    assert explained_variance(*arrays).item() == pytest.approx(2 / 3)
    assert explained_variance(t(1, 9, 3), t(1, 2, 3), t(1, 0, 1)).item() == 1


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"target has shape \(3, 1\)"):
        value_loss(torch.zeros(3), torch.zeros(3, 1))
    with pytest.raises(ValueError, match="advantage has shape"):
        ppo_policy_loss(torch.zeros(3), torch.zeros(3), torch.zeros(3, 1), 0.2)
    with pytest.raises(ValueError, match="weight has shape"):
        weighted_mean(torch.zeros(3), torch.zeros(2))


def test_losses_trace_with_their_gradients(assert_traces):
    torch.manual_seed(0)

    def batch():
        return (torch.randn(6), torch.randn(6), torch.randn(6), (torch.rand(6) < 0.7).float())

    def ppo(log_prob, old, advantage, weight):
        log_prob = log_prob.detach().requires_grad_()
        advantage = normalize_advantages(advantage, weight)
        result = ppo_policy_loss(log_prob, old, advantage, 0.2, weight)
        return (*result, *torch.autograd.grad(result.loss, log_prob))

    def value(v, old, target, weight):
        v = v.detach().requires_grad_()
        loss = value_loss(v, target, weight, old_value=old, clip=0.2)
        return (loss, *torch.autograd.grad(loss, v))

    def others(a, b, _, weight):
        x = a.detach().requires_grad_()
        loss = weighted_mean(huber(x - b), weight) + explained_variance(x, b, weight)
        loss = loss + quantile_huber(x.reshape(2, 3), b.reshape(2, 3), t(0.2, 0.5, 0.8)).sum()
        return (loss, *torch.autograd.grad(loss, x))

    for fn in (ppo, value, others):
        assert_traces(fn, batch(), batch())
