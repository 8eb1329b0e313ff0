"""Every kind of file that a study holds is what its exported JSON Schema says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_samples import add, candidate_values, make_study

from assay.study.agree import setup
from assay.study.agree.approvals import approve
from assay.study.agree.setup import DOCUMENTS, export_schemas
from assay.study.files.candidate import BudgetRequest, Candidate
from assay.study.files.documents import ROOT
from assay.study.files.records import ProbePlan
from assay.study.judge import audit
from assay.study.measure import probe, reflection
from assay.study.record.study import Study
from assay.study.run import launcher, recovery
from assay.study.run.queue import Queue
from assay.study.steps import candidates

TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
    "integer": int, "number": int | float,
}  # fmt: skip
SAID = {
    "$defs", "$ref", "$schema", "additionalProperties", "anyOf", "const", "default", "description",
    "enum", "exclusiveMaximum", "exclusiveMinimum", "items", "maxItems", "maximum", "minItems",
    "minLength", "minimum", "pattern", "prefixItems", "properties", "propertyNames", "required",
    "title", "type",
}  # fmt: skip


def faults(value: Any, schema: dict[str, Any], whole: dict[str, Any], at: str = "$") -> list[str]:
    """Return where a value is not what a JSON Schema says, for the words that ours use."""
    assert set(schema) <= SAID, sorted(set(schema) - SAID)
    if "$ref" in schema:
        return faults(value, whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, at)
    if "anyOf" in schema:
        tried = [faults(value, option, whole, at) for option in schema["anyOf"]]
        return [] if [] in tried else min(tried, key=len)
    found = []
    kind = schema.get("type")
    fits = kind is None or isinstance(value, TYPES[kind])
    if not fits or (isinstance(value, bool) and kind in ("integer", "number")):
        return [f"{at}: {value!r} is no {kind}"]
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str):
        if not re.search(schema.get("pattern", ""), value):
            found.append(f"{at}: {value!r} does not match")
        if len(value) < schema.get("minLength", 0):
            found.append(f"{at}: too short")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        above, below = (
            schema.get(f"exclusive{w}imum", e) for w, e in (("Min", -math.inf), ("Max", math.inf))
        )
        if not (
            low <= value <= high
            and (above == -math.inf or value > above)
            and (below == math.inf or value < below)
        ):
            found.append(f"{at}: {value} is out of bounds")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            found.append(f"{at}: {len(value)} items")
        first = schema.get("prefixItems", [])
        for i, item in enumerate(value):
            found += faults(
                item, first[i] if i < len(first) else schema.get("items", {}), whole, f"{at}[{i}]"
            )
    if isinstance(value, dict):
        known, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        found += [
            f"{at}: '{name}' is missing" for name in schema.get("required", ()) if name not in value
        ]
        for name, item in value.items():
            if name not in known and more is False:
                found.append(f"{at}: '{name}' is unknown")
                continue
            inside = known.get(name, more if isinstance(more, dict) else {})
            found += faults(item, inside, whole, f"{at}.{name}")
            found += faults(name, schema.get("propertyNames", {}), whole, f"{at}.{name}")
    return found


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Study:
    """Make a study that holds one of everything that commands write."""
    root = tmp_path_factory.mktemp("schemas")
    made = make_study(root)
    setup._equip(made)
    values = yaml.safe_load(made.contract_path.read_text())
    source = {"kind": "jsonl", "path": "metrics.jsonl", "key": "eval/return_mean"}
    values["metrics"]["components"] = [{"name": "upright", "source": source}]
    made.contract_path.write_text(yaml.safe_dump(values, sort_keys=False))
    approve(made, "metrics", "ada")
    add(made, "c2", lr=0.003)
    base = candidate_values(id="base", kind="baseline", change={})
    candidates.propose(made, Candidate(**base), "agent")
    candidates.validate(made, "base", "agent")
    plan = ProbePlan(
        id="p", parameter="lr", nominal=0.001, values=(0.001, 0.002), success="return >= 100",
        safety="nothing moves",
    )  # fmt: skip
    probe.plan_probe(made, plan, "agent")
    names = ["c2"]
    for draft in probe.drafts(made, plan, BudgetRequest(wall_clock_hours=0.01)):
        candidates.propose(made, draft, "agent")
        candidates.validate(made, draft.id, "agent")
        names.append(draft.id)
    for name in names:
        planned = launcher.launch(made, name, "short", 0, confirm=None, actor="agent")
        recovery.wait(made, planned.run, 300)
    probe.summarise(made, "p", "agent")
    reflection.reflect(made, "c2-short-0", "agent")
    audit.audit(made, "c2", "short", "agent")
    Queue(made).add("c2", "promotion", [1, 2])
    made.sync()
    return made


def files(study: Study) -> list[tuple[str, str, Any]]:
    """Return the schema's name, a label and the content of everything that is there."""
    top = study.root / ROOT
    found: list[tuple[str, str, Any]] = [
        ("registry", "registry.yaml", yaml.safe_load((top / "registry.yaml").read_text())),
        ("adapter", "adapter.yaml", yaml.safe_load((study.task_path / "adapter.yaml").read_text())),
        ("contract", "contract.yaml", yaml.safe_load(study.contract_path.read_text())),
        ("state", "state.json", json.loads((study.path / "state.json").read_bytes())),
        ("queue", "the queue", Queue(study).manifest().model_dump(mode="json")),
    ]
    contract = found[2][2]
    found.append(
        ("metric", "the guardrail", drop(contract["metrics"]["guardrails"][0], "bound", "margin"))
    )
    found.append(("budget", "the budget", contract["budget"]))
    for path in sorted((study.path / "candidates").glob("*.yaml")):
        found.append(("candidate", path.name, yaml.safe_load(path.read_text())))
    for path in sorted((study.path / "runs").glob("*/run.json")):
        found.append(("run", path.parent.name, json.loads(path.read_bytes())))
    for kind, pattern in (
        ("result_audit", "audits/*.json"),
        ("reward_reflection", "runs/*/reward_reflection.json"),
        ("probe_plan", "audits/probes/*/plan.json"),
        ("probe_summary", "audits/probes/*/summary.json"),
    ):
        for path in sorted(study.path.glob(pattern)):
            found.append((kind, path.name, json.loads(path.read_bytes())))
    for i, line in enumerate(study.ledger.path.read_text().splitlines(), 1):
        found.append(("ledger_event", f"line {i}", json.loads(line)))
    return found


