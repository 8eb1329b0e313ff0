"""Read the history of an offline W&B run from its `.wandb` file, without the wandb package.

The file is a LevelDB log (blocks of 32 KiB, each piece with a checksum, a length and a type) of
protocol-buffer records. Only what a metric needs is decoded: history records, their items' keys
and JSON values. A torn end, as a killed run leaves it, ends the reading.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.study.files.documents import StudyError

BLOCK = 32 * 1024
HEADER = struct.Struct("<4sHB")  # ":W&B", a magic number, a version
PIECE = struct.Struct("<IHB")  # checksum, length, type
MAGIC = 0xBEE1
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4

# Field numbers of wandb's own messages.
RECORD_HISTORY = 2
HISTORY_ITEM = 1
ITEM_KEY, ITEM_NESTED_KEY, ITEM_VALUE = 1, 2, 16


def wandb_history(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every logged row as `{key: value}`; nested keys are joined by dots.

    Raises:
        StudyError: The file is not one of W&B's.
    """
    for record in _records(path):
        for number, value in _fields(record):
            if number == RECORD_HISTORY and isinstance(value, bytes):
                yield _row(value)


def _row(history: bytes) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for number, item in _fields(history):
        if number != HISTORY_ITEM or not isinstance(item, bytes):
            continue
        key, nested, text = "", [], ""
        for field, value in _fields(item):
            if not isinstance(value, bytes):
                continue
            if field == ITEM_KEY:
                key = value.decode(errors="replace")
            elif field == ITEM_NESTED_KEY:
                nested.append(value.decode(errors="replace"))
            elif field == ITEM_VALUE:
                text = value.decode(errors="replace")
        try:
            row[key or ".".join(nested)] = json.loads(text)
        except ValueError:
            continue
    return row


def _records(path: Path) -> Iterator[bytes]:
    """Put the pieces of the log together."""
    data = path.read_bytes()
    if len(data) < HEADER.size or HEADER.unpack_from(data)[:2] != (b":W&B", MAGIC):
        raise StudyError(f"'{path.name}' is not an offline file of W&B.")
    place, parts = HEADER.size, b""
    while True:
        left = BLOCK - place % BLOCK
        if left < PIECE.size:  # a block's end that is too short for a piece is padding
            place += left
            left = BLOCK
        if place + PIECE.size > len(data):
            return
        _, length, kind = PIECE.unpack_from(data, place)
        start = place + PIECE.size
        if kind not in (FULL, FIRST, MIDDLE, LAST) or start + length > len(data):
            return
        piece = data[start : start + length]
        place = start + length
        parts = piece if kind in (FULL, FIRST) else parts + piece
        if kind in (FULL, LAST):
            yield parts


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol-buffer message; what is malformed ends it."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
        elif wire == 2:
            length, place = _varint(message, place)
            yield number, message[place : place + length]
            place += length
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            yield number, message[place : place + size]
            place += size
        else:
            return


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message):
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    return value, place
