"""PAIRED (Dennis et al. 2020, arXiv:2012.02096): an agent and the mazes that it is trained in.

A generator draws mazes, and two agents play each of them for a rollout. With U the undiscounted
return of an episode, the generator is rewarded with the regret

    max(0, max U(antagonist) - mean U(protagonist))            (algorithm 1; estimated per maze)

over the episodes that ended in the rollout, so that it draws what the protagonist cannot do and the
antagonist can. What is kept, evaluated and exported is the protagonist. All three learn by PPO.

Controls: `adversary=minimax` rewards the generator with minus the protagonist's mean return, and
`adversary=random` draws uniformly; in both the protagonist plays all environments.

Deviations: the regret is cut off at 0, as in the code of Jiang et al. 2021 (arXiv:2110.02439).
Start and goal are drawn first and cannot be covered. The generator is an MLP that sees the whole
drawing and learns from whole drawings (gamma and lambda 1), and all agents are without memory.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.settings import Unused
from assay.algorithms.shared.advantages import rollout_values
from assay.algorithms.shared.proximal import (
    clipped_loss,
    flat_batch,
    rollout_advantages,
    run_epochs,
    updates_per_rollout,
)
from assay.algorithms.shared.proximal_settings import ProximalSettings
from assay.buffers.rollout import Rollout
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import ACTION_MASK, Action, Spaces, Tree, pack, tree_map
from assay.functional.distributions import Distribution, policy_distribution
from assay.functional.mazes import Canvas, Gallery, Levels
from assay.networks.actor_critic import ActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective, Step
from assay.policies.heads import StochasticHead
from assay.policies.policy import Policy

_NOISE = 8  # numbers that the generator is shown so that mazes can differ


@register(
    loop="on_policy",
    actions=("Discrete",),
    family="policy-gradient",
    paper="arXiv:2012.02096",
    traits=("designs",),
)
class PAIRED(Algorithm):
    """PPO in mazes that a generator draws for it. No gain over random ones is shown yet."""

    class Hyperparameters(ProximalSettings):
        """Settings of PAIRED."""

        adversary: Literal["paired", "minimax", "random"] = Field(
            "paired", description="What mazes are drawn for: regret, failure, or nothing."
        )
        size: int = Field(9, ge=3, description="Cells of a side; that of the environment.")
        blocks: int = Field(25, ge=0, description="Walls that the generator puts at most.")
        horizon: int = Field(256, gt=0, description="Steps of each environment in a maze.")
        generator_lr: Schedule = Field(constant(3e-4), description="The generator's rate.")
        generator_entropy: float = Field(0.01, ge=0, description="Its entropy bonus.")

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the settings of a generator where none learns."""
            if self.adversary == "random":
                for name in ("generator_lr", "generator_entropy"):
                    yield name, "with adversary=random"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        paired = hp.adversary == "paired"
        if paired and context.learns and context.num_envs % 2:
            raise ConfigError(
                f"num_envs={context.num_envs} cannot be shared by protagonist and antagonist.",
                "Choose an even number of environments, or adversary=minimax.",
            )
        # How many mazes there are: one for each environment of the protagonist.
        self.mazes = context.num_envs // 2 if paired else context.num_envs
        updates = updates_per_rollout(hp, max(self.mazes, 1)) * (2 if paired else 1)
        self.needs = hp.needs(updates=updates + (0 if hp.adversary == "random" else hp.epochs))
        self.distribution = policy_distribution(spaces.action)
        self.net = ActorCritic(spaces.observation, self.distribution, **hp.encoder()).to(
            self.device
        )
        self.step = self._make_step("protagonist", self.net)
        self.antagonist: ActorCritic | None = None
        if paired:
            other = ActorCritic(spaces.observation, self.distribution, **hp.encoder())
            self.antagonist = other.to(self.device)
            self.antagonist_step = self._make_step("antagonist", self.antagonist)
        self.canvas = _canvas_spaces(hp.size)
        self.generator: ActorCritic | None = None
        if hp.adversary != "random":
            drawing = policy_distribution(self.canvas.action)
            generator = ActorCritic(self.canvas.observation, drawing, **hp.encoder())
            self.generator = generator.to(self.device)
            self.generator_step = self._make_step("generator", self.generator, drawing)
        self.policy = self._make_policy(self.net, spaces)
        self.rival = None if self.antagonist is None else self._make_policy(self.antagonist, spaces)
        self.drawer = (
            None if self.generator is None else self._make_policy(self.generator, self.canvas)
        )
        self.gallery = Gallery()
        # Of the rollout that is collected: its mazes, and what the generator saw and did.
        self.levels: Levels | None = None
        self.drawing: list[dict[str, np.ndarray]] = []

    def _make_step(
        self, name: str, net: ActorCritic, distribution: Distribution | None = None
    ) -> Step:
        rule = Adam(eps=1e-5, max_grad_norm=self.hp.max_grad_norm)
        prefix = "" if name == "protagonist" else f"{name}_"
        loss = bound(self._loss, net, distribution or self.distribution, prefix)
        return self.make_step([Objective(name, net, loss, rule)])

    def _make_policy(self, net: ActorCritic, spaces: Spaces) -> Policy:
        self._policy_made = True
        norm = self.obs_norm if spaces is self.spaces else None
        own: dict[str, Any] = {"device": self.device, "rng": self.rng, "normalizer": norm}
        return Policy(spaces, net.actor(), StochasticHead(spaces.action), **own)

    # ------------------------------------------------------------------ drawing and playing

    def design(self) -> dict[str, np.ndarray]:
        """Draw a maze for each environment of the protagonist; the antagonist gets the same."""
        hp, cells = self.hp, self.hp.size**2
        noise = self.rng.random((self.mazes, _NOISE), dtype=np.float32)
        canvas = Canvas(self.mazes, hp.size, hp.blocks, noise)
        self.drawing = []
        for _ in range(canvas.steps):
            seen = canvas.seen()
            if self.drawer is None:
                draws = self.rng.random((self.mazes, cells))
                canvas.put(np.where(seen[ACTION_MASK] != 0, draws, -1.0).argmax(1))
                continue
            choice = self.drawer.act(seen, None, True)
            canvas.put(choice.action)
            taken = {"action": choice.action, "log_prob": choice.extras["log_prob"]}
            self.drawing.append(seen | taken)
        self.levels = canvas.levels()
        self.gallery.show(self.levels, self.clock.progress)
        return self.levels.repeated(self.num_envs // self.mazes).parameters()

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Let the protagonist act; while it trains, the antagonist in the second half."""
        if self.rival is None or not explore or self.levels is None:
            return self.policy.act(obs, carry, explore)
        halves = (slice(None, self.mazes), slice(self.mazes, None))
        one, two = (
            policy.act(tree_map(lambda x, rows=rows: x[rows], obs), None, True)
            for policy, rows in zip((self.policy, self.rival), halves, strict=True)
        )
        log_prob = np.concatenate([one.extras["log_prob"], two.extras["log_prob"]])
        return Action(np.concatenate([one.action, two.action]), None, {"log_prob": log_prob})

    def update(self, data: Rollout) -> None:
        """Update all that learn, each on its own part of the rollout."""
        assert self.levels is not None, "a rollout begins with design()"
        mean, _ = episode_returns(data.reward[:, : self.mazes], _over(data)[:, : self.mazes])
        reward = -mean  # of the generator, [M]
        if self.antagonist is not None:
            half = data.of_envs(self.mazes, data.num_envs)
            others, best = episode_returns(half.reward, _over(half))
            reward = np.maximum(best - mean, 0.0)
            self.note(regret=float(reward.mean()), antagonist_return=float(others.mean()))
            self._learn(self.antagonist, self.antagonist_step, half)
        self.note(protagonist_return=float(mean.mean()), **self.levels.statistics())
        self._learn(self.net, self.step, data.of_envs(0, self.mazes))
        if self.generator is not None:
            self._learn_to_draw(self.generator, reward)

    # ------------------------------------------------------------------ the mathematics

    def _learn(self, net: ActorCritic, step: Step, data: Rollout) -> None:
        """Do what PPO does."""
        obs, value, next_value = rollout_values(net, data, self.inputs)
        advantage, target = rollout_advantages(self, data, data.reward, value, next_value)
        batch = flat_batch(data, obs, value, advantage, target, self.device)
        run_epochs(self, step, batch, data.length * data.num_envs)

    def _learn_to_draw(self, net: ActorCritic, reward: np.ndarray) -> None:
        """Update the generator on its drawings, each of which is an episode of K steps."""
        # Arrays [K, M, ...] become [K * M, ...].
        joined = {name: np.concatenate([s[name] for s in self.drawing]) for name in self.drawing[0]}
        obs = {name: joined.pop(name) for name in ("drawn", ACTION_MASK)}
        seen = self.tensors(obs)
        with torch.no_grad():
            value = net.value(seen)
        target = torch.from_numpy(np.tile(reward, len(self.drawing)).astype(np.float32))
        target = target.to(self.device)
        progress = self.clock.progress
        numbers = {"clip": self.hp.clip(progress), "entropy_coef": self.hp.generator_entropy}
        batch = pack("obs", seen) | self.tensors(joined)
        # With gamma = lambda = 1, A_t = R - V(s_t) for all t, where R is paid at the end.
        batch |= {"value": value, "target": target, "advantage": target - value}
        batch |= {name: torch.tensor(x, device=self.device) for name, x in numbers.items()}
        for _ in range(self.hp.epochs):
            self.generator_step(batch, self.hp.generator_lr(progress))

    def _loss(
        self, net: ActorCritic, distribution: Distribution, prefix: str, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = clipped_loss(net, distribution, self.hp, batch)
        return loss, {f"{prefix}{name}": value for name, value in metrics.items()}


def episode_returns(reward: np.ndarray, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean and the largest return [N] of the episodes that ended in a rollout [T, N].

    Where none has ended, that of the one which runs counts.
    """
    sums = reward.astype(np.float64).cumsum(0)
    found = []
    for column, ends in zip(sums.T, over.T, strict=True):
        at = column[ends] if ends.any() else column[-1:]
        each = np.diff(at, prepend=0.0)
        found.append((each.mean(), each.max()))
    mean, best = np.array(found).T
    return mean, best


def _over(data: Rollout) -> np.ndarray:
    return data.terminated | data.truncated


def _canvas_spaces(size: int) -> Spaces:
    """Return what a generator sees and does."""
    cells = size**2
    drawn = gym_spaces.Box(0.0, 1.0, (3 * cells + 1 + _NOISE,), np.float32)
    seen = {"drawn": drawn, ACTION_MASK: gym_spaces.MultiBinary(cells)}
    return Spaces(gym_spaces.Dict(seen), gym_spaces.Discrete(cells))
