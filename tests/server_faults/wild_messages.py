"""Messages of the wire format with anything in them that the format allows."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("queue", "other", "", "stable", "canary", "no/where", "*", "\x00", "ü" * 40, "x" * 5000)
NUMBERS = (0, 1, 2, 3, 7, 255, 2**31 - 1, 2**32 - 1)
LARGE = (*NUMBERS, 2**53, 2**63 - 1)


def wild(kind: type[Any], rng: random.Random, depth: int = 0) -> Any:
    """Return a message of a class, of which each field may hold anything or nothing."""
    message = kind()
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            for _ in range(rng.randrange(3)):
                getattr(message, field.name)[_plain(_key(field), rng)] = _plain(value, rng)
        elif field.message_type is not None:
            inner = field.message_type._concrete_class
            target = getattr(message, field.name)
            if field.is_repeated:
                for _ in range(rng.randrange(4) if depth < 3 else 0):
                    target.add().CopyFrom(wild(inner, rng, depth + 1))
            elif depth < 4:
                target.CopyFrom(wild(inner, rng, depth + 1))
        elif field.is_repeated:
            getattr(message, field.name).extend(_plain(field, rng) for _ in range(rng.randrange(4)))
        else:
            setattr(message, field.name, _plain(field, rng))
    return message


def _key(field: Any) -> Any:
    return field.message_type.fields_by_name["key"]


def _plain(field: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if field.enum_type is not None:
        return rng.choice([one.number for one in field.enum_type.values] + [200])
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return rng.randbytes(rng.choice([0, 1, 8, 64, 1000]))
        return rng.choice(NAMES)
    if kind == field.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return rng.choice([0.0, -1.0, 1e30, float("nan"), float("inf")])
    if kind == field.CPPTYPE_UINT32:
        return rng.choice(NUMBERS)
    if kind == field.CPPTYPE_INT32:
        return rng.choice([-1, *NUMBERS[:-1]])
    if kind == field.CPPTYPE_INT64:
        return rng.choice([-1, *LARGE])
    return rng.choice([*LARGE, 2**64 - 1])


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, left out or put in."""
    found = bytearray(data) or bytearray(b"\0")
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found))
        what = rng.randrange(4)
        if what == 0:
            found[at] = rng.randrange(256)
        elif what == 1:
            del found[at : at + rng.randint(1, 16)]
        elif what == 2:
            found[at:at] = rng.randbytes(rng.randint(1, 16))
        else:
            found[at:at] = found[max(at - 40, 0) : at]
        found = found or bytearray(b"\0")
    return bytes(found)
