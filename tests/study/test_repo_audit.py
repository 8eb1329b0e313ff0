"""The audit finds what is there, and says none where there is none."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

# The benchmarks are scripts, which import each other by name.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from audits import expected, items, table
from made_repositories import put

from assay.study.files.documents import StudyError
from assay.study.files.records import Adapter
from assay.study.repo.audit import inspect
from assay.study.repo.card import task_card
from assay.study.repo.hints import profiles


def audit(root: Path, profile: str | None = None) -> Adapter:
    return inspect(root, profile).adapter


REPOSITORIES = Path(__file__).parent / "repositories"
NAMES = sorted(path.stem for path in REPOSITORIES.glob("*.yaml"))
SLOTS = [name for name in Adapter.model_fields if name not in ("schema_version", "profile")]
CODE = ("reward", "termination", "curriculum", "randomization")
THRESHOLD = 0.9


def test_recall_and_precision_of_every_question() -> None:
    scores: dict[str, list[tuple[str, set[str], set[str]]]] = {slot: [] for slot in SLOTS}
    for name in NAMES:
        truth = yaml.safe_load((REPOSITORIES / f"{name}.yaml").read_text())
        found = audit(REPOSITORIES / name)
        for slot in SLOTS:
            scores[slot].append((name, items(slot, getattr(found, slot)), expected(truth, slot)))
    text, short = table(scores, THRESHOLD)
    assert not short, text
    # Every question has an answer somewhere, or its score would mean nothing.
    assert all(any(truth for *_, truth in cases) for cases in scores.values())


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_rests_on_a_line_that_is_there(name: str) -> None:
    found = audit(REPOSITORIES / name)
    for slot in SLOTS:
        answers = getattr(found, slot)
        ranks = [answer.confidence for answer in answers]
        assert slot in ("metrics", *CODE) or ranks == sorted(ranks, reverse=True)
        for answer in answers:
            assert answer.evidence and 0.5 <= answer.confidence <= 1
            for place in answer.evidence:
                path, _, number = place.rpartition(":")
                lines = (REPOSITORIES / name / path).read_text().split("\n")
                assert lines[int(number) - 1].strip(), place


def test_a_repository_without_rl_has_no_answers() -> None:
    assert audit(REPOSITORIES / "not_rl") == Adapter(profile="generic")


def test_commands_say_how_settings_are_passed() -> None:
    formats = {
        name: audit(REPOSITORIES / name).train[0].value["parameter_format"]
        for name in NAMES
        if name != "not_rl"
    }
    for name in ("hydra_walker", "hydra_targets", "manager_terms"):
        assert formats.pop(name) == "{name}={value}"
    assert set(formats.values()) == {"--{name}={value}"}


def test_a_dataclass_behind_a_command_line_is_no_second_system() -> None:
    assert [answer.value for answer in audit(REPOSITORIES / "single_tyro").config] == ["tyro"]


def test_a_script_without_a_command_line_takes_no_settings(tmp_path: Path) -> None:
    flat = "import gymnasium as gym\n\n\ndef ppo():\n    trainer.train(n_epochs=3)\n\n\nppo()\n"
    put(tmp_path, ppo_dot_py=flat, tool_dot_py="import argparse\nargparse.ArgumentParser()\n")
    found = audit(tmp_path).train
    assert items("train", found) == {"{python} ppo.py"}
    assert found[0].value["parameter_format"] == ""
    put(tmp_path, README_dot_md="```\npython ppo.py --lr 0.1\n```\n")
    assert audit(tmp_path).train[0].value["parameter_format"] == "--{name}={value}"


def test_a_module_that_sets_things_up_on_import_is_no_script(tmp_path: Path) -> None:
    library = """
import gymnasium as gym
import torch

torch.set_printoptions(precision=3)
WEIGHTS = torch.load("weights.pt")

class Runner:
    def run_train(self, agent):
        agent.learn(total=1)
