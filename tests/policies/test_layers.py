"""Layers by hand; `test_from_torch.py` compares whole networks with torch."""

import numpy as np
import pytest

from assay.policies import layers
from assay.policies.description import Entry
from assay.policies.value_layers import dueling


def array(*rows) -> np.ndarray:
    return np.array(rows, np.float32)


@pytest.mark.parametrize("n", [1, 2, 300])
def test_dense_by_hand_and_with_weights_that_change(n):
    weight, bias = array([1, 2], [3, -4]), np.array([10, 0], np.float32)
    dense = layers.DenseForward(weight, bias, layers.relu)
    x = np.tile(array([1, 1]), (n, 1))
    np.testing.assert_array_equal(dense(x), np.tile(array([13, 0]), (n, 1)))
    weight[1, 1], bias[0] = 4, -1
    np.testing.assert_array_equal(dense(x), np.tile(array([2, 7]), (n, 1)))


def test_relu_of_an_array_too_large_to_keep_zeros_for():
    x = np.full((300, 300), -1.0, np.float32)
    layers.relu(x)
    assert (x == 0).all()


def test_no_activation_warns_or_overflows_far_out():
    for activation in layers.ACTIVATIONS.values():
        x = array([-1e4, -100, 100, 1e4])
        with np.errstate(over="raise", invalid="raise"):
            activation(x)
        assert np.isfinite(x).all()


def test_flatten_by_hand():
    flatten = layers.Flatten(
        [
            Entry(key="a", width=2, scale=0.5),
            Entry(key="b", width=5, sizes=(2, 3), starts=(0, 7)),
        ]
    )
    obs = {"a": np.array([[2, 4]], np.uint8), "b": np.array([[1, 7]])}
    np.testing.assert_array_equal(flatten(obs), array([1, 2, 0, 1, 1, 0, 0]))
    assert flatten(obs).dtype == np.float32


def test_dueling_by_hand():
    value = layers.DenseForward(array([2]), np.zeros(1, np.float32))
    advantage = layers.DenseForward(array([1], [2], [6]), np.zeros(3, np.float32))
    np.testing.assert_array_equal(dueling(value, advantage)(array([1])), array([0, 1, 5]))
