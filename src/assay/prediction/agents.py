"""Acting on rows of observations with the agent of a run, in torch where its policy needs that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.agents import load, require_one_agent
from assay.core.errors import AssayError
from assay.core.types import Tree, tree_leaves
from assay.prediction.acting import refuse_rewards


class AgentActor:
    """Acts with an agent that is loaded from a checkpoint.

    Args:
        run: The run directory.
        checkpoint: The checkpoint; None is the last one.
        rng: Explores with it; None takes the best action.

    Raises:
        ConfigError: The policy acts by the return still to reach, or is one of several agents.
    """

    def __init__(self, run: Path, checkpoint: Path | None, rng: np.random.Generator | None) -> None:
        agent = load(run, checkpoint_path=checkpoint)
        require_one_agent(agent, "assay predict")
        self.observations, self.actions = agent.observations, agent.actions
        self._policy, self._explore = agent.policy, rng is not None
        refuse_rewards(self._policy.wants_rewards)
        if rng is not None:
            self._policy.rng = rng
        self._carry = self._policy.initial_carry(1)
        self.remembers = self._carry is not None

    def act(self, obs: Tree) -> NDArray[Any]:
        """Return canonical actions [N, ...]; a memory moves on."""
        carry = self._carry if self.remembers else None
        choice = self._policy.act(obs, carry, self._explore)
        self._carry = choice.carry
        actions = np.asarray(choice.action)
        if not np.isfinite(actions).all():
            raise AssayError("The policy's output is not finite.", "Choose another checkpoint.")
        assert len(actions) == len(tree_leaves(obs)[0])
        return actions

    def reset(self) -> None:
        """Forget: an episode begins."""
        self._carry = self._policy.initial_carry(1)
