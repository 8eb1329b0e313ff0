"""Numbers and credits of a session: whatever is refused, the rest arrives once and in order."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from assay.server.client.window import Window


def test_credits_are_never_exceeded():
    window = Window(1, batches=3, size=100)
    for seq in (1, 2):
        assert window.fits(40)
        window.sent(seq, window.number(seq), 40)
    assert window.ready and not window.fits(40) and window.fits(20)
    window.sent(3, window.number(3), 20)
    assert not window.ready and not window.fits(1)
    window.commit(1)
    assert window.ready and window.fits(40)
    window.grant(0, 0)
    assert not window.ready and not window.fits(1)
    window.commit(3)
    assert window.idle and not window.fits(1)
    window.grant(1, 10)
    assert window.fits(5000)  # alone, however large
    window.sent(4, window.number(4), 5000)
    assert not window.fits(1)


def test_what_is_not_under_way_cannot_be_refused():
    window = Window(1, 8, 1000)
    assert window.refuse(1, forever=True) is None and window.again() is None
    window.sent(7, window.number(7), 1)
    window.commit(1)
    assert window.refuse(1, forever=False) is None
    assert window.ready


def test_a_number_that_was_given_and_not_used_leaves_no_gap():
    window = Window(1, 8, 1000)
    window.sent(1, window.number(1), 1)
    assert window.number(2) == 2
    window.give_up(2)
    assert window.number(3) == 2 and window.dropped_before(2) == 0
    # One in the middle, which was sent before: its number is stated as dropped.
    window.sent(3, 2, 1)
    window.sent(4, window.number(4), 1)
    window.commit(1)
    window.refuse(2, forever=False)
    window.refuse(3, forever=False)
    assert window.again() == 3
    window.give_up(3)
    assert window.number(4) == 3 and window.dropped_before(3) == 1


@settings(max_examples=100, deadline=None)
@given(
    items=st.integers(1, 25),
    bad=st.sets(st.integers(1, 25)),
    damaged=st.sets(st.integers(1, 25)),
    lost=st.sets(st.integers(1, 25)),
    batches=st.integers(1, 6),
    choices=st.lists(st.booleans(), min_size=1, max_size=200),
)
def test_whatever_is_refused_the_rest_arrives_once_and_in_order(
    items, bad, damaged, lost, batches, choices
):
    """A server that checks content first and then the order, with answers that come late."""
    window = Window(1, batches, 1 << 20)
    under_way = deque(range(1, items + 1))  # the outbox, as far as it is not acknowledged
    to_send = deque(under_way)
    wire: deque[tuple[int, int, int]] = deque()
    kept: list[int] = []
    committed, once_damaged, refused = 0, set(damaged), []
    # A loss shows by what comes after it; what is lost at the very end only a timeout finds.
    good = [seq for seq in range(1, items + 1) if seq not in bad]
    once_lost = {seq for seq in lost if good and seq < good[-1]}
    for turn in range(5000):
        if not under_way:
            break
        if to_send and window.ready and (choices[turn % len(choices)] or not wire):
            seq = to_send.popleft()
            number = window.number(seq)
            wire.append((seq, number, window.dropped_before(number)))
            window.sent(seq, number, 1)
            assert len(wire) <= batches
        elif wire:
            seq, number, dropped = wire.popleft()
            if seq in once_lost and wire:
                once_lost.discard(seq)
                continue
            if seq in bad:
                assert window.refuse(number, forever=True) == seq
                refused.append(seq)
                under_way.remove(seq)
            elif seq in once_damaged:
                once_damaged.discard(seq)
                assert window.refuse(number, forever=False) == seq
            elif number <= committed:
                raise AssertionError("nothing that was taken is sent again")
            elif number - dropped != committed + 1:
                assert window.refuse(number, forever=False) == seq
            else:
                committed = number
                kept.append(seq)
                last = window.commit(committed)
                assert last == seq
                while under_way and under_way[0] <= last:
                    under_way.popleft()
            again = window.again()
            if again is not None:
                to_send = deque(seq for seq in under_way if seq >= again)
    assert not under_way
    assert kept == [seq for seq in range(1, items + 1) if seq not in bad]
    assert sorted(refused) == sorted(seq for seq in bad if seq <= items)
