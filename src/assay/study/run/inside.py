"""What runs inside every Python process of a run: note which files of the repository it loads.

This file is copied into a directory of the run as `sitecustomize.py`, with the three paths below
filled in, and that directory is put on PYTHONPATH; so Python imports it at its start, also in
processes that the run starts. It stands by itself and keeps to what Python 3.8 knows. It must never
break what runs: what it cannot note, it leaves out.

It does two things. Editable installs (`pip install -e`) name the repository itself; they are made
to name the run's worktree. And every file of the worktree that is executed, imported or opened is
written down at once, so that a process that is killed has said it too; so is what it reads of the
studies, apart from its own run: results of others.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` is not imported for it: it stands in front of everything
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ROOT = ""  # the repository
TREE = ""  # the run's worktree
OUT = ""  # the run's output directory
NOTES = ""  # the directory that the notes go to
MOST = 20000  # files that one process says to have read

_WRITING = {
    "os.rename": 2, "os.link": 2, "os.symlink": 2, "os.remove": 1, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "sqlite3.connect": 1,
}  # fmt: skip


def install() -> None:
    """Map editable installs to the worktree, and write down what is loaded from now on."""
    import os
    import sys

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
    prefixes = tuple(os.path.realpath(p) + os.sep for p in (sys.prefix, sys.base_prefix))
    root, tree, out = (path + os.sep for path in (ROOT, TREE, OUT))
    studies = os.path.join(ROOT, ".rlxp", "tasks", "")
    own = (tree, os.path.join(os.path.dirname(OUT), ""))

    def of_repository(path: str) -> str | None:
        """Return where a path is in the repository itself, or None if it is not its code."""
        real = os.path.realpath(path) + os.sep
        if not real.startswith(root) or real.startswith((tree, *prefixes)):
            return None
        return real[len(root) :].rstrip(os.sep)

    def moved(path: Any) -> Any:
        """Return the same place in the worktree, of a path in the repository itself."""
        inside = of_repository(path) if isinstance(path, str) and os.path.isabs(path) else None
        return path if inside is None else os.path.join(TREE, inside).rstrip(os.sep)

    map_editables(sys, moved)
    notes = os.path.join(NOTES, f"{os.getpid()}-{os.urandom(4).hex()}")
    seen: set[tuple[str, str]] = set()

    def write(kind: str, path: str, mark: str = "") -> None:
        line = "\t".join((kind, mark, path)) + "\n"
        if line.count("\n") > 1:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        number = os.open(notes, flags, 0o600)
        try:
            os.write(number, line.encode("utf-8", "surrogateescape"))
        finally:
            os.close(number)

    digest = hasher(sys, lambda path: (path + os.sep).startswith((root, here)))

    def note(kind: str, path: Any) -> None:
        """Write a file down, once; `kind` is code, read or write."""
        path = os.fsdecode(path)
        if path.startswith("<"):
            return
        path = os.path.normpath(os.path.join(os.getcwd(), path))
        if kind == "read":
            real = os.path.realpath(path)
            if real.startswith(studies) and not real.startswith(own) and ("peek", real) not in seen:
                seen.add(("peek", real))
                write("peek", real[len(root) :])
        if kind == "write":
            known, start = path.startswith(out), out
        else:
            known, start = path.startswith(tree), tree
            if kind == "code" and not known:
                real = os.path.realpath(path)
                known, path = real.startswith(tree), real if real.startswith(tree) else path
        if not known:
            if kind != "code":
                return
            inside = of_repository(path)
            kind, start = ("installed", "") if inside is None else ("root", "")
            path = path if inside is None else inside
        if (kind, path) in seen or (kind == "read" and len(seen) > MOST):
            return
        seen.add((kind, path))
        mark = ""
        if kind == "code":
            seen.add(("read", path))
            mark = digest(path)
        write(kind, path[len(start) :], mark)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        try:
            if event == "exec":
                note("code", args[0].co_filename)
            elif event == "import":
                if args[1]:
                    note("code", args[1])
            elif event == "open":
                mode, flags = args[1], args[2] or 0
                writing = flags & (os.O_WRONLY | os.O_RDWR) or (
                    isinstance(mode, str) and set(mode) & set("wax+")
                )
                if not isinstance(args[0], int):
                    note("write" if writing else "read", args[0])
            elif event == "subprocess.Popen":
                if ("escape", "") not in seen and escapes(args[1], args[3], here):
                    seen.add(("escape", ""))
                    write("escape", "")
            elif event in _WRITING:
                for path in args[: _WRITING[event]]:
                    if not isinstance(path, int):
                        note("write", path)
        except Exception:
            pass

    write("start", sys.executable or "python")
    sys.addaudithook(hook)


def escapes(words: Any, env: Any, here: str) -> bool:
    """Return whether a new process would not import this file: not all that is loaded is known."""
    if env is not None:
        given = dict(env)
        if here not in str(given.get("PYTHONPATH", given.get(b"PYTHONPATH", ""))):
            return True
    first, *rest = [words] if isinstance(words, (str, bytes)) else [str(word) for word in words]
    if "python" not in str(first).rsplit("/", 1)[-1]:
        return False
    options = rest[:1] if rest and str(rest[0]).startswith("-") else []
    return any(set(str(word)[1:]) & set("IES") for word in options)


def map_editables(sys: Any, moved: Callable[[Any], Any]) -> None:
    """Let the paths and finders of editable installs lead to the worktree."""
    sys.path[:] = [moved(entry) for entry in sys.path]
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):  # setuptools
            mapping = getattr(module, "MAPPING", None) or {}
            spaces = getattr(module, "NAMESPACES", None) or {}
            mapping.update({key: moved(path) for key, path in mapping.items()})
            spaces.update({key: [moved(path) for path in paths] for key, paths in spaces.items()})
    redirector = sys.modules.get("editables.redirector")  # hatchling
    if redirector is not None:
        targets = redirector.RedirectingFinder._redirections
        targets.update({key: moved(path) for key, path in targets.items()})


def hasher(sys: Any, foreign: Callable[[str], bool]) -> Callable[[str], str]:
    """Return a function that hashes a file; `hashlib` is looked for in foreign places last."""
    paths = sys.path[:]
    sys.path[:] = sorted(paths, key=foreign)
    try:
        import hashlib
    finally:
        sys.path[:] = paths

    def digest(path: str) -> str:
        try:
            with open(path, "rb") as file:
                return hashlib.sha256(file.read()).hexdigest()
        except OSError:  # it is gone already
            return ""

    return digest


def import_hidden() -> None:
    """Import the environment's own `sitecustomize`, which this file stands in front of."""
    import importlib
    import sys

    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


if TREE:
    try:
        install()
    except Exception:
        pass
    import_hidden()
