"""The documentation is true: its snippets run, its commands parse, its names exist."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import forking
import pytest
from command_parsing import parsed

import assay
from assay.cli.plan import make_plan, read_settings, split_words
from assay.core.errors import EnvError, MissingExtraError
from assay.data.files import save
from assay.testing.offline import record

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src/assay/skills/library").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text()):
            if language == kind:
                found.append((str(page.relative_to(ROOT)), text))
    return found


def run_python(arguments: list[str], directory: Path) -> str:
    environment = os.environ | {"ASSAY_RUNS": str(directory / "runs"), "OMP_NUM_THREADS": "1"}
    environment[forking.SCRIPTS] = "yes"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("page", "code"), blocks("python"))
def test_python_snippets_run(page: str, code: str, tmp_path: Path) -> None:
    run_python(["-c", code], tmp_path)


def commands() -> list[str]:
    lines = (line for _, text in blocks("console") for line in text.splitlines())
    return sorted({line.split(" #")[0].strip() for line in lines if line.startswith("assay ")})


def test_there_are_commands_to_check() -> None:
    assert len(commands()) >= 8


def test_a_command_that_does_not_exist_is_noticed() -> None:
    for line in ("assay trian ppo CartPole-v1", "assay train ppo CartPole-v1 --sedes 5"):
        with pytest.raises(Exception, match=r"trian|sedes"):
            parsed(line)


@pytest.mark.parametrize("line", commands())
def test_commands_parse_against_the_real_command_line(line: str) -> None:
    parsed(line)


def stand_in(env: str, path: Path) -> Path:
    """Write an episode of an environment to a file of data."""
    try:
        return save(record(env, episodes=1), path)
    except (MissingExtraError, EnvError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("assay train ")])
def test_what_is_to_be_trained_can_be_built(line: str, tmp_path: Path) -> None:
    """Settings are known, none is without effect, and the algorithm takes the environment."""
    context = parsed(line)
    given = context.params
    if given["config"] is not None:
        pytest.skip("a file that stands for the reader's own")
    words = [given["algorithm"], given["env"], *(given["settings"] or [])]
    names, items = split_words(words)
    if len(names) == 1:  # `tests/loops/test_without_env.py` trains without an environment
        pytest.skip("a log that stands for the reader's own")
    algorithm, env = names
    if env == "ENV" or env.startswith("my_"):
        pytest.skip("an environment that stands for the reader's own")
    if any(item.startswith("network=my_") for item in items):
        pytest.skip("a network that stands for the reader's own")
    options = {"seed": given["seed"], "device": given["device"]}
    file_settings, settings = read_settings(items, None, options)
    for name in ("data", "expert"):
        if str(settings.get(name, "")).startswith("my_"):  # the reader's own
            settings[name] = str(stand_in(env, tmp_path / "data.npz"))
    try:
        plan = make_plan(algorithm, env, file_settings, settings)
    except MissingExtraError as error:
        pytest.skip(str(error))
    except EnvError as error:
        if "OpenGL" not in str(error):
            raise
        pytest.skip("pixels of MuJoCo need OpenGL, which this machine does not have")
    assert plan.config.algorithm == algorithm
    assert settings.keys() <= plan.config.hyperparameters.keys() | vars(plan.config.run).keys()


EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_and_print_what_their_last_line_says(name: str, tmp_path: Path) -> None:
    source = ROOT / "examples" / name
    promise = re.search(r"\n# Prints: (.+)\n\Z", source.read_text())
    assert promise, "the last line of an example is '# Prints: ' and a regular expression"
    assert re.search(promise[1], run_python([str(source)], tmp_path))


def test_architecture_names_what_exists() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    walk = text[text.index("## One training step") : text.index("## What was rejected")]
    names: set[str] = set()
    for info in pkgutil.walk_packages(assay.__path__, "assay."):
        if info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for key, value in vars(module).items():
            names.add(key)
            if isinstance(value, type) and value.__module__.startswith("assay"):
                names |= {f"{key}.{attribute}" for attribute in dir(value)} | set(dir(value))
                names |= set(getattr(value, "__annotations__", {}))
        names.add(info.name.rpartition(".")[2])
    quoted = set(re.findall(r"`([A-Za-z_][\w.]*)(?:\([^`]*\))?`", walk))
    ignored = {"action_mask", "make_fx", "MultiDiscrete", "update", "act", "log_prob", "value"}
    missing = {
        name
        for name in quoted - ignored
        if name.rpartition(".")[2] not in names
        and not name.endswith((".yaml", ".json", ".jsonl", ".py"))
    }
    assert not missing


def test_links_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
