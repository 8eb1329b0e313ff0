"""What is under way in one session: its numbers, the server's credits, and what was refused.

The outbox numbers what it hands out; a session numbers what it sends, from 1. An item keeps its
number in a session however often it is sent there, so that the server can tell a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator


class Window:
    """The numbers and credits of one session.

    Args:
        epoch: Of the session.
        batches: Most batches that may be sent and not answered.
        size: Most bytes, likewise. One batch may go alone, however large.

    Example:
        >>> window = Window(epoch=1, batches=8, size=1000)
        >>> for seq in (11, 12, 13):
        ...     window.sent(seq, window.number(seq), 10)
        >>> window.commit(1)
        11
        >>> window.refuse(2, forever=True), window.again()  # 3 is still to be answered
        (12, None)
        >>> window.refuse(3, forever=False), window.again()
        (13, 13)
        >>> window.number(13), window.dropped_before(3)
        (3, 1)
    """

    def __init__(self, epoch: int, batches: int, size: int) -> None:
        self.epoch = epoch
        self._batches, self._size = batches, size
        self._numbers: dict[int, int] = {}  # by number in the outbox, in order
        self._under_way: dict[int, tuple[int, int]] = {}  # outbox number and bytes, by number
        self._bytes = 0
        self._gone: set[int] = set()  # numbers that will never be sent again
        self._last = 0
        self._cut: int | None = None  # what is under way from here on will be refused

    def grant(self, batches: int, size: int) -> None:
        """Take over the credits that the server states now."""
        self._batches, self._size = batches, size

    @property
    def ready(self) -> bool:
        """Return whether another batch may be sent, if it is small enough."""
        return (
            self._cut is None and len(self._under_way) < self._batches and self._bytes < self._size
        )

    @property
    def idle(self) -> bool:
        """Return whether nothing is under way."""
        return not self._under_way

    def fits(self, size: int) -> bool:
        """Return whether a batch of so many bytes may be sent now."""
        return self.ready and (self.idle or self._bytes + size <= self._size)

    def number(self, seq: int) -> int:
        """Return an item's number in this session."""
        if seq not in self._numbers:
            self._last += 1
            self._numbers[seq] = self._last
        return self._numbers[seq]

    def dropped_before(self, number: int) -> int:
        """Return how many numbers right before this one will never be sent."""
        count = 0
        while number - 1 - count in self._gone:
            count += 1
        return count

    def sent(self, seq: int, number: int, size: int) -> None:
        """Note that a batch is under way."""
        self._under_way[number] = (seq, size)
        self._bytes += size

    def commit(self, number: int) -> int | None:
        """Forget what is durable; return the last item of it by its number in the outbox."""
        last = None
        for seq in list(self._up_to(number)):
            del self._numbers[seq]
            last = seq
        for one in [one for one in self._under_way if one <= number]:
            self._answered(one)
        self._gone = {one for one in self._gone if one > number}
        return last

    def refuse(self, number: int, *, forever: bool) -> int | None:
        """Note that a batch was refused, and with it all that is under way behind it.

        Args:
            number: Of the batch.
            forever: It will never be taken; else it has to be sent again.

        Returns:
            Its number in the outbox; None if it is not under way.
        """
        if number not in self._under_way:
            return None
        seq = self._answered(number)
        if forever:
            self._gone.add(number)
            self._numbers.pop(seq, None)
        # Answers come in order: what went before and was not answered did not arrive.
        lost = [one for one in self._under_way if one < number]
        for one in lost:
            self._answered(one)
        first = min([number, *lost])
        self._cut = first if self._cut is None else min(self._cut, first)
        return seq

    def give_up(self, seq: int) -> None:
        """Take back the number of an item that is not sent after all."""
        number = self._numbers.pop(seq, None)
        if number == self._last and number not in self._under_way:
            self._last -= 1
        elif number is not None:
            self._gone.add(number)

    def again(self) -> int | None:
        """Return the item to send again from, once all that follows a refusal was answered.

        By its number in the outbox; None if there is nothing to do, or not yet.
        """
        cut = self._cut
        if cut is None or any(number > cut for number in self._under_way):
            return None
        self._cut = None
        return next((seq for seq, number in self._numbers.items() if number >= cut), None)

    @property
    def oldest(self) -> int | None:
        """Return the item that has been under way longest, by its number in the outbox."""
        return next((seq for seq, _ in self._under_way.values()), None)

    def _up_to(self, number: int) -> Iterator[int]:
        for seq, one in self._numbers.items():
            if one > number:
                return
            yield seq

    def _answered(self, number: int) -> int:
        seq, size = self._under_way.pop(number)
        self._bytes -= size
        return seq
