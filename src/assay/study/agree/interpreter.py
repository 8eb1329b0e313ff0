"""Which Python a command runs, and what of its environment reaches into the repository.

Everything is read from files; no interpreter is started. Two things are looked for in the places
that Python imports from: editable installs of the repository itself, whose code a run must get from
its own worktree, and the files that Python loads at every start, which must be the same in all
runs.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from assay.runs.git import git
from assay.study.agree.protocol import fingerprint
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError

_PYTHON = re.compile(r"^(python|pypy)[0-9.]*$")
_MANAGERS = ("uv", "uvx", "poetry", "pdm", "hatch", "rye", "pixi", "pipenv")
_IGNORING = "IES"  # options of Python that ignore PYTHONPATH, or what is imported at its start
_WITH_VALUE = "cmWX"
_AT_START = ("sitecustomize", "usercustomize")
_COMPILED = (".so", ".pyd")
_NO_SOURCE = frozenset({"build", "dist", "node_modules", "__pycache__", ROOT})
_UV_PLAIN = frozenset({
    "--no-sync", "--frozen", "--locked", "--offline", "-q", "--quiet", "--all-extras",
    "--all-groups", "--dev", "--no-dev", "-m", "--module",
})  # fmt: skip
# Which packages, of an environment that is there.
_UV_WITH_VALUE = frozenset({"--extra", "--group"})


def interpreters(root: Path, agreed: Contract, env: Mapping[str, str]) -> list[Path]:
    """Return every Python that the contract's commands may run, as they name it.

    Where a command names none and is not a script, it is what `python` and `python3` lead to.
    """
    found: list[Path] = []
    own = uv_environment(root, agreed.baseline.cwd)
    for words in filter(None, (agreed.baseline.command, agreed.evaluation.command)):
        if own is not None and is_uv_run(words):
            found.append(own / "bin" / "python")
            continue
        found += _of_command(root / agreed.baseline.cwd, words, env) or [
            path for name in ("python", "python3") if (path := _program(root, name, env))
        ]
    return list(dict.fromkeys(found))


def _of_command(cwd: Path, words: Sequence[str], env: Mapping[str, str]) -> list[Path]:
    named = [word for word in words if word == "{python}" or _PYTHON.match(Path(word).name)]
    found = [path for word in named if (path := _program(cwd, word, env))]
    first = _program(cwd, words[0], env)
    if first is not None and not named:
        start = b""
        with contextlib.suppress(OSError), open(first, "rb") as file:
            start = file.readline(4096)
        script = start[2:].decode(errors="replace").split() if start.startswith(b"#!") else []
        script = [word for word in script if _PYTHON.match(Path(word).name)]
        found += [path for word in script if (path := _program(cwd, word, env))]
    return found


def _program(cwd: Path, word: str, env: Mapping[str, str]) -> Path | None:
    """Return the file that a word of a command starts, or None if there is none."""
    if word == "{python}":
        return Path(sys.executable)
    if "/" in word:
        path = Path(os.path.normpath(cwd / word))
        return path if path.is_file() else None
    found = shutil.which(word, path=env.get("PATH", os.defpath))
    return Path(found) if found else None


def is_there(cwd: Path, word: str, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether the first word of a command leads to a program."""
    return _program(cwd, word, env) is not None


def refuse_missing(root: Path, agreed: Contract, env: Mapping[str, str]) -> None:
    """Refuse commands whose program is not there.

    Raises:
        StudyError: Names the program and the field.
    """
    commands = {"baseline": agreed.baseline.command, "evaluation": agreed.evaluation.command}
    for part, words in commands.items():
        if words and not is_there(root / agreed.baseline.cwd, words[0], env):
            rest = " ".join(words[1:])
            raise StudyError(
                f"'{words[0]}', which {part}.command starts, was not found.",
                "Name an interpreter that is there, or {python} for the one that runs Assay: assay "
                f"study contract set '{part}.command={{python}} {rest}'",
            )


def prefixes(python: Path) -> list[Path]:
    """Return the directories that an interpreter is installed in: a virtual environment's first."""
    settings = python.parent.parent / "pyvenv.cfg"
    if not settings.is_file():
        return [python.resolve().parent.parent]
    text = settings.read_text(errors="replace")
    home = re.search(r"^home\s*=\s*(.+)$", text, re.MULTILINE)
    below = [Path(home[1].strip()).parent] if home else []
    return [settings.parent, *below]


def places(python: Path, env: Mapping[str, str]) -> list[Path]:
    """Return the directories whose startup files an interpreter reads."""
    own, *base = prefixes(python)
    libraries = [*own.glob("lib*/python3*"), *own.glob("local/lib/python3*")]
    names = ("site-packages", "dist-packages")
    found = [library / name for library in libraries for name in names]
    for prefix in base or [own]:
        found += prefix.glob("lib*/python3*")  # of the standard library, which holds one as well
    if not base:  # a virtual environment reads nothing of the user's
        home = Path(env.get("HOME") or os.path.expanduser("~"))
        user = Path(env.get("PYTHONUSERBASE") or home / ".local")
        found += user.glob("lib/python3*/site-packages")
    real = {place.resolve(): place for place in reversed(found) if place.is_dir()}
    return list(reversed(real.values()))


