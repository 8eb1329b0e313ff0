"""The task card: what a repository's task seems to be, with the lines that say so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from assay.study.files.records import Adapter, Answer
from assay.study.repo.files import Files

QUESTIONS = {
    "train": "Training",
    "evaluate": "Evaluation",
    "config": "Config system",
    "logging": "Logging",
    "metrics": "Metric candidates",
    "guardrails": "Guardrail candidates",
    "reward": "Reward code",
    "termination": "Termination code",
    "curriculum": "Curriculum code",
    "randomization": "Randomisation code",
    "launcher": "Launcher",
}
_ENVIRONMENT = re.compile(
    r"(?:\bmake|make_vec|make_env|make_vec_env|register)\(\s*(?:id\s*=\s*)?[\"']([\w./:-]{3,60})[\"']"
)


def task_card(root: Path, adapter: Adapter, findings: tuple[str, ...] = ()) -> str:
    """Return `task_card.md`: what the task seems to be, with the lines that say so."""
    files = Files(root)
    lines = [f"# Task card: {_plain(root.resolve().name)}", ""]
    lines += [
        f"Read from the files with profile `{adapter.profile}`; nothing was imported or run. Every",
        "answer below is a candidate until a person approves it in the contract.",
        "",
        *(f"- **Trouble**: {_plain(finding)}" for finding in findings),
        *([""] if findings else []),
        "## What the task seems to be",
        "",
    ]
    lines += _about(files) or ["No document says."]
    environments = _environments(files, adapter)
    lines += ["", "Environments:", ""]
    lines += environments or ["none found"]
    for question, title in QUESTIONS.items():
        answers: tuple[Answer, ...] = getattr(adapter, question)
        lines += ["", f"## {title}", ""]
        if not answers:
            lines.append("none")
        for answer in answers:
            note = f", {answer.note}" if answer.note else ""
            lines.append(f"- `{shown(answer.value)}` (confidence {answer.confidence:.2f}{note})")
            lines += [f"  - {_quoted(files, place)}" for place in answer.evidence]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("`", "'")).strip()


def shown(value: Any) -> str:
    """Return an answer's value as a person would type it."""
    if isinstance(value, dict) and "command" in value:
        return (
            _plain(f"{' '.join(value['command'])}") + f"`, settings as `{value['parameter_format']}"
        )
    if isinstance(value, dict) and "file" in value:
        return _plain(f"{value['file']}: {', '.join(value['names'])}")
    return _plain(str(value))


def _quoted(files: Files, place: str) -> str:
    path, _, number = place.rpartition(":")
    lines = files.text(path).split("\n") if path in files and number.isdigit() else []
    index = int(number) - 1 if lines else 0
    text = _plain(lines[index])[:110] if 0 <= index < len(lines) else ""
    return f"{place}: `{text}`" if text else place


def _about(files: Files) -> list[str]:
    """Return the first sentences of the repository's own description."""
    for path in files.paths:
        if "/" not in path and path.lower().startswith("readme"):
            for number, line in enumerate(files.text(path).split("\n"), 1):
                text = line.strip()
                prose = len(text) > 30 and not text.startswith(("#", "[", "!", "<", "|", "`", "="))
                if prose and " " in text:
                    return [f"> {_plain(text)[:300]}", "", f"({path}:{number})"]
    return []


def _environments(files: Files, adapter: Adapter) -> list[str]:
    found: dict[str, str] = {}
    for answer in adapter.train:
        command = answer.value["command"]
        for index, word in enumerate(command):
            key, equals, value = word.partition("=")
            if re.fullmatch(r"-*(env|env[-_]id|env[-_]name|task|gym[-_]id)", key):
                value = value if equals else (command[index + 1 : index + 2] or [""])[0]
                if value and not value.startswith("-"):
                    found.setdefault(value, answer.evidence[0])
    places = [
        place for question in QUESTIONS for a in getattr(adapter, question) for place in a.evidence
    ]
    for path in dict.fromkeys(place.rpartition(":")[0] for place in places):
        if path.endswith(".py"):
            for number, line in enumerate(files.text(path).split("\n"), 1):
                match = _ENVIRONMENT.search(line)
                if match:
                    found.setdefault(match[1], f"{path}:{number}")
    return [f"- `{_plain(name)}` ({place})" for name, place in list(found.items())[:15]]
