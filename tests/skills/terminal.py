"""A terminal for a program that draws on it: what it shows, and keys for it."""

from __future__ import annotations

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
_PIECES = re.compile(
    r"\x1b\[(?P<numbers>[0-9;]*)(?P<order>[@-~])|\x1b\[[^@-~]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]|(?P<letter>.)",
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
        self._drawn = b""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._end)

    def press(self, key: str, done: Callable[[], bool]) -> None:
        """Press a key until it had its effect: a program may not listen as soon as it draws."""
        pressed = 0.0

        def tried() -> bool:
            nonlocal pressed
            if done():
                return True
            if time.monotonic() > pressed + 2.0:
                self._send(key)
                pressed = time.monotonic()
            return False

        self.until(tried)

    def _send(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def screen(self) -> str:
        """Return the lines that it shows: letters where they were put, and what was erased."""
        cells = [[" "] * COLUMNS for _ in range(ROWS)]
        row = column = 0
        for piece in _PIECES.finditer(self._drawn.decode(errors="replace")):
            letter, order = piece["letter"], piece["order"]
            if order == "H":
                numbers = [int(number or 1) for number in f"{piece['numbers']};1".split(";")]
                row, column = min(numbers[0], ROWS) - 1, min(numbers[1], COLUMNS) - 1
            elif order == "K":
                cells[row][column:] = [" "] * (COLUMNS - column)
            elif order == "J":
                cells[row + 1 :] = [[" "] * COLUMNS for _ in cells[row + 1 :]]
            elif letter == "\r":
                column = 0
            elif letter == "\n":
                row = min(row + 1, ROWS - 1)
            elif letter and column < COLUMNS:
                cells[row][column] = letter
                column += 1
        return "\n".join("".join(line).rstrip() for line in cells)

    def until(self, done: Callable[[], bool]) -> None:
        """Wait while the program draws, and answer what it asks its terminal."""
        limit = time.monotonic() + _PATIENCE
        while not done():
            assert time.monotonic() < limit and self._process.poll() is None, self.screen()
            if select.select([self._end], [], [], 0.1)[0]:
                drawn = os.read(self._end, 65_536)
                self._drawn += drawn
                self._send("\x1b[1;1R" * drawn.count(b"\x1b[6n"))  # where is the cursor?
                self._send("\x1b[?62c" * drawn.count(b"\x1b[c"))  # what are you?
