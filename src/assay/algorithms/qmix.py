"""QMIX (Rashid et al. 2018, arXiv:1803.11485).

The value of all agents together is a monotonic function of the values of each, which depends on the
state: dQ_tot / dQ_a >= 0. So each agent can act by its own values alone, and together they take the
action that is best for the team, while what one agent's action is worth may depend on the others.

`memory=gru` gives every agent a memory, as the paper's have; sequences are replayed then.

Deviations: without `memory`, which is the default, agents see their last observation alone; values
are double (arXiv:1509.06461), as in the authors' code; Adam in place of RMSprop; the networks that
make the mixer's weights and biases have a hidden layer, as those of weights do in later versions of
that code, which is normalised (arXiv:1607.06450); without it values of simple_spread grew without
end. The reward is the
mean over agents; an agent that is not alive has the value 0. A memory is not shown the last action,
and its state is stored with a sequence, so that episodes may be longer than one.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.shared.central import central_width
from assay.algorithms.shared.team_values import (
    TeamQ,
    TeamValueSettings,
    learn_team_values,
    target_of,
    team_td_loss,
)
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.types import Spaces
from assay.networks.mixing import MonotonicMixer
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import GreedyHead
from assay.policies.team import TeamPolicy, make_crews, team_of


@register(
    loop="off_policy",
    actions=("MultiDiscrete",),
    family="multi-agent",
    paper="arXiv:1803.11485",
    agents="many",
    traits=("central", "first", "recall", "team"),
)
class QMIX(Algorithm):
    """Values of a team that rise with those of each agent. For teams with one goal."""

    class Hyperparameters(TeamValueSettings):
        """Settings of QMIX."""

        mixer_embed: int = Field(32, gt=0, description="Width of the mixer's hidden layer.")
        mixer_hidden: int = Field(
            64, ge=0, description="Hidden width of what makes the mixer's weights; 0 is none."
        )

    policy: TeamPolicy  # type: ignore[assignment]

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        mixer = MonotonicMixer(
            team_of(spaces).size, central_width(spaces), hp.mixer_embed, hp.mixer_hidden
        )
        self.q = TeamQ(crews, hp, mixer).to(self.device)
        self.target = target_of(self.q)
        self.auto_compiles = hp.auto_compiles()
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [Objective("q", self.q, self._loss, rule)], polyak=hp.follow(self.target, self.q)
        )
        heads = [GreedyHead(crew.spaces.action, hp.explorer(self.clock)) for crew in crews]
        self.policy = self.make_team_policy(crews, list(self.q.nets), heads)

    def update(self, data: Replay[Any]) -> None:
        """Take one gradient step on a replay batch; move the target when it is due."""
        learn_team_values(self, data)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return team_td_loss(self, batch)
