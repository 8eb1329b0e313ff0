"""A small repository with a training and an evaluation script, and how attacks on it are run.

Training writes a policy, evaluation reads it and writes the score: 50, plus 1000 times the learning
rate, plus noise of the seed. A run takes a tenth of a second. Supervisors work in the test's own
process, so that an attack can strike at an exact step.
"""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from study_samples import approved_study, candidate_values, contract_values

from assay.study.files.candidate import Candidate
from assay.study.files.documents import ROOT
from assay.study.files.records import RunRecord
from assay.study.judge import audit, verdict
from assay.study.judge import verify as verifying
from assay.study.record.study import Study
from assay.study.run import launcher, planning, supervisor
from assay.study.steps import candidates

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
FILES = {
    "agent.py": "LR = 0.001\n",
    "unused.py": "WIDTH = 64\n",
    "common.py": "def scale(skill):\n    return skill\n",
    "train.py": """
        import json, pathlib, random, sys
        from agent import LR
        seed, out, *rest = sys.argv[1:]
        lr = float(dict(word.split("=") for word in rest).get("lr", LR))
        noise = random.Random(int(seed)).gauss(0, 1)
        policy = {"skill": 50 + 1000 * lr + noise}
        (pathlib.Path(out) / "policy.json").write_text(json.dumps(policy))
    """,
    "evaluate.py": """
        import json, pathlib, sys
        import random
        from common import scale
        out = pathlib.Path(sys.argv[1])
        skill = json.loads((out / "policy.json").read_text())["skill"]
        (out / "eval.json").write_text(json.dumps({"return": scale(skill)}))
    """,
    ".gitignore": f"{ROOT}/\n__pycache__/\ndata/\n",
}
Between = Callable[[str], None]


def git(root: Path, *words: str, **options: Any) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, "-c", "protocol.file.allow=always", *words],
        cwd=root, check=True, capture_output=True, text=True, **options,
    )  # fmt: skip
    return done.stdout


def commit(root: Path, files: dict[str, str], message: str = "change") -> str:
    write(root, files)
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)
    return git(root, "rev-parse", "HEAD").strip()


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(textwrap.dedent(text).lstrip("\n"))


def repository(root: Path, files: dict[str, str] = FILES) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q")
    commit(root, files, "first")
    return root


def begin(root: Path, **changes: dict[str, Any]) -> Study:
    """Return an approved study of a repository; parts of the contract can be changed."""
    values = contract_values()
    source = {"kind": "json", "path": "eval.json", "key": "return"}
    values["metrics"] = {"primary": {"name": "return", "source": source, "minimum_effect": 1.0}}
    values["scope"] |= {"files": ["**/*.py", "*.yaml"]}
    values["budget"] = {"wall_clock_hours": 20.0, "runs": 100}
    values["baseline"] = {
        "command": ["{python}", "train.py", "{seed}", "{out}", "{parameters}"],
        "env_allow": ["PATH", "HOME"],
    }
    values["evaluation"] |= {
        "command": ["{python}", "evaluate.py", "{out}"], "files": ["evaluate.py"],
    }  # fmt: skip
    for part, change in changes.items():
        values[part] = values[part] | change
    return approved_study(root, values)


def propose(study: Study, name: str = "c1", patch: str = "", **parameters: Any) -> None:
    """Propose a candidate and freeze it; without a change it is the baseline."""
    change = {"parameters": parameters, "patch": patch}
    kind = "hyperparameter" if patch or parameters else "baseline"
    values = candidate_values(id=name, kind=kind, change=change)
    candidates.propose(study, Candidate(**values), "agent")
    candidates.validate(study, name, "agent")


def diff(root: Path, files: dict[str, str]) -> str:
    """Return the patch that writes some files, and take it back."""
    write(root, files)
    git(root, "add", "-A")
    patch = git(root, "diff", "--cached", "--binary")
    git(root, "reset", "-q", "--hard")
    return patch


class Runner:
    """Launches runs and supervises them in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(supervisor, "start", lambda *words: None)

    def __call__(
        self, study: Study, name: str = "c1", seed: int = 0, phase: str = "short",
        between: Between = lambda step: None,
    ) -> RunRecord:  # fmt: skip
        """Launch one run and return its record once it is over."""
        token = planning.plan(study, name, phase, seed).token
        run = launcher.launch(study, name, phase, seed, confirm=token, actor="agent").run
        supervisor.supervise(study, run, between)
        return study.run(run)

    def pool(self, study: Study, name: str, phase: str = "promotion") -> list[RunRecord]:
        """Run every seed of a pool."""
        seeds = study.contract().evaluation.pools.of(phase)
        return [self(study, name, seed, phase) for seed in seeds]

    def judged(self, study: Study, name: str) -> verdict.Verdict:
        """Run a candidate's promotion, audit it and judge it."""
        self.pool(study, name)
        audit.audit(study, name, "promotion", "agent")
        return verdict.judge(study, name, "promotion", "agent")

    def baseline(self, study: Study) -> None:
        propose(study, "base")
        for phase in ("promotion", "validation"):
            self.pool(study, "base", phase)


def problems(study: Study) -> str:
    """Return what `assay study verify` finds, as one text."""
    return "; ".join(str(problem) for problem in verifying.verify(study))


def expected(seed: int, lr: float = 0.001) -> float:
    """Return the score of an honest run."""
    import random

    return 50 + 1000 * lr + random.Random(seed).gauss(0, 1)
