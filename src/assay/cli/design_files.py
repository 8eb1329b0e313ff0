"""Write a blueprint into a directory, and try what is in it before it takes its place."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.core.errors import RunError

if TYPE_CHECKING:
    from assay.design.blueprint import Blueprint

_ACTOR = "assay design"  # who is named in the ledger


def write_blueprint(file: Path, out: Path, algorithm: str | None) -> Blueprint:
    """Write the blueprint of a problem into a new directory.

    Raises:
        AssayError: The problem has errors, the directory exists, or the run could not start;
            nothing is left behind.
    """
    from assay.core import registry
    from assay.design.blueprint import CONFIG, complete, make_draft, pick
    from assay.design.documents import read_document
    from assay.design.rules import DesignError
    from assay.loops.run_settings import settings_model
    from assay.runs.files import run_error

    if out.exists() or out.is_symlink():
        raise DesignError(
            f"'{out}' exists already, and nothing was changed.", "Name a new directory with --out."
        )
    document = read_document(file)
    choice = pick(document.problem, algorithm)
    cls = registry.get(choice.spec.name)
    known = {*cls.Hyperparameters.model_fields, *settings_model(cls).model_fields}
    draft = make_draft(document.problem, document.text, choice, known)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent.resolve()))
    except OSError as error:
        raise run_error(error, f"write '{out}'") from None
    try:
        _write(aside, draft.files)
        own = f"{draft.env.partition(':')[0]}/env.py" in draft.files
        made = complete(document.problem, draft, _try(aside / CONFIG, own=own))
        _write(aside, made.files)
        _study(aside, made)
        aside.chmod(0o755)
        os.rename(aside, out)
    except OSError as error:
        raise run_error(error, f"write '{out}'") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return made


def _write(place: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _try(config: Path, *, own: bool) -> dict[str, Any]:
    """Resolve a configuration, and build its algorithm on its environment as training does.

    Returns:
        All settings of the run.
    """
    from assay.cli.plan import choose_task, make_plan, read_settings

    settings, given = read_settings([], config, {})
    with _importable(config.parent) if own else contextlib.nullcontext():
        found = make_plan(*choose_task([], settings, given), settings, given).config.to_dict()
    return {**found["run"], **found["hyperparameters"]}


@contextlib.contextmanager
def _importable(place: Path) -> Iterator[None]:
    """Let the environment's package be imported from a place that is about to be moved."""
    import gymnasium as gym

    before, registered = set(sys.modules), set(gym.registry)
    bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(place))
    try:
        yield
    finally:
        sys.path.remove(str(place))
        sys.dont_write_bytecode = bytecode
        for name in set(sys.modules) - before:
            source = getattr(sys.modules[name], "__file__", None)
            if source is not None and Path(source).is_relative_to(place):
                del sys.modules[name]
        for name in set(gym.registry) - registered:
            del gym.registry[name]  # it would be registered twice


def _study(place: Path, made: Blueprint) -> None:
    """Begin a study in the directory, with the contract filled in."""
    from assay.core.config import parse
    from assay.study.agree.setup import initialise
    from assay.study.files.contract import Contract
    from assay.study.files.documents import write_yaml_document

    agreed = parse(Contract, made.contract, what="the contract")
    study = initialise(place, agreed.task.id, agreed.study, actor=_ACTOR)
    write_yaml_document(study.contract_path, agreed)


def train_there(out: Path, *, as_json: bool) -> None:
    """Train what a blueprint describes, in its directory.

    Raises:
        RunError: The directory is gone.
    """
    from assay.cli.train import train

    try:
        os.chdir(out)
    except OSError as error:
        raise RunError(f"Cannot enter '{out}': {error.strerror}.") from None
    options: dict[str, Any] = dict.fromkeys(
        ("algorithm", "env", "seed", "seeds", "name", "device", "root", "jobs")
    )
    train(
        **options,
        settings=[],
        config=Path("config.yaml"),
        preset=True,
        quiet=False,
        as_json=as_json,
        stop_with_stdin=False,
    )
