"""Bytes that many clients ask for at once: each is read or made once, and few are kept."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

_MOST_ENTRIES = 1024  # for those that are empty or None
_ENTRY_BYTES = 64  # what an entry counts beside its data


class Kept:
    """A cache by least recent use. For the event loop's thread.

    Args:
        most_bytes: What may be kept; the latest entry is, however large.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._entries: OrderedDict[Hashable, bytes | None] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[bytes | None]] = {}
        self.bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    async def get(self, key: Hashable, make: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Return what is kept, or what `make` returns; those who ask meanwhile wait for it.

        What it raises reaches all of them and is not kept.
        """
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        task = self._making.get(key)
        if task is None:
            task = asyncio.ensure_future(self._make(key, make))
            self._making[key] = task
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Whoever began it may go away; the others still want it.
        return await asyncio.shield(task)

    async def _make(
        self, key: Hashable, make: Callable[[], Awaitable[bytes | None]]
    ) -> bytes | None:
        try:
            data = await make()
        finally:
            del self._making[key]
        self._entries[key] = data
        self.bytes += _weight(data)
        while len(self._entries) > 1 and (
            self.bytes > self._most_bytes or len(self._entries) > _MOST_ENTRIES
        ):
            _, gone = self._entries.popitem(last=False)
            self.bytes -= _weight(gone)
        return data


def _weight(data: bytes | None) -> int:
    return _ENTRY_BYTES + len(data or b"")
