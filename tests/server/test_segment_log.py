"""A segment log holds what was committed, whatever happens to its end."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from assay.server.errors import DamagedError, StoreError
from assay.server.store.log import Damage, Place, SegmentLog


def put(log: SegmentLog, *bodies: bytes) -> list[Place]:
    places = log.write([(body,) for body in bodies])
    log.sync()
    log.commit()
    return places


def contents(log: SegmentLog, after: int = 0) -> list[tuple[int, bytes]]:
    found = list(log.scan(after))
    assert not [one for one in found if isinstance(one, Damage)]
    return [(one[0].position, one[1]) for one in found if isinstance(one, tuple)]


def test_records_come_back_in_order(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    places = put(log, b"one", b"", b"three")
    places += put(log, b"four")
    assert [log.read(place) for place in places] == [b"one", b"", b"three", b"four"]
    log.close()
    again = SegmentLog(tmp_path)
    assert (again.last, again.damage) == (4, [])
    assert contents(again) == [(1, b"one"), (2, b""), (3, b"three"), (4, b"four")]
    assert contents(again, 2) == [(3, b"three"), (4, b"four")]
    assert put(again, b"five")[0].position == 5


def test_pieces_are_one_body(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    (place,) = log.write([(b"a", b"", b"bc")])
    assert log.read(place) == b"abc"


def test_segments_rotate_and_old_ones_can_be_dropped(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, segment_bytes=100)
    places = [put(log, bytes(60))[0] for _ in range(6)]
    assert log.segments() == [1, 3, 5]
    log.close()
    again = SegmentLog(tmp_path, segment_bytes=100)
    assert [position for position, _ in contents(again)] == [1, 2, 3, 4, 5, 6]
    assert again.drop_before(4) == [1]
    assert again.segments() == [3, 5]
    assert again.drop_before(99) == [3]  # the last one stays
    assert [position for position, _ in contents(again)] == [5, 6]
    with pytest.raises(StoreError, match="No such file"):
        again.read(places[0])


@pytest.mark.parametrize("lost", [1, 5, 16, 20, 21])
def test_a_torn_end_is_cut_off_and_reported(tmp_path: Path, lost: int) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"whole", b"torn!")  # a record of 16 + 5 bytes
    log.close()
    path = log.path_of(1)
    os.truncate(path, path.stat().st_size - lost)
    again = SegmentLog(tmp_path)
    assert contents(again) == [(1, b"whole")]
    assert [one.size for one in again.damage] == ([21 - lost] if lost < 21 else [])
    assert put(again, b"new")[0].position == 2
    again.close()
    assert contents(SegmentLog(tmp_path)) == [(1, b"whole"), (2, b"new")]


@pytest.mark.parametrize("tail", [bytes(4096), b"\xff" * 100, b"\x05\0\0\0" + bytes(20)])
def test_what_was_never_a_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"whole")
    log.close()
    with open(log.path_of(1), "ab") as file:
        file.write(tail)
    again = SegmentLog(tmp_path)
    assert contents(again) == [(1, b"whole")]
    assert [one.size for one in again.damage] == [len(tail)]
    assert "cut off" in str(again.damage[0])
    put(again, b"new")
    again.close()
    third = SegmentLog(tmp_path)
    assert (contents(third), third.damage) == ([(1, b"whole"), (2, b"new")], [])


def flip(log: SegmentLog, place: Place, byte: int = 17) -> None:
    """Damage one byte of a record; the first four say how long it is."""
    with open(log.path_of(place.segment), "r+b") as file:
        file.seek(place.offset + byte)
        (old,) = file.read(1)
        file.seek(place.offset + byte)
        file.write(bytes([old ^ 1]))


def readable(log: SegmentLog, places: list[Place]) -> list[int]:
    found = []
    for place in places:
        with contextlib.suppress(DamagedError):
            log.read(place)
            found.append(place.position)
    return found


def test_a_flipped_bit_costs_one_record_and_no_other(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    places = put(log, b"first", b"second", b"third", b"fourth")
    size = log.path_of(1).stat().st_size
    flip(log, places[1])
    with pytest.raises(DamagedError, match=r"Record 2 in .* is damaged"):
        log.read(places[1])
    log.close()
    for _ in range(2):
        again = SegmentLog(tmp_path)
        assert again.last == 4 and log.path_of(1).stat().st_size == size
        (found,) = again.damage
        assert (found.offset, found.size) == (places[1].offset, places[1].size)
        assert "22 bytes cannot be read" in str(found) and not found.cut
        assert [one for one in again.scan() if isinstance(one, Damage)] == [found]
        assert [one for one in again.scan(2) if isinstance(one, Damage)] == []
        assert readable(again, places) == [1, 3, 4]
        again.close()
    again = SegmentLog(tmp_path)
    places += put(again, b"fifth")
    again.close()
    assert readable(SegmentLog(tmp_path), places) == [1, 3, 4, 5]


@pytest.mark.parametrize("byte", [0, 4, 8, 17])
def test_a_damaged_end_that_is_indexed_was_not_torn_by_a_crash(tmp_path: Path, byte: int) -> None:
    log = SegmentLog(tmp_path)
    places = put(log, b"first", b"second", b"third")
    flip(log, places[1], byte)
    flip(log, places[2], byte)
    log.close()
    again = SegmentLog(tmp_path, indexed=lambda segment: places)
    assert again.last == 3 and not any(one.cut for one in again.damage)
    places += put(again, b"fourth")
    again.close()
    third = SegmentLog(tmp_path, indexed=lambda segment: places)
    assert readable(third, places) == [1, 4] and third.last == 4
    assert list(tmp_path.glob("*.damaged")) == []


def test_what_is_cut_off_is_kept_beside_it(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    places = put(log, b"first", b"second")
    flip(log, places[1])
    log.close()
    data = log.path_of(1).read_bytes()
    again = SegmentLog(tmp_path, indexed=lambda segment: places[:1])
    (aside,) = tmp_path.glob("*.damaged")
    assert aside.read_bytes() == data[places[1].offset :]
    assert f"were cut off, and are in '{aside.name}'" in str(again.damage[0])
    assert put(again, b"other")[0] == Place(2, 1, places[1].offset, 21)


def test_a_disk_without_room_for_it_does_not_keep_the_log_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    log = SegmentLog(tmp_path)
    put(log, b"whole", b"torn!")
    log.close()
    os.truncate(log.path_of(1), log.path_of(1).stat().st_size - 1)
    monkeypatch.setattr("assay.server.store.log.write_atomic", full)
    again = SegmentLog(tmp_path)
    assert contents(again) == [(1, b"whole")]
    assert "there was no room to keep them" in str(again.damage[0])


def test_a_segment_whose_header_is_damaged_stays_if_it_is_indexed(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    places = put(log, b"first", b"second")
    log.close()
    flip(log, Place(0, 1, 0, 16), 3)
    again = SegmentLog(tmp_path, indexed=lambda segment: places)
    assert [one.reason for one in again.damage] == ["it has no header"]
    assert readable(again, places) == [1, 2]
    again.close()
    assert SegmentLog(tmp_path).segments() == []  # nothing says what it is
    assert log.path_of(1).with_suffix(".damaged").exists()


def test_a_record_in_what_a_client_sent_is_not_taken_for_one(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    forged = SegmentLog(tmp_path / "forged")
    forged.skip_to(1)
    put(forged, b"forged")
    record = forged.path_of(2).read_bytes()[16:]
    (place,) = put(log, record + b"rest")
    log.close()
    flip(log, place, 0)
    assert [one for one in SegmentLog(tmp_path).scan() if isinstance(one, tuple)] == []


def test_damage_in_an_old_segment_is_reported_and_left(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path, segment_bytes=20)
    places = [put(log, b"%d" % n)[0] for n in range(4)]
    log.close()
    path = log.path_of(places[0].segment)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"X")
    again = SegmentLog(tmp_path, segment_bytes=20)
    assert again.damage == []
    found = list(again.scan())
    assert isinstance(found[0], Damage)
    assert [one[0].position for one in found if isinstance(one, tuple)] == [2, 3, 4]
    assert path.stat().st_size == len(data)


def test_records_of_one_segment_behind_the_start_of_the_next_do_not_count(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"kept")
    log.write([(b"never committed",)])
    log.sync()
    del log  # as a crash would, after a rollback that did not reach the disk
    new = SegmentLog(tmp_path / "new")
    new.skip_to(1)
    put(new, b"in its place")
    os.replace(new.path_of(2), tmp_path / new.path_of(2).name)
    assert contents(SegmentLog(tmp_path)) == [(1, b"kept"), (2, b"in its place")]


def test_rollback_leaves_no_trace(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"kept")
    log.write([(b"not",), (b"these",)])
    log.sync()
    log.rollback()
    assert contents(log) == [(1, b"kept")]
    assert put(log, b"next")[0].position == 2
    log.write([(b"nor this",)])
    log.close()
    assert contents(SegmentLog(tmp_path)) == [(1, b"kept"), (2, b"next")]


def test_a_log_that_cannot_be_mended_takes_nothing(tmp_path: Path) -> None:
    broken = [False]

    def sync(descriptor: int) -> None:
        if broken[0]:
            raise OSError(5, "Input/output error")
        os.fdatasync(descriptor)

    log = SegmentLog(tmp_path, sync=sync)
    put(log, b"kept")
    broken[0] = True
    log.write([(b"lost",)])
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    log.rollback()
    broken[0] = False
    with pytest.raises(StoreError, match="takes nothing"):
        log.write([(b"more",)])
    log.close()
    assert contents(SegmentLog(tmp_path))[0] == (1, b"kept")


def test_positions_can_be_skipped_but_not_used_again(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"one")
    log.skip_to(10)
    log.skip_to(5)
    assert put(log, b"eleven")[0].position == 11
    log.close()
    again = SegmentLog(tmp_path)
    assert contents(again) == [(1, b"one"), (11, b"eleven")]


@pytest.mark.parametrize("content", [b"", b"ASSAY", bytes(16)])
def test_a_segment_that_was_being_created_is_no_damage(tmp_path: Path, content: bytes) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"one")
    log.close()
    log.path_of(2).write_bytes(content)
    again = SegmentLog(tmp_path)
    assert again.damage == []
    assert again.segments() == [1]
    assert put(again, b"two")[0].position == 2


def test_a_segment_of_something_else_is_put_aside(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path)
    put(log, b"one")
    log.close()
    log.path_of(2).write_bytes(b"not a segment of ours")
    again = SegmentLog(tmp_path)
    assert [one.reason for one in again.damage] == ["it has no header"]
    assert contents(again) == [(1, b"one")]
    assert (tmp_path / f"{2:020d}.damaged").exists()
