"""Return distributions of atoms: fixed ones with probabilities (C51), or learned quantiles."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.functional.checks import check_rank, check_same_shape
from assay.functional.targets import mask_values


def action_atoms(atoms: Tensor, action: Tensor) -> Tensor:
    """Return the atoms [B, K] of one action per item.

    Args:
        atoms: [B, A, K].
        action: [B].
    """
    check_rank(3, atoms=atoms)
    check_rank(1, action=action)
    index = action.long().reshape(-1, 1, 1).expand(-1, 1, atoms.shape[2])
    return atoms.gather(1, index).squeeze(1)


def greedy_atoms(values: Tensor, atoms: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the atoms [B, K] of the valid action that `values` prefers.

    Args:
        values: [B, A], which choose: the online network's where actions are chosen double.
        atoms: [B, A, K] of the target network.
        mask: [B, A] of valid actions, or None.
    """
    check_rank(2, values=values)
    return action_atoms(atoms, mask_values(values, mask).argmax(dim=1))


def atom_targets(reward: Tensor, discount: Tensor, terminated: Tensor, atoms: Tensor) -> Tensor:
    """Return r + discount (1 - terminated) z [B, K], where the Bellman operator moves each atom.

    Args:
        reward: [B], the (n-step) reward.
        discount: [B], gamma^k of the k steps really taken.
        terminated: [B], bool or float. A truncation keeps its bootstrap.
        atoms: [B, K], or [K] for all items.
    """
    check_rank(1, reward=reward)
    check_same_shape(reward=reward, discount=discount, terminated=terminated)
    scale = discount * (1.0 - terminated.to(reward.dtype))
    return reward.unsqueeze(1) + scale.unsqueeze(1) * atoms


def project_categorical(places: Tensor, mass: Tensor, support: Tensor) -> Tensor:
    """Return mass on a fixed support [B, K] with the mean of mass at any places (arXiv:1707.06887).

    Each place gives its mass to its two neighbours in the support, by nearness; places outside
    give all of it to the nearest end.

    Args:
        places: [B, J].
        mass: [B, J], non-negative.
        support: [K], evenly spaced and rising.
    """
    check_rank(2, places=places)
    check_same_shape(places=places, mass=mass)
    check_rank(1, support=support)
    low, high = support[0], support[-1]
    spacing = (high - low) / (support.shape[0] - 1)
    # b = (clip(Tz) - v_min) / dz, in [0, K - 1]
    b = (places.clamp(low, high) - low) / spacing
    # Atom i takes the share max(0, 1 - |b - i|). With floor and ceiling, a b that is whole would
    # lose its mass; and sums in a fixed order are the same on every run, unlike scattered ones.
    atom = torch.arange(support.shape[0], dtype=b.dtype, device=b.device)
    share = (1.0 - (b.unsqueeze(2) - atom).abs()).clamp(min=0.0)  # [B, J, K]
    return torch.bmm(mass.unsqueeze(1), share).squeeze(1)


def categorical_kl(target: Tensor, logits: Tensor) -> Tensor:
    """Return KL(target || softmax(logits)) [B].

    Its gradient is that of the cross-entropy, but it is 0 where the two agree.

    Args:
        target: [B, K], probabilities without gradient; zeros are allowed.
        logits: [B, K], with gradient.
    """
    check_same_shape(target=target, logits=logits)
    # sum m log m - m log p, with 0 log 0 = 0
    entropy = torch.special.xlogy(target, target)
    return (entropy - target * logits.log_softmax(dim=1)).sum(dim=1)


def quantile_midpoints(count: int, device: torch.device | None = None) -> Tensor:
    """Return the levels (2i - 1) / 2N, i = 1..N, that N quantiles stand for (arXiv:1710.10044).

    Example:
        >>> quantile_midpoints(4).tolist()
        [0.125, 0.375, 0.625, 0.875]
    """
    return (torch.arange(count, dtype=torch.float32, device=device) + 0.5) / count
