"""Synthetic runs with known scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.evaluation.evaluate import TRAINING, EvaluationResult, save_evaluation
from assay.runs.directory import RunDirectory

MakeRun = Callable[..., RunDirectory]
MakeGroup = Callable[..., Path]


def evaluation(returns: list[float], seed: int = 0) -> EvaluationResult:
    """Return an evaluation with these returns, one step per point of return."""
    values = np.array(returns, np.float64)
    ended = np.ones(len(values), np.bool_)
    lengths = np.maximum(1, np.abs(values)).astype(np.int64)
    return EvaluationResult(seed, values, lengths, ended, ~ended, np.arange(len(values)))


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Return a function that writes a run whose evaluations have the given returns."""

    def make(
        name: str,
        evaluations: Mapping[int, list[float]],
        *,
        seed: int = 1,
        env: str = "CartPole-v1",
        algorithm: str = "ppo",
        env_steps: int = 1000,
        status: Any = "done",
        label: str = TRAINING,
        **settings: Any,
    ) -> RunDirectory:
        config = {"algorithm": algorithm, "env": env}
        config["run"] = {"env_steps": env_steps, "seed": seed}
        run = RunDirectory.create(
            tmp_path / "runs",
            name,
            algorithm=algorithm,
            env=env,
            config={**config, **settings},
            seed=seed,
        )
        for steps, returns in evaluations.items():
            save_evaluation(run, steps, evaluation(returns), label=label)
        run.set_status(status)
        run.unlock()
        return run

    return make


@pytest.fixture
def make_group(make_run: MakeRun) -> MakeGroup:
    """Return a function that writes a group of runs, one per final score."""

    def make(name: str, scores: list[float], **options: Any) -> Path:
        for seed, score in enumerate(scores, start=1):
            # Two episodes around the score, and a bad start.
            evaluations = {500: [0.0, 0.0], 1000: [score - 1, score + 1]}
            run = make_run(f"{name}/seed-{seed}", evaluations, seed=seed, **options)
        return run.path.parent

    return make