"""
    put(tmp_path, lib__runner_dot_py=library)
    assert audit(tmp_path).train == audit(tmp_path).launcher == ()


def test_a_file_that_does_not_parse_is_read_in_parts(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py="import gym\nprint 'old'\n\n@note\ndef main():\n    agent.learn(10)\n\n"
        "def old():\n    print 'older'\n\nif __name__ == '__main__':\n    main()\n",
    )
    inspected = inspect(tmp_path)
    assert items("train", inspected.adapter.train) == {"{python} train.py"}
    assert inspected.adapter.train[0].evidence == ("train.py:6", "train.py:11")
    assert inspected.findings == ("unreadable code: no valid Python, read in parts: train.py.",)


def test_metrics_that_a_function_returns_and_another_logs(tmp_path: Path) -> None:
    put(
        tmp_path,
        agent_dot_py="class Agent:\n    def update(self, reward):\n"
        "        return loss, {'q_loss': 1, 'kind': 'sac', 'on': True}\n\n"
        "    def to_dict(self):\n        return {'width': 64}\n",
        train_dot_py="""
import gymnasium
from agent import Agent

if __name__ == "__main__":
    agent = Agent()
    logger.log(agent.to_dict())
    for step in range(9):
        obs, reward, done, info = env.step(agent.act(obs))
        loss, stats = agent.update(reward)
        for key, value in stats.items():
            writer.add_scalar("losses/" + key, value, step)
        history["Reward / Total"].append(reward)
        writer.add_scalar("rewards/step", reward)
        writer.add_scalar("charts/step", step)
""",
    )
    wanted = {"losses/q_loss", "Reward / Total", "rewards/step"}
    assert items("metrics", audit(tmp_path).metrics) == wanted


def test_large_repositories_keep_all_their_files(tmp_path: Path) -> None:
    put(tmp_path, **{f"envs__env_{number}_dot_py": STEP for number in range(60)})
    assert len(audit(tmp_path).reward) == 60


# ---------------------------------------------------------------------- a repository can be odd


STEP = """
import gymnasium as gym

class Env(gym.Env):
    def reset(self):
        return 0

    def step(self, action):
        reward = 1.0 - abs(action)
        return 0, reward, False, False, {}
"""


def test_what_cannot_be_read_does_no_harm(tmp_path: Path) -> None:
    put(
        tmp_path,
        env_dot_py=STEP,
        empty_dot_py="",
        broken_dot_py="def reward(:\n",
        pyproject_dot_toml="[[[",
    )
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nname = 'Bücher'\n".encode("latin-1"))
    (tmp_path / "wide.py").write_bytes("x = 1\n".encode("utf-16"))
    (tmp_path / "binary.py").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "nested.py").write_text("reward = " + "(" * 5000 + ")" * 5000)
    # The parser takes this one, but a walk by recursion goes too deep.
    (tmp_path / "sum.py").write_text("import wandb\nreward = " + " + ".join(["a"] * 2500))
    (tmp_path / "odd.yaml").write_text("reward: [unclosed\n\t- : :")
    (tmp_path / "nulls.py").write_bytes(b"import gym\nx = 1\n" * 900 + b"\0\0")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "folder.py" / "README.md").mkdir()
    (tmp_path / "pyproject.toml.d").mkdir()
    (tmp_path / "setup.cfg").mkdir()
    (tmp_path / "notes.ipynb").write_text('{"cells": [')
    (tmp_path / "a\nb.py").write_text(STEP)
    (tmp_path / os.fsdecode(b"caf\xe9.py")).write_text(STEP)
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    inspected = inspect(tmp_path)
    assert items("reward", inspected.adapter.reward) == {"env.py::Env.step"}
    assert inspected.adapter.model_dump_json()
    assert "unreadable code" in inspected.findings[0]


def test_nothing_outside_of_the_repository_is_read(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    inside.mkdir()
    put(outside, env_dot_py=STEP)
    (inside / "env.py").symlink_to(outside / "env.py")
    (inside / "package").symlink_to(outside)
    assert audit(inside) == Adapter()
    (inside / "own.py").write_text(STEP)
    (inside / "alias.py").symlink_to(inside / "own.py")
    assert {a.value["file"] for a in audit(inside).reward} == {"own.py", "alias.py"}


def test_environments_caches_and_huge_files_are_skipped(tmp_path: Path) -> None:
    put(
        tmp_path,
        myenv__pyvenv_dot_cfg="home = /usr",
        myenv__lib__env_dot_py=STEP,
        node_modules__env_dot_py=STEP,
        _dot_git__env_dot_py=STEP,
        __pycache__="",
        huge_dot_py=STEP + "# " + "x" * 1_100_000,
    )
    assert audit(tmp_path) == Adapter()


def test_the_targets_code_is_never_imported_or_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = f"open({str(mark)!r}, 'w').write('ran')\n"
    put(tmp_path, train_dot_py=code + STEP, setup_dot_py=code, conftest_dot_py=code)
    before = set(sys.modules)
    audit(tmp_path)
    assert not mark.exists()
    assert not {name for name in set(sys.modules) - before if "train" in name}


def test_rewards_that_are_handed_on_are_no_reward_code(tmp_path: Path) -> None:
    put(
        tmp_path,
        wrappers_dot_py="""
