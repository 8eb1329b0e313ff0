"""The examples of the rules: problems that break one, and problems that do not."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return by rule a problem that breaks it ("bad") and one that does not ("good")."""
    text = resources.files("assay.design").joinpath("examples.yaml").read_text(encoding="utf-8")
    made: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return made
