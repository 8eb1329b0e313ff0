"""Mixers of agents' values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.networks.mixing import MonotonicMixer, SumMixer


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), agents=st.integers(1, 5), state=st.integers(1, 6),
    scale=st.floats(0.1, 20.0), hidden=st.sampled_from([0, 8]),
)  # fmt: skip
def test_the_whole_never_falls_when_an_agents_value_rises(
    seed: int, agents: int, state: int, scale: float, hidden: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    mixer = MonotonicMixer(agents, state, embed=4, hidden=hidden)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    values = (scale * torch.randn(16, agents, generator=generator)).requires_grad_()
    mixer(values, torch.randn(16, state, generator=generator)).sum().backward()
    assert values.grad is not None and (values.grad >= 0).all()


def test_it_depends_on_the_state_and_can_be_negative() -> None:
    torch.manual_seed(0)
    mixer = MonotonicMixer(2, 3)
    values = torch.zeros(64, 2)
    total = mixer(values, 5 * torch.randn(64, 3))
    assert total.std() > 0.01 and (total < 0).any() and (total > 0).any()


def test_weights_do_not_grow_with_the_state() -> None:
    torch.manual_seed(0)
    mixer = MonotonicMixer(2, 3)
    state = torch.randn(64, 3)
    for made in (mixer.weights_1, mixer.bias_1, mixer.weights_2, mixer.value):
        near, far = (made(scale * state).abs().mean() for scale in (10, 10_000))
        assert far < 1.5 * near  # a thousand times without the norm


def test_the_sum_is_the_sum() -> None:
    total = SumMixer()(torch.tensor([[1.0, 2.0], [3.0, -4.0]]), torch.zeros(2, 1))
    assert total.tolist() == pytest.approx([3.0, -1.0])
