"""Decision Transformer (Chen et al. 2021, arXiv:2106.01345), for Box and Discrete actions.

Supervised learning of actions given the return that followed them: a causal transformer sees the
last K steps as (return to go, observation, action). To act, it is asked for a return
(`target_return`); after each step the reward is subtracted from what is still to go.

Deviations: no dropout; the GELU in place of a ReLU. Returns are divided by the largest one of the
data, where the paper has a constant for each environment. Discrete actions are taken greedily,
where the paper samples. Padding carries the timestep 0 and is hidden from attention.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import DatasetSettings, NormalizeObsSettings, Unused
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, action_mask, pack, tree_map, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.decision import DecisionNetwork, ReturnRange
from assay.networks.heads import ActionScale
from assay.optim.rules import AdamW
from assay.optim.update import Objective
from assay.policies.heads import DeterministicHead, GreedyHead, Head


@register(
    loop="offline",
    actions=("Box", "Discrete"),
    family="imitation",
    paper="arXiv:2106.01345",
    traits=("memory", "returns"),
)
class DT(Algorithm):
    """Imitation given a return: ask for a high one. For data of mixed quality with long returns."""

    acting_settings = frozenset({"target_return"})

    class Hyperparameters(NormalizeObsSettings, DatasetSettings):
        """Settings of DT."""

        lr: Schedule = Field(constant(1e-4), description="Learning rate or schedule.")
        max_grad_norm: float | None = Field(0.25, gt=0, description="Global gradient clip.")
        batch_size: int = Field(64, gt=0, description="Sequences per gradient step.")
        normalize_obs: bool = Field(True, description="Standardise float observations.")
        context: int = Field(20, gt=0, description="Steps that are seen: K of the paper.")
        width: int = Field(128, gt=0, description="Width of the transformer.")
        layers: int = Field(3, gt=0, description="Layers of the transformer.")
        heads: int = Field(1, gt=0, description="Attention heads, which divide the width.")
        max_timestep: int = Field(
            1000, gt=0, description="Steps of an episode that are told apart."
        )
        weight_decay: float = Field(1e-4, ge=0, description="Decay of the weights (AdamW).")
        warmup: int = Field(10_000, ge=0, description="Updates in which lr rises to its value.")
        target_return: float | None = Field(
            None,
            allow_inf_nan=False,
            description="Return to ask for when acting; null: the best of the data.",
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the discount: a return to go is a plain sum."""
            yield "gamma", "because returns to go are not discounted"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        self.continuous = isinstance(spaces.action, Box)
        self.returns = ReturnRange(hp.target_return)
        if self.continuous:
            self.scale = ActionScale(spaces.action).to(self.device)
            head: Head = DeterministicHead(spaces.action, lambda: 0.0)
        else:
            self.distribution = policy_distribution(spaces.action)
            head = GreedyHead(spaces.action, None)
        self.net = DecisionNetwork(
            spaces.observation,
            spaces.action,
            width=hp.width,
            layers=hp.layers,
            heads=hp.heads,
            context=hp.context,
            max_timestep=hp.max_timestep,
            returns=self.returns,
        ).to(self.device)
        rule = AdamW(max_grad_norm=hp.max_grad_norm, weight_decay=hp.weight_decay, warmup=hp.warmup)
        self.step = self.make_step([Objective("dt", self.net, self._loss, rule)])
        self.policy = self.make_policy(self.net, head)

    def update(self, data: Any) -> None:
        """Take one gradient step on sequences of the dataset."""
        if not self.returns.known:
            self.returns.see(data.dataset.returns_to_go, data.dataset.returns)
        drawn = data.sample_sequences(self.hp.batch_size, self.hp.context, returns_to_go=True)
        # obs: [B * K, ...]; the rest: [B, K, ...]
        obs = tree_map(lambda part: part[:, :-1].flatten(0, 1), drawn.obs)
        if self.obs_norm is not None:
            obs = self.obs_norm.normalize_torch(obs)
        action = self.scale.to_unit(drawn.action) if self.continuous else drawn.action
        batch = pack("obs", obs) | {
            "action": action,
            "returns": drawn.extras["return_to_go"] / self.returns.scale,
            "timestep": drawn.extras["timestep"],
            "valid": drawn.valid,
        }
        self.step(batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, action, valid = unpack("obs", batch), batch["action"], batch["valid"]
        predicted = self.net(obs, action, batch["returns"], batch["timestep"], valid)
        if self.continuous:
            # L = E[(mu(R, s, a before) - a)^2], the mean over steps and parts of an action
            error = (predicted - action.flatten(0, 1).flatten(1)).square().mean(1)
        else:
            # L = -E[log pi(a | R, s, a before)]
            error = -self.distribution.log_prob(predicted, action.flatten(0, 1), action_mask(obs))
        known = valid.flatten()
        return (error * known).sum() / known.sum(), {}
