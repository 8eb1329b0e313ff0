"""A terminal for a program that draws on it: what it shows, and keys for it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROWS, COLUMNS = 40, 120
_PATIENCE = 120.0  # seconds; a busy machine may need them
_PAUSE = 3.0  # before a key
_ANSWERS = {"n": "\x1b[1;1R", "c": "\x1b[?62c"}  # where is the cursor? what are you?
_PIECES = re.compile(
    r"\x1b\[(?P<numbers>[0-9;]*)(?P<order>[@-~])|\x1b\[[^@-~]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b(?![\[\]])[ -/]*[0-~]|(?P<letter>.)",
    re.DOTALL,
)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # keys come from the terminal that governs a process


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: Sequence[str], place: Path, environment: Mapping[str, str]) -> None:
        self._end, program = pty.openpty()
        termios.tcsetwinsize(self._end, (ROWS, COLUMNS))
        self._process = subprocess.Popen(
            command, cwd=place, env={"TERM": "xterm", **environment}, start_new_session=True,
            stdin=program, stdout=program, stderr=program, preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(program)
        self._cells = [[" "] * COLUMNS for _ in range(ROWS)]
        self._row = self._column = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""  # the beginning of an order whose end did not come yet

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._end)

    def press(self, key: str, done: Callable[[], bool]) -> None:
        """Press a key until it had its effect, and no sooner than a person would.

        Programs throw away what was typed before they drew, and may not stand more of it then.
        """
        pressed = time.monotonic()

        def tried() -> bool:
            nonlocal pressed
            if done():
                return True
            if time.monotonic() > pressed + _PAUSE:
                self._send(key)
                pressed = time.monotonic()
            return False

        self.until(tried)

    def _send(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def screen(self) -> str:
        """Return the lines that it shows."""
        return "\n".join("".join(line).rstrip() for line in self._cells)

    def _draw(self, drawn: bytes) -> None:
        """Put letters where they belong, erase, and answer; colours and the like do not count."""
        text = self._rest + self._decoder.decode(drawn)
        read = 0
        for piece in _PIECES.finditer(text):
            letter, order = piece["letter"], piece["order"]
            if letter == "\x1b":
                break
            read = piece.end()
            if order == "H":
                numbers = [int(number or 1) for number in f"{piece['numbers']};1".split(";")]
                self._row, self._column = min(numbers[0], ROWS) - 1, min(numbers[1], COLUMNS) - 1
            elif order == "K":
                self._cells[self._row][self._column :] = [" "] * (COLUMNS - self._column)
            elif order == "J":
                below = range(self._row + 1, ROWS)
                self._cells[self._row + 1 :] = [[" "] * COLUMNS for _ in below]
            elif order in _ANSWERS:
                self._send(_ANSWERS[order])
            elif letter == "\r":
                self._column = 0
            elif letter == "\n":
                self._row = min(self._row + 1, ROWS - 1)
            elif letter and self._column < COLUMNS:
                self._cells[self._row][self._column] = letter
                self._column += 1
        self._rest = text[read:]

    def until(self, done: Callable[[], bool]) -> None:
        """Wait while the program draws."""
        limit = time.monotonic() + _PATIENCE
        while not done():
            assert time.monotonic() < limit, self.screen()
            if select.select([self._end], [], [], 0.1)[0]:
                try:
                    drawn = os.read(self._end, 65_536)
                except OSError:  # nobody is at the other end
                    ended = self._process.wait()
                    raise AssertionError(f"{self.screen()}\nended with {ended}") from None
                self._draw(drawn)
