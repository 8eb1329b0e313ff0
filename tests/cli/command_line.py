"""What the tests of the command line share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import assay

TINY = ("num_envs=8", "horizon=32", "minibatch_size=64", "compile=false", "sinks=[]")
TRAIN = ("train", "ppo", "CartPole-v1", "env_steps=1024", "eval_episodes=4", *TINY)

Cli = Callable[..., Any]


def process_environment() -> dict[str, str]:
    source = str(Path(assay.__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
