"""The skills themselves: what they tell an agent to type exists, and they fit the hosts."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from command_parsing import parsed

from assay.skills import checks, manifests
from assay.skills.checks import release_check
from assay.skills.library import LIBRARY, Skill, frontmatter, plugins
from assay.skills.validate import AGENT_PLUGIN, ALL_LISTINGS, ONE_LISTING, tokens, validate

ROOT = Path(__file__).resolve().parents[2]
SKILLS = [skill for plugin in plugins() for skill in plugin.skills]
STUDY = {
    "audit-task", "make-contract", "define-metrics", "plan-baseline", "analyze-run",
    "propose-candidates", "validate-candidate", "reward-tuning", "reward-reflection",
    "reward-engineering", "reward-review", "curriculum-design", "dr-probe", "dr-design",
    "plan-parallel-batch", "queue-batch", "monitor-training", "audit-results", "update-report",
    "autoloop",
}  # fmt: skip
OLD = {"rl-task-audit", "rl-experiment-plan", "rl-reward-curriculum-design", "rl-experiment-loop"}


def in_blocks(text: str) -> list[str]:
    """Return the commands of console blocks, which are typed as they are."""
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = (line for block in blocks for line in block.splitlines())
    return [line for line in lines if line.startswith("assay ")]


def in_sentences(text: str) -> list[str]:
    """Return the commands in backticks, which may name a verb without its arguments."""
    return re.findall(r"`(assay [^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def texts() -> list[Path]:
    return sorted(path for path in LIBRARY.rglob("*.md"))


@pytest.mark.parametrize("path", texts(), ids=lambda p: "/".join(p.parts[-2:]))
def test_every_command_is_one_of_the_real_command_line(path: Path) -> None:
    text = path.read_text()
    for line in [*in_blocks(text), *in_sentences(text)]:
        try:
            parsed(line)
        except Exception as error:  # whichever copy of click raised it
            named = line in in_sentences(text) and "Missing parameter" in str(error)
            assert named, f"{path.name}: {line}: {error}"


def test_the_check_of_commands_can_fail() -> None:
    for wrong in ("assay study fly", "assay study run c1 --sed 1", "assay study verdict"):
        with pytest.raises(Exception, match=r"fly|sed|Missing parameter"):
            parsed(wrong)


def test_the_study_plugin_is_complete() -> None:
    names = {plugin.name: {skill.name for skill in plugin.skills} for plugin in plugins()}
    assert names["assay-study"] == {f"rlxp-{name}" for name in STUDY}
    assert names["assay-study-names"] == OLD
    agents = {path.stem for plugin in plugins() for path in plugin.agents}
    assert agents == {"experiment-director", "metrics-analyst", "reward-reviewer"}


def test_nothing_is_wrong_with_the_library() -> None:
    assert validate(LIBRARY) == []


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_budgets(skill: Skill) -> None:
    assert len(skill.description) <= 180
    assert skill.body.count("\n") < 500 and tokens(skill.body) < 5_000
    assert "## Stop when" in skill.body or "Stop when" in skill.body


def test_listings_fit_the_hosts() -> None:
    sizes = {p.name: sum(len(s.listing) + 1 for s in p.skills) for p in plugins()}
    assert max(sizes.values()) < ONE_LISTING == 5_000
    assert sum(sizes.values()) < ALL_LISTINGS == 21_000


def test_our_frontmatter_reads_what_yaml_reads() -> None:
    for path in LIBRARY.rglob("SKILL.md"):
        text = path.read_text()
        block = text.split("---\n")[1]
        assert frontmatter(text, str(path))[0] == yaml.safe_load(block)


def test_skills_name_skills_that_exist() -> None:
    known = {skill.name for skill in SKILLS}
    for skill in SKILLS:
        named = set(re.findall(r"\brlxp-[a-z-]+[a-z]\b", skill.body))
        assert named <= known, (skill.name, named - known)


def test_manifests_are_what_is_generated_and_the_checkout_can_be_released() -> None:
    assert manifests.outdated(ROOT) == []
    assert [f for f in release_check(ROOT) if f.state == "broken"] == []


def test_every_plugin_has_the_manifest_of_agent_plugins() -> None:
    for plugin in plugins():
        found = json.loads((plugin.path / "plugin.json").read_text())
        assert found["$schema"] == manifests.SCHEMA and found["name"] == plugin.path.name
        assert set(found) <= AGENT_PLUGIN and len(AGENT_PLUGIN) == 10


def test_the_wheel_holds_files_whose_names_begin_with_a_dot() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = data["package-data"]["assay"]
    assert checks._unpacked(patterns) == []
    left = checks._unpacked([text for text in patterns if ".codex-plugin" not in text])
    assert "skills/library/plugins/.codex-plugin/plugin.json" in left
    assert "skills/library/plugins/assay-mlops/.codex-plugin/plugin.json" in left


def test_the_package_needs_the_standard_library_alone() -> None:
    code = """
import pkgutil, importlib, sys, assay.skills
for info in pkgutil.iter_modules(assay.skills.__path__, "assay.skills."):
    importlib.import_module(info.name)
