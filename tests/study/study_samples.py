"""Contracts and candidates that tests start from."""

from __future__ import annotations

from typing import Any


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
            "pools": {
                "development": [0],
                "promotion": [1, 2, 3, 4, 5],
                "validation": [11, 12, 13, 14, 15],
            },
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
