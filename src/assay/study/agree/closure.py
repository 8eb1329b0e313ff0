"""What an evaluation command imports from the repository: these files measure as well.

Imports are read from the source; nothing is run. What only a running program can know (a module
whose name is computed) is found by the run itself, which writes down what it loads.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from assay.study.files.contract import Contract


def evaluated_files(root: Path, agreed: Contract) -> list[Path]:
    """Return the files of the repository that the words of the evaluation command name."""
    found, before = [], ""
    for word in agreed.evaluation.command:
        names = [word]
        if before == "-m":
            names = [word.replace(".", "/") + end for end in (".py", "/__main__.py")]
        bases = _search(root, agreed) if before == "-m" else [root / agreed.baseline.cwd]
        for path in ((base / name).resolve() for base in bases for name in names):
            if path.is_file() and path.is_relative_to(root.resolve()):
                found.append(path)
        before = word
    return list(dict.fromkeys(found))


def imported_files(root: Path, agreed: Contract) -> list[str]:
    """Return the files of the repository that the evaluation imports, the ones it runs included."""
    top = root.resolve()
    waiting = [path for path in evaluated_files(root, agreed) if path.suffix == ".py"]
    search = [*dict.fromkeys(path.parent for path in waiting), *_search(root, agreed)]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        at = path.stat()
        for level, name in _imports(path, at.st_mtime_ns, at.st_size):
            bases = [path.parents[level - 1]] if level else search
            waiting += [f for base in bases for f in _files(base, name) if f.is_relative_to(top)]
    return sorted(path.relative_to(top).as_posix() for path in seen)


def _search(root: Path, agreed: Contract) -> list[Path]:
    """Return where modules of the repository are usually found."""
    given = agreed.baseline.env.get("PYTHONPATH", "").split(":")
    places = [root / agreed.baseline.cwd, root, root / "src", *(root / p for p in given if p)]
    return list(dict.fromkeys(place.resolve() for place in places))


def _files(base: Path, name: str) -> Iterator[Path]:
    """Return the files that the import of a dotted name loads from a directory."""
    place = base
    for part in name.split(".") if name else ():
        module, package = place / f"{part}.py", place / part / "__init__.py"
        yield from (path.resolve() for path in (package, module) if path.is_file())
        place = place / part


@functools.lru_cache(maxsize=4096)
def _imports(path: Path, modified: int, size: int) -> tuple[tuple[int, str], ...]:
    """Return the level and name of everything that a file may import; of one version of it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
            found += [(node.level, name.strip(".")) for name in names]
        elif isinstance(node, ast.Call) and _imports_by_name(node):
            word = node.args[0]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                found.append((0, word.value))
    return tuple(dict.fromkeys(found))


def _imports_by_name(call: ast.Call) -> bool:
    named = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = call.func.id if isinstance(call.func, ast.Name) else named
    return named in ("import_module", "__import__") and bool(call.args)
