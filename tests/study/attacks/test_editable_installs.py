"""50: the code that runs is the code that is judged, also where it is installed with -e."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from arena import Runner, begin, commit, diff, expected, problems, propose, repository, write
from test_attacks_on_environments import environment, python_of

from assay.study.files.documents import StudyError
from assay.study.record.study import Study

FILES = {
    "src/toyrl/__init__.py": "",
    "src/toyrl/bonus.py": "BONUS = 0.0\n",
    "src/toyrl/unused.py": "WIDTH = 64\n",
    "src/toyrl/train.py": """
        import json, pathlib, random, sys, yaml_like
        from toyrl.bonus import BONUS
        seed, out, *rest = sys.argv[1:]
        lr = float(dict(word.split("=") for word in rest).get("lr", yaml_like.LR))
        score = 50 + 1000 * lr + random.Random(int(seed)).gauss(0, 1) + BONUS
        (pathlib.Path(out) / "eval.json").write_text(json.dumps({"return": score}))
    """,
    "src/yaml_like.py": "LR = float(open('config.yaml').read())\n",
    "config.yaml": "0.001",
    ".gitignore": ".rlxp/\n__pycache__/\n*.so\n",
}


MODULES = {"toyrl": "toyrl/__init__.py", "yaml_like": "yaml_like.py"}
REDIRECTOR = """
    import importlib.util, sys

    class RedirectingFinder:
        _redirections = {}

        @classmethod
        def map_module(cls, name, path):
            cls._redirections[name] = path

        @classmethod
        def find_spec(cls, name, path=None, target=None):
            where = cls._redirections.get(name)
            return importlib.util.spec_from_file_location(name, where) if where else None

        @classmethod
        def install(cls):
            sys.meta_path.append(cls)
