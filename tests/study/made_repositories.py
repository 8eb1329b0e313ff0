"""Small repositories that tests of the audit write, file by file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.study.files.records import Adapter
from assay.study.repo.audit import inspect

TRAIN = "import gymnasium\n\nif __name__ == '__main__':\n    agent.learn(total=1)\n"


def put(root: Path, **files: str) -> None:
    """Write files: `pkg__train_dot_py` is `pkg/train.py`."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def audit(root: Path) -> Adapter:
    return inspect(root).adapter


def first(answers: tuple[Any, ...]) -> str:
    if not answers:
        return "none"
    value = answers[0].value
    return " ".join(value["command"]) if isinstance(value, dict) else str(value)


def code(answers: tuple[Any, ...]) -> dict[str, list[str]]:
    return {answer.value["file"]: answer.value["names"] for answer in answers}
