"""Recorded data: one dataset type, its formats, and what can be done with a set.

    from assay import data

    recorded = data.load("logs.hdf5")
    data.save(recorded, "logs.parquet")
    print(data.summarise(recorded).returns.mean())

docs/data.md has the schema. The names below are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "Dataset": "assay.data.dataset",
    "Episode": "assay.data.dataset",
    "from_episodes": "assay.data.collect",
    "from_transitions": "assay.data.collect",
    "collected": "assay.data.collect",
    "load": "assay.data.files",
    "save": "assay.data.files",
    "convert": "assay.data.files",
    "find": "assay.data.files",
    "merge": "assay.data.combine",
    "split": "assay.data.combine",
    "first": "assay.data.combine",
    "validate": "assay.data.findings",
    "summarise": "assay.data.summary",
    "build": "assay.data.tables",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'assay.data' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
