"""The audit's commands can go into a contract, whatever the script is configured with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_repositories import put

from assay.study.files.contract import Baseline, MetricSource
from assay.study.repo.audit import inspect
from assay.study.repo.proposal import Proposal, propose

LEARN = "import gymnasium\n{imports}\n{body}\nif __name__ == '__main__':\n    {main}\n"


def script(imports: str, body: str, main: str = "main()") -> str:
    return LEARN.format(imports=imports, body=body, main=main)


def proposal(root: Path) -> Proposal:
    return propose(inspect(root).adapter)


def command(root: Path, kind: str = "train") -> str:
    found = getattr(proposal(root), kind)
    return " ".join(found.command) if found else "none"


def parameters(root: Path) -> dict[str, tuple[str, Any]]:
    return {item.name: (item.kind, item.default) for item in proposal(root).parameters}


ARGPARSE = script(
    "import argparse",
    "def main():\n"
    "    parser = argparse.ArgumentParser()\n"
    "    parser.add_argument('-s', '--random_seed', type=int, default=3)\n"
    "    parser.add_argument('--log-dir', default='runs')\n"
    "    parser.add_argument('--lr', type=float, default=3e-4)\n"
    "    parser.add_argument('--algo', choices=['ppo', 'sac'], default='ppo')\n"
    "    parser.add_argument('--render', action='store_true')\n"
    "    agent.learn(parser.parse_args())\n",
)


def test_options_become_placeholders_and_parameters(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=ARGPARSE)
    found = proposal(tmp_path)
    assert found.train is not None
    assert found.train.command == (
        "{python}", "train.py", "--random_seed", "{seed}", "--log-dir", "{out}", "{parameters}",
    )  # fmt: skip
    assert found.train.placeholders["seed"] == "--random_seed, declared at train.py:5"
    assert found.train.placeholders["out"] == "--log-dir, declared at train.py:6"
    assert found.train.parameter_format == "--{name}={value}"
    assert parameters(tmp_path) == {"lr": ("float", 3e-4), "algo": ("choice", "ppo")}
    Baseline(command=found.train.command)


def test_what_a_document_fills_in_is_replaced_and_times_go(tmp_path: Path) -> None:
    readme = "```\npython train.py --random_seed 4 --log-dir logs/$(date +%F-%H) --algo sac\n```\n"
    put(tmp_path, train_dot_py=ARGPARSE, README_dot_md=readme)
    expected = "{python} train.py --random_seed {seed} --log-dir {out} --algo sac {parameters}"
    assert command(tmp_path) == expected
    found = proposal(tmp_path).train
    assert found is not None and found.placeholders["seed"].endswith("documented at README.md:2")
    put(tmp_path, README_dot_md="```\npython train.py --log-dir runs/20240102_101500/a\n```\n")
    assert command(tmp_path) == (
        "{python} train.py --log-dir {out} --random_seed {seed} {parameters}"
    )
    put(tmp_path, README_dot_md="```\npython train.py --kwargs '{\"a\": 1}'\n```\n")
    assert '{{"a": 1}}' in command(tmp_path)


def test_a_script_that_takes_nothing_says_so(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=script("", "def main():\n    agent.learn(1)\n"))
    found = proposal(tmp_path).train
    assert found is not None and found.command == ("{python}", "train.py")
    assert {name: text[:5] for name, text in found.placeholders.items() if name != "python"} == {
        "seed": "none:", "out": "none:", "parameters": "none:",
    }  # fmt: skip


HYDRA = script(
    "import hydra",
    "@hydra.main(config_path='../conf', config_name='config')\n"
    "def main(cfg):\n    trainer.train(cfg)\n",
)


def test_hydra_composes_its_config(tmp_path: Path) -> None:
    put(
        tmp_path,
        scripts__train_dot_py=HYDRA,
        conf__config_dot_yaml="defaults:\n  - task: ant\n  - _self_\nexperiment:\n  seed: 1\n",
        conf__task__ant_dot_yaml="lr: 1e-3\nname: ant\n",
        conf__task__walker_dot_yaml="lr: 1e-4\n",
        README_dot_md="```bash\npython scripts/train.py task=walker\n```\n",
    )
    assert command(tmp_path) == (
        "{python} scripts/train.py task=walker experiment.seed={seed} hydra.run.dir={out} "
        "{parameters}"
    )
    assert parameters(tmp_path) == {"task.lr": ("float", 1e-3), "task.name": ("str", "ant")}
    put(tmp_path, conf__config_dot_yaml="seed: 1\nlog_dir: logs\n")
    put(tmp_path, README_dot_md="```\npython scripts/train.py -m task=ant,walker +seed=1,2\n```\n")
    assert command(tmp_path) == (
        "{python} scripts/train.py task=ant +seed={seed} log_dir={out} {parameters}"
    )


TYRO = script(
    "import tyro\nfrom settings import Args",
    "def main(args: Args):\n    runner.learn(args)\n",
    "tyro.cli(main)",
)
SETTINGS = (
    "from dataclasses import dataclass, field\n\n@dataclass\nclass Adam:\n    lr: float = 1e-3\n\n"
    "@dataclass\nclass Args:\n    seed: int = 0\n    output_dir: str = 'out'\n"
    "    optimizer: Adam = field(default_factory=Adam)\n"
)


def test_fields_of_a_dataclass_elsewhere_are_options(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=TYRO, settings_dot_py=SETTINGS)
    assert command(tmp_path) == (
        "{python} train.py --args.seed {seed} --args.output_dir {out} {parameters}"
    )
    assert parameters(tmp_path) == {"args.optimizer.lr": ("float", 1e-3)}
    wrapped = TYRO.replace("import tyro", "import draccus").replace("tyro.cli(main)", "main()")
    put(tmp_path, train_dot_py=wrapped.replace("def main", "@draccus.wrap()\ndef main"))
    assert command(tmp_path) == "{python} train.py --seed {seed} --output_dir {out} {parameters}"
    parsed = TYRO.replace("import tyro", "import simple_parsing")
    put(tmp_path, train_dot_py=parsed.replace("tyro.cli(main)", "main(simple_parsing.parse(Args))"))
    assert command(tmp_path) == "{python} train.py --seed {seed} --output_dir {out} {parameters}"


@pytest.mark.parametrize(
    ("imports", "head", "main"),
    [
        ("from jsonargparse import CLI", "", "CLI(main)"),
        ("import fire", "", "fire.Fire(main)"),
        ("import typer\napp = typer.Typer()", "@app.command()\n", "app()"),
        (
            "import click",
            "@click.command()\n@click.option('--seed', type=int)\n@click.option('--logdir')\n",
            "main()",
        ),
    ],
)
def test_functions_as_command_lines(tmp_path: Path, imports: str, head: str, main: str) -> None:
    body = f"{head}def main(seed: int = 0, logdir: str = 'x'):\n    agent.learn(seed)\n"
    put(tmp_path, train_dot_py=script(imports, body, main))
    assert command(tmp_path) == "{python} train.py --seed {seed} --logdir {out} {parameters}"
    assert [answer.value for answer in inspect(tmp_path).adapter.config] == ["custom"]


def test_flags_and_a_config_in_python(tmp_path: Path) -> None:
    flags = script(
        "from absl import app, flags\nfrom ml_collections import config_flags",
        "flags.DEFINE_string('save_dir', './tmp/', 'Where.')\n"
        "config_flags.DEFINE_config_file('config', 'configs/sac.py')\n"
        "def main(_):\n    agent.learn(1)\n",
        "app.run(main)",
    )
    put(tmp_path, train_dot_py=flags, configs__sac_dot_py="config.seed = 4\nconfig.lr = 0.1\n")
    assert command(tmp_path) == (
        "{python} train.py --config.seed {seed} --save_dir {out} {parameters}"
    )
    flagged = flags.replace(
        "DEFINE_string('s", "DEFINE_integer('seed', 1, '')\nflags.DEFINE_string('s"
    )
    put(tmp_path, train_dot_py=flagged)
    assert command(tmp_path) == "{python} train.py --seed {seed} --save_dir {out} {parameters}"


# ---------------------------------------------------------------------- evaluation


PLAY = script(
    "import argparse, torch",
    "def main():\n"
    "    parser = argparse.ArgumentParser()\n"
    "    parser.add_argument('--checkpoint')\n"
    "    parser.add_argument('--num-episodes', type=int, default=10)\n"
    "    policy = torch.load(parser.parse_args().checkpoint)\n"
    "    policy.train(False)\n"
    "    obs, reward, done, info = env.step(policy(0))\n",
)


def test_what_only_runs_a_trained_policy_evaluates(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=ARGPARSE, run_policy_dot_py=PLAY)
    assert command(tmp_path, "evaluate") == (
        "{python} run_policy.py --checkpoint {out} --num-episodes {episodes}"
    )
    assert len(inspect(tmp_path).adapter.train) == 1
    (tmp_path / "run_policy.py").rename(tmp_path / "test_policy.py")
    readme = "```\npython test_policy.py --checkpoint runs/2024-01-02/best.pt\n```\n"
    put(tmp_path, README_dot_md=readme)
    assert command(tmp_path, "evaluate") == (
        "{python} test_policy.py --checkpoint {out}/best.pt --num-episodes {episodes}"
    )


def test_a_training_script_may_have_a_switch(tmp_path: Path) -> None:
    option = "    parser.add_argument('--eval-only', action='store_true')\n    agent"
    put(tmp_path, train_dot_py=ARGPARSE.replace("    agent", option))
    assert "train.py --eval-only" in command(tmp_path, "evaluate")
    # One that evaluates on the way does not.
    during = option.replace("true')", "true', help='Evaluate during training.')")
    put(tmp_path, train_dot_py=ARGPARSE.replace("    agent", during))
    assert command(tmp_path, "evaluate") == "none"


# ---------------------------------------------------------------------- logging and metrics

LOGGERS = script(
    "import argparse, wandb\nfrom torch.utils.tensorboard import SummaryWriter",
    "def main():\n"
    "    parser = argparse.ArgumentParser()\n"
    "    parser.add_argument('--track', action='store_true')\n"
    "    args = parser.parse_args()\n"
    "    if args.track:\n        wandb.init()\n"
    "    writer = SummaryWriter('runs')\n"
    "    agent.learn(1)\n"
    "    writer.add_scalar('train/reward', 1)\n",
)


def test_the_logger_that_is_on_by_default_comes_first(tmp_path: Path) -> None:
    put(tmp_path, train_dot_py=LOGGERS)
    loggers = [answer.value for answer in inspect(tmp_path).adapter.logging]
    assert loggers == ["tensorboard", "wandb"]
    text = LOGGERS.replace("'--track', action='store_true'", "'--logger', default='wandb'")
    text = text.replace("args.track:", "args.logger == 'wandb':")
    text = text.replace("    writer =", "    if args.logger == 'tb':\n        writer =")
    put(tmp_path, train_dot_py=text)
    assert inspect(tmp_path).adapter.logging[0].value == "wandb"


def test_metrics_that_helpers_write(tmp_path: Path) -> None:
    text = LOGGERS.replace(
        "    writer.add_scalar('train/reward', 1)\n",
        "    note(writer, 'success_rate', 1, prefix='eval')\n    keep({'eval/length': 3})\n\n"
        "def note(writer, name, value, prefix):\n"
        "    writer.add_scalar('eval/' + name, value)\n\n"
        "def keep(numbers):\n    for key, value in numbers.items():\n"
        "        wandb.log({'train/reward': 2})\n        writer.add_scalar(key, value)\n",
    )
    put(tmp_path, train_dot_py=text)
    found = proposal(tmp_path).metrics
    assert [metric.name for metric in found] == ["eval/success_rate", "train/reward", "eval/length"]
    assert found[0].source == MetricSource(
        kind="tensorboard", path="**/events.out.tfevents.*", key="eval/success_rate"
    )
    assert [metric.training_reward for metric in found] == [False, True, False]
    assert all(metric.outcome for metric in found)
    put(tmp_path, train_dot_py=LOGGERS.replace("train/reward", "charts/episodic_return"))
    assert [metric.training_reward for metric in proposal(tmp_path).metrics] == [True]
    put(tmp_path, train_dot_py=LOGGERS.replace("train/reward", "losses/value"))
    assert [metric.outcome for metric in proposal(tmp_path).metrics] == [False]


PLAIN = '''
"""Q-learning on a line, with nothing but the standard library."""
import argparse
import csv
from reward import reward

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results")
    args = parser.parse_args()
    with open(args.out + "/scores.csv", "w") as file:
        writer = csv.writer(file)
        writer.writerow(["episode", "return"])
        for episode in range(100):
            state, done, total = 0, False, 0.0
            while not done:
                action = policy(state)
                state = state + action
                total += reward(state)
                done = abs(state) > 10
            writer.writerow([episode, total])

if __name__ == "__main__":
    main()
'''


def test_a_plain_script_without_any_library_is_answered(tmp_path: Path) -> None:
    put(
        tmp_path,
        learn_line_dot_py=PLAIN,
        reward_dot_py="def reward(position):\n    return -abs(position - 3.0)\n",
        README_dot_md="# Line\nReinforcement learning.\n```\npython learn_line.py --seed 1\n```\n",
    )
    inspected = inspect(tmp_path)
    found = inspected.adapter
    assert command(tmp_path) == "{python} learn_line.py --seed {seed} --out {out} {parameters}"
    assert [answer.value for answer in found.config] == ["argparse"]
    assert [answer.value for answer in found.logging] == ["csv"]
    assert found.metrics[0].value == "return"
    assert [answer.value["file"] for answer in found.reward] == ["reward.py"]
    assert [answer.value for answer in found.launcher] == ["local"]
    assert not inspected.findings


# ---------------------------------------------------------------------- code of the task


def test_storage_and_shuffling_are_not_the_task(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=ARGPARSE,
        replay_dot_py="class ReplayBuffer:\n    def is_done(self, state):\n"
        "        return state > self.size\n\n    def randomize_order(self, env):\n"
        "        return sorted(self.items, key=hash)\n",
        data_dot_py="def randomize_split(data):\n    return shuffle(data)\n\n"
        "def get_done(batch, info):\n    return batch['done'] * 1.0\n",
        envs__ant_dot_py="def randomize_friction(env, env_ids):\n"
        "    env.friction[env_ids] = sample(0.5, 1.5)\n",
    )
    found = inspect(tmp_path).adapter
    assert found.termination == ()
    assert [answer.value["file"] for answer in found.randomization] == ["envs/ant.py"]


def test_classes_of_randomisation_by_their_names(tmp_path: Path) -> None:
    config = (
        "class AntCfg:\n    class rewards:\n        alive = 1.0\n"
        "    class domain_rand_heavy:\n        friction_range = [0.5, 1.5]\n\n"
        "class DomainRandCfg:\n    push_interval = 8\n"
    )
    put(tmp_path, train_dot_py=ARGPARSE, config_dot_py=config)
    (answer,) = inspect(tmp_path).adapter.randomization
    assert answer.value["names"] == ["AntCfg.domain_rand_heavy", "DomainRandCfg"]


# ---------------------------------------------------------------------- what real repositories do


def test_what_turns_training_on_is_given(tmp_path: Path) -> None:
    modes = ARGPARSE.replace(
        "    agent.learn(parser.parse_args())\n",
        "    parser.add_argument('--mode', default='download')\n"
        "    args = parser.parse_args()\n    if args.mode == 'train':\n        agent.learn(args)\n",
    )
    put(tmp_path, main_dot_py=modes)
    assert "main.py --mode train " in command(tmp_path)
    flag = ARGPARSE.replace("'--render'", "'--train'")
    put(tmp_path, main_dot_py=flag)
    assert "main.py --train " in command(tmp_path)
    put(tmp_path, main_dot_py=modes.replace("'download'", "'train'"))
    assert "--mode" not in command(tmp_path)


def test_a_setting_that_is_compared_may_switch_to_evaluation(tmp_path: Path) -> None:
    own = script(
        "from flags import Flags",
        "def main():\n    config = Flags('configs.yaml').parse()\n"
        "    if config.script == 'train':\n        agent.learn(config)\n"
        "    elif config.script == 'eval_only':\n        evaluate(config)\n",
    )
    put(
        tmp_path,
        train_dot_py=own,
        configs_dot_yaml="defaults:\n  seed: 0\n  logdir: logs\n  run: {script: train}\n",
        README_dot_md="```\npython train.py --logdir ~/logs/$(date +%F) --task walk\n```\n",
    )
    assert command(tmp_path) == (
        "{python} train.py --logdir {out} --task walk --seed {seed} {parameters}"
    )
    assert "--run.script eval_only" in command(tmp_path, "evaluate")


def test_a_number_of_seeds_is_no_seed(tmp_path: Path) -> None:
    text = ARGPARSE.replace("'-s', '--random_seed'", "'--num-seeds'")
    put(tmp_path, train_dot_py=text)
    assert "{seed}" not in command(tmp_path)
    put(tmp_path, train_dot_py=text.replace("--num-seeds", "--seed_id"))
    assert "--seed_id {seed}" in command(tmp_path)


def test_tests_and_games_are_no_evaluation(tmp_path: Path) -> None:
    test = script(
        "from absl.testing import absltest",
        "class T(absltest.TestCase):\n    def testTrain(self):\n        agent.learn(1)\n",
        "absltest.main()",
    )
    play = script("", "def main():\n    obs, reward, done, info = env.step(input())\n")
    put(tmp_path, train_dot_py=ARGPARSE, train_test_dot_py=test, play_dot_py=play)
    found = inspect(tmp_path).adapter
    assert [answer.evidence[0].partition(":")[0] for answer in found.train] == ["train.py"]
    assert found.evaluate == ()


def test_a_program_without_a_telling_name_trains_if_no_other_does(tmp_path: Path) -> None:
    project = '[project]\nname = "x"\n[project.scripts]\ncoach = "pkg.coach:main"\n'
    coach = (
        "import argparse\nfrom pkg.loop import improve\n\n\ndef main():\n"
        "    parser = argparse.ArgumentParser()\n    parser.add_argument('--seed')\n    improve()\n"
    )
    loop = "import gymnasium\n\n\ndef improve():\n    env.step(1)\n    loss.backward()\n"
    put(
        tmp_path,
        pyproject_dot_toml=project,
        pkg__coach_dot_py=coach,
        pkg__loop_dot_py=loop,
        README_dot_md="```\ncoach -p CartPole_DQN\n```\n",
    )
    assert command(tmp_path) == "coach -p CartPole_DQN --seed {seed} {parameters}"
    put(tmp_path, train_dot_py=ARGPARSE)
    assert "train.py" in command(tmp_path)


ENV = """
import dm_env
import gymnasium as gym


