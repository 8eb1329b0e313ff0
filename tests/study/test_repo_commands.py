"""How the audit finds what trains and evaluates, and how that is configured and logged."""

from __future__ import annotations

from pathlib import Path

from made_repositories import TRAIN, audit, first, put


def test_a_program_may_match_its_verbs(tmp_path: Path) -> None:
    main = (
        "import argparse\nimport gymnasium\n\ndef run(action):\n    match action:\n"
        "        case 'train_ppo' | 'train_dqn':\n            agent.learn(9)\n"
        "        case 'spectate':\n            show(agent)\n        case 'play':\n"
        "            play()\n\n"
        "def main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('action')\n"
        "    run(parser.parse_args().action)\n"
    )
    put(
        tmp_path,
        pyproject_dot_toml="[project]\nname = 'a'\n[project.scripts]\ntool = 'pkg.cli:main'\n",
        pkg__cli_dot_py=main,
        README_dot_md="```\npython tool train_ppo\npython tool play\npython tool spectate\n```\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "tool train_ppo {parameters}"
    assert first(found.evaluate) == "tool spectate"


def test_a_mode_that_a_function_is_given_is_no_verb(tmp_path: Path) -> None:
    text = TRAIN + "\ndef make(mode):\n    return 1 if mode == 'eval' else 2\n"
    put(tmp_path, train_dot_py=text, README_dot_md="```\npython train.py\n```\n")
    assert first(audit(tmp_path).evaluate) == "none"


def test_the_main_module_of_a_package_may_be_installed(tmp_path: Path) -> None:
    put(
        tmp_path,
        pyproject_dot_toml="[project]\nname = 'a'\n[project.scripts]\ntool = 'pkg.__main__:main'\n",
        README_dot_md="```\ntool --steps=9\n```\n",
    )
    text = "import gymnasium\n\ndef main():\n    agent.learn(9)\n"
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "__main__.py").write_text(text)
    assert first(audit(tmp_path).train) == "tool --steps=9 {parameters}"


def test_a_script_that_learns_nothing_from_rewards_comes_last(tmp_path: Path) -> None:
    other = "def main():\n    loss.backward()\n\nif __name__ == '__main__':\n    main()\n"
    put(tmp_path, train_mnist_dot_py=other, agents__ppo_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} agents/ppo.py"


def test_a_directory_says_what_its_main_trains(tmp_path: Path) -> None:
    put(tmp_path, algos__dpo__main_dot_py=TRAIN, algos__ppo__main_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} algos/ppo/main.py"


def test_a_backtest_evaluates(tmp_path: Path) -> None:
    text = (
        "import argparse\nimport gymnasium\n\nif __name__ == '__main__':\n"
        "    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--mode', choices=['train', 'backtest'], default='train')\n"
        "    agent.learn(9)\n"
    )
    put(tmp_path, main_dot_py=text)
    assert first(audit(tmp_path).evaluate) == "{python} main.py --mode backtest"


def test_configurations_are_read_in_more_ways(tmp_path: Path) -> None:
    text = TRAIN + "\nimport ruamel.yaml as yaml\n\ndef main():\n    yaml.safe_load('a')\n"
    put(tmp_path, train_dot_py=text)
    assert [answer.value for answer in audit(tmp_path).config] == ["yaml"]
    text = TRAIN + "\nimport configparser\n\ndef main():\n    configparser.RawConfigParser()\n"
    put(tmp_path, train_dot_py=text)
    assert [answer.value for answer in audit(tmp_path).config] == ["custom"]


def test_a_variable_that_is_none_turns_a_logger_off(tmp_path: Path) -> None:
    text = (
        "from stable_baselines3 import PPO\n\nlogs = None\n"
        "model = PPO('MlpPolicy', 'A-v0', verbose=1, tensorboard_log=logs)\nmodel.learn(9)\n"
    )
    put(tmp_path, train_dot_py=text)
    assert first(audit(tmp_path).logging) == "stdout"
