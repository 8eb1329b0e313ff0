"""The safe loader of YAML that is written in C, where PyYAML was built with it: six times as fast.

What people write is read by the safe loader in Python (`assay.core.config.read_yaml`), whose
messages show the line.
"""

from __future__ import annotations

from typing import Any

import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """Return the document in a text."""
    return yaml.load(text, Loader=Loader)
