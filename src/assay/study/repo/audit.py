"""The audit of a foreign repository: how it is trained, evaluated, configured and logged.

Static only: syntax trees, documents, entry points, CI files, Makefiles, YAML. Nothing of the target
is imported or run. Every answer has its evidence and a confidence; where nothing was found the
answer is the empty tuple.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from pathlib import Path

from assay.study.files.documents import StudyError
from assay.study.files.records import Adapter, Answer
from assay.study.repo.answers import code, commands, metrics, settings
from assay.study.repo.hints import HintedAnswer, find_hints
from assay.study.repo.repository import Repository


@dataclass(frozen=True)
class Inspected:
    """What an audit found, and what a person should know about it."""

    adapter: Adapter
    findings: tuple[str, ...]  # troubles by their names, such as `profile mismatch: ...`


def inspect(root: Path, profile: str | None = None, script: str | None = None) -> Inspected:
    """Return how a repository is trained, evaluated, configured and logged.

    Args:
        root: Its directory. Nothing in it is imported, run or changed.
        profile: A packaged profile or a file of hints; by default the repository's own
            `adapter-hints.yaml`, else the profile that it looks like.
        script: The file that trains, where a person knows it; it is then the first answer.

    Raises:
        StudyError: There is no such directory, script or profile, or its hints are malformed.
    """
    if not root.is_dir():
        raise StudyError(f"'{root}' is not a directory.", "Name a repository with --root.")
    hints = find_hints(root, profile)
    repo = Repository(root, hints, script)
    findings = repo.troubles()
    if not repo.is_rl():
        return Inspected(Adapter(profile=hints.name), findings)
    answers = commands.commands(repo)
    if script is not None:
        answers["train"] = (commands.named(repo, script), *answers["train"])
    answers["config"] = settings.config(repo)
    answers["logging"] = settings.logging(repo)
    answers["metrics"] = metrics.metrics(repo)
    answers["guardrails"] = metrics.guardrails(repo, answers["metrics"])
    answers |= code.code(repo)
    answers["launcher"] = settings.launcher(repo, answers["train"])
    _add_hints(repo, answers)
    return Inspected(Adapter(profile=hints.name, **answers), findings)


def _add_hints(repo: Repository, answers: dict[str, tuple[Answer, ...]]) -> None:
    """Add what the profile expects, where the repository proves it."""
    for question, hints in repo.hints.answers.items():
        known = [answer.value for answer in answers[question]]
        for hint in hints:
            proof = _proof(repo, hint)
            if proof and hint.value not in known:
                answer = Answer(
                    value=hint.value,
                    confidence=hint.confidence,
                    evidence=(proof,),
                    note=f"hint of profile {repo.hints.name}",
                )
                answers[question] = (*answers[question], answer)


def _proof(repo: Repository, hint: HintedAnswer) -> str:
    pattern = re.compile(hint.pattern)
    for path in repo.files.paths:
        if fnmatch.fnmatch(path, hint.files):
            for number, line in enumerate(repo.files.text(path).split("\n"), 1):
                if pattern.search(line):
                    return f"{path}:{number}"
    return ""
