"""The workflows of orchestrators: their steps name skills and gates, and their commands work."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from assay.skills.library import Skill, plugins

SKILLS = {skill.name: skill for plugin in plugins() for skill in plugin.skills}
# In the order of a task: what one leaves behind, the next begins with.
WALK = ("rl-env-engineer", "rl-architect", "rl-algo-engineer", "rl-mlops-engineer", "rl-evaluator")
STEPS = {"rl-architect": 11, "rl-algo-engineer": 12, "rl-env-engineer": 10, "rl-evaluator": 9,
         "rl-mlops-engineer": 8}  # fmt: skip
SINGLE = {
    "defining-state-space", "defining-action-space", "designing-reward-function",
    "defining-mdp-transition", "selecting-rl-strategy", "blueprinting-system-architecture",
    "formulating-marl-architecture", "designing-hierarchical-rl", "formulating-irl-and-imitation",
    "designing-feature-extractor", "designing-policy-actor", "designing-value-critic",
    "implementing-memory-models", "configuring-replay-buffers", "implementing-loss-functions",
    "implementing-marl-algorithms", "implementing-offline-rl", "implementing-imitation-learning",
    "training-rlhf-reward-model", "implementing-gymnasium-env", "integrating-physics-simulator",
    "implementing-observation-wrappers", "implementing-temporal-wrappers",
    "implementing-domain-randomization", "validating-env-compatibility",
    "implementing-pettingzoo-marl-env", "designing-adversarial-environments",
    "designing-deterministic-eval-loop", "creating-ood-robustness-tests",
    "implementing-rendering-and-plotting", "analyzing-saliency-and-values",
    "diagnosing-training-failures", "evaluating-marl-equilibria",
    "conducting-adversarial-rl-testing", "setting-up-experiment-tracking",
    "configuring-hyperparameter-tuning", "configuring-distributed-rollouts",
    "configuring-checkpoint-strategy", "setting-up-offline-rl-datasets",
    "setting-up-rlhf-data-pipeline",
}  # fmt: skip
# Placeholders, and budgets that end in seconds.
TINY = {
    r"\bENV\b": "CartPole-v1", r"\bALGO\b": "ppo", r"\bSTEPS\b": "2048", r"\bRUN\b": "control",
    r"\bCONTROL\b": "variant", r"--episodes \d+": "--episodes 5",
    r"--seeds 5 --name variant": "--name variant",
    r"--seeds 5": "--seeds 2 --jobs 1",
}  # fmt: skip


def steps(skill: Skill) -> list[str]:
    text = (skill.path / "workflow.md").read_text()
    return re.split(r"^## ", text, flags=re.MULTILINE)[1:]


def commands(skill: Skill) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", "".join(steps(skill)), re.DOTALL)
    found = [line for block in blocks for line in block.splitlines()]
    for pattern, tiny in TINY.items():
        found = [re.sub(pattern, tiny, line) for line in found]
    return found


def test_all_single_skills_are_there() -> None:
    assert SINGLE <= SKILLS.keys()


@pytest.mark.parametrize("name", WALK)
def test_every_step_names_its_skill_what_goes_in_and_out_and_a_gate(name: str) -> None:
    found = steps(SKILLS[name])
    assert [int(step.partition(".")[0]) for step in found] == list(range(1, STEPS[name] + 1))
    for step in found[:-1]:
        named = re.search(r"Skill: ([\w-]+)\. In: .+\. Out: .+\.", step)
        assert named and named[1] in SKILLS, step
        assert re.search(r"[Gg]ate", step), step
    assert "Synthesize" in found[-1] and re.search(r"[A-Z]+\.md", found[-1])


@pytest.mark.slow
def test_from_a_blank_directory_to_a_judged_agent(tmp_path: Path) -> None:
    here = tmp_path
    for line in (line for name in WALK for line in commands(SKILLS[name])):
        words = shlex.split(line)
        if words[0] == "cd":
            here /= words[1]
            continue
        assert words[0] == "assay", line
        done = subprocess.run(
            [sys.executable, "-m", "assay", *words[1:]], cwd=here, capture_output=True, text=True,
            env=os.environ | {"NO_COLOR": "1"},
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    for file in ("envs.html", "plan/config.yaml", "policy.pt", "expert.npz", "curves.svg",
                 "ood/report.md", "runs/control/seed-1/eval"):  # fmt: skip
        assert (here / file).exists(), file
