"""Fitted Q evaluation (Le et al. 2019, arXiv:1903.08738): the value of a policy from transitions.

Q is fitted to y = r + gamma (1 - d) E_{a' ~ pi} Q'(s', a'), where a' is what the evaluated policy
does, and nothing is maximised. Several members are fitted side by side, each to episodes drawn with
replacement (Hao et al. 2021, arXiv:2102.03607), so that their spread is a bootstrap over episodes.

Deviations: one network per member that is moved by gradient steps with a following target, as in
Paine et al. 2020 (arXiv:2007.09055), in place of a regression to the end per iteration. Values
begin at the mean return of the data, and targets stay within what its rewards can add up to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.core.seeding import derive_rng, derive_seed
from assay.core.types import Tree, pack, tree_map, unpack
from assay.evaluation.on_data import OnData, Recorded
from assay.functional.off_policy import returns_to_go
from assay.networks.encoders import make_encoder
from assay.networks.heads import QEnsemble, ValueEnsemble
from assay.optim.compiled_step import CompiledStep
from assay.optim.mode import UPDATES_THAT_PAY, Mode, choose_mode, has_compiler
from assay.optim.rules import Adam
from assay.optim.update import Objective, Polyak

Floats = NDArray[np.float64]

_DRAWS = 8  # actions by which the value of an observation is estimated, of a policy that samples
_AT_ONCE = 1 << 13
UPDATES = 20_000


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How Q is fitted.

    Attributes:
        updates: Gradient steps.
        members: Networks, each on episodes of its own.
        hidden: Their layers.
        batch_size: Transitions of a step.
        lr: Learning rate at the start; it falls to 0.
        tau: By how much targets follow at each step.
    """

    updates: int = UPDATES
    members: int = 5
    hidden: tuple[int, ...] = (128, 128)
    batch_size: int = 256
    lr: float = 1e-3
    tau: float = 0.02