def drop(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def schema(study: Study, name: str) -> dict[str, Any]:
    path = study.root / ROOT / "shared" / "schemas" / f"{name}.schema.json"
    return json.loads(path.read_bytes())


def test_all_that_is_written_keeps_to_its_schema(study: Study) -> None:
    there = files(study)
    wanted = set(DOCUMENTS) - {"curriculum", "environment"}  # parts of candidates of their kind
    assert {name for name, _, _ in there} == wanted
    for name, label, value in there:
        told = schema(study, name)
        assert faults(value, told, told) == [], label


def test_the_schemas_would_find_faults(study: Study) -> None:
    """Spoil every file in turn: a schema that takes anything says nothing."""
    for name, label, value in files(study):
        told = schema(study, name)
        assert faults(value | {"surprise": 1}, told, told), label
        for key in told.get("required", ()):
            assert faults(drop(value, key), told, told), f"{label} without {key}"
    event = files(study)[-1][2]
    told = schema(study, "ledger_event")
    for key, wrong in (("seq", 0), ("prev", "zz"), ("hash", 3), ("schema", 2), ("data", [])):
        assert faults(event | {key: wrong}, told, told), key


def test_every_model_is_exported_and_versioned(tmp_path: Path) -> None:
    export_schemas(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {f"{name}.schema.json" for name in DOCUMENTS}
    whole = {"registry", "adapter", "contract", "candidate", "state", "run", "reward_reflection"}
    whole |= {"probe_plan", "probe_summary", "queue", "result_audit"}
    for name in whole:
        told = json.loads((tmp_path / f"{name}.schema.json").read_bytes())
        assert told["properties"]["schema_version"]["const"] == 1, name
    told = json.loads((tmp_path / "ledger_event.schema.json").read_bytes())
    assert told["properties"]["schema"]["const"] == 1
