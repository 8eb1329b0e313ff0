import pytest
import torch

from assay.functional.targets import (
    action_value,
    double_q_value,
    greedy_value,
    td_target,
)

ONLINE = torch.tensor([[1.0, 3.0, 2.0], [5.0, 0.0, 1.0]])
TARGET = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])


def test_td_target_bootstraps_unless_terminated():
    next_value = torch.tensor([10.0, 10.0], requires_grad=True)
    target = td_target(
        torch.tensor([1.0, 1.0]),
        torch.tensor([0.9, 0.81]),
        torch.tensor([True, False]),
        next_value,
    )
    torch.testing.assert_close(target, torch.tensor([1.0, 9.1]))
    assert not target.requires_grad


def test_values_of_actions():
    torch.testing.assert_close(action_value(ONLINE, torch.tensor([2, 0])), torch.tensor([2.0, 5.0]))
    torch.testing.assert_close(greedy_value(ONLINE), torch.tensor([3.0, 5.0]))
    torch.testing.assert_close(double_q_value(ONLINE, TARGET), torch.tensor([20.0, 40.0]))


def test_masked_actions_are_never_greedy():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]], dtype=torch.int8)
    torch.testing.assert_close(greedy_value(ONLINE, mask), torch.tensor([2.0, 5.0]))
    torch.testing.assert_close(double_q_value(ONLINE, TARGET, mask), torch.tensor([30.0, 40.0]))


def test_values_however_low_are_above_masked_ones():
    low = torch.tensor([[-2e8, -3e8, 5.0], [-2e8, -3e8, 5.0]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert greedy_value(low, mask).tolist() == [-2e8, 5.0]
    assert double_q_value(low, low, mask).tolist() == [-2e8, 5.0]


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="next_value has shape"):
        td_target(torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="action has shape"):
        action_value(ONLINE, torch.zeros(2, 1))


def test_targets_trace(assert_traces):
    def fn(online, target, reward):
        value = double_q_value(online, target) + greedy_value(target)
        return td_target(reward, reward, reward, value)

    seen, unseen = ((torch.randn(4, 3), torch.randn(4, 3), torch.rand(4)) for _ in range(2))
    assert_traces(fn, seen, unseen)
