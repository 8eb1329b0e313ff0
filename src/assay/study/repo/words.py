"""The names by which the audit of a repository recognises what it reads; most are in words.yaml."""

from __future__ import annotations

import importlib.resources
import re
from typing import Any

import yaml

_FILE = importlib.resources.files("assay.study.repo").joinpath("words.yaml")
_WORDS: dict[str, Any] = yaml.safe_load(_FILE.read_text())
_SETS = {name.upper(): frozenset(found) for name, found in _WORDS.items() if type(found) is list}

# What libraries log by themselves, by the class that does it.
LIBRARY_METRICS: dict[str, list[str]] = {
    f"{library}:{name}": metrics
    for library, names in _WORDS["library_metrics"].items()
    for name, metrics in names.items()
}

LAUNCHERS = {
    "submitit": "slurm",
    "libtmux": "tmux",
    "torchrunx": "torchrun",
    "kubernetes": "kubernetes",
}
SLOTS = ("reward", "termination", "curriculum", "randomization")
TERM = re.compile(
    r"^(?:(?P<reward>Rew|Reward)|(?P<termination>Termination|Done|Term)"
    r"|(?P<curriculum>Curr|Curriculum)|(?P<randomization>Event|Randomization|Rand))"
    r"(?:Term)?(?:Cfg|Config)?$"
)
NESTED = {
    "reward": {"reward", "rewards", "reward_scales", "reward_weights", "reward_config"},
    "termination": {"termination", "terminations", "termination_conditions"},
    "curriculum": {"curriculum", "curricula"},
    "randomization": {
        "domain_rand", "domain_randomization", "domain_randomisation", "randomization",
        "randomisation", "randomize", "dr", "events",
    },
}  # fmt: skip
# Files of functions that are terms, or become them.
FILE_NAMES = {
    "reward": {"reward", "rewards"},
    "termination": {"termination", "terminations"},
    "curriculum": {"curriculum", "curriculums", "curricula"},
}


def __getattr__(name: str) -> frozenset[str]:
    """Return a list of words.yaml as a set, by its name in capitals: `NO_REWARD`."""
    if name not in _SETS:
        raise AttributeError(f"words.yaml has no list '{name.lower()}'")
    return _SETS[name]
