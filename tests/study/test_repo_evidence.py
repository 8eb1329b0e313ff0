"""What speaks for a program being the one that trains, weighed together."""

from __future__ import annotations

import inspect
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from made_repositories import TRAIN, audit, first, put

from assay.study.repo.answers import evidence
from assay.study.repo.hints import find_hints
from assay.study.repo.repository import Repository

LEARNS = "import gymnasium\n\n\ndef fit(env):\n    env.step(0)\n    loss.backward()\n"
STARTS = "from pkg.core import fit\n\nif __name__ == '__main__':\n    go()\n"


def shown(root: Path, target: str) -> dict[str, float]:
    repo = Repository(root, find_hints(root, None))
    return next(evidence.signs(repo, p) for p in evidence.programs(repo) if p.target == target)


def test_what_a_document_runs_and_reaches_learning_trains(tmp_path: Path) -> None:
    put(tmp_path, pkg__core_dot_py=LEARNS, go_dot_py=STARTS)
    assert first(audit(tmp_path).train) == "none"  # a module that can be tried out
    put(tmp_path, README_dot_md="```\npython go.py --level 2\n```\n")
    assert first(audit(tmp_path).train).startswith("{python} go.py --level 2")
    assert audit(tmp_path).train[0].evidence[0] == "README.md:2"


def test_an_evaluation_is_not_offered_as_training(tmp_path: Path) -> None:
    adapts = LEARNS + "\nif __name__ == '__main__':\n    fit(env)\n    evaluate_policy(env)\n"
    put(tmp_path, evaluate_dot_py=adapts)
    found = audit(tmp_path)
    assert first(found.train) == "none"
    assert first(found.evaluate).startswith("{python} evaluate.py")


def test_more_signs_come_before_a_place_further_up(tmp_path: Path) -> None:
    put(tmp_path, a__one_dot_py=TRAIN, baselines__reaching__ppo_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} baselines/reaching/ppo.py"


CLI = """import argparse
import gymnasium

def main():
    verbs = argparse.ArgumentParser().add_subparsers(required=True)
    verbs.add_parser('run')
    verbs.add_parser('check')
    agent.learn(total=1)

if __name__ == '__main__':
    main()
"""


def test_a_program_with_verbs_is_called_with_one(tmp_path: Path) -> None:
    put(tmp_path, pyproject_dot_toml="[project.scripts]\ntool = 'pkg.cli:main'\n")
    put(tmp_path, pkg__cli_dot_py=CLI)
    put(tmp_path, README_dot_md="```\ntool\ntool run box.yaml\n```\n")
    assert first(audit(tmp_path).train).startswith("{python} -m pkg.cli run box.yaml")


def test_an_assignment_in_a_document_is_no_command(tmp_path: Path) -> None:
    put(tmp_path, pyproject_dot_toml="[project.scripts]\ntool = 'pkg.cli:main'\n")
    put(tmp_path, pkg__cli_dot_py="import gymnasium\n\ndef main():\n    agent.learn(total=1)\n")
    put(tmp_path, README_dot_md="```python\ntool = Tool(arms=3)\n```\n\n```\ntool --arms 3\n```\n")
    assert first(audit(tmp_path).train).startswith("tool --arms 3")


def test_signs_are_those_of_the_weights(tmp_path: Path) -> None:
    source = inspect.getsource(evidence.signs)
    assert all(f'"{name}"' in source for name in evidence.weights() if name != evidence.NONE)
    put(tmp_path, train_dot_py=TRAIN, README_dot_md="## Training\n```\npython train.py\n```\n")
    found = shown(tmp_path, "train.py")
    assert set(found) <= set(evidence.weights())
    wanted = {"name says training", "readme runs it", "heading says training", "learns"}
    assert wanted <= set(found) and found["documents"] == pytest.approx(0.2)
    known = evidence.weights()
    by_hand = sum(known[name] * value for name, value in found.items()) - known[evidence.NONE]
    assert evidence.score(found) == pytest.approx(by_hand)


def test_weights_are_those_of_the_likeliest_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.syspath_prepend(str(root / "benchmarks"))
    monkeypatch.delitem(sys.modules, "fit_audit", raising=False)
    import fit_audit

    choice = fit_audit.Choice("a", "first", ["x", "y"], [{"sign": 1.0}, {}], np.array([1, 0], bool))
    (weight,) = fit_audit.fit([choice], ["sign"], 1.0)
    # The slope of w^2 / 2 - log(e^w / (e^w + 1)) is zero where w = 1 / (e^w + 1).
    assert weight == pytest.approx(1 / (math.exp(weight) + 1), abs=1e-4)
    assert weight > 0.3
