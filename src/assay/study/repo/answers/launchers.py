"""What a repository starts its runs with."""

from __future__ import annotations

import re

from assay.study.files.records import Answer
from assay.study.repo.answers.ranking import Found, ranked
from assay.study.repo.purpose import is_script
from assay.study.repo.repository import Repository

_LAUNCH_LINES = (
    ("slurm", 0.9, re.compile(r"^#SBATCH\s|^\s*(\$\s*)?(sbatch|srun)\s+\S|^.*submitit_slurm")),
    ("tmux", 0.85, re.compile(r"\btmux\s+(new|new-session|send-keys|new-window|split-window)\b")),
    ("torchrun", 0.85, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*(uv run |poetry run )?torchrun\s+\S")),
    ("torchrun", 0.85, re.compile(r"\bpython3?\s+-m\s+torch\.distributed\.(run|launch)\b")),
    ("ray", 0.8, re.compile(r"\bray\s+(job\s+submit|submit|up|start)\b")),
    ("kubernetes", 0.85, re.compile(r"\bkubectl\s+(apply|create|run)\b")),
    ("custom", 0.6, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*accelerate\s+launch\b")),
)  # fmt: skip


def launcher(repo: Repository, train: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return what runs are started with; nothing where nothing trains."""
    found = []
    for fact in repo.relevant():
        for name, hit in fact.launchers.items():
            found.append(Found(name, f"{fact.path}:{hit.line}", hit.confidence))
    for fact in repo.searched():
        if is_script(fact) and "custom" in fact.launchers:
            hit = fact.launchers["custom"]
            found.append(Found("custom", f"{fact.path}:{hit.line}", hit.confidence))
    for command in repo.scripts.commands:
        if command.distributed and command.target in repo.chosen["train"]:
            found.append(Found("torchrun", command.place, 0.9))
    for path in repo.files.paths:
        if not path.endswith(".py") and not repo.files.is_test(path):
            found.extend(_launchers_in(path, repo.files.text(path)))
    plain = [
        answer
        for answer in train
        if not {"sbatch", "srun", "torchrun", "ray"} & set(answer.value["command"])
    ]
    if plain:
        found.append(Found("local", plain[0].evidence[0], max(0.6, plain[0].confidence - 0.1)))
    return ranked(found, 7) if train else ()


def _launchers_in(path: str, text: str) -> list[Found]:
    found: list[Found] = []
    if path.endswith((".yaml", ".yml")):
        kind = re.search(r"^kind:\s*(Job|Pod|\w*Job|CronJob|StatefulSet)\s*$", text, re.MULTILINE)
        if kind and re.search(r"^apiVersion:", text, re.MULTILINE):
            line = text.count("\n", 0, kind.start()) + 1
            found.append(Found("kubernetes", f"{path}:{line}", 0.85))
    if path.endswith((".txt", ".cfg", ".toml", ".gin")):
        return found
    if not re.search("SBATCH|sbatch|srun|submitit|tmux|torch|ray|kubectl|accelerate", text):
        return found
    for number, row in enumerate(text.split("\n"), 1):
        for name, confidence, pattern in _LAUNCH_LINES:
            if len(row) < 1000 and pattern.search(row):
                found.append(Found(name, f"{path}:{number}", confidence))
    return found
