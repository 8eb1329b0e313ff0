"""A study's files are read with care and written whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from study_samples import candidate_values, contract_values

from assay.core.errors import AssayError
from assay.study.agree.setup import DOCUMENTS, export_schemas
from assay.study.files.candidate import LONGEST_ID, Candidate
from assay.study.files.contract import EXCEPTIONS, Contract, Hardware, Parameter
from assay.study.files.documents import (
    ROOT,
    StudyError,
    checked_name,
    read_yaml,
    read_yaml_document,
    write_json_document,
    write_yaml_document,
)
from assay.study.files.records import Anchor, Registry, State
from assay.study.record.opening import find_root, open_study
from assay.study.record.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "cartpole", "lr")
    study.path.mkdir(parents=True)
    write_yaml_document(tmp_path / ROOT / "registry.yaml", Registry(task="cartpole", study="lr"))
    write_yaml_document(study.contract_path, Contract(**contract_values()))
    write_yaml_document(study.candidate_path("c1"), Candidate(**candidate_values()))
    return study


def test_what_is_written_is_read_back(study: Study) -> None:
    assert study.contract() == Contract(**contract_values())
    assert study.candidate("c1") == Candidate(**candidate_values())
    study.ledger.append("note", {}, actor="ada")
    head = study.ledger.head()
    anchor = Anchor(seq=head.seq, hash=head.hash)
    state = State(task="cartpole", study="lr", head=anchor, candidates={"c1": "draft"})
    write_json_document(study.path / "state.json", state)
    assert study.state().candidates == {"c1": "draft"}
    assert study.ref.head() is None and study.state().head.seq == study.ledger.head().seq


def test_the_registry_selects_and_a_name_overrides(study: Study) -> None:
    assert open_study(study.root).path == study.path
    assert find_root(study.path) == study.root
    with pytest.raises(StudyError, match=r"no study cartpole/none .*\n.*Known: cartpole/lr"):
        open_study(study.root, study="none")


@pytest.mark.parametrize("name", ["", "..", "../x", "/etc", ".hidden", "a/b", "a" * 81, "a b"])
def test_names_stay_inside_their_directory(study: Study, name: str) -> None:
    with pytest.raises(StudyError, match="is not a name"):
        study.candidate_path(name)


def test_a_candidate_of_another_study_is_refused(study: Study) -> None:
    foreign = Candidate(**candidate_values(study="other"))
    write_yaml_document(study.candidate_path("c1"), foreign)
    with pytest.raises(StudyError, match="belongs to cartpole/other"):
        study.candidate("c1")


def test_an_unknown_candidate_names_the_nearest(study: Study) -> None:
    with pytest.raises(StudyError, match="Known: c1"):
        study.candidate("c2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2\nb: 3\n", r"line 2, column 2"),
        ("- 1\n", "expected a mapping"),
        ("schema_version: 7\n", "schema version 7"),
        ("tsak: x\n", r"unknown setting 'tsak'. Did you mean 'task'"),
        ("\x00", "malformed"),
    ],
)
def test_bad_files_are_named_with_the_place(study: Study, text: str, message: str) -> None:
    path = study.root / ROOT / "registry.yaml"
    path.write_text(text)
    with pytest.raises(AssayError, match=message) as found:
        read_yaml_document(path, Registry)
    assert "registry.yaml" in str(found.value)


def test_what_was_read_belongs_to_the_reader(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a: {b: [1]}\n")
    read_yaml(path)[0]["a"]["b"].append(2)
    assert read_yaml(path) == [{"a": {"b": [1]}}]
    path.write_text("a: 3\n")
    assert read_yaml(path) == [{"a": 3}]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="assay study start"):
        find_root(tmp_path)
    (tmp_path / ROOT).mkdir()
    with pytest.raises(StudyError, match="assay study start"):
        open_study(tmp_path)


def test_a_read_only_place_is_refused_and_nothing_is_lost(study: Study, monkeypatch) -> None:
    import os

    before = study.contract_path.read_bytes()

    def refuse(*args: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StudyError, match="read-only"):
        write_yaml_document(study.contract_path, Contract(**contract_values(question="Other?")))
    monkeypatch.undo()
    assert study.contract_path.read_bytes() == before
    assert [path.name for path in study.path.iterdir()].count("contract.yaml") == 1


def test_schemas_are_exported_and_accept_what_we_write(study: Study, tmp_path: Path) -> None:
    export_schemas(tmp_path / "schemas")
    names = {path.name.removesuffix(".schema.json") for path in (tmp_path / "schemas").iterdir()}
    assert names == set(DOCUMENTS)
    contract = json.loads((tmp_path / "schemas" / "contract.schema.json").read_text())
    written = yaml.safe_load(study.contract_path.read_text())
    assert set(written) <= set(contract["properties"])
    assert contract["additionalProperties"] is False


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "reward-tuning"}, "builds on a reward reflection"),
        ({"kind": "reward-engineering"}, "why_none"),
        ({"kind": "dr-tuning"}, "probe summary"),
        ({"kind": "curriculum-schedule"}, "fills in 'curriculum'"),
        ({"kind": "environment-generation"}, "fills in 'environment'"),
        ({"kind": "baseline"}, "changes nothing"),
        ({"change": {}}, "changes nothing"),
        ({"hypothesis": " "}, "at least 1 character"),
        ({"id": "../c"}, "pattern"),
    ],
)
def test_candidates_say_what_their_kind_needs(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Candidate(**candidate_values(**change))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("budget", "runs"), -1, "greater than 0"),
        (("budget", "wall_clock_hours"), 0, "greater than 0"),
        (("metrics", "primary", "training_reward"), True, "say why"),
        (("metrics", "primary", "minimum_effect"), 0, "greater than 0"),
        (("baseline", "command"), ["python", "train.py"], r"no \{seed\}"),
        (
            ("evaluation", "pools", "validation"),
            [1, 11, 12, 13, 14],
            "promotion and the validation",
        ),
        (("evaluation", "pools", "promotion"), [1, 2], "at least 5"),
        (("scope", "parameters", "lr", "low"), 2.0, "low <= high"),
        (("approvals",), {"fun": {"by": "a", "at": "b", "hash": "0" * 64}}, "unknown approval"),
    ],
)
def test_contracts_refuse_nonsense(path: tuple[str, ...], value: object, message: str) -> None:
    values = contract_values()
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        Contract(**values)


@pytest.mark.parametrize(
    ("value", "refusal"),
    [(1e-3, None), (1e-5, "expected 0.0001 to 0.01"), ("x", "a number"), (True, "a number")],
)
def test_scope_names_what_it_expected(value: object, refusal: str | None) -> None:
    found = Contract(**contract_values()).scope.parameters["lr"].refusal(value)
    assert found is None if refusal is None else refusal in str(found)


def test_an_approval_covers_its_part_alone() -> None:
    one = Contract(**contract_values())
    values = contract_values()
    values["budget"]["runs"] = 99
    other = Contract(**values)
    assert one.part("budget") != other.part("budget")
    assert one.part("metrics") == other.part("metrics")


@pytest.mark.parametrize("path", ["/tmp/x.json", "../../x.json", "a/../../b.csv", ".."])
def test_a_metric_is_read_from_the_output_alone(path: str) -> None:
    values = contract_values()
    values["metrics"]["primary"]["source"]["path"] = path
    with pytest.raises(ValueError, match="leaves the run's output directory"):
        Contract(**values)


def test_an_id_leaves_room_for_the_names_of_its_runs() -> None:
    longest = Candidate(**candidate_values(id="a" * LONGEST_ID)).id
    run = f"{longest}-validation-{2**63 - 1}-2"
    assert checked_name(run, "run") == run
    with pytest.raises(ValueError, match="it has 47 characters; 46 at most"):
        Candidate(**candidate_values(id=longest + "a"))


def test_an_exception_that_nothing_knows() -> None:
    with pytest.raises(ValueError, match="unknown exception 'dirty-treee'; known: aa-test"):
        Contract(**contract_values(experiment={"exceptions": {"dirty-treee": "why not"}}))
    for name in EXCEPTIONS:
        Contract(**contract_values(experiment={"exceptions": {name: "why not"}}))


def test_the_gpus_of_a_run() -> None:
    assert Hardware(kind="gpu").gpus == 1 and Hardware(kind="gpu", gpus=4).gpus == 4
    assert Hardware().gpus == 0
    with pytest.raises(ValueError, match="no GPU-hours would be counted"):
        Hardware(kind="gpu", gpus=0)


@pytest.mark.parametrize("value", [3.0, 3.5, True, "3", float("nan")])
def test_a_whole_number(value: object) -> None:
    parameter = Parameter(kind="int", low=1, high=5)
    assert parameter.refusal(value) == "expected a whole number"
    assert parameter.refusal(3) is None and "1 to 5" in str(parameter.refusal(6))
