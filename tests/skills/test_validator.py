"""Every rule of the validator, each with something that breaks it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.skills.library import LIBRARY, SkillsError
from assay.skills.validate import validate

PLUGIN = "plugins/assay-study"
SKILL = f"{PLUGIN}/skills/rlxp-autoloop"
Break = Callable[[Path], object]


def edit(path: str, old: str, new: str) -> Break:
    def change(root: Path) -> None:
        file = root / path
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def write(path: str, text: str) -> Break:
    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)

    return change


def remove(path: str) -> Break:
    return lambda root: (root / path).unlink()


def manifest(path: str, **fields: object) -> Break:
    def change(root: Path) -> None:
        file = root / path
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


def without(path: str, field: str) -> Break:
    def change(root: Path) -> None:
        found = json.loads((root / path).read_text())
        del found[field]
        (root / path).write_text(json.dumps(found))

    return change


def evals(cases: int, queries: int, near: int, **changed: object) -> str:
    triggers: list[dict[str, object]] = [
        {"query": f"q{i}", "should_trigger": i >= near} | ({"instead": None} if i < near else {})
        for i in range(queries)
    ]
    case = {"prompt": "p", "expected_output": "e", "ci": True, "commands": ["assay doctor"],
            "checks": [{"file": "x"}]} | changed  # fmt: skip
    every = [{"id": i} | case for i in range(cases)]
    return json.dumps({"skill_name": "rlxp-autoloop", "evals": every, "triggers": triggers})


def trigger(**changed: object) -> Break:
    """Change the first query, which is a near miss."""

    def change(root: Path) -> None:
        found = json.loads(evals(3, 20, 6))
        found["triggers"][0] |= changed
        (root / SKILL / "evals").mkdir(exist_ok=True)
        (root / SKILL / "evals/evals.json").write_text(json.dumps(found))

    return change


MD = f"{SKILL}/SKILL.md"
CLAUDE, CODEX = f"{PLUGIN}/.claude-plugin/plugin.json", f"{PLUGIN}/.codex-plugin/plugin.json"
ABOVE = "plugins/.codex-plugin/plugin.json"  # that of the plugin with a hook
BROKEN: list[tuple[str, Break]] = [
    ("frontmatter", edit(MD, "license: MIT", "license: [MIT]")),
    ("frontmatter", edit(MD, "license: MIT", "license: a: b")),
    ("frontmatter", edit(MD, "---\n", "")),
    ("name", edit(MD, "name: rlxp-autoloop", "name: my skill")),
    ("name-is-folder", edit(MD, "name: rlxp-autoloop", "name: other")),
    ("description-length", edit(MD, 'description: "', 'description: "' + 180 * "x")),
    ("description-brackets", edit(MD, 'description: "', 'description: "<b>')),
    ("keys", edit(MD, "license: MIT", "compatibility: all")),
    ("version", edit(MD, "  version: ", "  version: 9")),
    ("metadata", edit(MD, "metadata:\n  version: 0.1.0", "metadata: text")),
    ("body-length", edit(MD, "# Run the loop", "# Run the loop\n" + 500 * "\n")),
    ("body-length", edit(MD, "# Run the loop", "# Run the loop\n" + 20_000 * "x")),
    ("broken-link", edit(MD, "# Run the loop", "# Run the loop\n[x](references/none.md)")),
    ("link-leaves", edit(MD, "# Run the loop", "# Run the loop\n[x](../rlxp-dr-probe/SKILL.md)")),
    ("folder", write(f"{SKILL}/extras/x.md", "x")),
    ("depth", write(f"{SKILL}/references/deep/x.md", "x")),
    ("unreferenced", write(f"{SKILL}/references/x.md", "x")),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(2, 20, 6))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 19, 6))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 5))),
    ("evals", write(f"{SKILL}/evals/evals.json", "[]")),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 11))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, id=1))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, commands=["rm x"]))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, commands=[]))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, checks=[{"fly": 1}]))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, checks=[{"json": "x"}]))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, setup={"../x": "y"}))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, begin="a study"))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, ci="yes"))),
    ("evals", write(f"{SKILL}/evals/evals.json", evals(3, 20, 6, extra=1))),
    ("evals", trigger(instead="rlxp-autoloop")),
    ("evals", trigger(instead="no-such-skill")),
    ("evals", trigger(should_trigger=True)),
    ("evals", trigger(query="q1")),
    ("unreferenced", write(f"{SKILL}/workflow.md", "x")),
    ("skill", lambda root: (root / PLUGIN / "skills/empty").mkdir()),
    ("manifest", write(CLAUDE, "{")),
    ("plugin-name", manifest(CLAUDE, name="other")),
    ("version", manifest(ABOVE, version="9.9.9")),
    ("author", manifest(CLAUDE, author="me")),
    ("prompts", manifest(ABOVE, interface={"defaultPrompt": ["x"] * 4})),
    ("prompts", manifest(ABOVE, interface={"defaultPrompt": ["x" * 129]})),
    ("closed-fields", manifest("plugins/assay-study-names/plugin.json", hooks="x")),
    ("manifest", remove(f"{PLUGIN}/plugin.json")),
    ("hooks-lost", write(CODEX, "{}")),
    ("hooks-lost", without(ABOVE, "hooks")),
    ("hooks", edit(ABOVE, "guard.py", "none.py")),
    ("source", manifest(ABOVE, skills="./none/")),
    ("manifests-differ", manifest(ABOVE, description="other")),
    ("manifest", remove(ABOVE)),
    ("agent", edit(f"{PLUGIN}/agents/metrics-analyst.md", "name: metrics-analyst", "name: x")),
    ("hooks", edit(f"{PLUGIN}/hooks/hooks.json", "guard.py", "none.py")),
    ("hooks", write(f"{PLUGIN}/hooks/hooks.json", "{}")),
    ("readme", write(f"{PLUGIN}/README.md", "# Short")),
    ("license", remove(f"{PLUGIN}/LICENSE")),
    ("icon", write(f"{PLUGIN}/assets/icon.png", "no picture")),
    ("source", edit(".claude-plugin/marketplace.json", "./plugins/assay-study", "./plugins/x")),
    ("entry-name", edit(".claude-plugin/marketplace.json", '"assay-study"', '"other"')),
    ("unregistered", manifest(".agents/plugins/marketplace.json", plugins=[])),
    ("marketplace", write(".agents/plugins/marketplace.json", "{}")),
    ("twice", lambda root: shutil.copytree(root / SKILL, root / "plugins/assay-study-names/skills"
                                           / "rlxp-autoloop")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "breaking"), BROKEN, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(BROKEN)]
)
def test_what_is_wrong_is_found(tmp_path: Path, rule: str, breaking: Break) -> None:
    root = tmp_path / "library"
    shutil.copytree(LIBRARY, root)
    breaking(root)
    assert rule in {problem.rule for problem in validate(root)}


def test_a_full_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.skills.validate.ONE_LISTING", 100)
    assert "listing" in {problem.rule for problem in validate(LIBRARY)}


def test_good_evals_pass(tmp_path: Path) -> None:
    root = tmp_path / "library"
    shutil.copytree(LIBRARY, root)
    write(f"{SKILL}/evals/evals.json", evals(3, 20, 6))(root)
    assert validate(root / SKILL) == [] and validate(root / PLUGIN) == []


def test_what_is_none_of_it(tmp_path: Path) -> None:
    with pytest.raises(SkillsError, match=r"neither SKILL\.md, skills/ nor plugins/"):
        validate(tmp_path)
