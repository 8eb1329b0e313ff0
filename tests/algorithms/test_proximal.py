"""Minibatches of a rollout."""

from __future__ import annotations

import pytest
import torch

from assay.algorithms.shared.proximal import minibatches


def test_minibatches_keep_rows_together_and_take_each_once() -> None:
    batch = {
        "x": torch.arange(12.0).reshape(6, 2), "y": torch.arange(6) * 10, "clip": torch.tensor(0.2),
    }  # fmt: skip
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    parts = list(minibatches(batch, order, 2))
    assert [part["y"].tolist() for part, _ in parts] == [[30, 0], [50, 10], [40, 20]]
    for part, index in parts:
        assert index is None and part["clip"] is batch["clip"]
        assert torch.equal(part["x"][:, 0], part["y"] / 5)
        assert all(column.is_contiguous() for column in part.values())
    assert batch["y"].tolist() == [0, 10, 20, 30, 40, 50]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_a_gpu_gathers_in_the_step() -> None:
    batch = {"y": torch.arange(6, device="cuda")}
    order = torch.tensor([3, 0, 5, 1, 4, 2], device="cuda")
    parts = list(minibatches(batch, order, 3))
    assert all(part is batch for part, _ in parts)
    assert [index.tolist() for _, index in parts if index is not None] == [[3, 0, 5], [1, 4, 2]]
