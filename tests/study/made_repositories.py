"""Small repositories that tests of the audit write, file by file."""

from __future__ import annotations

from pathlib import Path


def put(root: Path, **files: str) -> None:
    """Write files: `pkg__train_dot_py` is `pkg/train.py`."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
