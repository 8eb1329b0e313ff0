import numpy as np
import pytest
import torch

from assay.functional.returns import (
    gae_numpy,
    linear_recurrence,
    linear_recurrence_numpy,
    n_step_return,
    vtrace,
)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


NO = column(0, 0, 0)


def gae(*arrays, gamma, lam, valid=None):
    """Return what the NumPy function does, as tensors."""
    numpy_valid = None if valid is None else valid.numpy()
    found = gae_numpy(*(a.numpy() for a in arrays), gamma, lam, numpy_valid)
    assert all(array.dtype == np.float32 for array in found)
    return tuple(torch.from_numpy(array) for array in found)


def test_gae_by_hand_without_done():
    # delta = r + 0.5 V' - V = (1 + 1 - 1, 2 + 1.5 - 2, 3 + 2 - 3) = (1, 1.5, 2)
    # A_2 = 2; A_1 = 1.5 + 0.25 * 2 = 2; A_0 = 1 + 0.25 * 2 = 1.5
    advantage, target = gae(
        column(1, 2, 3), column(1, 2, 3), column(2, 3, 4), NO, NO, gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantage, column(1.5, 2, 2))
    torch.testing.assert_close(target, column(2.5, 4, 5))


def test_gae_drops_the_bootstrap_only_at_a_termination():
    # Termination at t=1: delta_1 = 2 - 2 = 0, and nothing of A_2 flows back.
    advantage, _ = gae(
        column(1, 2, 3), column(1, 2, 3), column(2, 9, 4), column(0, 1, 0), NO, gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantage, column(1, 0, 2))


def test_gae_keeps_the_bootstrap_but_cuts_the_recursion_at_a_truncation():
    # Truncation at t=1 with V(s_final) = 6: delta_1 = 2 + 3 - 2 = 3, nothing of A_2 flows back.
    advantage, _ = gae(
        column(1, 2, 3), column(1, 2, 3), column(2, 6, 4), NO, column(0, 1, 0), gamma=0.5, lam=0.5
    )
    torch.testing.assert_close(advantage, column(1.75, 3, 2))


def test_gae_ignores_invalid_rows_even_if_they_hold_nan():
    nan = float("nan")
    advantage, target = gae(
        column(1, nan, 3),
        column(1, nan, 3),
        column(2, nan, 4),
        NO,
        NO,
        gamma=0.5,
        lam=0.5,
        valid=torch.tensor([[True], [False], [True]]),
    )
    torch.testing.assert_close(advantage, column(1, 0, 2))
    torch.testing.assert_close(target, column(2, 0, 5))


@pytest.mark.parametrize(("steps", "envs"), [(1, 1), (2, 3), (7, 1), (33, 5), (16, 600)])
def test_recurrences_equal_the_plain_loop(steps, envs):
    rng = np.random.default_rng(0)
    d = rng.standard_normal((steps, envs)).astype(np.float32)
    c = (rng.random((steps, envs)) * (rng.random((steps, envs)) > 0.2)).astype(np.float32)
    expected, x = np.zeros_like(d), np.zeros(envs, np.float32)
    for t in reversed(range(steps)):
        x = d[t] + c[t] * x
        expected[t] = x
    by_torch = linear_recurrence(torch.from_numpy(d), torch.from_numpy(c))
    np.testing.assert_allclose(by_torch.numpy(), expected, rtol=1e-5, atol=1e-6)
    by_numpy = linear_recurrence_numpy(d.copy(), c.copy())
    np.testing.assert_allclose(by_numpy, expected, rtol=1e-5, atol=1e-6)


def test_gae_leaves_its_inputs_alone():
    arrays = [np.ones((4, 2), np.float32) for _ in range(3)]
    flags = [np.zeros((4, 2), bool) for _ in range(2)]
    gae_numpy(*arrays, *flags, 0.9, 0.9)
    assert all((a == 1).all() for a in arrays)


def test_n_step_by_hand():
    # Two steps: G_0 = 1 + 0.5*2 + 0.25*30 = 9.5, G_1 = 2 + 0.5*3 + 0.25*40 = 13.5, and the
    # segment's end leaves one step for G_2 = 3 + 0.5*40 = 23.
    result = n_step_return(column(1, 2, 3), column(20, 30, 40), NO, NO, 0.5, 2)
    torch.testing.assert_close(result, column(9.5, 13.5, 23))


def test_n_step_stops_at_the_first_done():
    reward, next_value = column(1, 2, 3), column(20, 30, 40)
    terminated = n_step_return(reward, next_value, column(0, 1, 0), NO, 0.5, 3)
    torch.testing.assert_close(terminated, column(2, 2, 23))
    # A truncation keeps its bootstrap: G_1 = 2 + 0.5*30 = 17, G_0 = 1 + 0.5*17 = 9.5.
    truncated = n_step_return(reward, next_value, NO, column(0, 1, 0), 0.5, 3)
    torch.testing.assert_close(truncated, column(9.5, 17, 23))


