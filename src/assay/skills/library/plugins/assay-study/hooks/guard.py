"""Deny a shell command that trains directly while a study is active above its directory.

A `PreToolUse` hook of Claude Code and Codex: the call comes as JSON on stdin, a denial goes out as
JSON on stdout. It is a second fence. The first is the runner of `assay study`, which this hook
names in its reason. What it cannot read it lets pass: a hook must not stop unrelated work.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

_RUNNERS = r"(?:python[\d.]*|uv|torchrun|accelerate|poetry|pixi|srun|sbatch|nohup|bash|sh|xvfb-run)"
_TRAINS = re.compile(
    rf"(?:^|/|\s){_RUNNERS}\s(?:.*[\s/])?(?:[\w-]*train(?:ing|er)?(?:_\w+)?(?:\.py|\.sh)?)(?:\s|$)"
)
_TOOLS = {"pytest", "mypy", "ruff", "pip", "black", "pylint", "py_compile", "coverage"}
_ASSAY = re.compile(r"(?:^|\s|/)(?:assay|-m assay)\s+(train|resume|study|skills|\S+)")


def study_above(place: Path) -> Path | None:
    """Return the directory with a study, from `place` upwards."""
    for path in (place, *place.parents):
        if (path / ".rlxp" / "registry.yaml").is_file():
            return path
    return None


def scripts_of(root: Path) -> set[str]:
    """Return the scripts that the contracts of a repository train with."""
    found: set[str] = set()
    for contract in root.glob(".rlxp/tasks/*/studies/*/contract.yaml"):
        text = contract.read_text(encoding="utf-8", errors="replace")
        block = re.search(r"^baseline:\n((?:[ \t].*\n|\n)*)", text, re.MULTILINE)
        if block:
            found |= set(re.findall(r"[\w./-]+\.(?:py|sh)\b", block[1]))
    return {Path(script).name for script in found}


def trains(command: str, scripts: set[str]) -> str:
    """Return the part of a command line that trains, or "".

    >>> trains("cd x && python train.py --seed 1", set())
    'python train.py --seed 1'
    >>> trains("assay study run c1 --seed 1", set()), trains("cat train.py", set())
    ('', '')
    """
    for part in re.split(r"&&|\|\||[;|&\n]", command):
        part = part.strip()
        ours = _ASSAY.search(part)
        if ours:
            if ours[1] in ("train", "resume"):
                return part
            continue
        try:
            words = shlex.split(part)
        except ValueError:
            words = part.split()
        if _TOOLS & set(words):
            continue
        runs = bool(words) and re.search(rf"(?:^|/){_RUNNERS}$", next_word(words)) is not None
        named = runs and any(Path(word).name in scripts for word in words)
        if named or _TRAINS.search(" ".join(words)):
            return part
    return ""


def next_word(words: list[str]) -> str:
    """Return the first word that is not an assignment, `env`, `time` or `nice`."""
    skipped = {"env", "time", "nice", "sudo", "exec"}
    return next((w for w in words if "=" not in w.split("/")[0] and w not in skipped), "")


def main() -> int:
    """Answer one call of the hook."""
    try:
        call = json.load(sys.stdin)
        command = str(call["tool_input"]["command"])
        root = study_above(Path(call.get("cwd") or ".").resolve())
        part = trains(command, scripts_of(root)) if root else ""
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    if part:
        reason = (
            f"'{part[:120]}' trains outside of the study in {root}. Runs of a study start through "
            "`assay study run CANDIDATE --seed N` (a dry run without --execute), so that approval, "
            "budget and evidence are on record. `assay study next` says what comes next."
        )
        answer = {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
        print(json.dumps({"hookSpecificOutput": answer}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
