"""Rewards that were learned, frozen: what GAIL or AIRL found, or what preferences say."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from assay.agents import Agent
from assay.core.errors import ConfigError
from assay.core.types import Tree, tree_map
from assay.experts.episodes import load_known
from assay.experts.reward_model import FILE, LearnedReward, load_model
from assay.loops.config import RunConfig
from assay.loops.run_settings import find_run

_FIX = "Give a model of `assay prefer fit`, or a run of gail or airl."


class ImitatedReward(LearnedReward):
    """The reward that a run of GAIL or AIRL learned.

    Of AIRL it is g, without the potential; of GAIL the reward of its discriminator.

    Args:
        agent: What was loaded of the run.
        name: Of the run, for messages.
    """

    def __init__(self, agent: Agent, name: str) -> None:
        super().__init__(agent.observations, agent.actions, name)
        self.agent = agent

    def rewards(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the reward [B] of canonical observations and actions, on their device."""
        algorithm = cast(Any, self.agent.algorithm)  # on the CPU
        seen = algorithm.disc_inputs.tensors(tree_map(lambda x: x.cpu(), obs))
        found = torch.from_numpy(algorithm.learned_reward(seen, action.cpu()))
        return found.to(action.device)


def learned_reward(source: Path | str | Any) -> LearnedReward:
    """Return a reward that was learned: fitted to preferences, or by a run of GAIL or AIRL.

    Args:
        source: The directory of a model that `assay prefer fit` wrote; a run, or its directory,
            whose reward is frozen as its last checkpoint has it.

    Raises:
        ConfigError: There is neither, or the algorithm of the run learns no reward.

    Example:
        reward = assay.learned_reward("runs/my-airl")
        assay.train("ppo", lambda: reward.wrap(gym.make("Pendulum-v1", g=5.0)))
    """
    path = Path(getattr(source, "path", source)).expanduser()
    if (path / FILE).is_file():
        return load_model(path)
    place = find_run(str(path))
    if place is None:
        raise ConfigError(f"'{path}' is neither a reward model nor a run.", _FIX)
    agent, identity = load_known(place)
    if not hasattr(agent.algorithm, "learned_reward"):
        raise ConfigError(
            f"The run '{path}' is of {agent.algorithm.spec.name}, which learns no reward.", _FIX
        )
    made = ImitatedReward(agent, str(path))
    made.identity = identity
    return made


def chosen_reward(config: RunConfig) -> tuple[LearnedReward | None, dict[str, dict[str, Any]]]:
    """Return what a run learns from in place of its environment's reward, and its provenance.

    Raises:
        AssayError: There is no such reward, or it is damaged.
    """
    path = getattr(config.run, "reward_model", None)
    if path is None:
        return None, {}
    reward = learned_reward(path)
    return reward, {"reward_model": {"path": path, "sha256": reward.identity}}
