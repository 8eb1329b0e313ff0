"""Commands that begin with `uv run`: they run in the project's environment as it is.

In a run's worktree uv would make an environment of its own, and fetch packages for it. It is told
to use the one that `uv sync` made in the repository, and to leave it alone; imports of the
repository are led to the worktree as in every other environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError

_PLAIN = frozenset({
    "--no-sync", "--frozen", "--locked", "--offline", "-q", "--quiet", "--all-extras",
    "--all-groups", "--dev", "--no-dev", "-m", "--module",
})  # fmt: skip
_WITH_VALUE = frozenset({"--extra", "--group"})  # which packages, of an environment that is there


def is_run(words: Sequence[str]) -> bool:
    """Return whether a command is `uv run ...`."""
    return len(words) > 1 and Path(words[0]).name == "uv" and words[1] == "run"


def environment(root: Path, cwd: str) -> Path | None:
    """Return the environment that uv uses in a directory of the repository, if there is one."""
    top = root.resolve()
    start = (top / cwd).resolve()
    for place in (start, *start.parents):
        if (place / ".venv" / "pyvenv.cfg").is_file():
            return place / ".venv"
        if place == top:
            break
    return None


def variables(root: Path, agreed: Contract) -> dict[str, str]:
    """Return what tells uv to use that environment as it is; nothing for other commands."""
    commands = (agreed.baseline.command, agreed.evaluation.command)
    found = environment(root, agreed.baseline.cwd) if any(map(is_run, commands)) else None
    return {} if found is None else {"UV_PROJECT_ENVIRONMENT": str(found), "UV_NO_SYNC": "1"}


def refuse_other(root: Path, agreed: Contract, words: Sequence[str]) -> None:
    """Refuse a `uv run` that would need another environment than the one that is there.

    Raises:
        StudyError: Names the option, or that there is no environment.
    """
    rest = iter(words[2:])
    for word in rest:
        if not word.startswith("-"):
            break
        if word in _WITH_VALUE:
            next(rest, "")
        elif word not in _PLAIN and word.partition("=")[0] not in _WITH_VALUE:
            raise StudyError(
                f"'uv run {word}' sets up another environment than the repository's own.",
                "Leave the option out, or use the environment's interpreter: {python}, or its "
                "absolute path.",
            )
    if environment(root, agreed.baseline.cwd) is None:
        raise StudyError(
            f"'uv run' would make an environment for every run: there is no .venv in '{root}'.",
            "Make it once with uv sync; runs use it as it is.",
        )
