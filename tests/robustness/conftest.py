"""Runs whose policies are written by hand, so that what disturbs them can be worked out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import assay
from assay.runs import checkpoint
from assay.runs.checkpoint import Section

# Right minus left: balances the pole for as long as an episode goes.
BALANCE = np.array([0.1, 0.2, 1.0, 0.5], np.float32)


def write_weights(run: Path, rows: np.ndarray) -> None:
    """Put weights into the head of a linear policy."""
    place = checkpoint.latest(run / "checkpoints")
    assert place is not None
    sections = checkpoint.read_checkpoint(place)
    net = sections["weights"]["net"]
    net["head.weight"], net["head.bias"] = rows, np.zeros(len(rows), np.float32)
    made = {name: Section(state) for name, state in sections.items() if name != "policy"}
    checkpoint.write_checkpoint(run / "checkpoints", int(place.name), made)


def linear_run(root: Path, name: str, rows: np.ndarray, env: str = "CartPole-v1") -> Path:
    """Train a policy without hidden layers for a moment, and give it other weights."""
    run = assay.train(
        "ppo", env, name=name, root=root, preset=False, hidden=[], normalize_obs=False,
        num_envs=2, horizon=16, minibatch_size=32, env_steps=32, eval_every=0, sinks=[],
    )  # fmt: skip
    write_weights(run.path, rows.astype(np.float32))
    return run.path


@pytest.fixture(scope="session")
def balancing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that balances CartPole by a linear rule."""
    rows = np.stack([np.zeros(4, np.float32), BALANCE])
    return linear_run(tmp_path_factory.mktemp("balancing"), "linear", rows)


@pytest.fixture(scope="session")
def useless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that always pushes to the left."""
    rows = np.zeros((2, 4), np.float32)
    return linear_run(tmp_path_factory.mktemp("useless"), "left", rows)
