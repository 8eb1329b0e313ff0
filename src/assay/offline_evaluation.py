"""Rank runs by what recorded data says they are worth: no environment is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from assay.agents import require_one_agent
from assay.api import Agent, Run, load
from assay.core.errors import AssayError, ConfigError, require_counts
from assay.data.dataset import Dataset
from assay.data.files import load as load_data
from assay.evaluation.fitted_q import UPDATES, FitSettings
from assay.evaluation.offline import (
    OfflineEvaluation,
    OfflineEvaluator,
    PolicyValue,
    check_discount,
    rank,
)
from assay.evaluation.on_data import Recorded


def evaluate_offline(
    runs: Sequence[Run | Path | str] | Run | Path | str,
    data: Dataset | Path | str,
    *,
    gamma: float = 0.99,
    sampled: bool = False,
    updates: int = UPDATES,
    seed: int = 0,
    progress: Callable[[str, int, int], None] = lambda name, done, updates: None,
) -> OfflineEvaluation:
    """Estimate the discounted return of runs from recorded episodes, and rank them.

    Args:
        runs: One run or several, or their directories. The policy is that of the last checkpoint.
        data: What `assay.data.load` takes: episodes of the same task, of anybody.
        gamma: Discount; the same for all runs, whatever they were trained with.
        sampled: Evaluate the policy that samples, as in training, where a run has one. By default
            it is the deterministic one, as `assay evaluate` plays it.
        updates: Gradient steps of fitted Q evaluation, for each run.
        seed: Fixes everything that is drawn.
        progress: Called with a run, and how many of its updates are done, a hundred times.

    Raises:
        ConfigError: There are no runs, or a number is out of range.
        DataError: The data does not fit a run.
        AssayError: A policy has a memory.

    Example:
        found = assay.evaluate_offline(["runs/iql", "runs/bc"], "medium.hdf5")
        print(found.policies[0].name, found.policies[0].value)
    """
    given = [runs] if isinstance(runs, Run | Path | str) else list(runs)
    if not given:
        raise ConfigError("No runs are given.", "Give at least one.")
    require_counts(updates=updates)
    check_discount(gamma)
    paths = [one.path if isinstance(one, Run) else Path(one) for one in given]
    agents = [load(path) for path in paths]
    for agent in agents:
        require_one_agent(agent, "Evaluation on recorded data")
    dataset = load_data(data)
    settings = FitSettings(updates=updates)
    evaluators: dict[str, OfflineEvaluator] = {}
    found: list[PolicyValue] = []
    for path, agent in zip(paths, agents, strict=True):
        tell = functools.partial(_tell, progress, str(path), updates)
        spaces = f"{agent.observations.space!r} {agent.actions.space!r}"
        if spaces not in evaluators:
            evaluators[spaces] = OfflineEvaluator(
                _recorded(dataset, agent),
                gamma=gamma,
                sampled=sampled,
                settings=settings,
                seed=seed,
            )
        try:
            found.append(evaluators[spaces].evaluate(agent.policy, str(path), tell))
        except AssayError as error:
            raise AssayError(f"'{path}': {error.message}", error.fix) from None
    one = next(iter(evaluators.values()))
    used = {evaluator.behaviour for evaluator in evaluators.values()} - {"not needed"}
    return OfflineEvaluation(
        data=dataset.name,
        episodes=dataset.num_episodes,
        gamma=gamma,
        sampled=sampled,
        behaviour=used.pop() if used else "not needed",
        data_value=one.data_value(),
        policies=rank(found),
    )


def _tell(progress: Callable[[str, int, int], None], name: str, updates: int, done: int) -> None:
    progress(name, done, updates)


def _recorded(dataset: Dataset, agent: Agent) -> Recorded:
    return Recorded(dataset, agent.observations, agent.actions)
