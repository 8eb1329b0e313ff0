"""No illegal transition can be reached, whatever is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.study.files.base import Status
from assay.study.files.documents import StudyError
from assay.study.record.history import TRANSITIONS, History, Transaction
from assay.study.record.ledger import Ledger

STATUSES = get_args(Status)


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(STATUSES)
    assert {s for after in TRANSITIONS.values() for s in after} <= set(STATUSES)
    # What was decided is not decided again, and an accepted change can only be taken back.
    assert not TRANSITIONS["rejected"] and not TRANSITIONS["reverted"]
    assert TRANSITIONS["accepted"] == {"reverted"}
    # Nothing is launched that was not validated, nothing accepted that was not completed.
    assert [s for s in STATUSES if "accepted" in TRANSITIONS[s]] == ["completed"]
    assert "launched" not in TRANSITIONS["draft"]


@settings(max_examples=60, deadline=None)
@given(asked=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(STATUSES)), max_size=12))
def test_any_sequence_of_requests_walks_along_the_table(asked, tmp_path_factory) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("states") / "ledger.jsonl")
    states: dict[str, Status] = {}
    for candidate, to in asked:
        now = states.get(candidate)
        legal = to == "draft" if now is None else to in TRANSITIONS[now]
        with ledger.transaction() as writer:
            if legal:
                Transaction(writer).move(candidate, to, actor="ada", why="test")
                states[candidate] = to
            else:
                with pytest.raises(StudyError, match=f"cannot become {to}"):
                    Transaction(writer).move(candidate, to, actor="ada", why="test")
        assert History.read(ledger.events()).status == states


def test_a_refusal_names_what_is_possible(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with ledger.transaction() as writer:
        Transaction(writer).move("lr", "draft", actor="ada", why="proposed")
        with pytest.raises(StudyError, match="can become: validated, rejected"):
            Transaction(writer).move("lr", "accepted", actor="eve", why="because")
