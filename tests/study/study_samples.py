"""Contracts and candidates that tests start from."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from assay.study.agree.approvals import approve
from assay.study.files.base import Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import APPROVALS, Contract
from assay.study.files.documents import ROOT, write_yaml_document
from assay.study.files.records import Registry
from assay.study.record.study import Study
from assay.study.run import launcher, planning
from assay.study.steps import candidates

POOLS = {  # five seeds a phase, so that tests are fast; the template has ten
    "development": [0],
    "promotion": [1, 2, 3, 4, 5],
    "validation": [11, 12, 13, 14, 15],
}


def contract_values(**changes: Any) -> dict[str, Any]:
    """Return a valid contract as plain values."""
    source = {"kind": "jsonl", "path": "metrics.jsonl", "key": "eval/return_mean"}
    values: dict[str, Any] = {
        "study": "lr",
        "question": "Does a larger learning rate learn faster?",
        "task": {"id": "cartpole", "description": "Balance for 500 steps.", "env": "CartPole-v1"},
        "metrics": {
            "primary": {"name": "return", "source": source, "minimum_effect": 10.0},
            "guardrails": [
                {
                    "name": "hours",
                    "direction": "minimize",
                    "source": {"kind": "jsonl", "path": "metrics.jsonl", "key": "time/elapsed"},
                    "margin": 0.5,
                }
            ],
        },
        "scope": {
            "parameters": {"lr": {"kind": "float", "low": 1e-4, "high": 1e-2, "log": True}},
            "files": ["src/**/*.py"],
        },
        "budget": {"wall_clock_hours": 2.0, "runs": 40},
        "hardware": {"kind": "cpu"},
        "baseline": {"command": ["python", "train.py", "--seed", "{seed}", "{parameters}"]},
        "evaluation": {
            "episodes": 20,
            "pools": dict(POOLS),
        },
    }
    return values | changes


def candidate_values(**changes: Any) -> dict[str, Any]:
    """Return a valid candidate as plain values."""
    values: dict[str, Any] = {
        "id": "c1",
        "task": "cartpole",
        "study": "lr",
        "kind": "hyperparameter",
        "hypothesis": "A larger step learns faster.",
        "change": {"parameters": {"lr": 1e-3}},
        "budget": {"wall_clock_hours": 0.05},
        "expected": "return rises by 20",
        "rollback": "Set lr back.",
    }
    return values | changes


ENOUGH = "enough"  # a file beside a run's output, for which its training stops sleeping
TRAIN = """
    import json, os, pathlib, sys, time
    seed, out, *rest = sys.argv[1:]
    settings = dict(word.split("=") for word in rest)
    out = pathlib.Path(out)
    (out / "starts").open("a").write("x")
    end = time.monotonic() + float(settings.get("sleep", 0))
    while time.monotonic() < end and not (out.parent / "enough").exists():
        time.sleep(min(0.05, max(0, end - time.monotonic())))
    lr = float(settings.get("lr", 0.001))
    row = {"eval/return_mean": 100 + 1000 * lr + int(seed) % 10, "time/elapsed": 1.0}
    (out / "metrics.jsonl").write_text(json.dumps(row) + "\\n")
    print("trained", os.environ.get("SECRET", "without secrets"))
    sys.exit(int(settings.get("exit", 0)))
"""


def make_study(root: Path, budget: Any = None, **experiment: Any) -> Study:
    """Return an approved study of a script in a Git repository, with one validated candidate.

    Each kind is made once by a test process, which takes dozens of calls of Git, and copied.
    """
    kind = json.dumps([budget, experiment], sort_keys=True)
    if kind not in _made:
        place = Path(tempfile.mkdtemp(prefix="assay-study-"))
        atexit.register(shutil.rmtree, place, ignore_errors=True)
        _make_study(place, budget, experiment)
        _made[kind] = place
    shutil.copytree(_made[kind], root, dirs_exist_ok=True)
    return Study(root, "cartpole", "lr")


_made: dict[str, Path] = {}


def _make_study(root: Path, budget: Any, experiment: dict[str, Any]) -> None:
    (root / "train.py").write_text(textwrap.dedent(TRAIN))
    (root / "src").mkdir()
    (root / "src/agent.py").write_text("LR = 1\n")
    (root / ".gitignore").write_text(f"{ROOT}/\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    begin = ["init", "-q", "--template="]  # without samples of hooks, which would be copied, too
    for words in (begin, ["add", "."], [*identity, "commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=root, check=True)
    values = contract_values()
    command = ["{python}", "train.py", "{seed}", "{out}", "{parameters}"]
    values["baseline"] = {"command": command, "env_allow": ["PATH"]}
    values["scope"]["parameters"] |= {
        "sleep": {"kind": "float", "low": 0, "high": 1000},
        "exit": {"kind": "int", "low": 0, "high": 9},
    }
    values["evaluation"]["files"] = ["train.py"]
    values["experiment"] = experiment
    if budget:
        values["budget"] = budget
    add(approved_study(root, values), "c1", lr=0.002)


def approved_study(root: Path, values: dict[str, Any]) -> Study:
    """Return a study in a repository under a contract that is wholly approved."""
    study = Study(root, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(root / ROOT / "registry.yaml", Registry(task="cartpole", study="lr"))
    write_yaml_document(study.contract_path, Contract(**values))
    for item in APPROVALS:
        approve(study, item, "ada")
    return study


def launch(study: Study, name: str, phase: Phase, seed: int, **options: Any) -> str:
    """Launch a run as someone does who read its dry run; return its name."""
    token = planning.plan(study, name, phase, seed).token
    return launcher.launch(study, name, phase, seed, confirm=token, actor="agent", **options).run


def add(study: Study, name: str, **parameters: object) -> None:
    values = candidate_values(id=name, change={"parameters": parameters})
    candidates.propose(study, Candidate(**values), "agent")
    candidates.validate(study, name, "agent")
