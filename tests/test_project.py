"""The project keeps its own rules: imports, files, pins and names."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import assay
from assay.core import registry

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "assay"
TARGETS = {
    "help",
    "setup",
    "defaults",
    "demo",
    "test",
    "lint",
    "types",
    "contracts",
    "cpp",
    "bench",
    "docs",
    "proto",
    "stubs",
    "clean",
}
MAX_ALGORITHM_LINES = 300
LONGER = {"dreamerv3.py": 450}  # a world model, an actor and a critic

IMPORT_ALL = """
import importlib, pkgutil, sys

name = sys.argv[1]
module = importlib.import_module(name)
for info in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
    importlib.import_module(info.name)
print("torch" in sys.modules)
"""

HELP = """
import sys
from assay.cli import main

sys.argv = ["assay", "--help"]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print("torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def run_python(code: str, *args: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def git_files(*options: str) -> list[Path]:
    """Return the files that `git ls-files` lists and that are there."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def algorithm_files() -> list[Path]:
    shared = {"__init__", *registry.HELPERS}
    return [p for p in sorted((SOURCE / "algorithms").glob("*.py")) if p.stem not in shared]


# The import contract sees our own static imports; this also sees what third parties import.
@pytest.mark.parametrize(
    "name",
    [
        "assay.core",
        "assay.design",
        "assay.diagnosis",
        "assay.runs",
        "assay.policies.model_file",
        "assay.policies.numpy_network",
        "assay.policies.distributions",
        "assay.server.client",
        "assay.envs.games",
        "assay.envs.native",
        "assay.evaluation.equilibria_report",
        "assay.evaluation.statistics",
        "assay.functional.games",
        "assay.skills",
        "assay.study",
    ],
)
def test_every_module_of_a_torch_free_package_leaves_torch_unimported(name: str) -> None:
    assert run_python(IMPORT_ALL, name)[-1] == "False"


def test_help_and_import_assay_leave_torch_unimported() -> None:
    assert run_python("import assay, sys; print('torch' in sys.modules)") == ["False"]
    *shown, torch_imported = run_python(HELP)
    assert torch_imported == "False"
    assert any("train" in line for line in shown)


def test_package_and_pyproject_agree_on_the_version(pyproject: dict[str, Any]) -> None:
    assert assay.__version__ == pyproject["project"]["version"]


def test_every_target_in_make_help_exists() -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")

    def make(*args: str) -> str:
        command = ["make", "--no-print-directory", *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # Without a target, make must show the help.
    shown = set(re.findall(r"^make ([a-z-]+) ", make(), flags=re.MULTILINE))
    assert shown == TARGETS
    for target in sorted(shown):
        make("--dry-run", target)


@pytest.mark.parametrize("place", ["docs/algorithms/{}.md", "examples/{}.py"])
def test_every_algorithm_has_a_page_and_an_example(place: str) -> None:
    names = [path.stem for path in algorithm_files()]
    assert [name for name in names if not (ROOT / place.format(name)).is_file()] == []


def test_every_constraint_is_an_exact_public_version() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    # No address, no path, no option, no local version such as +cpu.
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin)] == []
    names = [canonicalize_name(pin.partition("==")[0]) for pin in pins]
    assert len(names) == len(set(names))


def test_every_tested_requirement_is_pinned_within_its_range(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    own = [Requirement(text) for text in extras["all"]]
    texts = [*project["dependencies"], *extras["dev"]]
    texts += [text for one in own for extra in sorted(one.extras) for text in extras[extra]]

    pins = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            pins[canonicalize_name(name)] = version
    for requirement in map(Requirement, texts):
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} is pinned at {version}"


def test_git_ignores_no_source_file() -> None:
    # An ignored package is neither committed nor seen by ruff, which skips what git ignores.
    ignored = git_files("--others", "--ignored", "--exclude-standard", "--", "src", "tests")
    assert [str(p.relative_to(ROOT)) for p in ignored if p.suffix in {".py", ".yaml"}] == []


def test_no_file_names_a_path_of_somebodys_machine() -> None:
    machine_path = re.compile(r"(?<![\w.~-])/(?:home|root|Users)/")
    # A root such as /app is too short to tell from ordinary text.
    here = str(ROOT) if len(ROOT.parts) > 2 else None
    offenders = []
    for path in git_files("--cached", "--others", "--exclude-standard"):
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            if machine_path.search(line) or (here and here in line):
                offenders.append(f"{path.relative_to(ROOT)}:{number}")
    assert offenders == []


def test_an_algorithm_fits_in_three_hundred_lines() -> None:
    lengths = {p.name: len(p.read_text().splitlines()) for p in algorithm_files()}
    most = {name: LONGER.get(name, MAX_ALGORITHM_LINES) for name in lengths}
    assert {n: count for n, count in lengths.items() if count >= most[n]} == {}


def test_every_algorithm_has_a_preset_and_a_test_of_its_name() -> None:
    tests = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    presets = {path.stem for path in (SOURCE / "presets").glob("*.yaml")}
    algorithms = {path.stem for path in algorithm_files()}
    assert presets == algorithms
    assert {name for name in algorithms if f"test_{name}" not in tests} == set()


def test_every_extra_that_an_error_names_exists(pyproject: dict[str, Any]) -> None:
    named: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            if called != "MissingExtraError":
                continue
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            value = node.args[1] if len(node.args) > 1 else keywords.get("extra")
            if isinstance(value, ast.Constant):
                named[value.value] = f"{path.relative_to(ROOT)}:{node.lineno}"
    extras = pyproject["project"]["optional-dependencies"]
    assert {extra: where for extra, where in named.items() if extra not in extras} == {}
