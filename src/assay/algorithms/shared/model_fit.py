"""Fit a `DynamicsEnsemble` to transitions, as MBPO's authors do (arXiv:1906.08253).

Every member learns from a bootstrap sample of its own. After each epoch its error on held-out data
is measured; once for more than `model_patience` epochs no member's error has fallen by more than
1 %, each member goes back to its best epoch, and the best members become the elites.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from assay.core.types import State
from assay.networks.dynamics import DynamicsEnsemble
from assay.networks.heads import ActionScale
from assay.optim.update import Step

MOST_HELD_OUT = 5_000
SHORTEST_EPOCH = 16  # steps, so that few data do not end a fit that has hardly begun
_IMPROVED = 0.99  # of the best error so far


class ModelData(NamedTuple):
    """Transitions as a model learns them, [N, ...] each.

    Attributes:
        inputs: Observations and unit actions side by side.
        targets: Rewards, and the changes of the observations, side by side.
        ended: Whether the episode terminated, 0 or 1.
    """

    inputs: Tensor
    targets: Tensor
    ended: Tensor

    def take(self, rows: Tensor) -> ModelData:
        """Return some of them, in the shape of `rows`."""
        return ModelData(*(part[rows] for part in self))


def model_inputs(scale: ActionScale, obs: Tensor, action: Tensor) -> Tensor:
    """Return what a model takes of observations [B, n] and the environment's actions."""
    return torch.cat([obs, scale.to_unit(action).flatten(1).to(obs.dtype)], dim=1)


def model_data(scale: ActionScale, rows: Any, device: torch.device) -> ModelData:
    """Return transitions (a `Batch` or a `Transition`) as a model learns them.

    A truncated step is one like any other: only `terminated` ends an episode.
    """
    names = ("obs", "action", "reward", "next_obs", "terminated")
    obs, action, reward, next_obs, ended = (
        torch.as_tensor(getattr(rows, name), device=device) for name in names
    )
    targets = torch.cat([reward.float().unsqueeze(1), next_obs - obs], dim=1)
    return ModelData(model_inputs(scale, obs, action), targets, ended.float())


class EnsembleFit:
    """One fit after the other, each in steps between which a checkpoint may be written.

    Args:
        dynamics: What is fitted; a fit begins with what the last one ended with.
        best: A copy of it, which holds every member's best epoch.
        step: The optimizer step of its loss.
        hp: Has `ModelSettings`.

    Attributes:
        is_running: Whether a fit was begun and is not finished.
        fitted_at: Where the run was when the last one was begun; None before the first.
        error: The mean error of the elites on held-out data.
        epochs: Of the last fit.
    """

    def __init__(
        self, dynamics: DynamicsEnsemble, best: DynamicsEnsemble, step: Step, hp: Any
    ) -> None:
        self.dynamics, self.best, self.step, self.hp = dynamics, best, step, hp
        self.is_running = False
        self.fitted_at: int | None = None
        self.error = 0.0
        self.epochs = 0
        self._seed = self._batch = self._waited = 0
        self._errors = np.full(dynamics.members, np.inf)
        self._learned: ModelData | None = None  # what is learned from, of the data
        self._held_out: ModelData | None = None
        self._order = np.empty((0, 0), np.int32)
        self._end_weight = torch.zeros((), device=dynamics.input_mean.device)

    @property
    def has_data(self) -> bool:
        """Return whether the fit has its data, which no checkpoint contains."""
        return self._learned is not None

    def begin(self, data: ModelData, *, seed: int, at: int, learn_ends: bool) -> None:
        """Begin to fit to other data; nothing is held out of a single transition."""
        again = self.fitted_at is not None
        self.is_running, self.fitted_at = True, at
        self._seed, self._batch, self._waited, self.epochs = seed, 0, 0, 0
        self._errors[:] = np.inf
        self._end_weight.fill_(float(learn_ends))
        self.attach(data)
        assert self._learned is not None
        self.dynamics.standardise(self._learned.inputs, self._learned.targets, keep=again)

    def attach(self, data: ModelData) -> None:
        """Give a fit its data, at its beginning and after it was restored."""
        count = len(data.inputs)
        order = np.random.default_rng([self._seed, 0]).permutation(count)
        held = max(1, min(int(count * self.hp.model_holdout), MOST_HELD_OUT))
        places = torch.from_numpy(order).to(data.inputs.device)
        self._held_out = data.take(places[:held])
        self._learned = data.take(places[held:]) if count > 1 else data
        self._deal()

    def advance(self, rates: list[float]) -> None:
        """Take one optimizer step, and after the last one of an epoch see how good it was."""
        assert self._learned is not None
        count, size = self._order.shape[1], self.hp.model_batch_size
        # The last batch of an epoch goes on with the first rows: all have one shape.
        columns = np.arange(self._batch * size, (self._batch + 1) * size) % count
        rows = torch.from_numpy(self._order[:, columns].astype(np.int64))
        part = self._learned.take(rows.to(self._learned.inputs.device))
        self.step(part._asdict() | {"end_weight": self._end_weight}, rates)
        self._batch += 1
        if self._batch >= max(-(-count // size), SHORTEST_EPOCH):
            self._end_epoch()

    def _end_epoch(self) -> None:
        assert self._held_out is not None
        self._batch = 0
        self.epochs += 1
        found = self.dynamics.errors(*self._held_out, self._end_weight).double().cpu().numpy()
        better = found < _IMPROVED * self._errors
        self._errors[better] = found[better]
        self.best.copy_members(self.dynamics, self._mask(better))
        self._waited = 0 if better.any() else self._waited + 1
        if self._waited > self.hp.model_patience or self.epochs >= self.hp.model_epochs:
            self._finish()
        else:
            self._deal()

    def _finish(self) -> None:
        self.dynamics.copy_members(self.best, self._mask(np.isfinite(self._errors)))
        elites = np.argsort(self._errors, kind="stable")[: len(self.dynamics.elites)]
        self.dynamics.elites.copy_(torch.from_numpy(elites))
        self.error = float(self._errors[elites].mean())
        self.is_running = False
        self._learned = self._held_out = None
        self._order = np.empty((0, 0), np.int32)

    def _deal(self) -> None:
        """Choose every member's rows for this epoch: its bootstrap sample, in a new order."""
        assert self._learned is not None
        count = len(self._learned.inputs)
        sample = np.random.default_rng([self._seed, 1]).integers(
            count, size=(self.dynamics.members, count), dtype=np.int32
        )
        self._order = np.random.default_rng([self._seed, 2, self.epochs]).permuted(sample, axis=1)

    def _mask(self, which: np.ndarray) -> Tensor:
        return torch.from_numpy(which).to(self.dynamics.input_mean.device)

    def state(self) -> State:
        """Return where the fit is; its networks are the algorithm's, and its data the run's."""
        return {
            "is_running": self.is_running, "fitted_at": self.fitted_at, "error": self.error,
            "epochs": self.epochs, "seed": self._seed, "batch": self._batch,
            "waited": self._waited, "errors": self._errors.copy(),
            "learn_ends": bool(self._end_weight.item()),
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        """Restore what `state` returned; a fit that was running needs `attach`."""
        self.is_running, self.error = bool(state["is_running"]), float(state["error"])
        at = state["fitted_at"]
        self.fitted_at = None if at is None else int(at)
        self.epochs, self._seed = int(state["epochs"]), int(state["seed"])
        self._batch, self._waited = int(state["batch"]), int(state["waited"])
        self._errors[:] = state["errors"]
        self._end_weight.fill_(float(state["learn_ends"]))
        self._learned = self._held_out = None
