"""Nothing goes over the network until a person has approved that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from study_samples import candidate_values, contract_values, make_study

from assay.study.agree.approvals import approve
from assay.study.agree.rules import refuse_network, remote
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract, MetricSource
from assay.study.files.documents import StudyError
from assay.study.measure import extractors
from assay.study.record.study import Study
from assay.study.run import planning
from assay.study.steps import candidates


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return make_study(tmp_path)


def change(study: Study, **parts: dict[str, Any]) -> None:
    values = yaml.safe_load(study.contract_path.read_text())
    for part, settings in parts.items():
        values[part] |= settings
    study.contract_path.write_text(yaml.safe_dump(values, sort_keys=False))


@pytest.mark.parametrize(
    "path", ["wandb://team/project/run", "https://host/metrics.csv", "s3://bucket/x", "FTP://x/y"]
)
def test_a_metric_from_elsewhere(study: Study, path: str) -> None:
    values = contract_values()
    kind = "wandb" if path.startswith("wandb") else "csv"
    source = {"kind": kind, "path": path, "key": "return"}
    values["metrics"]["primary"]["source"] = source
    with pytest.raises(StudyError, match=r"'return' is read from .*experiment\.network is false"):
        refuse_network(Contract(**values))
    # With every permission: nothing here fetches, and that is said.
    values["experiment"] = {"network": True, "wandb": True}
    with pytest.raises(StudyError, match="is not a file of a run"):
        refuse_network(Contract(**values))
    with pytest.raises(StudyError, match="nothing is fetched over the network"):
        extractors.series(MetricSource(**source), study.root, study.root / "log")


@pytest.mark.parametrize("path", ["", "metrics.jsonl", "wandb/*/run-*.wandb", "a:b", "C:/x"])
def test_what_is_a_file(path: str) -> None:
    assert not remote(path)


def test_a_candidate_is_not_validated_on_it(study: Study) -> None:
    change(study, baseline={"env": {"WANDB_MODE": "online"}})
    candidates.propose(study, Candidate(**candidate_values(id="c2")), "agent")
    with pytest.raises(StudyError, match=r"WANDB_MODE=online in baseline.env needs the network"):
        candidates.validate(study, "c2", "agent")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_MODE", "online"),
        ("WANDB_MODE", "shared"),
        ("WANDB_API_KEY", "k"),
        ("WANDB_MODE", ""),
    ],
)
def test_a_run_is_not_launched_on_it(study: Study, name: str, value: str) -> None:
    change(study, baseline={"env": {name: value}})
    approve(study, "baseline", "ada")
    with pytest.raises(StudyError, match=rf"{name}={value} in baseline.env .*wandb is false"):
        planning.plan(study, "c1", "short", 0)
    change(study, experiment={"network": True, "wandb": True})
    approve(study, "experiment", "ada")
    assert planning.plan(study, "c1", "short", 0).env[name] == value


def test_runs_are_offline_by_default(study: Study, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    change(study, baseline={"env_allow": ["PATH", "WANDB_MODE"]})
    agreed = study.contract()
    assert (
        planning.environment(agreed, study.root)["WANDB_MODE"] == "offline"
    )  # whatever the caller has
    change(study, baseline={"env": {"WANDB_MODE": "disabled"}})
    assert planning.environment(study.contract(), study.root)["WANDB_MODE"] == "disabled"
    change(study, baseline={"env": {}}, experiment={"network": True, "wandb": True})
    assert planning.environment(study.contract(), study.root)["WANDB_MODE"] == "online"
