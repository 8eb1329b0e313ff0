"""Reading `problem.yaml`: where mistakes are; and editing it: nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.design.documents import assign, parse_text, read_document
from assay.design.problem import SECTIONS, Problem, json_schema
from assay.design.rules import DesignError
from assay.design.units import comparable, parse_unit

TEXT = """\
# A drone that lands.
name: drone
state:           # what it sees
  entries:
    - name: height   # above ground
      shape: [1]
      unit: m
    - {name: speed, shape: [3], unit: m/s}  # in flow style
mdp:
  # chosen by hand
  gamma: 0.99  # looks 100 steps ahead

# The end.
reward: {terms: [{name: landed, kind: terminal}]}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "problem.yaml"
    file.write_text(TEXT)
    return file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("state: [1, 2", "malformed in line 1, column 13"),
        ("name: a_b\nname: c_d", "line 2, column 1: the key 'name' is there twice"),
        ("stat: {}", "line 1, column 1: 'stat' is unknown. Did you mean 'state'?"),
        ("mdp: {}\nrewards:\n  terms: []", "line 2, column 1: 'rewards' is unknown"),
        (
            "state:\n  entries:\n    - name: x\n      unti: m",
            r"line 4, column 7: 'state.entries.0.unti' is unknown. Did you mean 'unit'\?",
        ),
        ("mdp: {gamma: 1.5}", "line 1, column 14: mdp.gamma is 1.5: input should be less than"),
        ("action: {kind: boxes}", "line 1, column 16: action.kind is 'boxes'"),
        ("state: {entries: [{shape: [1]}]}", "line 1, column 19: state.entries.0.name"),
        ("- a", "holds a list"),
        ("mdp: {table: 3}", "mdp.table is 3"),
    ],
)
def test_a_mistake_is_shown_with_its_place(text: str, words: str) -> None:
    with pytest.raises(DesignError, match=words):
        parse_text(text, "problem.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mdp: {gama: 0.9}", "'mdp.gama' is unknown. Did you mean 'gamma'?"),
        ("mdp: {horizon: -3}", "mdp.horizon is -3: input should be greater than 0."),
        ("name: a robot", "name is 'a robot': lower-case letters, digits and '_' are expected"),
        (
            "architecture: {learner: {device: gpu}}",
            "architecture.learner.device is 'gpu': cpu, cuda or cuda:N is expected.",
        ),
        ("state: 3", "state is 3: fields are expected below it, each `name: value`."),
    ],
)
def test_an_answer_is_named_without_a_place(text: str, words: str) -> None:
    with pytest.raises(DesignError) as caught:
        parse_text(text)
    assert caught.value.message.startswith(words)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DesignError, match="no file") as caught:
        read_document(tmp_path / "none.yaml")
    assert f"assay design new --file {tmp_path / 'none.yaml'}" in str(caught.value.fix)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DesignError, match="not UTF-8"):
        read_document(tmp_path / "bytes.yaml")
    assert parse_text("", "empty") == Problem()


@pytest.mark.parametrize(
    ("field", "value", "line"),
    [
        ("mdp.gamma", 0.999, "  gamma: 0.999  # looks 100 steps ahead"),
        ("mdp.horizon", 500, "  horizon: 500"),
        ("name", "plane", "name: plane"),
        ("state.entries[1].unit", "km/h", "    - {name: speed, shape: [3], unit: km/h}  # in flow"),
        ("state.entries[0].shape", [2], "      shape: [2]"),
        ("state.entries[1].low", [-1, -1, 0], "unit: m/s, low: [-1, -1, 0]}  # in flow style"),
        ("reward.terms[0].weight", 2.0, "reward: {terms: [{name: landed, kind: terminal, weight"),
        ("architecture.learner.algorithm", "sac", "  learner: {algorithm: sac}"),
        ("env", "Hopper-v5", "env: Hopper-v5"),
    ],
)
def test_an_edit_keeps_every_comment(path: Path, field: str, value: Any, line: str) -> None:
    made = assign(read_document(path), {field: value})
    text = path.read_text()
    assert line in text and text == made.text
    before, after = TEXT.splitlines(), text.splitlines()
    for comment in ("# A drone that lands.", "# what it sees", "# above ground", "# The end."):
        assert comment in text
    assert len([one for one in before if one not in after]) <= 1
    assert read_document(path).problem == made.problem != parse_text(TEXT, "")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("mdp.gama", 0.5, "Did you mean 'gamma'"),
        ("mdp.gamma", "high", "mdp.gamma is 'high'"),
        ("state.entries[7].unit", "m", "the list has 2 items"),
        ("name.first", "x", "has no fields"),
    ],
)
def test_an_edit_that_does_not_fit_changes_nothing(
    path: Path, field: str, value: Any, words: str
) -> None:
    with pytest.raises(DesignError, match=words):
        assign(read_document(path), {"env": "Hopper-v5", field: value})
    assert path.read_text() == TEXT


@pytest.mark.parametrize(
    "text",
    ["", "# only a comment\n", "mdp:\n", "mdp: {}\n", "mdp:\n  limit: 5", "mdp: null  # open\n"],
)
def test_an_edit_of_what_is_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "problem.yaml"
    path.write_text(text)
    assign(read_document(path), {"mdp.gamma": 0.5})
    assert yaml.safe_load(path.read_text())["mdp"]["gamma"] == 0.5
    assert all(word in path.read_text() for word in text.partition("#")[2].split())


def test_what_cannot_be_edited_in_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "problem.yaml"
    text = "state: {entries: [&a {name: x, shape: [1]}]}\nhierarchy: {levels: []}\n"
    text += "agents: {types: [{name: y, observation: &s [1]}, {name: z, observation: *s}]}\n"
    path.write_text(text)
    with pytest.raises(DesignError, match="without touching other lines"):
        assign(read_document(path), {"agents.types[1].observation": [2]})
    assert path.read_text() == text


def test_the_schema_has_every_section_and_a_meaning_for_every_field() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert set(SECTIONS) <= set(schema["properties"])
    parts = [schema, *schema["$defs"].values()]
    bare = [
        (part.get("title"), name)
        for part in parts
        for name, field in part["properties"].items()
        if "description" not in field
    ]
    assert bare == []


def test_units() -> None:
    assert comparable("km/h", "m/s") and comparable("kWh", "J") and comparable("Hz", "1/s")
    assert not comparable("m", "s") and not comparable("N*m", "N")
    assert comparable("widgets", "widgets") and not comparable("widgets", "m")
    assert parse_unit("kg*m^2/s^2") == parse_unit("J")
    assert parse_unit("m/") is None
