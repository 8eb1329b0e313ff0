"""A dataset as flat arrays, what a policy would do at each of its observations, and who acted.

Where that was not recorded, it is estimated: behaviour cloning of the probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.buffers.dataset import DatasetBuffer
from assay.core.errors import AssayError, DataError
from assay.core.seeding import derive_rng, derive_seed
from assay.core.types import Spaces, Tree, action_mask, pack, tree_map, unpack
from assay.data.dataset import Dataset
from assay.data.findings import require_valid
from assay.data.schema import EXTRA, LOG_PROB, OBS
from assay.envs.spaces import ActionMap, ObservationMap
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.normalize import RunningNormalizer
from assay.optim.rules import Adam
from assay.optim.update import Objective, Step
from assay.policies.heads import SquashedHead, StochasticHead
from assay.policies.policy import Policy

_ROUNDING = 1e-4  # by which the logarithm of a probability may be above 0
# Of cloning.
_BATCH, _LR, _HIDDEN = 256, 1e-3, (128, 128)
_LOG_STD = (-5.0, 2.0)  # of standardised actions: those that never vary have no density


class Recorded:
    """All steps of a dataset; observations stay where they are.

    Args:
        dataset: Has the rows.
        observations: Of who is evaluated.
        actions: Of who is evaluated.

    Attributes:
        spaces: Canonical.
        lengths: [E] steps of each episode.
        action: [N, ...] canonical.
        reward: [N].
        terminated: [N].
        is_last: [N] whether an episode ends with the step.
        log_prob: [N] of the actions under who acted, where it was recorded.
        obs_norm: Standardises observations by their statistics in the data.
        action_norm: The same for Box actions.

    Raises:
        DataError: The dataset does not fit these spaces, or its log-probabilities cannot be such.
    """

    def __init__(self, dataset: Dataset, observations: ObservationMap, actions: ActionMap) -> None:
        require_valid(dataset, observations, actions)
        self.dataset = dataset
        self.spaces = Spaces(observations.space, actions.space)
        rng = np.random.default_rng(0)  # nothing is drawn by the buffer itself
        self.buffer = DatasetBuffer(dataset, observations, actions, gamma=1.0, rng=rng)
        self.lengths = dataset.lengths
        extra = f"{EXTRA}{LOG_PROB}"
        names = ["action", "reward", "terminated"]
        names += [extra] if extra in dataset.schema.fields else []
        blocks = [block.columns for block in dataset.blocks(names)]
        columns = {name: np.concatenate([block[name] for block in blocks]) for name in names}
        self.action = actions.from_env(columns["action"])
        self.reward: NDArray[np.float64] = columns["reward"].astype(np.float64)
        self.terminated: NDArray[np.bool_] = columns["terminated"]
        self.is_last = np.zeros(len(self.reward), np.bool_)
        self.is_last[np.cumsum(self.lengths) - 1] = True
        self.log_prob = self._checked(columns[extra]) if extra in columns else None
        self.obs_norm = RunningNormalizer(self.spaces.observation)
        self.action_norm = RunningNormalizer(self.spaces.action)
        self.action_norm.update(self.action)
        for _, obs in self.observations():
            self.obs_norm.update(obs)

    def _checked(self, known: NDArray[Any]) -> NDArray[np.float64]:
        """Return the recorded log-probabilities [N], if they can be such."""
        parts = known.reshape(len(self), -1).astype(np.float64)
        if parts.shape[1] != 1:
            raise DataError(
                f"'{EXTRA}{LOG_PROB}' of {self.dataset.name} has {parts.shape[1]} numbers for each "
                "step; expected one.",
                "Record the log-probability of the whole action.",
            )
        found = parts[:, 0]
        above = np.flatnonzero(found > _ROUNDING)
        if len(above) and not isinstance(self.spaces.action, Box):  # densities may be above 1
            episode = int(self.dataset.episode_of(above[:1])[0])
            step = above[0] - self.lengths[:episode].sum()
            raise DataError(
                f"Step {step} of episode {episode} of {self.dataset.name} has the value "
                f"{found[above[0]]:g} in '{EXTRA}{LOG_PROB}'; expected at most 0, the logarithm of "
                "a probability.",
                "Record the logarithm, if these are probabilities.",
            )
        return found

    def __len__(self) -> int:
        """Return the number of steps N."""
        return len(self.reward)

    @property
    def rows(self) -> int:
        """Return the number of observations N + E."""
        return len(self) + len(self.lengths)

    def row_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of the observations that steps were taken at; + 1 is what followed."""
        return index + self.dataset.episode_of(index)

    def observations(self) -> Iterator[tuple[slice, Tree]]:
        """Yield all N + E observations, canonical, some at a time, with their rows."""
        names = [name for name, one in self.dataset.schema.fields.items() if one.more]
        first = 0
        for block in self.dataset.blocks(names):
            obs = self.buffer.canonical(unpack(OBS, block.columns))
            count = len(block.columns[names[0]])
            yield slice(first, first + count), obs
            first += count