class Env(gym.Env):
    def reset(self):
        return 0

    def step(self, action):
        reward = {reward}
        return {end}
"""


def test_rewards_that_stand_elsewhere_and_ends_that_are_returned(tmp_path: Path) -> None:
    asked = ENV.format(reward="self.reward_fn(action)", end="0, reward, False, False, {}")
    ended = ENV.format(reward="1.0 - action", end="dm_env.termination(reward=reward)")
    handed = (
        "class Bridge:\n    def step(self, action):\n        return 0\n\n    def reset(self):\n"
        "        return 0\n\n    def get_reward(self):\n        return self.env.task.reward()[0]\n"
    )
    term = (
        "class Fallen(Condition):\n    def _step(self, task, env, action):\n"
        "        return env.height < 0.3\n"
    )
    put(tmp_path, envs__asked_dot_py=asked, envs__ended_dot_py=ended, envs__bridge_dot_py=handed)
    put(tmp_path, termination_conditions__fallen_dot_py=term)
    found = inspect(tmp_path).adapter
    assert [answer.value["file"] for answer in found.reward] == ["envs/ended.py"]
    assert {answer.value["file"] for answer in found.termination} == {
        "envs/ended.py", "termination_conditions/fallen.py",
    }  # fmt: skip


def test_prints_beside_a_record_are_for_people(tmp_path: Path) -> None:
    printed = LOGGERS.replace("1)\n", "1)\n    for _ in range(3):\n        print(f'return: {x}')\n")
    put(tmp_path, train_dot_py=printed)
    assert "stdout" not in [answer.value for answer in inspect(tmp_path).adapter.logging]
    put(tmp_path, train_dot_py=printed.replace("writer = SummaryWriter('runs')", "pass"))
    assert inspect(tmp_path).adapter.logging[0].value == "stdout"