def packages(pythons: Iterable[Path], env: Mapping[str, str]) -> dict[str, str]:
    """Return the version of every package that interpreters have installed, by name."""
    places_of_all = [place for python in pythons for place in places(python, env)]
    paths = [path for place in places_of_all for path in sorted(place.glob("*.dist-info"))]
    named = [path.stem.partition("-") for path in paths]
    return {name: version for name, _, version in reversed(named)}  # the first place counts


def startup_files(pythons: Iterable[Path], env: Mapping[str, str]) -> dict[str, str]:
    """Return the hash of every file that Python loads at its start, by path.

    These are *.pth files, what they import, `sitecustomize` and `usercustomize`. Whoever may write
    one of them may change what every program does.
    """
    found: dict[str, str] = {}
    for place in dict.fromkeys(place for python in pythons for place in places(python, env)):
        names = {path.name for path in place.iterdir()}
        modules = set(_AT_START)
        for name in (name for name in names if name.endswith(".pth")):
            found[str(place / name)] = fingerprint(place / name)
            modules |= _imported_by(place / name)
        for path in _files_of(place, modules & {n.partition(".")[0] for n in names}):
            found[str(path)] = fingerprint(path)
    return dict(sorted(found.items()))


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the first path whose hash is not the same in both, or ""."""
    both = sorted({*before, *now})
    return next((path for path in both if before.get(path) != now.get(path)), "")


def _files_of(place: Path, modules: Iterable[str]) -> Iterator[Path]:
    for module in modules:
        candidates = [*place.glob(f"{module}.*"), *(place / module).glob("**/*.py")]
        yield from (p for p in candidates if p.is_file() and p.suffix in (".py", ".pyc", ".so"))


def _imported_by(pth: Path) -> set[str]:
    """Return the modules that a .pth file imports."""
    lines = pth.read_text(errors="replace").splitlines()
    code = " ; ".join(line for line in lines if line.startswith(("import ", "import\t")))
    return set(re.findall(r"\bimport\s+([A-Za-z_]\w*)", code))


# ---------------------------------------------------------------------- editable installs


def editables(root: Path, pythons: Iterable[Path], env: Mapping[str, str]) -> list[Path]:
    """Return the directories of the repository that an environment imports from.

    Raises:
        StudyError: One of them is found by code that cannot be read, so that a run would import
            from the repository itself instead of its own worktree.
    """
    found: list[Path] = []
    for python in pythons:
        inside = [prefix.resolve() for prefix in prefixes(python)]
        for place in places(python, env):
            mine: list[Path] = []
            for pth in sorted(place.glob("*.pth")):
                mine += _paths_of(pth, root)
                for module in sorted(_imported_by(pth)):
                    mine += _targets(place / f"{module}.py", root)
            mine = [p for p in mine if not any(p.is_relative_to(prefix) for prefix in inside)]
            _refuse_unfound(place, root, mine)
            found += mine
    return list(dict.fromkeys(found))


def _below(root: Path, path: str | Path) -> Path | None:
    """Return a path of the repository's own tree, or None if it is elsewhere."""
    full = Path(path).resolve()
    return full if full.is_relative_to(root.resolve()) else None


def _paths_of(pth: Path, root: Path) -> list[Path]:
    lines = [line.strip() for line in pth.read_text(errors="replace").splitlines()]
    plain = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
    return [path for line in plain if (path := _below(root, pth.parent / line))]


def _targets(finder: Path, root: Path) -> list[Path]:
    """Return where a finder of an editable install leads to in the repository."""
    if not finder.is_file():
        return []
    text = finder.read_text(errors="replace")
    if not any(str(place) in text for place in {root, root.resolve()}):
        return []
    known = finder.name.startswith("__editable__") or "editables.redirector" in text
    paths = [path for word in _strings(text) if (path := _below(root, word)) if word[:1] == "/"]
    if not known or not paths:
        raise StudyError(
            f"'{finder}' leads imports to '{root}' in a way that cannot be mapped to a run's "
            "worktree, so that a patch would have no effect.",
            "Install the package with setuptools or hatchling as its build backend, or without -e "
            "and have its code found through PYTHONPATH (baseline.env).",
        )
    return paths


