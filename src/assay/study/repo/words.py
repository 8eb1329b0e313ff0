"""The names by which the audit of a repository recognises what it reads; most are in words.yaml."""

from __future__ import annotations

import importlib.resources
import re
from typing import Any

import yaml

_FILE = importlib.resources.files("assay.study.repo").joinpath("words.yaml")
_WORDS: dict[str, Any] = yaml.safe_load(_FILE.read_text())

RL_LIBRARIES = frozenset(_WORDS["rl_libraries"])
OTHER_LOGGERS = frozenset(_WORDS["other_loggers"])
OTHER_CONFIGS = frozenset(_WORDS["other_configs"])
METRIC_WORDS = frozenset(_WORDS["metric_words"])
METRIC_CALLS = frozenset(_WORDS["metric_calls"])
HANDS_ON = frozenset(_WORDS["hands_on"])
NOTES = frozenset(_WORDS["notes"])
OUTCOME_WORDS = frozenset(_WORDS["outcome_words"])
AXES = frozenset(_WORDS["axes"])
NO_REWARD = frozenset(_WORDS["no_reward"])
REPACKS = frozenset(_WORDS["repacks"])
RANDOMIZES = frozenset(_WORDS["randomizes"])
REWARD_NAMES = frozenset(_WORDS["reward_names"])
DONE_NAMES = frozenset(_WORDS["done_names"])
STEPS = frozenset(_WORDS["steps"])
DESCRIBES = frozenset(_WORDS["describes"])
TABLES = frozenset(_WORDS["tables"])
TASK_ARGUMENTS = frozenset(_WORDS["task_arguments"])
PLACES = frozenset(_WORDS["places"])
CONFIGS = frozenset(_WORDS["configs"])
LOADS = frozenset(_WORDS["loads"])
OTHER_WORDS = frozenset(_WORDS["other_words"])
WRAPPERS = frozenset(_WORDS["wrappers"])
GUARDRAIL_WORDS = frozenset(_WORDS["guardrail_words"])
NO_GUARDRAIL = frozenset(_WORDS["no_guardrail"])
TRAINERS = frozenset(_WORDS["trainers"])
NO_RANDOM = frozenset(_WORDS["no_random"])
STORAGE = frozenset(_WORDS["storage"])
NO_PRIMARY = frozenset(_WORDS["no_primary"])
SIMULATED = frozenset(_WORDS["simulated"])
ENDINGS = frozenset(_WORDS["endings"])
NO_ENDING = frozenset(_WORDS["no_ending"])

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
