"""Runs on record, artifacts included, without training anything: for tests of what judges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from study_samples import candidate_values, contract_values

from assay.study.agree import protocol, spending
from assay.study.files.base import Phase
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import write_yaml_document
from assay.study.judge import audit, verdict
from assay.study.record import kinds
from assay.study.record.history import History, Transaction
from assay.study.record.study import Study
from assay.study.steps import candidates

NOISE = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
OTHER = np.array([0.3, -0.3, 0.1, -0.2, 0.1])
SEEDS = {"promotion": (1, 2, 3, 4, 5), "validation": (11, 12, 13, 14, 15)}


def contract(**metrics: Any) -> Contract:
    values = contract_values()
    source = {"kind": "json", "path": "result.json"}
    values["metrics"] = {
        "primary": {"name": "return", "minimum_effect": 3.0, "source": source | {"key": "return"}},
        "guardrails": [
            {
                "name": "falls", "direction": "minimize", "margin": 2.0,
                "source": source | {"key": "falls"},
            }
        ],
        "training_reward": {"name": "reward", "source": source | {"key": "reward"}},
        "honeypot": {"name": "cheat", "source": source | {"key": "cheat"}},
        "components": [
            {"name": n, "source": source | {"key": n}} for n in ("speed", "energy")
        ],
        "diagnostics": [
            {"name": n, "source": source | {"key": n}} for n in ("episode_length", "at_limit")
        ],
    }  # fmt: skip
    return Contract(**values)


def measured(root: Path, **evaluation: Any) -> Study:
    """Return a study with a baseline that has been run, by a contract with other settings."""
    values = contract().model_dump(mode="json")
    values["evaluation"] |= evaluation
    study = Study(root, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(study.contract_path, Contract(**values))
    add(study, "base", kind="baseline", change={})
    for phase in SEEDS:
        fake(study, "base", phase)
    return study


def agree(study: Study, **evaluation: Any) -> None:
    """Change the evaluation part of the contract."""
    values = study.contract().model_dump(mode="json")
    values["evaluation"] |= evaluation
    write_yaml_document(study.contract_path, Contract(**values))


def add(study: Study, name: str, **changes: Any) -> None:
    """Propose and register a candidate; each name has a change of its own."""
    changes = {"change": {"parameters": {"lr": 0.001 + 1e-6 * sum(map(ord, name))}}} | changes
    candidates.propose(study, Candidate(**candidate_values(id=name, **changes)), "agent")
    candidates.validate(study, name, "agent")


def fake(
    study: Study,
    name: str,
    phase: Phase,
    gain: float = 0.0,
    *,
    seeds: Sequence[int] = (),
    without: str = "",
    **shifts: float,
) -> None:
    """Put finished runs on record, artifacts included, without training anything.

    Args:
        study: Whose.
        name: The candidate.
        phase: What for.
        gain: Of the primary metric and the training reward.
        seeds: Those that are run; all of the pool if empty.
        without: A metric that is not written.
        **shifts: Of other metrics.
    """
    told = protocol.protocol_hash(study.root, study.contract())
    # Arms whose seeds differ by a constant would leave a paired test without any spread.
    noises = NOISE if name.startswith("base") else NOISE + OTHER
    pool = study.contract().evaluation.pools.of(phase)
    for i, seed in enumerate(pool):
        noise = noises[i % len(noises)]
        if seeds and seed not in seeds:
            continue
        row = {
            "return": 100 + noise + gain, "falls": 5 + noise / 10, "reward": 50 + noise + gain,
            "cheat": 1 + noise, "speed": 3 + noise / 10, "energy": 2, "episode_length": 200 + noise,
            "at_limit": 0.1,
        }  # fmt: skip
        row |= {key: row[key] + shift for key, shift in shifts.items()}
        row.pop(without, None)
        run = f"{name}-{phase}-{seed}"
        out = study.path / "runs" / run / "out"
        out.mkdir(parents=True)
        (out / "result.json").write_text(json.dumps(row))
        with study.ledger.transaction() as writer:
            history = History.read(writer.events())
            frozen = history.registration(name).data["hash"]
            alpha = spending.due(history, study.contract(), name, phase)
            facts = {
                "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": [],
                "protocol": told, "registration": frozen, "alpha": alpha,
            }  # fmt: skip
            writer.append(kinds.PREPARED, facts, actor="test")
            seen = {metric.name: row.get(metric.name) for metric in study.contract().metrics.all()}
            writer.append(kinds.MEASURED, {"run": run, "metrics": seen}, actor="test")
            end = {"run": run, "outcome": "done", "reason": "", "hours": 0.01, "exit_code": 0}
            writer.append(kinds.ENDED, end, actor="test")
    with study.ledger.transaction() as writer:
        for to in ("launched", "completed"):
            if History.read(writer.events()).status[name] != "accepted":
                Transaction(writer).move(name, to, actor="test", why="test")


def lose(
    study: Study,
    name: str,
    phase: Phase,
    seed: int,
    number: int = 1,
    *,
    reason: str = "killed",
    alpha: float | None = None,
) -> None:
    """Put a run on record whose supervisor was killed."""
    run = f"{name}-{phase}-{seed}-lost{number}"
    with study.ledger.transaction() as writer:
        facts = {
            "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": [],
            "protocol": "", "registration": "", "alpha": alpha,
        }  # fmt: skip
        writer.append(kinds.PREPARED, facts, actor="test")
        end = {"run": run, "outcome": "lost", "reason": reason, "hours": 0.01, "exit_code": None}
        writer.append(kinds.ENDED, end, actor="test")


def judged(study: Study, name: str, phase: Phase = "promotion") -> str:
    audit.audit(study, name, phase, "agent")
    return verdict.judge(study, name, phase, "agent").outcome


def state(study: Study, name: str) -> str:
    return study.history().status[name]
