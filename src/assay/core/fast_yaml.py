"""The safe loader of YAML that is written in C, where PyYAML was built with it: six times as fast.

What people write is read by the safe loader in Python (`assay.core.config.read_yaml`), whose
messages show the line.
"""

from __future__ import annotations

from typing import Any

import yaml

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class RepeatedKeyError(yaml.MarkedYAMLError):
    """A mapping has a key twice."""


class UniqueKeys:
    """Makes a loader refuse a key that is there twice: people read the first, YAML takes the last.

    It stands before the loader among the bases of a class.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping, if its keys differ."""
        seen = set()
        for key, _ in node.value:
            if str(key.value) in seen and key.tag != "tag:yaml.org,2002:merge":
                raise RepeatedKeyError(
                    problem=f"the key '{key.value}' is there twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)  # type: ignore[misc]


def load(text: str | bytes) -> Any:
    """Return the document in a text."""
    return yaml.load(text, Loader=Loader)
