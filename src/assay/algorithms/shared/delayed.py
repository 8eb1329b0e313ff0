"""What algorithms share whose actor and targets move less often than their critics (TD3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak, Step

Loss = Callable[[dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]


def delayed_steps(algorithm: Any, critic_loss: Loss, actor_loss: Loss) -> tuple[Step, Step]:
    """Return the step of the critics alone, and the one of critics, actor and targets.

    `algorithm` has `actor`, `critic`, `target_actor` and `target_critic`, and the settings of
    `SmoothingSettings` with `tau`.
    """
    hp, rule = algorithm.hp, Adam(max_grad_norm=algorithm.hp.max_grad_norm)
    critic = Objective("critic", algorithm.critic, critic_loss, rule)
    actor = Objective("actor", algorithm.actor, actor_loss, rule)
    soft = [
        Polyak(algorithm.target_critic, algorithm.critic, hp.tau),
        Polyak(algorithm.target_actor, algorithm.actor, hp.tau),
    ]
    first = algorithm.make_step([critic])
    return first, algorithm.make_step([critic, actor], polyak=soft, share=first)