import gymnasium as gym
import numpy as np

class Timed(gym.Wrapper):
    def reset(self):
        return self.env.reset()

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        reward = np.float32(reward)
        done = terminated or truncated
        return obs, reward, terminated, truncated, info

class ReplayBuffer:
    def compute_reward(self, obs, action):
        return self.rewards[obs] * 1.0

    def normalize_reward(self, reward):
        return reward / self.std

class Empty(gym.Env):
    def compute_reward(self):
        raise NotImplementedError

    def reset(self):
        return 0

    def step(self, action):
        reward = 0.0
        done = False
        return 0, reward, done, False, {}

class Bridge(gym.Env):
    def reset(self):
        return 0

    def step(self, action):
        reply = self.remote.send(action)
        reward = np.float32(reply.reward)
        done = bool(reply.done)
        return 0, reward, done, False, {}
""",
    )
    found = audit(tmp_path)
    assert found.reward == found.termination == ()


def test_documents_may_call_a_script_in_many_ways(tmp_path: Path) -> None:
    train = "import gymnasium\n\nif __name__ == '__main__':\n    agent.learn(total=1)\n"
    for line, command in {
        "$ CUDA_VISIBLE_DEVICES=0 python3 tools/train.py -n 3": "{python} tools/train.py -n 3",
        "cd tools && python train.py": "{python} tools/train.py",
        "uv run tools/train.py env=Ant seed=4": (
            "{python} tools/train.py env=Ant seed={seed} {parameters}"
        ),
        "xvfb-run -a python -u tools/train.py > log.txt": "{python} tools/train.py",
        "torchrun --nproc_per_node=4 tools/train.py --seed $SEED --out $OUT": (
            "{python} tools/train.py --seed {seed} {parameters}"
        ),
        "pip install -r train.py": "{python} tools/train.py",  # not from this line
    }.items():
        put(tmp_path, tools__train_dot_py=train, README_dot_md=f"# A\n\n```bash\n{line}\n```\n")
        found = audit(tmp_path)
        assert items("train", found.train) == {command}, line
        assert found.train[0].evidence[0].startswith("tools" if "pip" in line else "README.md:4")
        assert ("torchrun" in items("launcher", found.launcher)) == line.startswith("torchrun")


# ---------------------------------------------------------------------- profiles and hints


def test_profiles_are_packaged_and_known_by_name(tmp_path: Path) -> None:
    assert profiles() == ["assay", "generic", "holosoma", "mjlab"]
    for name in profiles():
        assert audit(tmp_path, name).profile == name
    with pytest.raises(StudyError, match=r"no profile 'mjlap'.*\n.*mjlab"):
        audit(tmp_path, "mjlap")
    with pytest.raises(StudyError, match="is not a directory"):
        audit(tmp_path / "nowhere")


def test_a_profile_that_does_not_fit_is_a_named_trouble(tmp_path: Path) -> None:
    put(tmp_path, env_dot_py=STEP)
    assert inspect(tmp_path).findings == inspect(tmp_path, "generic").findings == ()
    (finding,) = inspect(tmp_path, "mjlab").findings
    assert finding.startswith("profile mismatch: this does not look like 'mjlab'")
    assert "imports or needs mjlab" in finding and "read as 'generic'" in finding
    assert f"- **Trouble**: {finding}" in task_card(tmp_path, audit(tmp_path), (finding,))
    # Any one sign is enough: an import, a dependency, a file.
    put(tmp_path, task_dot_py="from mjlab.envs import Env\n")
    assert inspect(tmp_path, "mjlab").findings == ()
    (finding,) = inspect(tmp_path, "holosoma").findings
    assert finding.startswith("profile mismatch")
    put(tmp_path, requirements_dot_txt="holosoma\n")
    assert inspect(tmp_path, "holosoma").findings == ()
    put(tmp_path, **{"adapter-hints_dot_yaml": "name: ours\nimports: [ours]\n"})
    assert (
        inspect(tmp_path).findings[0].startswith("profile mismatch: this does not look like 'our")
    )


def test_a_repository_without_rl_says_so(tmp_path: Path) -> None:
    put(tmp_path, shop_dot_py="print(1)\n")
    assert [text.partition(":")[0] for text in inspect(tmp_path).findings] == [
        "no reinforcement learning"
    ]


def test_the_seed_of_a_stack_goes_to_its_training_alone(tmp_path: Path) -> None:
    train = "import tyro\nimport mjlab\nrunner.learn(1)\ntyro.cli(main)\n"
    play = "import tyro\nimport mjlab\nmodel = Model.load(path)\nenv.step(1)\ntyro.cli(main)\n"
    other = "import argparse\nimport gym\nargparse.ArgumentParser()\nagent.learn(1)\n"
    readme = "```\npython train.py\npython play.py\npython learn.py\n```\n"
    put(tmp_path, train_dot_py=train, play_dot_py=play, learn_dot_py=other, README_dot_md=readme)
    found = audit(tmp_path, "mjlab")
    assert items("train", found.train) == {
        "{python} train.py --agent.seed {seed} {parameters}",
        "{python} learn.py {parameters}",
    }
    assert items("evaluate", found.evaluate) == {"{python} play.py"}


def test_a_profile_is_recognised_and_invents_nothing(tmp_path: Path) -> None:
    put(tmp_path, pyproject_dot_toml='[project]\nname = "x"\ndependencies = ["mjlab>=1"]\n')
    assert audit(tmp_path) == Adapter(profile="mjlab")
    put(tmp_path, env_dot_py=STEP)
    assert audit(tmp_path, "mjlab").logging == audit(tmp_path, "holosoma").train == ()


def test_a_new_stack_is_one_file(tmp_path: Path) -> None:
    source = STEP + "\nscore = Penalty(func=stumbles, weight=-1.0)\nledger.jot('eval/falls', 3)\n"
    put(tmp_path, env_dot_py=source)
    assert audit(tmp_path).metrics == ()
    hints = {
        "name": "ours",
        "vocabulary": {"reward_terms": ["Penalty"], "metric_calls": ["jot"]},
        "answers": {
            "launcher": [
                {"value": "custom", "files": "*.py", "pattern": "class Env"},
                {"value": "slurm", "files": "*.py", "pattern": "not there"},
            ]
        },
    }
    (tmp_path / "adapter-hints.yaml").write_text(yaml.safe_dump(hints))
    found = audit(tmp_path)
    assert found.profile == "ours"
    assert items("metrics", found.metrics) == {"eval/falls"}
    assert items("guardrails", found.guardrails) == {"eval/falls"}
    assert "env.py::score" in items("reward", found.reward)
    assert [(a.value, a.evidence) for a in found.launcher] == [("custom", ("env.py:4",))]
    (tmp_path / "adapter-hints.yaml").write_text("name: ours\nanswers: {lauhcner: []}\n")
    with pytest.raises(StudyError, match=r"answer 'lauhcner'.*\n.*launcher"):
        audit(tmp_path)
    (tmp_path / "adapter-hints.yaml").write_text("name: [")
    with pytest.raises(StudyError, match="malformed in line 1"):
        audit(tmp_path)


# ---------------------------------------------------------------------- the task card


def test_the_task_card_quotes_its_evidence() -> None:
    root = REPOSITORIES / "argparse_yaml"
    card = task_card(root, audit(root))
    assert card.startswith("# Task card: argparse_yaml\n")
    assert "`Reach-v0` (README.rst:11)" in card
    assert (
        "- envs/reach.py:21: `reward = -distance - 0.01 * float(np.square(action).sum())`" in card
    )
    assert re.search(r"## Curriculum code\n\nnone\n", card)


def test_the_task_card_of_nothing_says_none(tmp_path: Path) -> None:
    card = task_card(tmp_path, audit(tmp_path))
    assert card.count("\nnone\n") == len(SLOTS)
    assert "No document says." in card
