"""Where the machine allows it, an evaluation runs in namespaces of its own (Linux).

The repository and the interpreter's environment are read-only for it, apart from its worktree and
the run's output, and there is no network but the loopback, unless the contract allows it. It needs
no privileges and no program: the new process enters the namespaces itself, before it becomes the
command. Where the kernel refuses, the evaluation runs without, and its record says so.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from assay.study.run.processes import die_with_parent

NAMESPACES = "namespaces (read-only repository, no network)"
NETWORKED = "namespaces (read-only repository)"
NONE = "none"

_NEWNS, _NEWUSER, _NEWNET = 0x00020000, 0x10000000, 0x40000000
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_RELATIME = 1 << 21
_DROP_BOUNDING, _SYS_ADMIN = 24, 21
_SET_FLAGS, _UP = 0x8914, 0x41  # of an interface: SIOCSIFFLAGS, IFF_UP | IFF_RUNNING


class Sandbox:
    """What a process does between its start and its command; made before it is started."""

    def __init__(
        self, read_only: Sequence[Path], writable: Sequence[Path], *, network: bool
    ) -> None:
        self.read_only = [str(path.resolve()) for path in read_only]
        self.writable = [str(path.resolve()) for path in writable]
        self.network = network
        self._libc = ctypes.CDLL(None, use_errno=True)

    @property
    def name(self) -> str:
        """Return what the run's record calls it."""
        return NETWORKED if self.network else NAMESPACES

    def __call__(self) -> None:
        """Enter the namespaces.

        Raises:
            OSError: The kernel does not allow it; the process must not go on.
        """
        # Root needs no namespace of users, and in one it would lose the files of others.
        users = 0 if os.geteuid() == 0 else _NEWUSER
        uid, gid = os.geteuid(), os.getegid()
        network = 0 if self.network else _NEWNET
        self._call("unshare", users | _NEWNS | network)
        if users:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{uid} {uid} 1")
            _write("/proc/self/gid_map", f"{gid} {gid} 1")
        self._mount(None, "/", _REC | _PRIVATE)
        for path in self.writable:  # mounts of their own, which stay as they are
            self._mount(path, path, _BIND | _REC)
        for path in self.read_only:
            self._mount(path, path, _BIND | _REC)
            self._mount(None, path, _REMOUNT | _BIND | _RDONLY | _flags(path))
        if network:
            self._bring_loopback_up()
        os.chdir(os.getcwd())  # which is still the one outside of the new mounts
        self._call("prctl", _DROP_BOUNDING, _SYS_ADMIN, 0, 0, 0)  # so that none of it is undone
        die_with_parent()

    def _mount(self, source: str | None, target: str, flags: int) -> None:
        what = source.encode() if source is not None else None
        self._call("mount", what, target.encode(), None, ctypes.c_ulong(flags), None)

    def _bring_loopback_up(self) -> None:
        socket = self._call("socket", 2, 2, 0)
        try:
            self._call("ioctl", socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", _UP))
        finally:
            os.close(socket)

    def _call(self, name: str, *arguments: object) -> int:
        found = int(getattr(self._libc, name)(*arguments))
        if found < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
        return found


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _flags(path: str) -> int:
    """Return the flags of a mount that a read-only one has to keep."""
    seen = os.statvfs(path).f_flag
    kept = seen & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC | os.ST_NOATIME | os.ST_NODIRATIME)
    return kept | (_RELATIME if seen & os.ST_RELATIME else 0)