class OnData:
    """A policy at every observation of a dataset.

    Args:
        policy: Who is evaluated.
        recorded: The data.
        sampled: Evaluate the policy that samples, where it has a distribution; else the one that
            takes the best action.

    Attributes:
        samples: Whether the policy that is evaluated samples.

    Raises:
        AssayError: The policy has a memory.
    """

    def __init__(self, policy: Policy, recorded: Recorded, *, sampled: bool) -> None:
        if policy.initial_carry(1) is not None:
            raise AssayError(
                "The policy has a memory, so that what it does depends on more than the "
                "observation that was recorded; it cannot be evaluated from data.",
                "Evaluate it in its environment: leave out --offline.",
            )
        head = policy.head
        self.space = recorded.spaces.action
        self._head = head if isinstance(head, StochasticHead | SquashedHead) and sampled else None
        self.samples = self._head is not None
        chosen: list[NDArray[Any]] = []
        masks: list[NDArray[Any]] = []
        for _, obs in recorded.observations():
            if self.samples:
                chosen.append(policy.parameters(obs).copy())
                mask = action_mask(obs)
                masks += [] if mask is None else [mask]
            else:
                chosen.append(policy.act(obs).action)
        self._chosen = np.concatenate(chosen)  # best actions, or parameters of the head
        self._masks = np.concatenate(masks) if masks else None

    @property
    def has_density(self) -> bool:
        """Return whether actions have a probability, or a density."""
        return self.samples or not isinstance(self.space, Box)

    def log_prob(self, rows: NDArray[np.int64], action: NDArray[Any]) -> NDArray[np.float64]:
        """Return log pi(a|s) [n] of actions at rows; -inf for one that is never taken."""
        if self._head is None:
            assert self.has_density
            same = (self._chosen[rows] == action).reshape(len(rows), -1).all(axis=1)
            return np.where(same, 0.0, -np.inf)
        params, mask = self._params(rows)
        found = self._head.log_density(params, torch.from_numpy(action), mask)
        return found.numpy().astype(np.float64)

    def probabilities(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return pi(.|s) [n, A] at rows, of a Discrete space."""
        assert isinstance(self.space, Discrete)
        if self._head is None:
            return np.eye(int(self.space.n), dtype=np.float32)[self._chosen[rows]]
        params, mask = self._params(rows)
        every = [torch.full((len(rows),), a) for a in range(int(self.space.n))]
        logs = [self._head.log_density(params, action, mask) for action in every]
        return torch.stack(logs, dim=1).exp().numpy()

    def draw(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[Any]:
        """Return actions [n, ...] of the policy at rows."""
        if self._head is None:
            return self._chosen[rows]
        mask = None if self._masks is None else self._masks[rows]
        return self._head.choose(lambda: self._chosen[rows], len(rows), mask, rng)[0]

    def _params(self, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor | None]:
        mask = None if self._masks is None else torch.from_numpy(self._masks[rows])
        return torch.from_numpy(self._chosen[rows]), mask


class ClonedBehaviour:
    """mu(a|s), fitted by its likelihood: choices for discrete actions, a Gaussian for Box actions.

    Args:
        recorded: What was done.
        updates: Gradient steps.
        seed: Fixes initial weights and batches.
    """

    def __init__(self, recorded: Recorded, *, updates: int, seed: int) -> None:
        self.recorded = recorded
        space = recorded.spaces.action
        self.continuous = isinstance(space, Box)
        self.distribution = policy_distribution(space)
        seen = recorded.spaces.observation
        with torch.random.fork_rng(devices=[]):  # leave the caller's generator as it was
            torch.manual_seed(derive_seed(seed, "behaviour", "weights"))
            encoder = make_encoder(seen, hidden=_HIDDEN, activation="relu", init="torch")
            head = nn.Linear(encoder.out_features, self.distribution.param_size)
        self.net = nn.Sequential(encoder, head)
        step = Step([Objective("behaviour", self.net, self._loss, Adam())])
        rng = derive_rng(seed, "behaviour")
        for done in range(updates):
            index = rng.integers(len(recorded), size=_BATCH)
            step(self._batch(index), _LR * (1.0 - done / updates))

    @torch.no_grad()
    def log_prob(self) -> NDArray[np.float64]:
        """Return log mu(a|s) [N] of all recorded actions, in the environment's units."""
        found = []
        for first in range(0, len(self.recorded), 1 << 14):
            index = np.arange(first, min(first + (1 << 14), len(self.recorded)))
            found.append(self._log_prob(self._batch(index)).numpy())
        logs = np.concatenate(found).astype(np.float64)
        applied = self.recorded.action_norm.applied("")
        if applied is not None:  # the Jacobian of standardising
            logs += np.log(applied[1].astype(np.float64)).sum()
        return logs

    def _batch(self, index: NDArray[np.int64]) -> dict[str, Tensor]:
        obs = self.recorded.buffer.canonical(self.recorded.dataset.transitions(index)["obs"])
        obs = self.recorded.obs_norm.normalize(obs)
        action = self.recorded.action_norm.normalize(self.recorded.action[index])
        tensors = tree_map(torch.from_numpy, obs)
        return pack("obs", tensors) | {"action": torch.from_numpy(action)}

    def _log_prob(self, batch: dict[str, Tensor]) -> Tensor:
        obs = unpack("obs", batch)
        params = self.net(obs)
        if self.continuous:
            mean, log_std = params.chunk(2, dim=-1)
            params = torch.cat([mean, log_std.clamp(*_LOG_STD)], dim=-1)
        return self.distribution.log_prob(params, batch["action"], action_mask(obs))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # L = -E[log mu(a|s)]
        return -self._log_prob(batch).mean(), {}
