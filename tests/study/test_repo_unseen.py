"""What the audit learnt from the unseen repositories of a later draw, rule by rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_repositories import TRAIN, audit, code, first, put
from test_repo_rules import in_step

PAYS = """
gain = self.worth - self.before; return 0, gain, done, {}                     # r
gain = self.worth - self.before; return 0, done, gain, {}                     # -
gain, done = self.env.step(action); return 0, gain, done, {}                  # -
profit = self.price * action; reward = float(profit); return 0, reward, done  # r
reward = float(profit); return 0, reward, done                                # -
reward = self.R[self.state, action]; return 0, reward, done, {}               # r
reward = self.rewards[self.state, action]; return 0, reward, done, {}         # -
rewards = {a: 1 - self.far[a] for a in self.agents}; return 0, rewards, done  # r
rewards = {a: self.rewards[a] for a in self.agents}; return 0, rewards, done  # -
"""


@pytest.mark.parametrize("line", PAYS.strip().split("\n"))
def test_a_step_pays_what_it_returns_second(tmp_path: Path, line: str) -> None:
    body, _, found = line.partition("#")
    put(tmp_path, grid_dot_py=in_step(f"        {body}\n"))
    assert bool(audit(tmp_path).reward) is ("r" in found)


def test_an_attribute_that_a_branch_sets_may_be_the_reward(tmp_path: Path) -> None:
    body = "        if action:\n            self.sparse_reward = 1\n"
    put(tmp_path, one_dot_py=in_step(body + "        reward = self.sparse_reward\n"))
    put(tmp_path, two_dot_py=in_step(body))
    assert set(code(audit(tmp_path).reward)) == {"one.py"}


def test_a_choice_between_forms_of_an_end_ends_nothing(tmp_path: Path) -> None:
    body = "        done = done if self.one else np.array([done])\n        return 0, 0, done, {}\n"
    put(tmp_path, grid_dot_py=in_step(body))
    assert not audit(tmp_path).termination
    put(tmp_path, grid_dot_py=in_step(body.replace("np.array([done])", "self.time > 9")))
    assert audit(tmp_path).termination


def test_classes_of_rewards_calculate_and_heads_only_guess(tmp_path: Path) -> None:
    text = "class {}:\n    def {}(self, state):\n        return state.health / 30\n"
    put(
        tmp_path,
        train_dot_py=TRAIN,
        health_dot_py=text.format("HealthReward", "calculate"),
        other_dot_py=text.format("RewardHead", "__call__"),
        metrics__ends_dot_py=text.format("TerminationRates", "compute"),
        ends_dot_py=text.format("FallTermination", "compute"),
    )
    found = audit(tmp_path)
    assert set(code(found.reward)) == {"health.py"}
    assert set(code(found.termination)) == {"ends.py"}


def test_a_module_may_have_moved_below_its_package(tmp_path: Path) -> None:
    put(tmp_path, README_dot_md="```\npython -m box.dqn.run_classic --env Pong\n```\n")
    put(tmp_path, src__box__agents__dqn__run_classic_dot_py=TRAIN)
    expected = "{python} -m box.agents.dqn.run_classic --env Pong"
    assert first(audit(tmp_path).train).startswith(expected)
    put(tmp_path, src__box__old__dqn__run_classic_dot_py=TRAIN)  # now it could be either
    assert "Pong" not in first(audit(tmp_path).train)


def test_a_loop_that_tells_an_agent_its_reward_trains(tmp_path: Path) -> None:
    loop = "import gymnasium\nenv = gymnasium.make('A')\nfor _ in range(9):\n"
    loop += "    obs, reward, done, cut, info = env.step(agent.act(obs))\n"
    put(tmp_path, grid_dot_py=loop + "    agent.observe(obs, reward, done)\n")
    assert first(audit(tmp_path).train) == "{python} grid.py"
    put(tmp_path, grid_dot_py=loop + "    agent.observe(obs)\n")
    assert first(audit(tmp_path).train) == "none"


def test_a_page_that_people_click_on_is_not_the_training_script(tmp_path: Path) -> None:
    put(tmp_path, app__training_dot_py=TRAIN, tools__learn_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} app/training.py"
    put(tmp_path, app__training_dot_py="import streamlit\n" + TRAIN)
    assert first(audit(tmp_path).train) == "{python} tools/learn.py"


def test_a_program_that_lists_other_verbs_does_not_train(tmp_path: Path) -> None:
    verbs = "".join(f"    parsers.add_parser('{verb}')\n" for verb in ("build", "status", "{}"))
    main = "import argparse\nimport gymnasium\n\n\ndef main():\n"
    main += "    parsers = argparse.ArgumentParser().add_subparsers()\n" + verbs
    main += "    agent.learn(total=1)\n"
    put(tmp_path, pyproject_dot_toml="[project.scripts]\ntool = 'pkg.cli:main'\n")
    put(tmp_path, pkg__cli_dot_py=main.format("reset"))
    assert first(audit(tmp_path).train) == "none"
    put(tmp_path, pkg__cli_dot_py=main.format("run"))
    assert first(audit(tmp_path).train).startswith("tool")


def test_type_parameters_of_a_newer_python_are_read(tmp_path: Path) -> None:
    newer = "type Pair = tuple[int, int]\n\nclass Box[T: int]:\n    pass\n\n"
    newer += "def first[T](items: list[T]) -> T:\n    return items[0]\n\n"
    newer += "def main[T: dict[str, int]](x: T):\n    env = gymnasium.make('A')\n"
    newer += "    obs, reward, done, cut, info = env.step(0)\n    agent.learn(3)\n\n"
    newer += "if __name__ == '__main__':\n    main()\n"
    put(tmp_path, walk_dot_py="import gymnasium\n\n" + newer)
    assert first(audit(tmp_path).train) == "{python} walk.py"


# ---------------------------------------------------------------------- from the twelfth set


def test_a_script_with_a_main_guard_trains_where_nothing_else_does(tmp_path: Path) -> None:
    body = "import gym\n\ndef train_ppo():\n    trainer = Trainer(gym.make('A'), agent)\n"
    body += "    trainer.n_step_train(5000)\n\n"
    put(tmp_path, ppo_dot_py=body + "if __name__ == '__main__':\n    train_ppo()\n")
    assert first(audit(tmp_path).train) == "{python} ppo.py"


def test_self_play_needs_no_rewards(tmp_path: Path) -> None:
    text = "import torch\n\nif __name__ == '__main__':\n    learner.learn(total=1)\n"
    put(tmp_path, README_dot_md="Self-play in chess.\n", learn_dot_py=text)
    assert first(audit(tmp_path).train) == "none"
    put(tmp_path, mcts_dot_py="import torch\n")
    assert first(audit(tmp_path).train) == "{python} learn.py"


def test_a_module_may_lie_beside_its_document(tmp_path: Path) -> None:
    put(tmp_path, pkg__agents__train_dot_py=TRAIN)
    put(tmp_path, pkg__agents__README_dot_md="```\npython -um train --gin a.gin\n```\n")
    assert first(audit(tmp_path).train).startswith("{python} pkg/agents/train.py --gin a.gin")


def test_an_algorithm_may_be_a_verb(tmp_path: Path) -> None:
    main = "import click\nimport gymnasium\n\n@click.group()\ndef main():\n    pass\n"
    for verb in ("sft", "grpo", "eval"):
        main += f"\n@main.command()\n@click.option('--model')\ndef {verb}(model):\n    pass\n"
    put(tmp_path, pyproject_dot_toml="[project.scripts]\ntool = 'pkg.cli:main'\n")
    put(tmp_path, pkg__cli_dot_py=main, README_dot_md="```\ntool sft --model a\n"
        "tool grpo --model b\ntool eval --model c\n```\n")  # fmt: skip
    assert first(audit(tmp_path).train).startswith("tool grpo --model b")


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("print(f'reward {row.get(\"eval/episode_reward\", 0)}')", "eval/episode_reward"),
        ("agent.metrics.update({'reward': mean, 'loss': loss})", "reward"),
    ],
)
def test_metrics_lie_in_tables_of_results(tmp_path: Path, line: str, name: str) -> None:
    put(tmp_path, train_dot_py=TRAIN + f"    {line}\n")
    assert first(audit(tmp_path).metrics) == name


def test_what_moves_for_a_step_pays_and_ends(tmp_path: Path) -> None:
    text = "class Moves:\n    def visit(self, to):\n        reward, done = 0, False\n{}"
    text += "        if to:\n            reward += self.bonus\n            done = True\n"
    text += "        return 0, reward, done\n"
    put(tmp_path, train_dot_py=TRAIN, moves_dot_py=text.format(""))
    found = audit(tmp_path)
    assert set(code(found.reward)) == set(code(found.termination)) == {"moves.py"}
    put(tmp_path, moves_dot_py=text.format("        self.env.step(to)\n"))
    assert not audit(tmp_path).reward


def test_what_repacks_a_step_decides_nothing(tmp_path: Path) -> None:
    body = "        obs, reward, done = _to_jax(self._step(action))\n"
    body += "        done = np.reshape(done, [1] + [1] * 3)\n        return obs, reward, done, {}\n"
    put(tmp_path, grid_dot_py=in_step(body, "def _to_jax(x):\n    return x\n"))
    found = audit(tmp_path)
    assert not found.reward and not found.termination


def test_functions_named_after_rewards_pay_for_answers(tmp_path: Path) -> None:
    text = "def reward_politeness(response):\n    return len(response) / 9\n"
    put(tmp_path, train_dot_py=TRAIN, shop_rewards_dot_py=text)
    assert set(code(audit(tmp_path).reward)) == {"shop_rewards.py"}


def test_a_file_of_settings_and_history_is_a_record(tmp_path: Path) -> None:
    line = "    json.dump({'config': vars(args), 'history': rows}, file)\n"
    put(tmp_path, train_dot_py="import json\n" + TRAIN + line)
    assert [answer.value for answer in audit(tmp_path).logging] == ["json"]
    put(tmp_path, train_dot_py="import json\n" + TRAIN + line.replace("history", "model"))
    assert not audit(tmp_path).logging
