"""A run says which files it loaded, however its processes begin and end, and is not disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from arena import FILES, Runner, begin, commit, propose, repository
from typer.testing import CliRunner

from assay.cli.app import app
from assay.study.record.study import Study

MANY = {
    "train.py": """
        import json, multiprocessing, os, pathlib, subprocess, sys
        def work(out):
            import spawned
            (out / "spawned").write_text(spawned.NAME)
        if __name__ == "__main__":
            out = pathlib.Path(sys.argv[2])
            child = multiprocessing.get_context("spawn").Process(target=work, args=(out,))
            child.start()
            child.join()
            subprocess.run([sys.executable, "started.py", str(out)], check=True)
            if not os.fork():
                import forked
                os._exit(0)
            os.wait()
            (out / "policy.json").write_text(json.dumps({"skill": 50.0}))
            (out / "argv").write_text(json.dumps([sys.argv[1], sys.path[0]]))
            import last
            os._exit(0)
    """,
    "started.py": "import pathlib, sys, deep.module\npathlib.Path(sys.argv[1], 's').touch()\n",
    "deep/module.py": "X = 1\n",
    "spawned.py": "NAME = 'spawned'\n",
    "forked.py": "",
    "last.py": "",
}


def test_every_process_says_what_it_loaded(tmp_path: Path, run: Runner) -> None:
    study = begin(repository(tmp_path / "r", FILES | MANY))
    propose(study)
    record = run(study)
    assert record.outcome == "done", record.reason
    assert record.loaded.keys() >= {*MANY, "evaluate.py", "common.py"} - {"agent.py"}
    wanted = hashlib.sha256((study.root / "spawned.py").read_bytes()).hexdigest()
    assert record.loaded["spawned.py"] == wanted and not record.unrecorded
    out = study.path / "runs" / record.id / "out"
    seed, first = json.loads((out / "argv").read_text())
    assert seed == "0" and first.endswith(f"worktrees/{record.id}")  # as without being watched


def test_a_program_with_its_own_environment_is_said_not_to_be_watched(
    tmp_path: Path, run: Runner
) -> None:
    bare = {"agent.py": "import subprocess\nsubprocess.run(['true'], env={})\nLR = 0.001\n"}
    study = begin(repository(tmp_path / "r", FILES | bare))
    propose(study)
    assert "an environment of its own" in run(study).unrecorded


def test_a_command_that_is_no_python_is_said_not_to_be_watched(tmp_path: Path, run) -> None:
    text = '#!/bin/sh\nprintf \'{"skill": 50.0}\' > "$2/policy.json"\n'
    study = begin(
        repository(tmp_path / "r", FILES | {"train.sh": text}),
        baseline={"command": ["sh", "train.sh", "{seed}", "{out}", "{parameters}"]},
    )
    propose(study)
    record = run(study)
    assert record.outcome == "done"
    assert record.unrecorded == "its command started no Python that could be watched"
    assert record.loaded.keys() == {"evaluate.py", "common.py"}


def test_it_costs_an_honest_program_nothing_that_it_would_notice(tmp_path: Path) -> None:
    """The module is silent where it cannot write, and leaves no trace in `sys.path`."""
    from assay.study.run import inside

    text = Path(inside.__file__).read_text()
    for name, path in {"ROOT": "r", "TREE": "r/t", "OUT": "r/o", "NOTES": "nowhere"}.items():
        text = text.replace(f'{name} = ""', f"{name} = {str(tmp_path / path)!r}", 1)
    laid = tmp_path / "laid"
    laid.mkdir()
    (laid / "sitecustomize.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print([p for p in sys.path if 'laid' in p])"],
        env={"PYTHONPATH": str(laid)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[]\n", "")


class TestCommands:
    def invoke(self, *words: str) -> dict:
        result = CliRunner().invoke(app, ["study", *words, "--json"])
        assert result.exit_code in (0, 2), result.output
        return json.loads(result.output)

    def test_check_lists_what_the_evaluation_imports(self, study: Study) -> None:
        told = self.invoke("contract", "check", "--root", str(study.root))
        assert told["imported_by_evaluation"] == ["common.py", "evaluate.py"]

    def test_init_warns_of_what_runs_would_not_have(self, tmp_path: Path) -> None:
        root = repository(tmp_path / "r")
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"
        commit(root, {"weights.bin": pointer})
        told = self.invoke("init", "--root", str(root))
        assert told["warnings"] == [
            "'weights.bin' is a Git LFS pointer, and its content is not here; run git lfs pull"
        ]

    def test_check_refuses_what_cannot_be_mapped(self, tmp_path: Path, monkeypatch) -> None:
        uv = tmp_path / "bin" / "uv"  # found, and never started
        uv.parent.mkdir()
        uv.write_text("#!/bin/sh\nexit 1\n")
        uv.chmod(0o755)
        monkeypatch.setenv("PATH", f"{uv.parent}{os.pathsep}{os.environ['PATH']}")
        command = ["uv", "run", "train.py", "{seed}", "{parameters}"]
        study = begin(repository(tmp_path / "r"), baseline={"command": command})
        words = ["study", "contract", "check", "--root", str(study.root)]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 2 and "there is no .venv in" in result.output


@pytest.mark.parametrize("command", ["report", "status"])
def test_a_change_without_effect_is_shown_as_that(study: Study, command: str) -> None:
    with study.transaction() as transaction:
        for to in ("launched", "completed", "no-effect"):
            transaction.move("c1", to, actor="test", why="it had none")
    result = CliRunner().invoke(app, ["study", command, "--root", str(study.root)])
    assert result.exit_code == 0, result.output
    text = result.output if command == "status" else (study.path / "report.md").read_text()
    assert "no-effect" in text