def test_vtrace_by_hand():
    # Ratios (2, 0.5): rho = c = (1, 0.5). gamma = 0.5, V = (1, 2), V' = (2, 4), r = (1, 1).
    # delta_0 = 1 (1 + 1 - 1) = 1, delta_1 = 0.5 (1 + 2 - 2) = 0.5
    # v_1 = 2.5; v_0 = 1 + 1 + 0.5 * 1 * 0.5 = 2.25
    # advantage_1 = 0.5 (1 + 2 - 2) = 0.5; advantage_0 = 1 (1 + 0.5 * 2.5 - 1) = 1.25
    zero = column(0, 0)
    target, advantage = vtrace(
        column(1, 1), column(1, 2), column(2, 4), zero, zero, column(2, 0.5).log(), 0.5
    )
    torch.testing.assert_close(target, column(2.25, 2.5))
    torch.testing.assert_close(advantage, column(1.25, 0.5))


@pytest.mark.parametrize("log_ratio", [-3e38, -1e6, 1e6, 3e38])
def test_vtrace_survives_any_ratio(log_ratio: float):
    zero = column(0, 0)
    ratios = column(log_ratio, log_ratio)
    target, advantage = vtrace(column(1, 1), column(1, 2), column(2, 4), zero, zero, ratios, 0.5)
    # As with pi / mu = 0, or at its bound.
    same = column(-80, -80) if log_ratio < 0 else zero
    expected = vtrace(column(1, 1), column(1, 2), column(2, 4), zero, zero, same, 0.5)
    torch.testing.assert_close((target, advantage), expected)


def test_vtrace_bounds_and_lambda_by_hand():
    # rho_bar = 3 lets the first ratio through (2), c stays at lambda * min(1, 2) = 0.5:
    # delta_0 = 2 (1 + 1 - 1) = 2; v_0 = 1 + 2 + 0.5 * 0.5 * 0.5 = 3.125
    zero = column(0, 0)
    target, advantage = vtrace(
        column(1, 1),
        column(1, 2),
        column(2, 4),
        zero,
        zero,
        column(2, 0.5).log(),
        0.5,
        lam=0.5,
        rho_bar=3.0,
    )
    torch.testing.assert_close(target, column(3.125, 2.5))
    torch.testing.assert_close(advantage, column(2.5, 0.5))


def test_vtrace_cuts():
    one, zero = column(1, 0), column(0, 0)
    segment = (column(1, 1), column(1, 2), column(4, 4))
    # Terminated at 0: no bootstrap. delta_0 = 1 - 1 = 0.
    target, advantage = vtrace(*segment, one, zero, column(0, 0), 0.5)
    torch.testing.assert_close(target[0], torch.tensor([1.0]))
    torch.testing.assert_close(advantage[0], torch.tensor([0.0]))
    # Truncated at 0: V(s_final) = 4 in both places, and nothing of step 1.
    target, advantage = vtrace(*segment, zero, one, column(0, 0), 0.5)
    torch.testing.assert_close(target[0], torch.tensor([3.0]))
    torch.testing.assert_close(advantage[0], torch.tensor([2.0]))


def test_vtrace_on_policy_is_the_td_lambda_return_and_has_no_gradient():
    torch.manual_seed(0)
    reward, value = torch.randn(6, 3), torch.randn(6, 3, requires_grad=True)
    next_value = torch.cat([value[1:], torch.randn(1, 3)])
    no = torch.zeros(6, 3)
    target, advantage = vtrace(reward, value, next_value, no, no, no, 0.9, lam=0.7)
    arrays = reward, value.detach(), next_value.detach(), no, no
    _, expected = gae(*arrays, gamma=0.9, lam=0.7)  # V + A is that return
    torch.testing.assert_close(target, expected.detach())
    assert not target.requires_grad
    assert not advantage.requires_grad


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"reward has shape \(3,\); expected 2 axes"):
        gae(*[torch.zeros(3)] * 5, gamma=0.9, lam=0.9)
    with pytest.raises(ValueError, match=r"\(3, 1\).*\(1, 3\)"):
        gae(NO, NO, NO.T, NO, NO, gamma=0.9, lam=0.9)
    with pytest.raises(ValueError, match="n=0"):
        n_step_return(NO, NO, NO, NO, 0.9, 0)


def test_returns_trace(assert_traces):
    torch.manual_seed(0)

    def segment():
        done = torch.rand(5, 3) < 0.3
        return torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 3), done, ~done

    assert_traces(lambda *x: vtrace(*x, x[0], 0.9), segment(), segment())
    assert_traces(lambda r, _, *x: n_step_return(r, *x, 0.9, 3), segment(), segment())
