"""The settings that are shipped for an algorithm on an environment."""

from __future__ import annotations

import fnmatch
import importlib.resources
from typing import Any

from assay.core import fast_yaml


def presets(algorithm: str) -> dict[str, dict[str, Any]]:
    """Return all settings that are shipped for an algorithm, by environment or pattern."""
    source = importlib.resources.files("assay.presets").joinpath(f"{algorithm}.yaml")
    return (fast_yaml.load(source.read_text()) or {}) if source.is_file() else {}


def preset(algorithm: str, env: str) -> dict[str, Any]:
    """Return the shipped settings for an algorithm on an environment (empty if none).

    Keys of a preset file are environment ids or patterns; an exact id wins over a pattern, and
    `default` lies under both.
    """
    table = presets(algorithm)
    chosen = dict(table.get("default", {}))
    if env in table:
        return chosen | table[env]
    for pattern, values in table.items():
        if fnmatch.fnmatchcase(env, pattern):
            return chosen | values
    return chosen
