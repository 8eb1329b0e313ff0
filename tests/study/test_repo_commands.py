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


def test_a_table_that_is_learnt_at_the_top_of_a_script_is_trained(tmp_path: Path) -> None:
    text = (
        "from world import GridEnv\n\ngamma = 0.9\nepsilon = 0.1\nenv = GridEnv()\n"
        "for episode in range(9):\n    state, reward, done, info = env.step(0)\n"
        "    table[state] = reward + gamma * table[state]\n"
    )
    put(tmp_path, q_learning_dot_py=text)
    assert first(audit(tmp_path).train) == "{python} q_learning.py"
    put(tmp_path, q_learning_dot_py=text.replace("gamma = 0.9\nepsilon = 0.1\n", ""))
    assert first(audit(tmp_path).train) == "none"


def test_an_entry_point_may_have_its_name_from_a_constant(tmp_path: Path) -> None:
    put(
        tmp_path,
        setup_dot_py="NAME: str = 'tool'\nsetup(entry_points={\n"
        "    'console_scripts': [f'{NAME}=src.cli:main']})\n",
        src__cli_dot_py="import gymnasium\n\ndef main():\n    parser = HelpfulArgumentParser()\n"
        "    parser.add_argument('--train', type=bool)\n    agent.learn(9)\n",
        README_dot_md="```\ntool --train True\ntool --train False\n```\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "tool --train True {parameters}"
    assert first(found.evaluate) == "tool --train False"
    assert first(found.config) == "argparse"


def test_a_document_names_what_only_calls_a_training(tmp_path: Path) -> None:
    put(
        tmp_path,
        pyproject_dot_toml="[project]\nname = 'a'\n[project.scripts]\ntool = 'pkg.cli:run'\n",
        pkg__cli_dot_py="import gymnasium\n\ndef run():\n    engine(train_agent(9))\n",
        README_dot_md="```\ntool --agent ppo\npython setup.py test\n```\n",
        setup_dot_py="import gymnasium\n\nsetup()\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "tool --agent ppo {parameters}"
    assert first(found.evaluate) == "none"


def test_what_a_main_function_prints_and_what_a_field_names_are_logged(tmp_path: Path) -> None:
    text = "import gymnasium\n\ndef main():\n    agent.learn(9)\n    print(f'Avg reward: {r}')\n\n"
    put(tmp_path, train_dot_py=text + "if __name__ == '__main__':\n    main()\n")
    assert first(audit(tmp_path).metrics) == "Avg reward"
    settings = "from dataclasses import dataclass\n\n@dataclass\nclass LogConfig:\n"
    put(
        tmp_path,
        settings_dot_py=settings + "    log_with: str = 'wandb'\n",
        train_dot_py="import settings\n" + TRAIN,
    )
    assert first(audit(tmp_path).logging) == "wandb"


TYPER = """import gymnasium
import typer

app = typer.Typer()
data = typer.Typer()
app.add_typer(data, name="dataset")

@data.command("split")
def dataset_split(seed: int = typer.Option(42, "--seed")):
    pass

@app.command()
def train(run_dir: str = typer.Option("runs"), steps: int = 9):
    agent.learn(steps)
"""


def test_a_verb_has_options_of_its_own_and_a_group_trains_nothing(tmp_path: Path) -> None:
    put(
        tmp_path,
        pyproject_dot_toml="[project]\nname = 'a'\n[project.scripts]\ntool = 'pkg.cli:app'\n",
        pkg__cli_dot_py=TYPER,
        README_dot_md="```\ntool dataset split --seed 1\ntool train --steps 9\n```\n",
    )
    assert first(audit(tmp_path).train) == "tool train --steps 9 --run-dir {out} {parameters}"


def test_options_may_be_named_without_their_classes(tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\n\nimport gymnasium\nimport tyro\n\n@dataclass\n"
        "class Run:\n    seed: int = 0\n\n@dataclass\nclass Config:\n    run: Run\n\n"
        "def main(config: Config):\n    agent.learn(9)\n\nif __name__ == '__main__':\n"
        "    tyro.cli(main, config=(tyro.conf.OmitArgPrefixes,))\n"
    )
    put(tmp_path, train_dot_py=text)
    assert "--seed {seed}" in first(audit(tmp_path).train)
    put(tmp_path, train_dot_py=text.replace(", config=(tyro.conf.OmitArgPrefixes,)", ""))
    assert "--config.run.seed {seed}" in first(audit(tmp_path).train)


def test_a_program_may_be_told_the_function_that_it_runs(tmp_path: Path) -> None:
    put(
        tmp_path,
        pkg__cli_dot_py="import click\nimport gymnasium\n\n@click.command()\ndef run(workflow):\n"
        "    load(workflow)()\n\nif __name__ == '__main__':\n    run()\n",
        pkg__flows_dot_py="def train_and_score(env):\n    agent.learn(9)\n",
        pkg__play_dot_py="import gymnasium\n\nenv.step(read_key())\n",
        docs__usage_dot_rst="::\n\n    python -m pkg.play --fast\n"
        "    export CONFIG=cfg/cartpole.yaml\n"
        "    ./pkg/cli.py run pkg.flows.collect $CONFIG\n"
        "    ./pkg/cli.py run pkg.flows.train_and_score $CONFIG\n",
    )
    expected = "{python} pkg/cli.py run pkg.flows.train_and_score cfg/cartpole.yaml {parameters}"
    assert first(audit(tmp_path).train) == expected
    assert first(audit(tmp_path).evaluate) == "none"  # a person plays


def test_agents_that_a_function_runs_on_a_task_are_trained(tmp_path: Path) -> None:
    text = (
        "from lib.agents import QAgent\nfrom lib.run import run_agents_on\n\ndef main():\n"
        "    agent = QAgent()\n    run_agents_on([agent], mdp, episodes=9)\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    put(
        tmp_path,
        examples__a_example_dot_py=text,
        examples__b_example_dot_py=text,
        examples__show_dot_py=text,
        lib__agents_dot_py="class QAgent:\n    def act(self, state, reward):\n        return 0\n",
        lib__run_dot_py="def run_agents_on(agents, mdp, episodes):\n    pass\n",
        README_dot_md="Reinforcement learning: see *b_example.py*, with a reward per episode.\n",
    )
    assert first(audit(tmp_path).train) == "{python} examples/b_example.py"
    put(tmp_path, README_dot_md="Reinforcement learning: a reward per episode.\n")
    assert first(audit(tmp_path).train) == "{python} examples/a_example.py"


def test_demos_train_by_calling_a_training(tmp_path: Path) -> None:
    text = "import gymnasium\n\ndef main():\n    agent.load_state_dict(a)\n    train_agent(9)\n"
    text += "    evaluate_agent()\n\nif __name__ == '__main__':\n    main()\n"
    put(tmp_path, demo_ppo_dot_py=text)
    found = audit(tmp_path)
    assert first(found.train) == "{python} demo_ppo.py"
    assert first(found.evaluate) == "none"


def test_what_generates_and_evaluates_without_learning_evaluates(tmp_path: Path) -> None:
    text = "import gymnasium\n\ndef main():\n    evaluate_all(env)\n{}\n\n"
    text += "if __name__ == '__main__':\n    main()\n"
    put(tmp_path, main_generate_dot_py=text.format(""), train_dot_py=TRAIN)
    assert first(audit(tmp_path).evaluate) == "{python} main_generate.py"
    put(tmp_path, main_generate_dot_py=text.format("    loss.backward()"))
    assert first(audit(tmp_path).evaluate) == "none"


def test_a_package_may_have_been_renamed(tmp_path: Path) -> None:
    put(
        tmp_path,
        pyproject_dot_toml="[project]\nname = 'a'\n[project.scripts]\ntool = 'deepdqn.cli:run'\n",
        deepdqn__cli_dot_py="from DQN.Core.loop import main\n\ndef run():\n    main(1)\n",
        deepdqn__core__loop_dot_py="import argparse\nimport gymnasium\n\ndef main(args):\n"
        "    parser = argparse.ArgumentParser()\n    parser.add_argument('--seed')\n"
        "    for _ in range(9):\n        env.step(0)\n        loss.backward()\n",
        README_dot_md="Start with the `tool` command.\n",
    )
    assert first(audit(tmp_path).train) == "tool --seed {seed} {parameters}"
    text = "from dqn.core.loop import main\n\ndef run():\n    main(1)\n"
    put(tmp_path, deepdqn__cli_dot_py=text)  # another library, for all that one knows
    assert first(audit(tmp_path).train) == "none"


def test_the_classes_that_a_command_line_is_made_of_are_no_other_system(tmp_path: Path) -> None:
    put(
        tmp_path,
        settings_dot_py="from dataclasses import dataclass\n\n@dataclass\nclass Config:\n"
        "    seed: int = 0\n",
        train_dot_py="import tyro\nfrom settings import Config\n"
        + TRAIN
        + "    tyro.cli(Config)\n",
    )
    assert [answer.value for answer in audit(tmp_path).config] == ["tyro"]


def test_a_command_may_stand_in_an_indented_block(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=TRAIN,
        README_dot_md="Start it:\n\n    python train.py env=a \\\n        group=b\n",
    )
    assert first(audit(tmp_path).train) == "{python} train.py env=a group=b {parameters}"


STRUCTURED = """from dataclasses import dataclass, field
import sys
import gymnasium
from omegaconf import OmegaConf

@dataclass
class RewardConfig:
    alive: float = field(default=2.0)

@dataclass
class TrainingConfig:
    seed: int = field(default=1)

@dataclass
class Config:
    training: TrainingConfig
    reward: RewardConfig

def load():
    return OmegaConf.merge(OmegaConf.structured(Config), OmegaConf.from_dotlist(sys.argv[2:]))
"""


def test_settings_may_be_read_by_omegaconf_alone(tmp_path: Path) -> None:
    put(
        tmp_path,
        settings_dot_py=STRUCTURED,
        train_dot_py="from settings import load\n" + TRAIN,
        README_dot_md="```\npython train.py walk.yaml\n```\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "{python} train.py walk.yaml training.seed={seed} {parameters}"
    assert [answer.value["file"] for answer in found.reward] == ["settings.py"]


def test_what_loads_a_body_evaluates_nothing_and_inference_comes_first(tmp_path: Path) -> None:
    text = "import gymnasium\n\ndef main():\n    model = load_{0}_model(1)\n    env.step(0)\n\n"
    text += "if __name__ == '__main__':\n    main()\n"
    told = "```\npython world.py a\npython infer.py a\n```\n"
    put(tmp_path, world_dot_py=text.format("mjcf"), train_dot_py=TRAIN, README_dot_md=told)
    assert first(audit(tmp_path).evaluate) == "none"
    put(tmp_path, infer_dot_py=text.format("trained"), world_dot_py=text.format("old"))
    assert first(audit(tmp_path).evaluate).startswith("{python} infer.py")


def test_a_callback_of_another_library_logs_to_wandb(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=TRAIN + "    run(callbacks=[WandbLoggerCallback(project='a')])\n")
    assert first(audit(tmp_path).logging) == "wandb"
