"""Begin a study: its directories, its schemas, and a contract to fill in."""

from __future__ import annotations

from pathlib import Path

from assay.study.layout import (
    ROOT,
    Study,
    StudyError,
    checked_name,
    export_schemas,
    read_yaml_document,
    write_text,
    write_yaml_document,
)
from assay.study.models import Adapter, Registry, State

CREATED = "study.created"
OLD_FILES = ("contract.yaml", "ledger.jsonl", "state.json")


def initialise(root: Path, task: str, study: str, *, actor: str, activate: bool = False) -> Study:
    """Create a study in a repository and make it the active one.

    Nothing of the repository is run or read for it.

    Args:
        root: The target repository.
        task: Name of the task; it is made if it is new.
        study: Name of the study.
        actor: Who begins it.
        activate: Take the place of a study that is active.

    Raises:
        StudyError: It exists, or another one is active.
    """
    if not root.is_dir():
        raise StudyError(f"'{root}' is not a directory.", "Name the repository with --root.")
    made = Study(root, checked_name(task, "task"), checked_name(study, "study"))
    if made.path.exists():
        raise StudyError(f"There is a study {task}/{study} already.", "Choose another name.")
    registry_path = root / ROOT / "registry.yaml"
    if registry_path.exists() and not activate:
        active = read_yaml_document(registry_path, Registry)
        if active.study is not None:
            raise StudyError(
                f"{active.task}/{active.study} is the active study.",
                "Finish it, or pass --activate to work on the new one from now on.",
            )
    for name in ("candidates", "runs", "audits"):
        (made.path / name).mkdir(parents=True)
    shared = root / ROOT / "shared"
    for name in ("metric_extractors", "templates"):
        (shared / name).mkdir(parents=True, exist_ok=True)
    export_schemas(shared / "schemas")
    write_text(shared / "templates" / "contract.yaml", contract_template("TASK", "STUDY"))
    if not (made.task_path / "adapter.yaml").exists():
        write_yaml_document(made.task_path / "adapter.yaml", Adapter())
    if not made.contract_path.exists():
        write_text(made.contract_path, contract_template(task, study))
    made.ledger.append(CREATED, {"task": task, "study": study}, actor=actor)
    made.write_state(State(task=task, study=study))
    write_yaml_document(registry_path, Registry(task=task, study=study))
    return made


def flat_study(root: Path) -> bool:
    """Say whether `.rlxp` has the old flat layout: one implicit task and study."""
    place = root / ROOT
    return not (place / "tasks").exists() and any((place / name).exists() for name in OLD_FILES)


def contract_template(task: str, study: str) -> str:
    """Return a contract with a line of explanation for everything that must be decided."""
    return f"""\
# The contract of a study. A person approves its parts, each by itself:
#   assay study contract approve ITEM --by NAME
# Editing a part that is approved voids its approval.
schema_version: 1
study: {study}
question: FILL IN what the study is to find out

task:
  id: {task}
  description: FILL IN what a solved task looks like
  env: FILL IN the environment's id
  env_version: ""                # version of the package that holds it

metrics:
  primary:                       # the one metric that decides; not the reward trained on
    name: return
    direction: maximize
    minimum_effect: 1.0          # the smallest improvement worth having, in the metric's unit
    source:
      kind: jsonl                # assay, tensorboard, csv, json, jsonl, stdout, wandb, sb3-...
      path: metrics.jsonl        # relative to the run's output directory, {{out}}
      key: FILL IN the column, tag or key
  guardrails: []                 # what must not get worse, each with a bound or a margin

scope:
  parameters: {{}}                 # name: {{kind: float, low: 1.0e-4, high: 1.0e-2, log: true}}
  files: []                      # globs that patches may touch

budget:
  wall_clock_hours: 1.0
  gpu_hours: 0.0
  runs: 40

hardware:
  kind: cpu

baseline:
  command: ["{{python}}", "train.py", "--seed", "{{seed}}", "--out", "{{out}}", "{{parameters}}"]
  parameter_format: "--{{name}}={{value}}"

evaluation:
  episodes: 20
  files: []                      # globs of the files that do the measuring
  pools:                         # training seeds; no seed is in two pools
    development: [0]
    promotion: [1, 2, 3, 4, 5]
    validation: [11, 12, 13, 14, 15]
"""
