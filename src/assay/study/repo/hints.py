"""Hints about a stack: packaged profiles, or a repository's own `adapter-hints.yaml`.

A hint never answers by itself: it widens what the audit looks for, or names an answer together with
the line that has to be there to prove it.
"""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from assay.core.config import Model, parse
from assay.core.errors import nearest
from assay.study.files.documents import ROOT, StudyError
from assay.study.files.records import Adapter

HINTS = "adapter-hints.yaml"
_PROFILES = importlib.resources.files("assay.study.repo").joinpath("profiles")


class HintedAnswer(Model):
    """What a stack usually answers; it counts only where its proof is found."""

    value: Any = Field(description="The answer.")
    files: str = Field(description="Glob of the files that prove it.")
    pattern: str = Field(description="Regular expression that one of their lines matches.")
    confidence: float = Field(0.6, ge=0, le=1)


class Hints(Model):
    """What is known of a stack beforehand: a packaged profile or `adapter-hints.yaml`."""

    name: str = Field(description="Of the stack.")
    imports: tuple[str, ...] = Field((), description="Packages by which it is recognised.")
    files: tuple[str, ...] = Field((), description="Files by which it is recognised.")
    vocabulary: dict[str, tuple[str, ...]] = Field(
        {}, description="metric_calls, and per slot <slot>_terms: names of calls."
    )
    guardrails: tuple[str, ...] = Field((), description="Words in the names of guardrails.")
    ignore: tuple[str, ...] = Field((), description="Globs of files that are not looked at.")
    parameter_format: str = Field("", description="How its commands take settings.")
    seed: str = Field("", description="The option by which its commands take a seed.")
    answers: dict[str, tuple[HintedAnswer, ...]] = Field({}, description="Per question.")


def profiles() -> list[str]:
    """Return the names of the packaged profiles."""
    return sorted(item.name.removesuffix(".yaml") for item in _PROFILES.iterdir())


def find_hints(root: Path, profile: str | None) -> Hints:
    """Return the named hints, else the repository's own, else those of the stack it looks like.

    Raises:
        StudyError: There is no such profile, or its hints are malformed.
    """
    if profile is not None and profile not in profiles():
        path = Path(profile)
        if not path.is_file():
            raise StudyError(
                f"There is no profile '{profile}'.",
                f"{nearest(profile, profiles())} Or name a file of hints ({HINTS}).",
            )
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise StudyError(f"The hints '{profile}' cannot be read: {error.strerror}.") from None
        return _read_hints(str(path), text)
    if profile is not None:
        return _read_hints(profile, _PROFILES.joinpath(f"{profile}.yaml").read_text())
    for own in (root / HINTS, root / ROOT / HINTS):
        if _text(own):
            return _read_hints(str(own), _text(own))
    known = [_read_hints(n, _PROFILES.joinpath(f"{n}.yaml").read_text()) for n in profiles()]
    for hints in known:
        if any((root / name).exists() for name in hints.files):
            return hints
    imports = _declared(root)
    for hints in known:
        if imports & set(hints.imports):
            return hints
    return next(hints for hints in known if hints.name == "generic")


def mismatch(root: Path, hints: Hints, imported: set[str]) -> str:
    """Return what is wrong where a repository is not of the stack that its hints are about.

    Returns:
        One sentence that begins with `profile mismatch`; empty if they fit, or if the hints do not
        say how their stack is recognised.
    """
    signs = [f"imports or needs {name}" for name in hints.imports]
    signs += [f"has {name}" for name in hints.files]
    fits = (
        bool((imported | _declared(root)) & set(hints.imports))
        or any((root / name).exists() for name in hints.files)
        or not signs
    )
    if fits:
        return ""
    likely = find_hints(root, None).name
    return (
        f"profile mismatch: this does not look like '{hints.name}', since nothing here "
        f"{' or '.join(signs)}; without --profile it is read as '{likely}'."
    )


def _declared(root: Path) -> set[str]:
    """Return the packages that a project says it needs."""
    found: set[str] = set()
    for name in ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt"):
        path = root / name
        text = _text(path)
        if text:
            found |= set(re.findall(r"^\s*[\"']?([A-Za-z][\w-]+)", text, flags=re.MULTILINE))
            found |= set(re.findall(r"[\"']([A-Za-z][\w-]+)", text))
    return {name.lower().replace("-", "_") for name in found}


def _text(path: Path) -> str:
    """Return the text of a file; empty if it is none, leads elsewhere, is huge or locked."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > 1_000_000:
            return ""
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _read_hints(name: str, text: str) -> Hints:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise StudyError(f"The hints '{name}' are malformed{place}.") from None
    if not isinstance(values, dict):
        raise StudyError(f"The hints '{name}' hold {type(values).__name__}; expected a mapping.")
    hints = parse(Hints, values, what=f"the hints '{name}'")
    questions = set(Adapter.model_fields) - {"schema_version", "profile"}
    for question, answers in hints.answers.items():
        if question not in questions:
            raise StudyError(
                f"The hints '{name}' answer '{question}'.", nearest(question, sorted(questions))
            )
        for answer in answers:
            try:
                re.compile(answer.pattern)
            except re.error as error:
                raise StudyError(
                    f"The hints '{name}' have a malformed pattern '{answer.pattern}': {error}."
                ) from None
    return hints
