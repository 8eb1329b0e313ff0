"""Estimate what policies are worth from recorded episodes, without their environment.

Every estimate is of the discounted return from where the episodes begin. Fitted Q evaluation is
always there. Importance-weighted and doubly robust estimates need the probability of each recorded
action, under the policy and under who acted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import ConfigError
from assay.core.seeding import derive_rng
from assay.data.schema import LOG_PROB
from assay.evaluation.fitted_q import FitSettings, FittedQ
from assay.evaluation.on_data import ClonedBehaviour, OnData, Recorded
from assay.evaluation.statistics import Interval, stratified_bootstrap, t_interval
from assay.functional import off_policy
from assay.policies.policy import Policy

Behaviour = Literal["recorded", "estimated", "not needed"]
Floats = NDArray[np.float64]

FQE = "fitted_q"
ESTIMATORS = {
    FQE: "fitted Q",
    "per_decision": "per-decision importance sampling",
    "self_normalised": "self-normalised importance sampling",
    "clipped": "clipped importance sampling",
    "doubly_robust": "doubly robust",
    "weighted_doubly_robust": "self-normalised doubly robust",
}
NO_DENSITY = (
    "no importance-weighted and doubly robust estimates: the policy takes one Box action for each "
    "observation, which has no density"
)
_LEVEL = 0.95
_REPS, _NUMBERS = 1_000, 1 << 25  # of a bootstrap, and how many its table may have
_FEW, _SHARE = 10.0, 0.01  # effective episodes below which weights count as collapsed
CLONING_UPDATES = 3_000


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """What one policy is worth, by all estimates that there are.

    Attributes:
        name: Of the policy.
        rank: 1 is the best by fitted Q evaluation.
        estimates: Name -> the estimate with its interval by bootstrap over episodes.
        effective_episodes: How many equally weighted episodes the importance weights are worth.
        notes: What is missing or cannot be relied on, in sentences.
    """

    name: str
    rank: int
    estimates: dict[str, Interval]
    effective_episodes: float | None
    notes: tuple[str, ...]

    @property
    def value(self) -> float:
        """Return the estimate that policies are ranked by."""
        return self.estimates[FQE].point

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with None for bounds that are undefined."""
        return {
            "name": self.name,
            "rank": self.rank,
            "estimates": {name: one.to_json("value") for name, one in self.estimates.items()},
            "effective_episodes": self.effective_episodes,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class OfflineEvaluation:
    """Policies by what a dataset says they are worth.

    Attributes:
        data: Name of the dataset.
        episodes: How many it has.
        gamma: Discount of all values.
        sampled: Whether policies sample, where they can, or take the best action.
        behaviour: Where the probabilities of who acted come from.
        data_value: Discounted return of the data itself, up to where its episodes end.
        policies: The best first.
    """

    data: str
    episodes: int
    gamma: float
    sampled: bool
    behaviour: Behaviour
    data_value: Interval
    policies: tuple[PolicyValue, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "data": self.data,
            "episodes": self.episodes,
            "gamma": self.gamma,
            "sampled": self.sampled,
            "behaviour": self.behaviour,
            "data_value": self.data_value.to_json("value"),
            "policies": [one.to_json() for one in self.policies],
        }


def check_discount(gamma: float) -> None:
    """Refuse a discount that values do not exist for."""
    if not 0.0 <= gamma < 1.0:
        raise ConfigError(
            f"gamma={gamma:g}: expected at least 0 and below 1, so that values exist.",
            "0.99 looks about a hundred steps ahead.",
        )


def rank(policies: Sequence[PolicyValue]) -> tuple[PolicyValue, ...]:
    """Return policies by fitted Q evaluation, the best first, with their ranks."""
    order = sorted(policies, key=lambda one: -one.value)
    return tuple(
        PolicyValue(one.name, place, one.estimates, one.effective_episodes, one.notes)
        for place, one in enumerate(order, 1)
    )


class OfflineEvaluator:
    """Estimates for policies of the same spaces from one dataset.

    Args:
        recorded: The data.
        gamma: Discount.
        sampled: Evaluate policies that sample, where they have a distribution.
        settings: How Q is fitted.
        cloning_updates: Gradient steps by which who acted is estimated, if that is needed.
        seed: Fixes everything that is drawn.
    """

    def __init__(
        self,
        recorded: Recorded,
        *,
        gamma: float = 0.99,
        sampled: bool = False,
        settings: FitSettings | None = None,
        cloning_updates: int = CLONING_UPDATES,
        seed: int = 0,
    ) -> None:
        check_discount(gamma)
        self.recorded, self.gamma, self.sampled, self.seed = recorded, gamma, sampled, seed
        self.settings = FitSettings() if settings is None else settings
        self.cloning_updates = cloning_updates
        self._behaviour_log_prob: Floats | None = recorded.log_prob
        self.behaviour: Behaviour = "not needed"

    def data_value(self) -> Interval:
        """Return the discounted return of the data itself."""
        recorded = self.recorded
        returns = off_policy.discounted_sums(recorded.reward, recorded.lengths, self.gamma)
        rng = derive_rng(self.seed, "data value")
        return stratified_bootstrap(returns, _mean, rng=rng, level=_LEVEL)

    def evaluate(
        self, policy: Policy, name: str, progress: Callable[[int], None] = lambda done: None
    ) -> PolicyValue:
        """Return all estimates of a policy, telling `progress` how many updates are done.

        Raises:
            AssayError: The policy has a memory.
        """
        acts = OnData(policy, self.recorded, sampled=self.sampled)
        fitted = self._fit(acts, progress)
        estimates = {FQE: _spread(fitted.start_values()[1])}
        if not acts.has_density:
            hint = "" if self.sampled else "; sampled=True (--sampled) evaluates one that samples"
            return PolicyValue(name, 0, estimates, None, (f"{NO_DENSITY}{hint}.",))
        weighted, effective = self._weighted(acts, fitted)
        notes = () if not self._collapsed(effective) else (self._warning(effective),)
        return PolicyValue(name, 0, estimates | weighted, effective, notes)

    def fitted_q(self, policy: Policy) -> Interval:
        """Return the estimate that policies are ranked by, alone.

        Raises:
            AssayError: The policy has a memory.
        """
        acts = OnData(policy, self.recorded, sampled=self.sampled)
        return _spread(self._fit(acts).start_values()[1])

    def _fit(self, acts: OnData, progress: Callable[[int], None] = lambda done: None) -> FittedQ:
        return FittedQ(
            self.recorded, acts, gamma=self.gamma, settings=self.settings, seed=self.seed,
            progress=progress,
        )  # fmt: skip

    def _weighted(self, acts: OnData, fitted: FittedQ) -> tuple[dict[str, Interval], float]:
        recorded, gamma = self.recorded, self.gamma
        lengths, reward = recorded.lengths, recorded.reward
        every = np.arange(len(recorded))
        log_ratio = acts.log_prob(recorded.row_of(every), recorded.action) - self._log_behaviour()
        weights = off_policy.cumulative_weights(log_ratio, lengths)
        q, v = fitted.step_values()
        episodes = len(lengths)
        clipped = np.minimum(weights, math.sqrt(episodes))
        rng = derive_rng(self.seed, "bootstrap")
        reps = max(100, min(_REPS, _NUMBERS // episodes))
        drawn = rng.multinomial(episodes, np.full(episodes, 1.0 / episodes), size=reps)
        counts: Floats = np.concatenate([np.ones((1, episodes)), drawn])  # first, the data itself
        means = counts.T / episodes
        sums = off_policy.normalised_sums
        before = off_policy.weights_before(weights, lengths)
        found = {
            "per_decision": off_policy.per_decision(reward, weights, lengths, gamma) @ means,
            "self_normalised": sums(reward, weights, lengths, gamma, counts),
            "clipped": off_policy.per_decision(reward, clipped, lengths, gamma) @ means,
            "doubly_robust": (
                off_policy.doubly_robust(reward, weights, q, v, lengths, gamma) @ means
            ),
            "weighted_doubly_robust": sums(reward - q, weights, lengths, gamma, counts)
            + sums(v, before, lengths + 1, gamma, counts),
        }
        effective = off_policy.effective_sample_size(off_policy.last_of_each(weights, lengths))
        return {name: _quantiles(values) for name, values in found.items()}, effective

    def _log_behaviour(self) -> Floats:
        """Return log mu(a|s) [N] of who acted, fitted once if it was not recorded."""
        if self.behaviour == "not needed":
            self.behaviour = "estimated" if self._behaviour_log_prob is None else "recorded"
        if self._behaviour_log_prob is None:
            cloned = ClonedBehaviour(self.recorded, updates=self.cloning_updates, seed=self.seed)
            self._behaviour_log_prob = cloned.log_prob()
        return self._behaviour_log_prob

    def _collapsed(self, effective: float) -> bool:
        episodes = len(self.recorded.lengths)
        return effective < max(min(_FEW, episodes / 2), _SHARE * episodes)

    def _warning(self, effective: float) -> str:
        return (
            f"importance weights have collapsed: {len(self.recorded.lengths)} episodes are worth "
            f"{effective:.1f}; do not rely on importance-weighted and doubly robust estimates."
        )


def describe_behaviour(behaviour: Behaviour) -> str:
    """Return where probabilities come from, in words; nothing where none were needed."""
    return {
        "recorded": f"Probabilities of who acted: recorded in the data (extra '{LOG_PROB}').",
        "estimated": "Probabilities of who acted: estimated by behaviour cloning, since the data "
        f"has no extra '{LOG_PROB}'.",
        "not needed": "",
    }[behaviour]


def _spread(members: Floats) -> Interval:
    """Return the mean of the members; each is a replicate, so their deviation is its error."""
    point = float(members.mean())
    if len(members) < 2:
        return Interval(point, math.nan, math.nan, _LEVEL)
    half = (t_interval(members, _LEVEL).high - point) * math.sqrt(len(members))
    return Interval(point, point - half, point + half, _LEVEL)


def _quantiles(values: Floats) -> Interval:
    """Return the first value with the quantiles of the others, which are replicates."""
    low, high = np.quantile(values[1:], [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(float(values[0]), float(low), float(high), _LEVEL)


def _mean(scores: Any, *, axis: int) -> Any:
    return np.mean(scores, axis=axis)
