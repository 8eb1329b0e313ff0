"""Which study of a repository is meant: by its name, the registry, or the old flat layout."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.study.files.documents import (
    ROOT,
    StudyError,
    is_name,
    read_yaml,
    read_yaml_document,
)
from assay.study.files.records import Registry
from assay.study.record.study import Study

ASIDE = "migrating"  # where files are while they move out of the flat layout
FLAT = ("contract.yaml", "ledger.jsonl", "state.json")  # what stood there once


def find_root(start: Path) -> Path:
    """Return the nearest directory, from `start` upwards, that holds a study."""
    for place in (start.resolve(), *start.resolve().parents):
        if (place / ROOT).is_dir():
            return place
    raise StudyError(
        f"There is no {ROOT} in '{start}' or above it.",
        "Begin with `assay study start`, or name the repository with --root.",
    )


def open_study(root: Path, task: str | None = None, study: str | None = None) -> Study:
    """Open the named study, or the one that the registry selects.

    Raises:
        StudyError: Nothing is selected, or it does not exist.
    """
    registry_path = root / ROOT / "registry.yaml"
    if (root / ROOT / ASIDE).exists():
        raise StudyError(
            f"The move of '{root / ROOT}' into the new layout was interrupted.",
            "Take it up again: assay study migrate.",
        )
    if is_flat(root):
        _refuse_foreign(root)
        found = _flat_study(root)
        if (task or found.task, study or found.name) != (found.task, found.name):
            raise StudyError(
                f"There is no study {task or found.task}/{study or found.name} in '{root}'.",
                f"Known: {found.task}/{found.name}, in the old flat layout.",
            )
        return found
    if not registry_path.exists():
        raise StudyError(
            f"'{registry_path}' is missing.", "Begin with `assay study start` in that repository."
        )
    registry = read_yaml_document(registry_path, Registry)
    task, study = task or registry.task, study or registry.study
    if task is None or study is None:
        raise StudyError(
            f"No study is active in '{root}'.",
            f"Name one with --task and --study. {_known(root)}",
        )
    found = Study(root, task, study)
    if not found.path.is_dir():
        raise StudyError(f"There is no study {task}/{study} in '{root}'.", _known(root))
    return found


def is_flat(root: Path) -> bool:
    """Return whether `.rlxp` has the old flat layout: one implicit task and study."""
    place = root / ROOT
    return not (place / "tasks").exists() and any((place / name).exists() for name in FLAT)


def _refuse_foreign(root: Path) -> None:
    """Refuse flat files that another program wrote, such as rlxp 0.2.0: their record is no chain.

    Raises:
        StudyError: Names the file, and what of Assay's own it lacks.
    """
    place = root / ROOT
    lacks = ""
    with contextlib.suppress(OSError, ValueError, StudyError, IndexError):
        if (place / "ledger.jsonl").exists():
            first = json.loads((place / "ledger.jsonl").read_text().splitlines()[0])
            lacks = _lacking("ledger.jsonl", first, ("schema", "seq", "prev", "hash"))
        elif (place / "contract.yaml").exists():
            values = read_yaml(place / "contract.yaml")[0]
            lacks = _lacking("contract.yaml", values, ("schema_version", "study", "task"))
        else:
            state = json.loads((place / "state.json").read_bytes())
            lacks = _lacking("state.json", state, ("schema_version", "task", "study", "head"))
    if lacks:
        raise StudyError(
            f"'{place}' was written by another program, such as rlxp 0.2.0: {lacks}. Assay cannot "
            "check such a record, and so does not continue it.",
            f"Keep it as it is (git mv {ROOT} {ROOT}-old), begin with `assay study start`, and "
            "copy metrics, scope and budget from the old contract into the new one.",
        )


def _lacking(file: str, values: Any, wanted: Sequence[str]) -> str:
    missing = [key for key in wanted if not (isinstance(values, dict) and key in values)]
    return f"{file} has no {' and no '.join(missing)}" if missing else ""


def _flat_study(root: Path) -> Study:
    """Return the one study of a flat layout, by the names that its own files give it."""
    place = root / ROOT
    names: dict[str, Any] = {}
    try:
        values = read_yaml(place / "contract.yaml")[0]
        names = {"task": values["task"]["id"], "study": values["study"]}
    except (StudyError, IndexError, TypeError, KeyError):
        with contextlib.suppress(OSError, ValueError):
            names = json.loads((place / "state.json").read_bytes())
    found = (str(names.get(key, "default")) for key in ("task", "study"))
    task, study = (name if is_name(name) else "default" for name in found)
    return Study(root, task, study, flat=True)


def _known(root: Path) -> str:
    paths = sorted((root / ROOT / "tasks").glob("*/studies/*/"))
    names = ", ".join(f"{path.parent.parent.name}/{path.name}" for path in paths)
    return f"Known: {names}." if names else "There are none yet: `assay study start` makes one."