class FittedQ:
    """Q of one policy, fitted to a dataset when it is made.

    Args:
        recorded: The data.
        policy: Who is evaluated.
        gamma: Discount, below 1.
        settings: How to fit.
        seed: Fixes initial weights, episodes and batches.
        progress: Told how many gradient steps are done, a hundred times.
    """

    def __init__(
        self,
        recorded: Recorded,
        policy: OnData,
        *,
        gamma: float,
        settings: FitSettings,
        seed: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> None:
        self.recorded, self.policy, self.gamma, self.settings = recorded, policy, gamma, settings
        self.rng = derive_rng(seed, "fitted q")
        self.discrete = isinstance(recorded.spaces.action, Discrete)
        with torch.random.fork_rng(devices=[]):  # leave the caller's generator as it was
            torch.manual_seed(derive_seed(seed, "fitted q", "weights"))
            self.net, self.coder = self._networks()
        self.target = copy.deepcopy(self.net)
        self._units = self._value_units()
        episodes, members = len(recorded.lengths), settings.members
        self.counts = np.ones((members, episodes), np.float32)  # [K, E]
        if members > 1:
            shares = np.full(episodes, 1.0 / episodes)
            self.counts[:] = self.rng.multinomial(episodes, shares, size=members)
        self._fit(progress)

    def _networks(self) -> tuple[nn.Module, nn.Module]:
        spaces, shape = self.recorded.spaces, self.settings
        options: dict[str, Any] = {"members": shape.members, "hidden": shape.hidden}
        if self.discrete:
            n = int(spaces.action.n)
            return ValueEnsemble(spaces.observation, n, **options), nn.Identity()
        coder = make_encoder(spaces.action, hidden=(), init="torch")
        return QEnsemble(spaces.observation, coder.out_features, **options), coder

    def _value_units(self) -> dict[str, Tensor]:
        """Return the values that the networks' 0 and 1 stand for, and the range of all values."""
        reward = self.recorded.reward
        returns = returns_to_go(reward, self.recorded.lengths, self.gamma)
        low, high = reward.min(), reward.max()
        horizon = 1.0 / (1.0 - self.gamma)
        numbers = {
            "mean": returns.mean(),
            "scale": returns.std() or 1.0,
            "low": min(low, low * horizon),
            "high": max(high, high * horizon),
        }
        return {name: torch.tensor(float(value)) for name, value in numbers.items()}

    def _fit(self, progress: Callable[[int], None]) -> None:
        shape = self.settings
        step = CompiledStep(
            [Objective("q", self.net, self._loss, Adam())],
            reads=[] if self.discrete else [self.coder],
            polyak=[Polyak(self.target, self.net, shape.tau)],
            mode=_mode(shape.updates),
            key=f"fitted q {self.discrete} {shape.hidden} {self.recorded.spaces!r}",
        )
        often = max(1, shape.updates // 100)
        for done in range(shape.updates):
            if done % often == 0:
                progress(done)
            index = self.rng.integers(len(self.recorded), size=shape.batch_size)
            step(self._batch(index), shape.lr * (1.0 - done / shape.updates))

    def _batch(self, index: NDArray[np.int64]) -> dict[str, Tensor]:
        recorded = self.recorded
        rows = recorded.buffer.batch(index)
        normalize = recorded.obs_norm.normalize_torch
        after = recorded.row_of(index) + 1
        weight = self.counts[:, recorded.dataset.episode_of(index)].T.copy()  # [B, K]
        return {
            **pack("obs", normalize(rows.obs)),
            **pack("next_obs", normalize(rows.next_obs)),
            "action": self._actions(recorded.action[index]),
            "next": self._choice(after),
            "reward": rows.reward,
            "discount": self.gamma * (1.0 - rows.terminated),
            "weight": torch.from_numpy(weight),
            **self._units,
        }

    def _choice(self, rows: NDArray[np.int64]) -> Tensor:
        """Return what the policy does at rows: probabilities of all actions, or one action."""
        if self.discrete:
            return torch.from_numpy(self.policy.probabilities(rows))
        return self._actions(self.policy.draw(rows, self.rng))

    def _actions(self, action: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.asarray(self.recorded.action_norm.normalize(action)))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        mean, scale = batch["mean"], batch["scale"]
        with torch.no_grad():
            # y = r + gamma (1 - d) E_pi Q'(s', a')
            next_q = mean + scale * self._value(self.target, batch, "next_obs", "next")
            next_q = next_q.clamp(batch["low"], batch["high"])
            y = (batch["reward"] + batch["discount"] * next_q - mean) / scale  # [K, B]
        q = self._of_action(self.net, batch)
        return (batch["weight"].T * (q - y).square()).mean(1).sum(), {}

    def _value(self, net: nn.Module, batch: dict[str, Tensor], obs: str, choice: str) -> Tensor:
        """Return E_pi Q [K, B] in the networks' units."""
        seen: Tree = unpack(obs, batch)
        if self.discrete:
            return (net(seen) * batch[choice]).sum(-1)
        return net(seen, self.coder(batch[choice]))

    def _of_action(self, net: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        """Return Q [K, B] of the actions that were taken, in the networks' units."""
        seen: Tree = unpack("obs", batch)
        if not self.discrete:
            return net(seen, self.coder(batch["action"]))
        every = net(seen)  # [K, B, A]
        at = batch["action"].long().view(1, -1, 1).expand(every.shape[0], -1, 1)
        return every.gather(2, at).squeeze(2)

    # What was fitted

    def start_values(self) -> tuple[Floats, Floats]:
        """Return V of the first observations [K, E], and the estimate of each member [K]."""
        steps = np.cumsum(self.recorded.lengths) - self.recorded.lengths
        found = [
            self._values(self.recorded.dataset.transitions(at)["obs"], self.recorded.row_of(at))
            for at in np.array_split(steps, max(1, len(steps) // _AT_ONCE))
        ]
        values = np.concatenate(found, axis=1)
        return values, (values * self.counts).sum(1) / self.counts.sum(1)

    def step_values(self) -> tuple[Floats, Floats]:
        """Return Q [N] of all steps and V [N + E] of all observations, means over the members.

        V is 0 after an end, and what would have followed at the end of a truncated episode.
        """
        recorded = self.recorded
        q, v = np.empty(len(recorded)), np.zeros(recorded.rows)
        for first in range(0, len(recorded), _AT_ONCE):
            index = np.arange(first, min(first + _AT_ONCE, len(recorded)))
            rows = recorded.dataset.transitions(index)
            obs = self._seen(rows["obs"])
            batch = pack("obs", obs) | {"action": self._actions(recorded.action[index])}
            with torch.no_grad():
                found = self._of_action(self.net, batch).mean(0)
            q[index] = self._in_units(found)
            at = recorded.row_of(index)
            v[at] = self._values(rows["obs"], at).mean(0)
            cut = np.flatnonzero(recorded.is_last[index] & ~recorded.terminated[index])
            if len(cut):
                end = tree_map(lambda part, cut=cut: part[cut], rows["next_obs"])
                v[at[cut] + 1] = self._values(end, at[cut] + 1).mean(0)
        return q, v

    @torch.no_grad()
    def _values(self, obs: Tree, rows: NDArray[np.int64]) -> Floats:
        """Return V [K, n] of observations in the environment's units, which are at rows."""
        batch = pack("obs", self._seen(obs))
        draws = _DRAWS if self.policy.samples and not self.discrete else 1
        total = sum(
            self._value(self.net, batch | {"choice": self._choice(rows)}, "obs", "choice")
            for _ in range(draws)
        )
        assert isinstance(total, Tensor)
        return self._in_units(total / draws)

    def _seen(self, obs: Tree) -> Tree:
        canonical = self.recorded.buffer.canonical(obs)
        return tree_map(torch.from_numpy, self.recorded.obs_norm.normalize(canonical))

    def _in_units(self, found: Tensor) -> Floats:
        values = self._units["mean"] + self._units["scale"] * found
        return values.double().numpy()


def _mode(updates: int) -> Mode:
    """Return how steps run: compiled where that pays, which the cache keeps for the next time."""
    pays = updates >= UPDATES_THAT_PAY and has_compiler()
    return "compiled" if pays and choose_mode("auto", torch.device("cpu")) == "auto" else "eager"
