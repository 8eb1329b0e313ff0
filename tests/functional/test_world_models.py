"""Latents, KL balancing and lambda-returns against numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from assay.functional.world_models import (
    balanced_kl,
    categorical_kl,
    lambda_returns,
    mix_uniform,
    one_hot,
    sample_one_hot,
)


def test_uniform_share_by_hand() -> None:
    logits = torch.tensor([0.0, math.log(3.0)])  # 1/4 and 3/4
    mixed = mix_uniform(logits, 0.1).exp()
    assert mixed.tolist() == pytest.approx([0.9 * 0.25 + 0.05, 0.9 * 0.75 + 0.05])
    assert mix_uniform(logits, 0.0).exp().tolist() == pytest.approx([0.25, 0.75])
    # A class that is out of the question keeps its share.
    assert mix_uniform(torch.tensor([0.0, -1e4]), 0.01).exp()[1].item() == pytest.approx(0.005)


def test_one_hot() -> None:
    assert one_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_samples_are_one_hot_with_the_gradient_of_the_probabilities() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    log_probs = mix_uniform(logits, 0.0)
    noise = torch.tensor([[0.0, 5.0, 0.0]])
    sample = sample_one_hot(log_probs, noise)
    assert sample.tolist() == [[0.0, 1.0, 0.0]]
    assert sample_one_hot(log_probs, None).tolist() == [[1.0, 0.0, 0.0]]
    (gradient,) = torch.autograd.grad(sample[0, 2], logits)
    p = logits.detach().softmax(-1)[0]
    # d p_2 / d l_j = p_2 (1[j = 2] - p_j)
    by_hand = [-p[2] * p[0], -p[2] * p[1], p[2] * (1 - p[2])]
    assert gradient[0].tolist() == pytest.approx([float(x) for x in by_hand], rel=1e-5)
    with torch.no_grad():  # where no gradient is asked for, the sample is the same
        assert torch.equal(sample_one_hot(log_probs, noise), sample)


def test_samples_have_the_right_frequencies() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.tensor([0.2, 0.3, 0.5]).log().expand(20_000, 3)
    noise = -torch.empty(20_000, 3).exponential_(generator=generator).log()
    found = sample_one_hot(log_probs, noise).mean(0)
    assert found.tolist() == pytest.approx([0.2, 0.3, 0.5], abs=0.015)


def test_kl_by_hand() -> None:
    p = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()  # S = 2 choices among C = 2
    q = torch.tensor([[0.25, 0.75], [0.9, 0.1]]).log()
    by_hand = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert categorical_kl(p, q).item() == pytest.approx(by_hand)


def test_each_kl_trains_its_own_side_and_only_above_the_free_nats() -> None:
    near = torch.tensor([[0.5, 0.5]]).log()
    far = torch.tensor([[0.999, 0.001]]).log()
    posterior = torch.stack([far, near]).requires_grad_()  # [2, 1, 2]
    prior = torch.stack([torch.tensor([[0.001, 0.999]]).log(), near]).requires_grad_()
    dynamics, representation = balanced_kl(posterior, prior, 1.0)
    kl = 0.998 * math.log(999.0)
    for loss in (dynamics, representation):
        assert loss.tolist() == pytest.approx([kl, 1.0], rel=1e-5)  # 0 is raised to 1
    grads = torch.autograd.grad(dynamics.sum(), [posterior, prior], allow_unused=True)
    assert grads[0] is None
    assert grads[1] is not None and grads[1][0].abs().sum() > 0 and not grads[1][1].any()
    grads = torch.autograd.grad(representation.sum(), [posterior, prior], allow_unused=True)
    assert grads[1] is None
    assert grads[0] is not None and grads[0][0].abs().sum() > 0 and not grads[0][1].any()


def test_lambda_returns_by_hand() -> None:
    column = [[1.0], [2.0], [4.0]]
    reward = torch.tensor(column)
    discount = torch.tensor([[0.5], [0.5], [0.5]])
    value = torch.tensor([[10.0], [20.0], [40.0]])
    found = lambda_returns(reward, discount, torch.ones(3, 1), value, 0.8)
    last = 4 + 0.5 * 40
    middle = 2 + 0.5 * (0.2 * 20 + 0.8 * last)
    first = 1 + 0.5 * (0.2 * 10 + 0.8 * middle)
    assert found.flatten().tolist() == pytest.approx([first, middle, last])


def test_lambda_returns_stop_at_ends() -> None:
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    # Step 1 of the first column leads to a terminal state, that of the second is cut short.
    discount = torch.tensor([[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]])
    goes_on = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]])
    value = torch.tensor([[10.0, 10.0], [20.0, 20.0], [40.0, 40.0]])
    found = lambda_returns(reward, discount, goes_on, value, 0.8)
    assert found[1].tolist() == [2.0, 2 + 0.5 * 20]
    by_hand = [1 + 0.5 * (0.2 * 10 + 0.8 * r) for r in (2.0, 12.0)]
    assert found[0].tolist() == pytest.approx(by_hand)
