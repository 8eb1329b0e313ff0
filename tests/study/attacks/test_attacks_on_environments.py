"""The Python that measures is the same in all runs, and imports what was agreed on."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from arena import (
    FILES,
    Runner,
    begin,
    commit,
    diff,
    expected,
    git,
    problems,
    propose,
    repository,
    write,
)

from assay.study.agree import interpreter, protocol
from assay.study.agree.approvals import approve
from assay.study.files.documents import StudyError
from assay.study.record.study import Study
from assay.study.run import sandbox

CHEAT = 'import json\njson.dumps = lambda row: \'{"return": 99.0, "skill": 99.0}\'\n'


def environment(place: Path) -> Path:
    """Return the site-packages of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    return next(place.glob("lib/python3*/site-packages"))


def python_of(site: Path) -> str:
    return str(site.parents[2] / "bin" / "python")


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return environment(tmp_path / "venv")


def in_environment(tmp_path: Path, site: Path, **files: str) -> Study:
    root = repository(tmp_path / "r", FILES | files)
    python = python_of(site)
    study = begin(
        root,
        baseline={"command": [python, "train.py", "{seed}", "{out}", "{parameters}"]},
        evaluation={"command": [python, "evaluate.py", "{out}"]},
    )
    propose(study)
    return study


class TestStartupFiles:
    """18, 21: what Python loads at every start."""

    @pytest.mark.parametrize("name", ["sitecustomize.py", "usercustomize.py", "cheat.pth"])
    def test_18_one_that_appears_between_deciding_runs_is_refused(
        self, tmp_path: Path, site: Path, run: Runner, name: str
    ) -> None:
        study = in_environment(tmp_path, site)
        assert run(study, seed=1, phase="promotion").metrics["return"] == expected(1)
        (site / name).write_text("import os\n")
        with pytest.raises(StudyError, match=f"{name}', which Python loads at its start, is not"):
            run(study, seed=2, phase="promotion")
        (site / name).unlink()
        assert run(study, seed=2, phase="promotion").metrics["return"] == expected(2)

    def test_21_one_that_the_training_writes_is_noticed(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        agent = f"LR = 0.001\nimport pathlib\npathlib.Path({str(site)!r}, 'sitecustomize.py')"
        study = in_environment(tmp_path, site, **{"agent.py": agent + f".write_text({CHEAT!r})\n"})
        record = run(study)
        assert record.outcome == "failed" and record.metrics["return"] is None
        assert "sitecustomize.py', which Python loads at its start, was changed" in record.reason
        assert "sitecustomize.py" in problems(study)

    def test_21_one_that_is_written_while_the_evaluation_runs_is_noticed(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        study = in_environment(tmp_path, site)

        def lay(step: str) -> None:
            if step == "evaluating":
                (site / "cheat.pth").write_text("import os\n")

        assert "cheat.pth'" in run(study, between=lay).reason

    def test_21_an_installed_package_that_the_training_edits_is_noticed(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        (site / "tools.py").write_text("FACTOR = 1.0\n")
        evil = f"LR = 0.001\nopen({str(site / 'tools.py')!r}, 'w').write('FACTOR = 2.0\\n')\n"
        uses = {"common.py": "import tools\ndef scale(skill):\n    return skill * tools.FACTOR\n"}
        study = in_environment(tmp_path, site, **uses)
        assert run(study).outcome == "done"
        propose(study, "c2", patch=diff(study.root, {"agent.py": evil}))
        record = run(study, "c2")
        assert record.outcome == "failed"
        assert "tools.py', which was changed while it ran" in record.reason

    def test_code_that_the_evaluation_generates_is_no_attack(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        place = tmp_path / "cache"
        place.mkdir()
        text = f"""
            import sys
            open({str(place / "made.py")!r}, "w").write("FACTOR = 1.0\\n")
            sys.path.append({str(place)!r})
            import made
            def scale(skill):
                return skill * made.FACTOR
        """
        assert run(in_environment(tmp_path, site, **{"common.py": text})).outcome == "done"

    def test_an_environment_with_its_own_keeps_it(
        self, tmp_path: Path, site: Path, run: Runner
    ) -> None:
        (site / "sitecustomize.py").write_text("import builtins\nbuiltins.FACTOR = 0.001\n")
        study = in_environment(tmp_path, site, **{"agent.py": "LR = FACTOR\n"})
        record = run(study)
        assert (record.outcome, record.metrics["return"]) == ("done", expected(0))
        assert str(site / "sitecustomize.py") in interpreter.startup_files(
            [Path(python_of(site))], {}
        )

    def test_18_those_of_the_user_count_where_python_reads_them(self, tmp_path: Path) -> None:
        write(tmp_path, {
            "usr/bin/python3": "", "usr/lib/python3.11/sitecustomize.py": "",
            "home/.local/lib/python3.11/site-packages/usercustomize.py": "",
            "home/.local/lib/python3.11/site-packages/other.py": "",
        })  # fmt: skip
        found = interpreter.startup_files(
            [tmp_path / "usr/bin/python3"], {"HOME": str(tmp_path / "home")}
        )
        assert sorted(Path(path).name for path in found) == ["sitecustomize.py", "usercustomize.py"]


class TestImportsOfTheEvaluation:
    """22: a patch changes a file that only the evaluation imports."""

    def test_22_a_patch_of_an_import_is_refused(self, study: Study) -> None:
        patch = diff(study.root, {"common.py": "def scale(skill):\n    return 99.0\n"})
        with pytest.raises(StudyError, match=r"'common\.py' is protected: it measures the result"):
            propose(study, "c2", patch=patch)

    def test_22_a_module_that_is_named_at_run_time_is_noticed(
        self, tmp_path: Path, run: Runner
    ) -> None:
        hidden = FILES["evaluate.py"].replace(
            "from common import scale", "scale = __import__('com' + 'mon').scale"
        )
        study = begin(repository(tmp_path / "r", FILES | {"evaluate.py": hidden}))
        assert protocol.imported_files(study.root, study.contract()) == ["evaluate.py"]
        patch = diff(study.root, {"common.py": "def scale(skill):\n    return 99.0\n"})
        propose(study, patch=patch)
        record = run(study)
        assert record.outcome == "failed"
        assert record.reason == "its evaluation loaded 'common.py', which the candidate changes"

    def test_22_a_committed_edit_of_an_import_voids_the_evidence(self, study, run) -> None:
        commit(study.root, {"common.py": "def scale(skill):\n    return 99.0\n"})
        with pytest.raises(StudyError, match=r"(?i)evidence .*void"):
            run(study)

    def test_what_only_training_imports_may_be_changed(self, study: Study, run: Runner) -> None:
        propose(study, "c2", patch=diff(study.root, {"agent.py": "LR = 0.003\n"}))
        record = run(study, "c2")
        assert (record.outcome, record.metrics["return"]) == ("done", expected(0, 0.003))

    def test_what_the_contract_calls_changeable_may_be_changed(
        self, tmp_path: Path, run: Runner
    ) -> None:
        study = begin(repository(tmp_path / "r"), evaluation={"changeable": ["common.py"]})
        propose(study, patch=diff(study.root, {"common.py": "def scale(skill):\n    return 9.0\n"}))
        assert run(study).metrics["return"] == 9.0

    def test_packages_and_relative_imports_belong_to_it(self, tmp_path: Path) -> None:
        files = {
            "evaluate.py": "import lib.a\nfrom lib import b\nimport importlib\n"
            "importlib.import_module('lib.c')\n",
            "lib/__init__.py": "", "lib/a.py": "from .deep import d\n", "lib/b.py": "",
            "lib/c.py": "from . import e\n", "lib/e.py": "", "lib/deep/__init__.py": "",
            "lib/deep/d.py": "from ..f import g\n", "lib/f.py": "", "lib/other.py": "",
        }  # fmt: skip
        study = begin(repository(tmp_path / "r", FILES | files))
        found = protocol.imported_files(study.root, study.contract())
        assert found == sorted(set(files) - {"lib/other.py"})


class TestData:
    """23: data that Git does not hold is edited."""

    @pytest.fixture
    def study(self, tmp_path: Path) -> Study:
        reads = FILES["train.py"].replace(
            "noise =", "noise = float(open('data/bonus.txt').read()) +"
        )
        root = repository(tmp_path / "r", FILES | {"train.py": reads})
        write(root, {"data/bonus.txt": "0.0"})
        made = begin(root, baseline={"untracked": ["data"]})
        propose(made)
        return made

    def test_23_an_edit_between_deciding_runs_is_refused(self, study: Study, run: Runner) -> None:
        assert run(study, seed=1, phase="promotion").metrics["return"] == expected(1)
        (study.root / "data/bonus.txt").write_text("9.0")
        with pytest.raises(StudyError, match=r"'data' .*'data/bonus\.txt'.* is not what it was"):
            run(study, seed=2, phase="promotion")
        (study.root / "data/bonus.txt").write_text("0.0")
        assert run(study, seed=2, phase="promotion").metrics["return"] == expected(2)

    def test_23_an_edit_with_its_old_time_and_size_is_refused(self, study, run: Runner) -> None:
        import os

        run(study, seed=1, phase="promotion")
        path = study.root / "data/bonus.txt"
        before = path.stat()
        path.write_text("9.0")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(StudyError, match="is not what it was"):
            run(study, seed=2, phase="promotion")

    def test_23_an_edit_by_the_training_itself_is_noticed(self, study: Study, run: Runner) -> None:
        text = "LR = 0.001\nopen('data/bonus.txt', 'w').write('9.0')\n"
        propose(study, "c2", patch=diff(study.root, {"agent.py": text}))
        record = run(study, "c2")
        assert record.outcome == "failed" and "'data' of baseline.untracked" in record.reason

    def test_content_is_read_once(self, study: Study, run: Runner, monkeypatch) -> None:
        from assay.study.agree import untracked

        run(study, seed=1, phase="promotion")
        monkeypatch.setattr(untracked, "_hash", lambda path: pytest.fail("it was read again"))
        assert run(study, seed=2, phase="promotion").outcome == "done"


class TestApprovedCode:
    """36: a commit between the approval and the first registration makes the baseline worse."""

    def test_36_another_commit_asks_for_approval_again(self, tmp_path: Path, run: Runner) -> None:
        study = begin(repository(tmp_path / "r"))
        commit(study.root, {"agent.py": "LR = 0.0001\n"})
        with pytest.raises(StudyError, match="approved with the code of commit"):
            propose(study, "base")
        approve(study, "baseline", "ada")
        from assay.study.steps import candidates

        candidates.validate(study, "base", "agent")
        assert run(study, "base").metrics["return"] == expected(0, 0.0001)

    def test_36_nor_may_it_come_between_registration_and_approval(
        self, tmp_path: Path, run: Runner
    ) -> None:
        study = begin(repository(tmp_path / "r"))
        propose(study, "base")
        commit(study.root, {"agent.py": "LR = 0.0001\n"})
        approve(study, "baseline", "ada")  # of the commit that the study runs, not of this one
        head = git(study.root, "rev-parse", "HEAD~1").strip()
        assert study.contract().approvals["baseline"].commit == head
        assert run(study, "base").metrics["return"] == expected(0)


def namespaces_work() -> bool:
    box = sandbox.Sandbox([Path("/tmp")], [], network=False)
    try:
        subprocess.run(["true"], preexec_fn=box, check=True)
    except subprocess.SubprocessError:
        return False
    return True


class TestSandbox:
    """Where the machine has namespaces, an evaluation cannot write to what measures."""

    PROBE = """
        import errno, json, pathlib, socket, sys
        out, seen = pathlib.Path(sys.argv[1]), {}
        above = str(pathlib.Path(*[".."] * 7))  # the repository, from the worktree
        for name in (ROOT, SITE, above):
            try:
                pathlib.Path(name, "written").write_text("x")
                seen[name] = "written"
            except OSError as error:
                seen[name] = errno.errorcode[error.errno]
        try:
            socket.create_connection(("192.0.2.1", 9), 1)
        except OSError as error:
            seen["network"] = errno.errorcode.get(error.errno, str(error))
        listener = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(listener.getsockname()).close()
        seen["loopback"] = "up"
        pathlib.Path("scratch").write_text("x")
        (out / "probe.json").write_text(json.dumps(seen))
        (out / "eval.json").write_text(json.dumps({"return": 1.0}))
    """

    def probed(self, tmp_path: Path, site: Path, run: Runner) -> tuple[str, dict[str, str]]:
        import json

        root = tmp_path / "r"
        text = textwrap.dedent(self.PROBE)
        text = text.replace("ROOT", repr(str(root))).replace("SITE", repr(str(site)))
        study = in_environment(tmp_path, site, **{"evaluate.py": text})
        record = run(study)
        assert record.outcome == "done", record.reason
        out = study.path / "runs" / record.id / "out"
        return record.sandbox, json.loads((out / "probe.json").read_text())

    @pytest.mark.skipif(not namespaces_work(), reason="this machine allows no namespaces")
    def test_it_can_write_to_its_own_places_only(self, tmp_path: Path, site: Path, run) -> None:
        name, seen = self.probed(tmp_path, site, run)
        assert name == "namespaces (read-only repository, no network)"
        assert seen == {
            str(tmp_path / "r"): "EROFS", str(site): "EROFS", "../../../../../../..": "EROFS",
            "network": "ENETUNREACH", "loopback": "up",
        }  # fmt: skip

    def test_without_one_the_record_says_so(self, tmp_path: Path, site: Path, run, monkeypatch):
        def refused(self: sandbox.Sandbox) -> None:
            raise OSError("not here")

        monkeypatch.setattr(sandbox.Sandbox, "__call__", refused)
        name, seen = self.probed(tmp_path, site, run)
        assert name == "none" and seen[str(tmp_path / "r")] == "written"
