"""From NumPy trees to tensors on a device."""

from __future__ import annotations

import numpy as np
import torch

from assay.core.types import Tree, tree_map


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Return the arrays of a tree as tensors on a device; on a CPU they share memory."""
    return tree_map(lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(device), tree)