"""


def finder(name: str, mapping: dict[str, str]) -> str:
    """Return the finder that setuptools writes.

    A child asks it: it cannot be imported where something imported `distutils` before.
    """
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed")
    ask = "from setuptools.command.editable_wheel import _finder_template as write"
    ask += f"; print(write({name!r}, {mapping!r}, {{}}))"
    return subprocess.run(
        [sys.executable, "-c", ask], check=True, capture_output=True, text=True
    ).stdout


def install(site: Path, root: Path, how: str) -> None:
    """Install the package as pip does with -e, by one of the ways of its build backends."""
    src = root / "src"
    if how == "pth":
        (site / "_toyrl.pth").write_text(f"{src}\n")
    elif how == "finder":
        mapping = {"toyrl": str(src / "toyrl"), "yaml_like": str(src / "yaml_like")}
        name = "__editable___toyrl_0_1_finder"
        (site / f"{name}.py").write_text(finder(name, mapping))
        (site / "__editable__.toyrl-0.1.pth").write_text(f"import {name}; {name}.install()\n")
    elif how == "redirector":  # as hatchling does where a path is not enough
        write(site, {"editables/__init__.py": "", "editables/redirector.py": REDIRECTOR})
        lines = [f"F.map_module({n!r}, {str(src / p)!r})" for n, p in MODULES.items()]
        start = "from editables.redirector import RedirectingFinder as F\nF.install()\n"
        (site / "_editable_impl_toyrl.py").write_text(start + "\n".join(lines))
        (site / "toyrl.pth").write_text("import _editable_impl_toyrl\n")
    elif how == "loader":  # as meson-python and scikit-build-core do, in front of everything
        (site / "_toyrl_loader.py").write_text(f"import sys\nsys.path.insert(0, {str(src)!r})\n")
        (site / "toyrl.pth").write_text("import _toyrl_loader\n")
    info = site / "toyrl-0.1.dist-info"
    info.mkdir()
    facts = f'{{"url": "file://{root}", "dir_info": {{"editable": true}}}}'
    (info / "direct_url.json").write_text(facts)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return environment(tmp_path / "venv")


def installed(tmp_path: Path, site: Path, how: str, *options: str, **baseline) -> Study:
    root = repository(tmp_path / "r", FILES)
    install(site, root, how)
    command = [python_of(site), *options, "-m", "toyrl.train", "{seed}", "{out}", "{parameters}"]
    evaluation = {"command": [], "files": []}
    return begin(root, baseline={"command": command, **baseline}, evaluation=evaluation)


@pytest.mark.parametrize("how", ["pth", "finder", "redirector"])
class TestMapped:
    def test_50_a_patch_takes_effect(self, tmp_path: Path, site: Path, run, how: str) -> None:
        study = installed(tmp_path, site, how)
        propose(study, patch=diff(study.root, {"src/toyrl/bonus.py": "BONUS = 7.0\n"}))
        record = run(study)
        assert record.outcome == "done", record.reason
        assert record.metrics["return"] == expected(0) + 7.0
        assert {"src/toyrl/bonus.py", "src/toyrl/train.py", "config.yaml"} <= record.loaded.keys()
        assert not record.unrecorded

    def test_50_a_patch_that_ends_the_program_ends_it(self, tmp_path, site, run, how: str) -> None:
        study = installed(tmp_path, site, how)
        propose(study, patch=diff(study.root, {"src/toyrl/bonus.py": "raise SystemExit(3)\n"}))
        record = run(study)
        assert (record.outcome, record.exit_code) == ("failed", 3)

    def test_50_a_later_commit_is_part_of_no_arm(self, tmp_path, site, run, how: str) -> None:
        study = installed(tmp_path, site, how)
        propose(study, lr=0.002)
        commit(study.root, {"src/toyrl/bonus.py": "BONUS = 40.0\n"})
        assert run(study).metrics["return"] == expected(0, 0.002)
        assert problems(study) == ""


class TestRefused:
    def test_a_loader_that_cannot_be_mapped(self, tmp_path: Path, site: Path, run) -> None:
        study = installed(tmp_path, site, "loader")
        propose(study)
        with pytest.raises(StudyError, match=r"_toyrl_loader\.py' leads imports to"):
            run(study)

    def test_an_install_whose_way_is_not_known(self, tmp_path: Path, site: Path, run) -> None:
        study = installed(tmp_path, site, "unknown")
        propose(study)
        with pytest.raises(StudyError, match=r"'toyrl-0\.1\.dist-info' is an editable install of"):
            run(study)

    def test_a_compiled_module_that_no_run_would_have(self, tmp_path, site: Path, run) -> None:
        study = installed(tmp_path, site, "pth")
        (study.root / "src/toyrl/_fast.cpython-311-x86_64-linux-gnu.so").touch()
        propose(study)
        with pytest.raises(StudyError, match=r"'src/toyrl/_fast\..*so' is a compiled module"):
            run(study)

    def test_unless_the_contract_names_it(self, tmp_path: Path, site: Path, run) -> None:
        name = "src/toyrl/_fast.so"
        (tmp_path / "r/src/toyrl").mkdir(parents=True)
        (tmp_path / "r" / name).touch()
        study = installed(tmp_path, site, "pth", untracked=[name])
        propose(study)
        assert run(study).outcome == "done"

    def test_an_option_that_ignores_the_mapping(self, tmp_path: Path, site: Path, run) -> None:
        study = installed(tmp_path, site, "pth", "-uI")
        propose(study)
        with pytest.raises(StudyError, match="The command has -I"):
            run(study)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["uv", "run", "-m"], r"there is no \.venv in"),
            (["uv", "run", "--extra", "gpu", "--with", "rich", "-m"], "'uv run --with' sets up"),
            (["uv", "run", "--python", "3.12", "-m"], "'uv run --python' sets up another"),
            (["poetry", "run", "python", "-m"], "'poetry' sets up an environment"),
        ],
    )
    def test_what_sets_up_an_environment(self, tmp_path: Path, run, words, message) -> None:
        root = repository(tmp_path / "r", FILES)
        command = [*words, "toyrl.train", "{seed}", "{out}", "{parameters}"]
        none = {"command": [], "files": []}
        study = begin(root, baseline={"command": command}, evaluation=none)
        propose(study)
        with pytest.raises(StudyError, match=message):
            run(study)

    def test_a_wrapper_that_ignores_the_mapping_is_noticed(self, tmp_path, site, run) -> None:
        wrapper = tmp_path / "wrapped"
        wrapper.write_text(f'#!/bin/sh\nexec {python_of(site)} -E "$@"\n')
        wrapper.chmod(0o755)
        root = repository(tmp_path / "r", FILES)
        install(site, root, "pth")
        command = [str(wrapper), "-m", "toyrl.train", "{seed}", "{out}", "{parameters}"]
        path = f"{site.parents[2] / 'bin'}:/usr/bin:/bin"
        study = begin(
            root,
            baseline={"command": command, "env": {"PATH": path}},
            evaluation={"command": [], "files": []},
        )
        propose(study)
        record = run(study)
        assert record.outcome == "failed"
        assert record.reason.startswith("it may have imported from")

    def test_code_of_the_repository_itself_is_noticed(self, tmp_path: Path, site, run) -> None:
        """A script that puts the repository's own path in front goes around every mapping."""
        study = installed(tmp_path, site, "pth")
        text = f"import sys\nsys.path.insert(0, {str(study.root / 'src')!r})\nimport late\n"
        root_only = {"src/late.py": "X = 1\n", "src/toyrl/bonus.py": text + "BONUS = 0.0\n"}
        propose(study, patch=diff(study.root, root_only))
        commit(study.root, {"src/late.py": "X = 2\n"})
        record = run(study)
        assert record.outcome == "failed"
        assert "loaded 'src/late.py' from the repository itself" in record.reason
        assert "src/late.py" in problems(study)


@pytest.mark.slow
class TestNoEffect:
    """A change that never reached a run, or moved nothing, is not called rejected."""

    def test_what_moves_nothing_is_told_from_what_works(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        study = installed(tmp_path, site, "pth")
        run.baseline(study)
        patches = {
            "unused": {"src/toyrl/unused.py": "WIDTH = 256\n"},
            "same": {"config.yaml": "0.0010"},
            "works": {"config.yaml": "0.009"},
        }
        seen = {}
        for name, files in patches.items():
            propose(study, name, patch=diff(study.root, files))
            seen[name] = run.judged(study, name)
        assert seen["unused"].outcome == seen["same"].outcome == "no effect"
        assert "no run loaded 'src/toyrl/unused.py'" in seen["unused"].reasons[0]
        assert study.history().status["unused"] == "no-effect"
        said = seen["same"].reasons[0]
        assert "equals that of base to the last digit on all 5 seeds" in said
        assert seen["works"].outcome != "no effect" and seen["works"].comparison is not None
        assert seen["works"].comparison.effect == pytest.approx(8.0)
        assert problems(study) == ""
