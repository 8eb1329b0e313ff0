"""Which batches are passed over because learners die of them."""

from __future__ import annotations

from assay.server.store.store import Stored
from assay.server.unconsumed import Poison


def batch(position: int) -> Stored:
    return Stored(position, "ada", 1, position, 4, b"")


def test_a_batch_is_passed_over_after_enough_deaths_in_a_row() -> None:
    poison = Poison(deaths=3)
    assert not poison.blame(7, committed=4) and not poison.blame(7, committed=4)
    assert list(poison.blame(7, committed=4)) == [7]
    assert [one.position for one in poison.without([batch(6), batch(7), batch(8)])] == [6, 8]


def test_deaths_at_different_batches_are_chance() -> None:
    poison = Poison(deaths=2)
    for position in (7, 8, 7, 9, 7):
        assert not poison.blame(position, committed=4)
    assert not poison.skipped


def test_a_second_one_without_a_commit_between_takes_all_since_the_last() -> None:
    poison = Poison(deaths=1)
    assert list(poison.blame(7, committed=4)) == [7]
    assert list(poison.blame(9, committed=4)) == [5, 6, 7, 8, 9]
    # What was committed was learned from, so that the next one stands for itself.
    assert list(poison.blame(12, committed=10)) == [12]


def test_behind_a_crash_batches_go_one_by_one() -> None:
    poison = Poison(deaths=1)
    assert not poison.alone(4, committed=4)
    poison.suspect([batch(5), batch(8)])
    assert poison.alone(7, committed=4) and not poison.alone(8, committed=4)
    poison.blame(6, committed=4)
    assert poison.alone(20, committed=4) and not poison.alone(20, committed=6)


def test_forgiven_batches_are_tried_again() -> None:
    poison = Poison(deaths=1)
    poison.blame(7, committed=4)
    poison.forgive()
    assert not poison.skipped
    assert list(poison.blame(9, committed=4)) == [9]


def test_a_batch_that_cannot_be_read_is_passed_over_at_once() -> None:
    poison = Poison(deaths=3)
    gone = Stored(7, "ada", 1, 7, 4, b"", "It is damaged.")
    assert poison.damaged([batch(6), gone, batch(8)]) == [gone]
    assert poison.damaged([gone]) == []  # told before
    assert [one.position for one in poison.without([batch(6), gone, batch(8)])] == [6, 8]
    assert not poison.alone(6, committed=4)  # it says nothing about its neighbours
