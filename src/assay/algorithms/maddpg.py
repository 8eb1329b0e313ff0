"""Multi-agent DDPG (Lowe et al. 2017, arXiv:1706.02275).

Every agent has an actor that sees what the agent sees, and a critic that sees the whole and what
all agents do. The critic learns from the agent's own reward, with the target actors of all agents;
the actor follows the critic's gradient with respect to its own action alone, the others doing what
they did. So teams, rivals and mixtures of both can be trained.

Discrete actions are one-hot to the critic. An actor's own action is then a Gumbel-softmax sample
(arXiv:1611.01144) that is one-hot forward and soft backward, and a target actor's the best one.

Deviations: Gaussian noise in place of Ornstein-Uhlenbeck (Box); agents may share networks; the
critic's view of the whole is the environment's state where it has one. The actions of agents that
are not alive are zeros to the critic. No ensembles of policies and no models of other agents.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.settings import ActorCriticSettings, PolyakSettings, Unused
from assay.algorithms.shared.central import (
    central_state,
    central_width,
    member_codes,
    one_hot,
    per_agent,
    unfold,
)
from assay.buffers.replay_protocol import Replay
from assay.core.errors import SpaceError
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import (
    AGENT_REWARD,
    AGENT_TERMINATED,
    ALIVE,
    Batch,
    Problem,
    Spaces,
    Tree,
    action_mask,
    unpack,
)
from assay.functional import losses, targets
from assay.functional.distributions import mask_logits
from assay.functional.layout import box_scale
from assay.networks.encoders import make_encoder
from assay.networks.mlp import mlp
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak
from assay.policies.heads import DeterministicHead, Head, StochasticHead
from assay.policies.team import Crew, Sharing, TeamPolicy, make_crews, team_of


@register(
    loop="off_policy",
    actions=("MultiDiscrete", "Box"),
    family="multi-agent",
    paper="arXiv:1706.02275",
    agents="many",
    traits=("central",),
)
class MADDPG(Algorithm):
    """DDPG whose critics see all agents. For Box actions, rivals, and few samples."""

    class Hyperparameters(PolyakSettings, ActorCriticSettings):
        """Settings of MADDPG."""

        max_grad_norm: float | None = Field(0.5, gt=0, description="Global gradient clip.")
        gamma: float = Field(0.95, ge=0, le=1, description="Discount.")
        lr: Schedule = Field(constant(5e-4), description="Learning rate or schedule.")
        tau: float = Field(0.01, gt=0, le=1, description="Polyak rate of the targets.")
        hidden: tuple[int, ...] = Field((64, 64), description="Widths of the hidden layers.")
        sharing: Sharing = Field(
            "none", description="Who shares networks: all, each type, or none."
        )
        agent_id: bool = Field(True, description="Tell a shared network which agent acts.")
        action_noise: float = Field(
            0.1, ge=0, description="Exploration noise, in units of the action scale (Box)."
        )
        temperature: float = Field(1.0, gt=0, description="Gumbel-softmax temperature (Discrete).")
        logit_penalty: float = Field(
            1e-3, ge=0, description="Weight of the actors' squared outputs before any squashing."
        )

        @classmethod
        def fitted(cls, problem: Problem, given: Any) -> dict[str, Any]:
            """Return a replay that holds the run; more updates per step were not measured."""
            return super().fitted(problem, {"updates": 1, **given})

        def unused(self, spaces: Spaces) -> Unused:
            """Yield what is of no use with these actions, or with several agents."""
            yield "n_step", "with several agents: each return is one step long"
            if self.sharing == "none":
                yield "agent_id", "with sharing=none"
            if isinstance(spaces.action, Box):
                yield "temperature", "because actions are a Box"
            else:
                yield "action_noise", "because actions are choices, which are sampled"

    policy: TeamPolicy  # type: ignore[assignment]

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        if isinstance(spaces.action, Box) and not spaces.action.is_bounded():
            raise SpaceError(
                f"maddpg scales actions to their bounds; {spaces.action} has none.",
                "Give all agents finite bounds, or use ippo or mappo.",
            )
        self.needs = hp.needs()
        self.crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        self.joint = team_of(spaces).size * self.crews[0].most
        actors, critics = [], []
        for crew in self.crews:
            encoder = make_encoder(crew.spaces.observation, **hp.encoder(), init="torch")
            actors.append(nn.Sequential(encoder, mlp((encoder.out_features, _outputs(crew)))))
            width = central_width(spaces) + self.joint + crew.size
            critics.append(mlp((width, *hp.hidden, 1), hp.activation, init="torch"))
        self.actors = nn.ModuleList(actors).to(self.device)
        self.critics = nn.ModuleList(critics).to(self.device)
        self.target_actors = copy.deepcopy(self.actors)
        self.target_critics = copy.deepcopy(self.critics)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        # All critics learn first: every actor then follows one that has seen the batch.
        self.step = self.make_step(
            [
                Objective(f"{kind}_{crew.name}", nets[i], bound(loss, i), rule)
                for kind, nets, loss in (
                    ("critic", self.critics, self._critic_loss),
                    ("actor", self.actors, self._actor_loss),
                )
                for i, crew in enumerate(self.crews)
            ],
            polyak=[
                Polyak(target, source, hp.tau)
                for pair in (
                    (self.target_actors, self.actors), (self.target_critics, self.critics)
                )
                for target, source in zip(*pair, strict=True)
            ],
        )  # fmt: skip
        discrete = self.crews[0].discrete
        heads: list[Head] = [
            StochasticHead(crew.spaces.action, log_prob=False)
            if discrete
            else DeterministicHead(crew.spaces.action, lambda: hp.action_noise)
            for crew in self.crews
        ]
        networks = [
            net if discrete else nn.Sequential(*net.children(), nn.Tanh()) for net in self.actors
        ]
        self.policy = self.make_team_policy(self.crews, networks, heads)

    def update(self, data: Replay[Batch]) -> None:
        """Move critics, actors and targets by one step on a replay batch."""
        sample = data.sample(self.hp.batch_size)
        batch = self.replay_tensors(sample)
        batch["taken"] = self._taken(unpack("obs", batch), batch.pop("action"))
        batch[AGENT_REWARD] = sample.extras[AGENT_REWARD]
        batch[AGENT_TERMINATED] = sample.extras[AGENT_TERMINATED].to(torch.float32)
        shape = (self.hp.batch_size, team_of(self.spaces).size, self.crews[0].most)
        if self.crews[0].discrete:
            gumbel = self.rng.gumbel(size=shape).astype("float32")
            batch["gumbel"] = torch.from_numpy(gumbel).to(self.device)
        hp, progress, count = self.hp, self.clock.progress, len(self.crews)
        rates = [(hp.critic_lr or hp.lr)(progress)] * count + [hp.lr(progress)] * count
        self.step(batch, rates)

    # ------------------------------------------------------------------ the mathematics

    def _taken(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the actions that were taken [B, A, most]: one-hot, or in the unit box."""
        parts = []
        for crew in self.crews:
            own = crew.actions(action)
            if crew.discrete:
                own = one_hot(own, int(crew.spaces.action.n))
            else:
                scale = box_scale(crew.spaces.action)
                center, half_width = (torch.from_numpy(x).to(self.device) for x in scale)
                own = (own - center) / half_width
            parts.append(_padded(crew, own))
        return unfold(self.crews, parts) * obs[ALIVE].unsqueeze(2)

    def _targets(self, obs: Tree) -> Tensor:
        """Return what the target actors of all agents do [B, A, most]."""
        parts = []
        for crew, actor in zip(self.crews, self.target_actors, strict=True):
            seen = crew.see(obs)
            out = actor(seen)
            if crew.discrete:
                best = mask_logits(out, action_mask(seen)).argmax(1)
                out = one_hot(best, out.shape[1])
            else:
                out = out.tanh()
            parts.append(_padded(crew, out))
        return unfold(self.crews, parts) * obs[ALIVE].unsqueeze(2)

    def _q(self, net: nn.Module, crew: Crew, obs: Tree, joint: Tensor) -> Tensor:
        """Return Q [B * k] of joint actions, [B, A, most] or one for each row [B * k, A, most]."""
        rows = len(obs[ALIVE])
        flat = joint.flatten(1)
        if len(flat) == rows:
            flat = per_agent(crew, flat)
        codes = member_codes(crew, rows, flat.device)
        whole = per_agent(crew, central_state(obs))
        return net(torch.cat([whole, flat, codes], 1)).squeeze(1)

    def _critic_loss(self, i: int, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        crew = self.crews[i]
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        q = self._q(self.critics[i], crew, obs, batch["taken"])
        with torch.no_grad():
            ahead = self._q(self.target_critics[i], crew, next_obs, self._targets(next_obs))
            # y_i = r_i + gamma (1 - out_i) Q_i'(x', mu_1'(o_1'), ..., mu_A'(o_A'))
            out = torch.maximum(batch[AGENT_TERMINATED], batch["terminated"].unsqueeze(1))
            discount = per_agent(crew, batch["discount"])
            y = targets.td_target(crew.fold(batch[AGENT_REWARD]), discount, crew.fold(out), ahead)
        # Also where the agent does not act: what it gets on others' turns is for its own.
        return (q - y).square().mean(), {f"q_{crew.name}": q.mean()}

    def _actor_loss(self, i: int, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        crew, obs = self.crews[i], unpack("obs", batch)
        seen = crew.see(obs)
        out = self.actors[i](seen)  # [B * k, n]
        if crew.discrete:
            logits = mask_logits(out, action_mask(seen))
            noise = crew.fold(batch["gumbel"])[:, : logits.shape[1]]
            soft = ((logits + noise) / self.hp.temperature).softmax(1)
            hard = one_hot(soft.argmax(1), soft.shape[1])
            own = hard - soft.detach() + soft  # one-hot forward, soft backward
        else:
            own = out.tanh()
        # a_i = mu_i(o_i); the other agents do what they did
        joint = per_agent(crew, batch["taken"])  # [B * k, A, most]
        eye = torch.eye(joint.shape[1], device=own.device)
        mine = torch.stack([eye[place] for place in crew.members]).repeat(len(obs[ALIVE]), 1)
        mine = mine.unsqueeze(2)
        own = _padded(crew, own).unsqueeze(1)
        joint = joint * (1.0 - mine) + own * mine
        q = self._q(self.critics[i], crew, obs, joint)
        alive = crew.fold(obs[ALIVE]).to(torch.float32)
        penalty = losses.weighted_mean(out.square().mean(1), alive)
        return -losses.weighted_mean(q, alive) + self.hp.logit_penalty * penalty, {}


def _outputs(crew: Crew) -> int:
    return int(crew.spaces.action.n) if crew.discrete else crew.spaces.action.shape[0]


def _padded(crew: Crew, own: Tensor) -> Tensor:
    """Return rows of actions, as wide as those of the agent that has most."""
    return F.pad(own, (0, crew.most - own.shape[1]))
