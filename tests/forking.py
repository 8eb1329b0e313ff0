"""Starts our own programs quickly: as forks of one process in which everything is imported.

Tests start hundreds of processes of ours (`python -m assay ...`, supervisors, workers), each of
which used to spend most of its time on importing torch and Assay. `install` replaces
`subprocess.Popen` by one that asks a server to fork such a program; the server is started on first
use and ends with the test process. What comes out is as real as before: a child of the test
process, with its own arguments, environment, directory, files, session and exit code.

Any other command is started as ever, and so is one of ours with an environment that changes how
Python or torch starts. What a test starts through a shell or `python -c`, and what a program starts
itself, is not forked either: so every program is also tested from its first import on. A test whose
own script does not care how Python starts sets `SCRIPTS` in its environment, and one about the
memory of a program sets `PLAIN`. (In `/proc`, a forked program has the server's command line.)

    python -P forking.py DESCRIPTOR

is the server. It reads requests from a socket, along with the files of the child.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from types import ModuleType
from typing import Any

SCRIPTS = "FORK_SCRIPTS"
PLAIN = "FORK_NOTHING"
MODULES = (
    "assay",
    "assay.envs.worker",
    "assay.loops.compile_worker",
    "assay.server.executor.child",
    "assay.study.run.supervisor",
)
# What these import. Not the modules themselves: each has to run as `__main__`.
IMPORTED = (
    "assay.algorithms.ppo",
    "assay.api",
    "assay.cli.app",
    "assay.server.executor.base",
    "assay.study.run.launcher",
    "scipy.stats",
)
# Variables that are read when a process starts, or when what is imported above is; and those of
# them that are read later, or seen to here.
_EARLY = ("PYTHON", "OMP_", "MKL_", "LD_", "TORCH", "CUDA", "GRPC_")
_LATE = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"),
    "CUDA_VISIBLE_DEVICES",  # nothing that is imported asks for devices
    # Torch sets the second itself, once a process has compiled something.
    *("TORCHINDUCTOR_COMPILE_THREADS", "TORCHINDUCTOR_CACHE_DIR"),
    # Workers of environments get it beside OMP_NUM_THREADS, which says the same and is early.
    "MKL_NUM_THREADS",
)
_ARGUMENTS = 20  # of `Popen._execute_child`, after the first three
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl
_MOST = 1 << 17  # bytes of a request
_FILES = 100  # that a request may bring

_Popen = subprocess.Popen
_server: Server | None = None
_environment: dict[str, str] = {}


def install() -> None:
    """Have this process's children forked from now on, where that can be done."""
    if sys.platform == "linux":
        _environment.update(os.environ)
        subprocess.Popen = Popen  # type: ignore[misc]


def start() -> None:
    """Start the server now, for tests in which a program has little time to start."""
    if subprocess.Popen is Popen:
        _current()


