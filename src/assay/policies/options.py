"""Acting by options: the one that was chosen goes on until it ends, then another one is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from assay.core.types import ARRIVED, DRAWN, OPTION, Action, Tree, action_mask, tree_leaves
from assay.networks.options import HALF, OptionActorCritic
from assay.policies.distributions import log_softmax
from assay.policies.forward import Forward
from assay.policies.parts import Array, ModelError
from assay.policies.policy import Policy


@dataclass(eq=False, repr=False)
class OptionPolicy(Policy):
    """A policy that carries its current option.

    Exploring, ends and choices of options are drawn, like actions. Else an option ends at the
    median of its lengths, and the most likely one follows.

    Extras of every step: `option` [N, K], what acted; `arrived` [N, K], what had acted before (0
    at the start of an episode); `drawn` [N], 1 where the policy over options chose; and, exploring,
    `option_log_prob` [N] of its choice, 0 where it made none.
    """

    network: OptionActorCritic

    def __post_init__(self) -> None:
        """Prepare both levels to be called on NumPy arrays."""
        super().__post_init__()
        network = self.network
        self._levels = Forward(nn.Sequential(network.encoder, network.head), self.device)
        self._eye = np.eye(network.options, dtype=np.float32)

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose actions for N canonical observations (NumPy in, NumPy out)."""
        rng, rows = self.rng if explore else None, len(tree_leaves(obs)[0])
        seen = obs if self.normalizer is None else self.normalizer.normalize(obs)
        k, width = self.network.options, self.network.width
        raw = self._levels.call(seen)  # [N, K (m + 2)]
        policies, termination, choice = np.split(raw, [k * width, k * (width + 1)], axis=1)
        before = carry["option"]
        ends = (_sigmoid(termination) * before).sum(1)
        extras: dict[str, Array] = {}
        if rng is None:
            ended = 1.0 - (1.0 - carry["ended"]) * (1.0 - ends)
            new, chosen = ended > HALF, choice.argmax(1)
        else:
            ended = carry["ended"]
            new = rng.random(rows, dtype=np.float32) < ends
            # argmax of logits and Gumbel noise is a draw from the softmax.
            noise = np.maximum(rng.standard_exponential((rows, k), dtype=np.float32), 1e-30)
            chosen = (choice - np.log(noise)).argmax(1)
        new = new | ~before.any(1)
        option = np.where(new[:, None], self._eye[chosen], before)
        if rng is not None:
            picked = (log_softmax(choice) * option).sum(1)
            extras["option_log_prob"] = np.where(new, picked, np.float32(0.0))
        params = self._params_of(policies.reshape(rows, k, width), option)
        action, more = self.head.choose(lambda: params, rows, action_mask(obs), rng)
        extras |= {OPTION: option, ARRIVED: before, DRAWN: new.astype(np.float32)}
        after = {"ended": np.where(new, np.float32(0.0), ended), "option": option}
        return Action(action, after, extras | more)

    def _params_of(self, policies: Array, option: Array) -> Array:
        """Return the parameters [N, P] of the policies of current options."""
        network = self.network
        own: Array = np.einsum("nkm,nk->nm", policies, option)
        if not network.gaussian:
            return own
        half_width = network.half_width.cpu().numpy()
        mean = own * half_width + network.center.cpu().numpy()
        log_std = option @ network.log_std.detach().cpu().numpy() + np.log(half_width)
        return np.concatenate([mean, log_std], 1)

    def meter(self, n: int) -> OptionMeter:
        """Return what measures the levels over one episode in each of n rows."""
        return OptionMeter(self.network.options, n)

    def snapshot(self, algorithm: str, **options: Any) -> Any:
        """Refuse: a model file has no place for options.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"The policy of '{algorithm}' chooses among options, which clients cannot run.",
            "Export it (assay export RUN): the current option is then an input and an output.",
        )


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # which cannot overflow


class OptionMeter:
    """What options did, by episode: the steps of each of K in n rows, and how many were chosen."""

    def __init__(self, k: int, n: int) -> None:
        self.steps, self.chosen = np.zeros((n, k)), np.zeros(n)

    def add(self, step: Any) -> None:
        """See one step of all rows, a `PlayedStep`."""
        self.steps += step.extras[OPTION] * step.playing[:, None]
        self.chosen += step.extras[DRAWN] * step.playing

    def columns(self) -> dict[str, Array]:
        """Return the shares, lengths and ends of each row, [n]."""
        length = np.maximum(self.steps.sum(1), 1)
        shares = {f"option_{k}_share": taken / length for k, taken in enumerate(self.steps.T)}
        # The first choice of an episode ends nothing, and before the first step nothing can end.
        ends = (self.chosen - 1) / np.maximum(length - 1, 1)
        chosen = np.maximum(self.chosen, 1)
        return {**shares, "option_length": length / chosen, "termination_rate": ends}
