"""The JSON Schema of every kind of file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from assay.core.config import Model
from assay.study.files.candidate import Candidate, Curriculum, EnvironmentGeneration
from assay.study.files.contract import Budget, Contract, Metric
from assay.study.files.documents import write_text
from assay.study.files.records import (
    Adapter,
    LedgerEvent,
    ProbePlan,
    ProbeSummary,
    QueueManifest,
    Registry,
    ResultAudit,
    RewardReflection,
    RunRecord,
    State,
)

DOCUMENTS: dict[str, type[Model]] = {
    "registry": Registry,
    "adapter": Adapter,
    "contract": Contract,
    "metric": Metric,
    "candidate": Candidate,
    "curriculum": Curriculum,
    "environment": EnvironmentGeneration,
    "state": State,
    "run": RunRecord,
    "budget": Budget,
    "reward_reflection": RewardReflection,
    "probe_plan": ProbePlan,
    "probe_summary": ProbeSummary,
    "queue": QueueManifest,
    "result_audit": ResultAudit,
    "ledger_event": LedgerEvent,
}


def export_schemas(directory: Path) -> None:
    """Write the JSON Schema of every kind of file."""
    for name in DOCUMENTS:
        write_text(directory / f"{name}.schema.json", _schema(name))


@cache
def _schema(name: str) -> str:
    schema = DOCUMENTS[name].model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=1) + "\n"
