"""The files of a foreign repository, read as text and never run.

What is read: Python, documents, shell scripts, Makefiles, CI files, YAML, TOML, Gin. What is not:
version control, environments, caches, links that lead out, pipes, binary and huge files.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

MAX_FILES = 50_000
MAX_BYTES = 1_000_000
SHOWN = {".github", ".circleci"}  # hidden directories that are looked into
SKIPPED = {
    "venv", "env.bak", "node_modules", "__pycache__", "__pypackages__", "site-packages",
    "dist-packages", "mlruns", "htmlcov",
}  # fmt: skip
SUFFIXES = {
    ".py", ".md", ".rst", ".txt", ".yml", ".yaml", ".toml", ".cfg", ".sh", ".bash", ".zsh",
    ".slurm", ".sbatch", ".gin", ".mk",
}  # fmt: skip
NAMES = {"Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", "Dockerfile", "Procfile"}
_TEST_DIRECTORY = re.compile(r"(^|/)(tests?|testing|unittests?)/")
# A string such as "walker.agents.sac:SAC".
_NAMED = re.compile(r"[\"']([A-Za-z_]\w*(?:\.[A-Za-z_]\w*){1,8})(?::\w+)?[\"']")
_TEST_FILE = re.compile(r"(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")
_TESTS = re.compile(
    r"^\s*(?:async )?def test|\bpytest\b|\bunittest\b|\babsltest\b|TestCase", re.MULTILINE
)


class Files:
    """The readable files of a directory, by their path relative to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._inside = root.resolve()
        self.paths = sorted(self._walk())
        self._names = set(self.paths)
        # "train.py" -> every path that ends with it, to resolve what documents call a script.
        self._by_name: dict[str, list[str]] = {}
        for path in self.paths:
            self._by_name.setdefault(path.rpartition("/")[2], []).append(path)
        # "pkg.train" and "train" -> where `src/pkg/train.py` is.
        self._modules: dict[str, list[str]] = {}
        self._tops: set[str] = set()  # the packages of this repository, in lower case
        for path in self.ending(".py"):
            parts = re.sub(r"(/__init__|/__main__)?\.py$", "", path).split("/")
            self._tops.add(parts[parts[0] == "src"].lower() if parts[1:] else "")
            for start in range(len(parts)):
                self._modules.setdefault(".".join(parts[start:]), []).append(path)

    def __contains__(self, path: str) -> bool:
        return path in self._names

    def _walk(self) -> Iterator[str]:
        count = 0
        self.left_out = False
        for place, directories, names in os.walk(self.root, followlinks=False):
            directories[:] = sorted(name for name in directories if not self._skip(place, name))
            for name in sorted(names):
                suffix = os.path.splitext(name)[1].lower()
                if suffix not in SUFFIXES and name not in NAMES and suffix:
                    continue
                path = os.path.join(place, name)
                if not self._readable(path, bare=not suffix and name not in NAMES):
                    continue
                relative = os.path.relpath(path, self.root).replace(os.sep, "/")
                if not relative.isprintable():  # a name that no report could show
                    continue
                yield relative
                count += 1
                if count >= MAX_FILES:
                    self.left_out = True
                    return

    def _skip(self, place: str, name: str) -> bool:
        path = os.path.join(place, name)
        return (
            name in SKIPPED
            or (name.startswith(".") and name not in SHOWN)
            or (name in ("build", "dist") and place == str(self.root))
            or name.endswith(".egg-info")
            or name.startswith(("run-", "offline-run-"))  # what W&B leaves behind
            or os.path.lexists(os.path.join(path, "pyvenv.cfg"))
        )

    def _readable(self, path: str, *, bare: bool) -> bool:
        try:
            if os.path.islink(path) and not Path(path).resolve().is_relative_to(self._inside):
                return False
            status = os.stat(path)
            # A pipe would block whoever opens it.
            if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= MAX_BYTES:
                return False
            if bare:  # without a suffix, only what calls itself a script
                with open(path, "rb") as file:
                    return file.read(2) == b"#!"
        except (OSError, RuntimeError):
            return False
        return True

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it is binary or cannot be read."""
        try:
            data = (self.root / path).read_bytes()
        except OSError:
            return ""
        if b"\0" in data[:8192]:
            return ""
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def named_in(self, text: str) -> set[str]:
        """Return the modules of this repository that a file names in strings, to import later."""
        found = set()
        for name in _NAMED.findall(text):
            module = name if name in self._modules else name.rpartition(".")[0]
            if "." in module and module in self._modules:
                found.add(module)
        return found

    def is_test(self, path: str) -> bool:
        """Return whether a file belongs to the tests; `test_policy.py` may be a script."""
        return is_test(path) and path not in self._scripts

    @functools.cached_property
    def _scripts(self) -> set[str]:
        """The files that are called like tests and are scripts by what is in them."""
        return {
            path
            for path in self.ending(".py")
            if path.rpartition("/")[2].startswith("test_")
            and not _TEST_DIRECTORY.search(path)
            and "__main__" in (text := self.text(path))
            and not _TESTS.search(text)
        }

    def ending(self, *suffixes: str) -> list[str]:
        """Return the paths that end with one of the suffixes."""
        return [path for path in self.paths if path.endswith(suffixes)]

    def script(self, name: str, places: tuple[str, ...]) -> str | None:
        """Return the file that a document means by `name`, or None.

        Args:
            name: A path, as it is written in a command.
            places: Directories it may be relative to, best first.
        """
        name = re.sub(r"^(\./|\$\{?PWD\}?/)", "", name)
        for place in places:
            joined = os.path.normpath(os.path.join(place, name)).replace(os.sep, "/")
            if joined in self._names:
                return joined
        found = [
            path
            for path in self._by_name.get(name.rpartition("/")[2], ())
            if path == name or path.endswith("/" + name.lstrip("/"))
        ]
        if not found and re.search(r"[_-]", name.rpartition("/")[2]):
            # A document may be older than the directory; `train_cartpole.py` is told by its name.
            found = list(self._by_name.get(name.rpartition("/")[2], ()))
        found.sort(key=lambda path: path.count("/"))
        near = [path for path in found if path.count("/") == found[0].count("/")]
        return near[0] if len(near) == 1 else None

    def module(self, name: str, near: str = "") -> str | None:
        """Return the file of a dotted module name, or None if it is not in this repository.

        Args:
            name: The name, as it is imported.
            near: The file that imports it; a bare name is looked for beside it.
        """
        found = self._modules.get(name, [])
        if "." not in name:
            beside = near.rpartition("/")[0]
            tops = ("", "src", beside, "scripts", "python")
            found = [path for path in found if _container(path) in tops]
        found = found or self._renamed(name)
        if not found:
            return None
        # `python -m pkg` runs __main__; an import of it reads __init__.
        order = ("__init__.py",) if near else ("__main__.py", "__init__.py")
        return min(found, key=lambda path: (not path.endswith(order), path.count("/"), path))

    def moved(self, name: str) -> str | None:
        """Return the one file that a module of a document became: `pkg.dqn.run` in `pkg/agents`."""
        parts = name.split(".")
        if len(parts) < 3:
            return None
        ending = ".".join(parts[-2:])
        found = [
            path
            for path in self._modules.get(ending, ())
            if parts[0] in path.split("/")[:-2] and not is_test(path)
        ]
        return found[0] if len(found) == 1 else None

    def _renamed(self, name: str) -> list[str]:
        """Return the file of a module whose package was renamed: `DQN.Core.net` in `deepdqn`."""
        top, _, rest = name.lower().partition(".")
        # A name in lower case may as well be another library: `gym.spaces` in `gym_maze`.
        packages = [package for package in self._tops if top in package]
        if not packages or top in packages or name == name.lower() or not rest:
            return []
        below = {f"{package}.{rest}" for package in packages}
        found = [paths for module, paths in self._modules.items() if module.lower() in below]
        return found[0] if len(found) == 1 else []


def _container(path: str) -> str:
    """Return the directory that must be on the path for a file to be imported by its own name."""
    place = path.rpartition("/")[0]
    package = path.endswith(("/__init__.py", "/__main__.py"))
    return place.rpartition("/")[0] if package else place


@functools.lru_cache(maxsize=100_000)
def is_test(path: str) -> bool:
    """Return whether a file belongs to a repository's tests."""
    return bool(_TEST_FILE.search(path) or _TEST_DIRECTORY.search(path))


@functools.lru_cache(maxsize=50_000)
def words(name: str) -> tuple[str, ...]:
    """Split an identifier or path into lower-case words: `trackLinVel_xy` has four."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    spaced = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", spaced)
    return tuple(word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word)