print({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names)
"""
    command = [sys.executable, "-S", "-c", code]  # without what is installed beside it
    options = {"env": {"PYTHONPATH": str(ROOT / "src")}, "capture_output": True, "text": True}
    done = subprocess.run(command, **options)
    assert done.returncode == 0, done.stderr
    assert "'assay'" in done.stdout and "typer" not in done.stdout and "yaml" not in done.stdout


class TestScripts:
    def run(self, path: str, *words: str, code: int = 0, **options: object) -> str:
        script = LIBRARY / "plugins/assay-study" / path
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, **options
        )
        assert done.returncode == code, done.stderr
        return done.stdout

    def test_grid(self) -> None:
        script = "skills/rlxp-propose-candidates/scripts/grid.py"
        said = self.run(script, "lr=1e-4,1e-3", "net=a,b", "--hypothesis", "Because.")
        found = list(yaml.safe_load_all(said))
        assert [c["id"] for c in found][:2] == ["lr-0.0001-net-a", "lr-0.0001-net-b"]
        assert found[3]["change"]["parameters"] == {"lr": 0.001, "net": "b"}
        self.run(script, "lr", "--hypothesis", "x", code=2)

    @pytest.mark.parametrize(
        "name", ["autoloop/scripts/snapshot", "monitor-training/scripts/watch"]
    )
    def test_without_a_study_the_error_is_passed_on(self, tmp_path: Path, name: str) -> None:
        fake = tmp_path / "assay"
        fake.write_text("#!/bin/sh\necho There is no .rlxp >&2\nexit 2\n")
        fake.chmod(0o755)
        options = {"env": {"PATH": f"{tmp_path}:/usr/bin:/bin"}, "cwd": tmp_path}
        self.run(f"skills/rlxp-{name}.py", code=2, **options)

    @pytest.mark.parametrize(("level", "code"), [("ok", 0), ("warn", 1)])
    def test_watch_ends_when_something_is_odd(self, tmp_path: Path, level: str, code: int) -> None:
        fake = tmp_path / "assay"
        found = json.dumps({"r1": [{"name": "KL", "level": level, "detail": "kl is 0.3"}]})
        fake.write_text(f"#!/bin/sh\necho '{found}'\n")
        fake.chmod(0o755)
        options = {"env": {"PATH": f"{tmp_path}:/usr/bin:/bin"}}
        words = ("--minutes", "0", "--every", "0")
        said = self.run(
            "skills/rlxp-monitor-training/scripts/watch.py", *words, code=code, **options
        )
        assert ("KL: kl is 0.3" in said) == (code == 1)


class TestHook:
    def answer(self, place: Path, command: str) -> str:
        guard = LIBRARY / "plugins/assay-study/hooks/guard.py"
        call = {"tool_name": "Bash", "tool_input": {"command": command}, "cwd": str(place)}
        done = subprocess.run(
            [sys.executable, str(guard)], input=json.dumps(call), capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr
        if not done.stdout:
            return ""
        said = json.loads(done.stdout)["hookSpecificOutput"]
        assert said["permissionDecision"] == "deny" and "assay study run" in str(said)
        return "deny"

    @pytest.fixture(scope="class")
    def study(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        root = tmp_path_factory.mktemp("study")
        place = root / ".rlxp/tasks/t/studies/first"
        place.mkdir(parents=True)
        (root / ".rlxp/registry.yaml").write_text("task: t\n")
        contract = "study: first\nbaseline:\n  command: ['{python}', 'src/learn.py', '{seed}']\n"
        (place / "contract.yaml").write_text(contract + "evaluation:\n  episodes: 1\n")
        (root / "sub").mkdir()
        return root

    @pytest.mark.parametrize(
        "command",
        [
            "python train.py --seed 1", "cd x && uv run train Mjlab-Velocity", "assay train ppo X",
            "CUDA_VISIBLE_DEVICES=0 torchrun --nproc_per_node=2 src/a/train_agent.py exp:g1",
            "nohup bash scripts/train_all.sh &", "python src/learn.py 3",
            "python -m assay resume r",
        ],
    )  # fmt: skip
    def test_training_is_denied_where_a_study_is(self, study: Path, command: str) -> None:
        assert self.answer(study / "sub", command) == "deny"

    @pytest.mark.parametrize(
        "command",
        [
            "assay study run c1 --seed 1", "cat train.py", "git diff src/learn.py",
            "grep -rn train src", "python -m pytest tests/test_training_loop.py -q",
            "assay study start train.py", "ls training", "python evaluate.py --out x",
        ],
    )  # fmt: skip
    def test_other_work_goes_on(self, study: Path, command: str) -> None:
        assert self.answer(study, command) == ""

    def test_elsewhere_nothing_is_denied(self, tmp_path: Path) -> None:
        assert self.answer(tmp_path, "python train.py") == ""


def _texts(path: Path) -> set[str]:
    """Return the strings of a module; values that are put in are x, and quotes are left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        words = [str(one.value) if isinstance(one, ast.Constant) else "x" for one in parts]
        found.add("".join(words).replace("'", ""))
    return found


def test_messages_about_checkpoints_are_quoted_as_they_are() -> None:
    skill = next(skill for skill in SKILLS if skill.name == "configuring-checkpoint-strategy")
    text = (skill.path / "references" / "checkpoints.md").read_text()
    quoted = re.findall(r"^\| `([^`]+ [^`]+)` \|", text, re.MULTILINE)
    assert len(quoted) > 5
    modules = ("runs/checkpoint.py", "api.py", "cli/resume.py")
    said = set.union(*(_texts(ROOT / "src" / "assay" / module) for module in modules))
    for message in quoted:
        words = re.split(r"\.\.\.|\b[NM]\b", message)
        pattern = re.compile(".+".join(map(re.escape, words)))
        assert any(pattern.fullmatch(text) for text in said), message