def _strings(text: str) -> list[str]:
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return []
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _path_of(address: str) -> str:
    """Return the path of a file: address."""
    plain = re.sub("%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), address)
    return plain.removeprefix("file://").encode("latin-1", "ignore").decode(errors="replace")


def _refuse_unfound(place: Path, root: Path, mine: list[Path]) -> None:
    """Refuse an editable install of the repository that no .pth file leads to."""
    for note in [] if mine else place.glob("*.dist-info/direct_url.json"):
        try:
            facts = json.loads(note.read_bytes())
            editable = facts.get("dir_info", {}).get("editable", False)
            target = _path_of(facts["url"])
        except (OSError, ValueError, KeyError, AttributeError):
            continue
        if editable and _below(root, target):
            raise StudyError(
                f"'{note.parent.name}' is an editable install of '{root}', and how it is imported "
                "cannot be read, so that a patch might have no effect.",
                "Install it again: pip install -e .",
            )


# ---------------------------------------------------------------------- what is refused


def refuse_unmapped(root: Path, agreed: Contract, env: Mapping[str, str]) -> None:
    """Refuse commands that would run other code than a run's worktree holds.

    Raises:
        StudyError: Names what cannot be mapped to the worktree, and what to use instead.
    """
    for words in filter(None, (agreed.baseline.command, agreed.evaluation.command)):
        name = Path(words[0]).name
        if is_uv_run(words):
            refuse_other_uv(root, agreed, words)
        elif name in _MANAGERS:
            raise StudyError(
                f"'{name}' sets up an environment for the directory that it runs in, so that a run "
                "would change the repository's own environment, or make another one.",
                "Use the environment's interpreter instead: {python}, or its absolute path.",
            )
    found = editables(root, interpreters(root, agreed, env), env)
    if not found:
        return
    for words in filter(None, (agreed.baseline.command, agreed.evaluation.command)):
        option = _ignoring(words)
        if option:
            raise StudyError(
                f"The command has {option}, with which Python cannot be told to import "
                f"'{found[0]}' from a run's worktree.",
                "Leave the option out.",
            )
    _refuse_compiled(root, agreed, found)


def _ignoring(words: Sequence[str]) -> str:
    """Return the option by which Python ignores its environment, or ""."""
    named = [i for i, w in enumerate(words) if w == "{python}" or _PYTHON.match(Path(w).name)]
    for word in words[named[0] + 1 :] if named else ():
        if not re.match(r"^-[A-Za-z]", word):
            break
        for letter in word[1:]:
            if letter in _IGNORING:
                return f"-{letter}"
            if letter in _WITH_VALUE:
                break
        if set(word) & set("cm"):
            break
    return ""


def _refuse_compiled(root: Path, agreed: Contract, found: Iterable[Path]) -> None:
    """Refuse an editable install with compiled modules that no run would have."""
    held = set(git(root, "ls-files", "-z").split("\0"))
    linked = tuple(agreed.baseline.untracked)
    for path in (path for place in found for path in _compiled(place)):
        name = path.relative_to(root.resolve()).as_posix()
        if name not in held and not any(name == p or name.startswith(f"{p}/") for p in linked):
            raise StudyError(
                f"'{name}' is a compiled module that Git does not hold, so that runs would not "
                "have it.",
                "Name it in baseline.untracked. A patch of its source has no effect there.",
            )


def _compiled(place: Path) -> Iterator[Path]:
    if place.is_file():
        place = place.parent
    for directory, names, files in os.walk(place):
        kept = [n for n in names if n not in _NO_SOURCE and not n.startswith(".")]
        names[:] = [n for n in kept if not (Path(directory) / n / "pyvenv.cfg").exists()]
        yield from (Path(directory) / name for name in files if name.endswith(_COMPILED))


# ---------------------------------------------------------------------- uv run
# In a run's worktree uv would make an environment of its own, and fetch packages for it. It is told
# to use the one that `uv sync` made in the repository, and to leave it alone; imports of the
# repository are led to the worktree as in every other environment.


def is_uv_run(words: Sequence[str]) -> bool:
    """Return whether a command is `uv run ...`."""
    return len(words) > 1 and Path(words[0]).name == "uv" and words[1] == "run"


def uv_environment(root: Path, cwd: str) -> Path | None:
    """Return the environment that uv uses in a directory of the repository, if there is one."""
    top = root.resolve()
    start = (top / cwd).resolve()
    for place in (start, *start.parents):
        if (place / ".venv" / "pyvenv.cfg").is_file():
            return place / ".venv"
        if place == top:
            break
    return None


def uv_variables(root: Path, agreed: Contract) -> dict[str, str]:
    """Return what tells uv to use that environment as it is; nothing for other commands."""
    commands = (agreed.baseline.command, agreed.evaluation.command)
    found = uv_environment(root, agreed.baseline.cwd) if any(map(is_uv_run, commands)) else None
    return {} if found is None else {"UV_PROJECT_ENVIRONMENT": str(found), "UV_NO_SYNC": "1"}


def refuse_other_uv(root: Path, agreed: Contract, words: Sequence[str]) -> None:
    """Refuse a `uv run` that would need another environment than the one that is there.

    Raises:
        StudyError: Names the option, or that there is no environment.
    """
    rest = iter(words[2:])
    for word in rest:
        if not word.startswith("-"):
            break
        if word in _UV_WITH_VALUE:
            next(rest, "")
        elif word not in _UV_PLAIN and word.partition("=")[0] not in _UV_WITH_VALUE:
            raise StudyError(
                f"'uv run {word}' sets up another environment than the repository's own.",
                "Leave the option out, or use the environment's interpreter: {python}, or its "
                "absolute path.",
            )
    if uv_environment(root, agreed.baseline.cwd) is None:
        raise StudyError(
            f"'uv run' would make an environment for every run: there is no .venv in '{root}'.",
            "Make it once with uv sync; runs use it as it is.",
        )