class Popen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, which has our own programs forked."""

    def _execute_child(self, args: Any, executable: Any, preexec: Any, *rest: Any) -> None:
        if (executable, preexec, len(rest)) != (None, None, _ARGUMENTS) or not self._fork(*rest):
            super()._execute_child(args, executable, preexec, *rest)  # type: ignore[misc]

    def _fork(self, *rest: Any) -> bool:
        """Have the command forked; return whether that was done."""
        close, passed, cwd, env, _, _, shell, *fds = rest[:13]
        _, *identity, session, group = rest[13:]
        env = dict(os.environ if env is None else env)
        if not close or shell or identity != [None, None, None, -1] or not _ours(self.args, env):
            return False
        place = os.path.abspath(cwd or os.curdir)
        own = [number if fd == -1 else fd for number, fd in enumerate((fds[0], fds[3], fds[5]))]
        request = {
            "words": self.args[1:], "env": env, "cwd": place, "session": session, "group": group,
            "passed": list(passed),
        }  # fmt: skip
        server = _current()
        if server is None or server.early != _early(env) or not os.path.isdir(place):
            return False
        try:
            self.pid = server.fork(request, [*own, *passed])
        except (OSError, ValueError):
            return False
        self._child_created = True
        self._close_pipe_fds(*fds)  # type: ignore[attr-defined]
        return True


class Server:
    """The process that forks, seen from the test process."""

    def __init__(self) -> None:
        self.pid = os.getpid()  # whose children it makes
        self.early = _early(os.environ)
        self._lock = threading.Lock()
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-P", __file__, str(theirs.fileno())]
        env = {key: value for key, value in _environment.items() if key not in _early(_environment)}
        with theirs:
            self.process = _Popen(
                words,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=env | self.early,
            )
        self._link.recv(64)  # which comes when everything is imported, or the server is gone
        atexit.register(self.end)

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        """Return the pid of a new child of this process; OSError or ValueError if there is none."""
        data = json.dumps(request).encode()
        if len(data) > _MOST:
            raise ValueError("the request is too long")
        prctl = ctypes.CDLL(None).prctl
        with self._lock:
            prctl(_SUBREAPER, 1, 0, 0, 0)  # the child is made an orphan, and so becomes ours
            try:
                socket.send_fds(self._link, [data], files)
                return int(self._link.recv(64))
            finally:
                prctl(_SUBREAPER, 0, 0, 0, 0)

    def end(self) -> None:
        """Close the link, which ends the server; what it forked goes on."""
        with self._lock:
            self._link.close()
        if self.pid == os.getpid():
            self.process.wait()


def _current() -> Server | None:
    """Return the server of this process; None in a fork of the process that has one.

    A library may change the environment of this process on import, as OpenCV and Ray do. Then the
    server is started again, because what it forks has to begin as a new process would.
    """
    global _server
    if _server is not None and _server.pid != os.getpid():
        return None
    if _server is not None and _server.early != _early(os.environ):
        _server.end()
        _server = None
    if _server is None or _server.process.poll() is not None:
        _server = Server()
    return _server


def _ours(args: Any, env: Mapping[str, str]) -> bool:
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        return False
    words = args[2:] if args[1:2] == ["-P"] else args[1:]
    if args[:1] != [sys.executable] or not words or PLAIN in env:
        return False
    if words[0] == "-m":
        return words[1] in MODULES
    return SCRIPTS in env and (words[0] == "-c" or words[0].endswith(".py"))


def _early(env: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in env.items() if key.startswith(_EARLY) and key not in _LATE}


# ---------------------------------------------------------------------- the server


def main() -> None:
    """Import everything, and fork for every request; each child runs its program here."""
    link = socket.socket(fileno=int(sys.argv[1]))
    given = _places(os.environ)
    installed = [place for place in sys.path if place not in given]
    for name in IMPORTED:
        importlib.import_module(name)
    # The command line is built once, and what was imported is not taken apart by every child.
    typer = importlib.import_module("typer.main")
    typer.get_command = functools.cache(typer.get_command)
    typer.get_command(sys.modules["assay.cli.app"].app)
    for part in list(weakref.finalize._registry.values()):  # type: ignore[attr-defined]
        part.atexit = False
    gc.collect()
    gc.freeze()  # what is here is shared, and would be copied by who counts it
    link.send(b"ready")
    request = _serve(link)
    code: Any = 1
    try:
        _run(request["words"], installed)
        code = 0
    except SystemExit as error:
        code = error.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    _leave(code or 0)


def _serve(link: socket.socket) -> dict[str, Any]:
    """Fork for every request; return in each child, with its request."""
    while True:
        data, files, _, _ = socket.recv_fds(link, _MOST, _FILES)
        if not data:
            os._exit(0)  # the test process has ended
        reading, writing = os.pipe()
        middle = os.fork()
        if not middle:
            middle = os.getpid()
            child = os.fork()
            if child:
                os.write(writing, str(child).encode())
                os._exit(0)
            while os.getppid() == middle:  # until this is an orphan, and so the test process's
                time.sleep(0.0002)
            request: dict[str, Any] = json.loads(data)
            _take(request, files)
            return request
        os.close(writing)
        os.waitpid(middle, 0)
        pid = os.read(reading, 64)
        os.read(reading, 1)  # ends when the child has all that is its own, and this pipe no more
        link.send(pid)
        for file in (*files, reading):
            os.close(file)


def _take(request: dict[str, Any], files: list[int]) -> None:
    """Give a child its session, environment, and files under their numbers, but no other files."""
    if request["session"]:
        os.setsid()
    elif request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    targets = [0, 1, 2, *request["passed"]]
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, max(targets) + 1) for file in files]
    for source, target in zip(moved, targets, strict=True):
        os.dup2(source, target)
    kept = sorted(set(targets))
    for first, last in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(first + 1, last)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, bare = getattr(sys, name), bool(number and os.environ.get("PYTHONUNBUFFERED"))
        file: Any = open(
            number, "wb" if number else "rb", buffering=0 if bare else -1, closefd=False
        )
        lines = number == 2 or os.isatty(number)
        stream = io.TextIOWrapper(file, old.encoding, old.errors, None, lines, bare)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run(words: list[str], installed: list[str]) -> None:
    """Be the program of a command line, as `python WORDS...` is."""
    safe = words[0] == "-P"
    kind, *rest = words[1:] if safe else words
    sys.path[:] = [*_places(os.environ), *installed]
    if kind == "-m":
        sys.path[:0] = [] if safe else [os.getcwd()]
        sys.argv[:] = [kind, *rest[1:]]
        if not hasattr(sys.modules.get(rest[0]), "__path__"):
            sys.modules.pop(rest[0], None)  # imported by others; this one is `__main__`
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[:0] = [] if safe else [""]
        sys.argv[:] = [kind, *rest[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[:0] = [] if safe else [os.path.dirname(os.path.abspath(kind))]
        sys.argv[:] = [kind, *rest]
        runpy.run_path(kind, run_name="__main__")


def _places(env: Mapping[str, str]) -> list[str]:
    return [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place]


def _leave(code: int) -> None:
    """End as Python does, but for taking everything apart, which costs more than all the rest."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code & 0xFF)


if __name__ == "__main__":
    main()
