"""50, with pip itself: what `pip install -e .` really lays leads to a run's worktree."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from arena import begin, commit, diff, expected, problems, propose, repository
from test_attacks_on_environments import environment, python_of

from assay.study.files.documents import ROOT
from assay.study.files.records import RunRecord
from assay.study.record.study import Study

PROJECT = """
    [build-system]
    requires = ["setuptools"]
    build-backend = "setuptools.build_meta"

    [project]
    name = "NAME"
    version = "0.1"

    [tool.setuptools.packages.find]
    where = ["WHERE"]
    include = ["NAME*"]
"""
TRAIN = """
    import json, pathlib, random, sys
    from NAME.bonus import BONUS
    seed, out, *rest = sys.argv[1:]
    score = 51 + random.Random(int(seed)).gauss(0, 1) + BONUS
    (pathlib.Path(out) / "eval.json").write_text(json.dumps({"return": score}))
"""
PATCHED = "BONUS = 7.0\n"
# The package's name, its directory, and what pip is told.
FLAT = ("toyflat", ".", ())
SRC = ("toysrc", "src", ())
COMPAT = ("toycompat", ".", ("--config-settings", "editable_mode=compat"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the site-packages of an environment that all tests here install into."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    return environment(tmp_path_factory.mktemp("installs") / "venv")


def installable(place: Path, name: str, where: str) -> Path:
    """Return a repository of a package that trains, with setuptools as its build backend."""
    inside = f"{where}/{name}" if where != "." else name
    files = {
        "pyproject.toml": PROJECT.replace("NAME", name).replace("WHERE", where),
        f"{inside}/__init__.py": "",
        f"{inside}/bonus.py": "BONUS = 0.0\n",
        # Beside the package: a script does not put the worktree itself on sys.path.
        "tools/train.py": TRAIN.replace("NAME", name),
        ".gitignore": ".rlxp/\n__pycache__/\n*.egg-info/\nbuild/\n.venv/\n",
    }
    return repository(place, files)


def pip_install(site: Path, root: Path, *options: str) -> None:
    """Install a repository with -e, offline, with this interpreter's pip and setuptools."""
    words = [sys.executable, "-m", "pip", "--python", python_of(site), "install", "-q", "-e", "."]
    offline = ["--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check"]
    env = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    done = subprocess.run(
        [*words, *offline, *options], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def begun(root: Path, trainer: list[str], **evaluation: list[str]) -> Study:
    words = [*trainer, "{seed}", "{out}", "{parameters}"]
    measures = {"command": [], "files": []} | evaluation
    study = begin(root, baseline={"command": words}, evaluation=measures)
    path = next(path for path in root.rglob("bonus.py") if ROOT not in path.parts)
    name = path.relative_to(root).as_posix()
    propose(study, patch=diff(root, {name: PATCHED}))
    return study


def assert_patched(study: Study, record: RunRecord) -> None:
    """Check that the patch took effect, and that what was loaded is the worktree's."""
    assert record.outcome == "done", record.reason
    assert record.metrics["return"] == expected(0) + 7.0
    [name] = [name for name in record.loaded if name.endswith("bonus.py")]
    assert record.loaded[name] == hashlib.sha256(PATCHED.encode()).hexdigest()
    assert (study.root / name).read_text() == "BONUS = 0.0\n"
    assert any(name.endswith("train.py") for name in record.loaded)
    assert not record.unrecorded and problems(study) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "where", "options"), [FLAT, SRC, COMPAT], ids=lambda v: str(v))
def test_50_a_patch_takes_effect(tmp_path, site: Path, run, name, where, options) -> None:
    root = installable(tmp_path / "r", name, where)
    pip_install(site, root, *options)
    finders = list(site.glob(f"__editable___{name}_*_finder.py"))
    assert len(finders) == (1 if (name, where, options) == FLAT else 0)
    study = begun(root, [python_of(site), "tools/train.py"])
    assert_patched(study, run(study))


@pytest.mark.slow
def test_50_a_script_that_pip_made(tmp_path: Path, site: Path, run) -> None:
    """An entry point is a file of the environment, and starts its Python."""
    name, where = "toyscript", "src"
    root = installable(tmp_path / "r", name, where)
    project = root / "pyproject.toml"
    project.write_text(project.read_text() + f'[project.scripts]\n{name} = "{name}.main:main"\n')
    main = "def main():\n    import runpy\n    runpy.run_path('tools/train.py')\n"
    commit(root, {f"src/{name}/main.py": main})
    pip_install(site, root)
    study = begun(root, [str(site.parents[2] / "bin" / name)])
    assert_patched(study, run(study))


@pytest.mark.slow
@pytest.mark.parametrize("words", [["python", "tools/train.py"], ["tools/train.py"]])
def test_50_uv_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: Path, run, words: list[str]
) -> None:
    """It uses the project's .venv as it is, also for the evaluation in its sandbox."""
    scripts = sysconfig.get_path("scripts")  # where pip puts uv beside this Python
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    if shutil.which("uv") is None:
        pytest.skip("uv is not installed (pip install uv)")
    root = installable(tmp_path / "r", "toyuv", "src")
    commit(root, {"check.py": "import toyuv.bonus\n"})
    pip_install(environment(root / ".venv"), root)
    before = {path for path in root.rglob("*") if "__pycache__" not in path.parts}
    measures = {"command": ["uv", "run", "check.py"], "files": ["check.py"]}
    study = begun(root, ["uv", "run", *words], **measures, changeable=["src/**"])
    record = run(study)
    assert_patched(study, record)
    assert record.env["UV_NO_SYNC"] == "1"
    left = {path for path in root.rglob("*") if "__pycache__" not in path.parts} - before
    assert not [path for path in left if ROOT not in path.parts and ".git" not in path.parts]
