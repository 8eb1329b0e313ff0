"""Which of the metrics of a repository decides: what the commands run, compare and sum up."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_repositories import audit, code, put

from assay.study.measure.extractors import series
from assay.study.repo.audit import inspect
from assay.study.repo.proposal import propose


def metric(root: Path) -> str:
    answers = inspect(root).adapter.metrics
    return str(answers[0].value) if answers else "none"


MAIN = "\n\nif __name__ == '__main__':\n    main()\n"
LEARN = "import gymnasium\n\nenv = gymnasium.make('A-v0')\n"


def test_what_training_runs_comes_before_what_it_only_imports(tmp_path: Path) -> None:
    algorithm = "class {0}:\n    def learn(self, steps):\n        logger.logkv('{1}', 1.0)\n"
    put(
        tmp_path,
        lib__all_dot_py="from lib.a import A\nfrom lib.b import B\n",
        lib__a_dot_py=algorithm.format("A", "mean_return"),
        lib__b_dot_py=algorithm.format("B", "eval/return"),
        train_dot_py=LEARN + "from lib.all import A\n\ndef main():\n    A(env).learn(9)\n" + MAIN,
    )
    assert metric(tmp_path) == "mean_return"


def test_methods_of_a_base_class_run_with_what_inherits_them(tmp_path: Path) -> None:
    put(
        tmp_path,
        base_dot_py="class Base:\n    def learn(self):\n        self.note()\n\n"
        "    def note(self):\n        log.logkv('mean_return', 1.0)\n\n"
        "    def other(self):\n        log.logkv('eval/mean_return', 1.0)\n",
        agent_dot_py="from base import Base\n\nclass Agent(Base):\n    pass\n",
        train_dot_py=LEARN + "from agent import Agent\n\ndef main():\n    Agent().learn()\n" + MAIN,
    )
    assert metric(tmp_path) == "mean_return"


def test_another_library_calls_the_methods_that_override_its_own(tmp_path: Path) -> None:
    put(
        tmp_path,
        agent_dot_py="from other import Trainer\n\nclass Agent(Trainer):\n"
        "    def on_epoch_end(self):\n        log.logkv('eval/return', 1.0)\n",
        train_dot_py=LEARN
        + "from agent import Agent\n\ndef main():\n    log.logkv('return', 1.0)\n"
        + "    Agent().learn()\n"
        + MAIN,
    )
    assert metric(tmp_path) == "eval/return"


def test_the_main_of_another_file_is_far_away(tmp_path: Path) -> None:
    put(
        tmp_path,
        tools_dot_py="def helper():\n    pass\n\nif __name__ == '__main__':\n"
        "    for r in env.rewards:\n        print(f'Reward: {r}')\n",
        other_dot_py="import gymnasium\n\ndef evaluate(env):\n"
        "    log.logkv('evaluation_reward', 1.0)\n",
        train_dot_py=LEARN
        + "import tools\n\ndef main():\n    tools.helper()\n    agent.learn(9)\n"
        + MAIN,
    )
    assert metric(tmp_path) == "evaluation_reward"


def test_a_library_that_one_function_compares_with_logs_nothing(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=LEARN + "class PPO:\n    def learn(self):\n"
        "        for i in range(9):\n            print('rewards:', i)\n\n"
        "def compare(env):\n    from stable_baselines3 import PPO\n"
        "    PPO('MlpPolicy', env).learn(total_timesteps=9)\n\n"
        "def main():\n    PPO().learn()\n" + MAIN,
    )
    assert metric(tmp_path) == "rewards"


LOOP = "def main():\n    for step in range(9):\n        agent.learn(env)\n"
DECIDES = {
    "mean_score": "        result = evaluate(env)\n"
    "        if result['mean_score'] > best:\n            best = result['mean_score']\n".replace(
        "best", "best_score"
    ),
    "mean_return": "        stats = agent.step()\n        stats['mean_return'] = agent.mean\n",
    "val/reward": "        log_all(phase='val')\n\ndef log_all(phase):\n"
    "    writer.add_scalar(f'{phase}/reward', 1.0)\n",
    "eval/return": "        suffix = '' if step else '_std'\n"
    "        writer.add_scalar(f'eval/return{suffix}', 1.0)\n",
    "eval/episode_reward": "        metrics['reward'] = 1.0\n"
    "        for name, value in agent.summed.items():\n"
    "            metrics[f'eval/episode_{name}'] = value\n",
    "ELO": "        print(f'ELO: {agent.elo}')\n",
    "win rate": "        print(f'win rate: {agent.wins}')\n",
}


@pytest.mark.parametrize("name", DECIDES)
def test_what_decides_has_many_names(tmp_path: Path, name: str) -> None:
    put(tmp_path, train_dot_py=LEARN + LOOP + DECIDES[name] + MAIN)
    assert metric(tmp_path) == name


@pytest.mark.parametrize(("end", "last"), [("nan", math.nan), ("-inf", -math.inf), ("7.5", 7.5)])
def test_what_is_printed_as_no_number_is_read_as_such(
    tmp_path: Path, end: str, last: float
) -> None:
    put(tmp_path, train_dot_py=LEARN + LOOP + DECIDES["win rate"] + MAIN)
    source = propose(inspect(tmp_path).adapter).metrics[0].source
    assert source is not None and source.kind == "stdout"
    # Words that only begin like one are no numbers.
    (tmp_path / "stdout.log").write_text(f"win rate info\nwin rate: 0.25\nwin rate: {end}\n")
    points = series(source, tmp_path, tmp_path / "stdout.log")
    assert [value for _, value in points] == pytest.approx([0.25, last], nan_ok=True)


def test_what_an_evaluation_returns_comes_before_what_training_collects(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=LEARN
        + "def evaluate(env):\n    return {'mean_reward': 1.0}\n\n"
        + LOOP
        + "        history['episode_reward'].append(1.0)\n    print(evaluate(env))\n"
        + MAIN,
    )
    assert metric(tmp_path) == "mean_reward"


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("from tianshou.trainer import offpolicy_trainer as run\n", "test/reward"),
        ("from stable_baselines import PPO2 as run\n", "ep_reward_mean"),
    ],
)
def test_older_libraries_log_by_themselves(tmp_path: Path, made: str, name: str) -> None:
    put(tmp_path, train_dot_py=LEARN + made + "\ndef main():\n    run(env).learn(9)\n" + MAIN)
    assert metric(tmp_path) == name


def test_rewards_of_models_files_and_other_names(tmp_path: Path) -> None:
    step = (
        "    def step(self, action):\n        received_reward = self.table[action] * 2\n"
        "        return 0, received_reward, False, {}\n"
    )
    put(
        tmp_path,
        train_dot_py=LEARN + "def main():\n    agent.learn(9)\n" + MAIN,
        contrast_dot_py="class Contrast(RewardModel):\n    def forward(self, images):\n"
        "        return images.std() * 2\n",
        guess_dot_py="class RewardModel(Module):\n    def forward(self, x):\n"
        "        return self.net(x) * 2\n",
        pay__multi_reward_dot_py="def compute(*, before, after):\n    return after - before\n",
        world_dot_py="import gymnasium as gym\n\nclass World(gym.Env):\n"
        "    def reset(self):\n        return 0\n\n" + step,
        other_dot_py="import gymnasium as gym\nfrom world import compute_reward\n\n"
        "class Other(gym.Env):\n    def reset(self):\n        return 0\n\n"
        "    def step(self, action):\n        reward = compute_reward(action)\n"
        "        return 0, reward, False, {}\n\n"
        "    def get_reward(self, action):\n        return compute_reward(action)\n",
    )
    found = set(code(audit(tmp_path).reward))
    assert found == {"contrast.py", "pay/multi_reward.py", "world.py"}


def test_a_class_that_is_registered_without_a_call_may_run(tmp_path: Path) -> None:
    put(
        tmp_path,
        lib__agent_dot_py="from lib.names import registry\n\n@registry.register\nclass PPO:\n"
        "    def learn(self):\n        log.logkv('Metrics/EpRet', 1.0)\n",
        lib__other_dot_py="class Other:\n    def learn(self):\n"
        "        log.logkv('eval/ret', 1.0)\n",
        train_dot_py=LEARN + "import lib.agent\nimport lib.other\n\n"
        "def main():\n    registry.get('PPO')().learn()\n" + MAIN,
    )
    assert metric(tmp_path) == "Metrics/EpRet"


def test_what_a_logger_says_in_words_is_printed(tmp_path: Path) -> None:
    said = "        log.debug('Avg episode reward: %r', rewards)\n"
    said += "        log.debug('Initial rewards mutation for policy %d', 3)\n"
    put(tmp_path, train_dot_py=LEARN + LOOP + said + MAIN)
    assert metric(tmp_path) == "Avg episode reward"


def test_what_the_best_weights_are_kept_by_decides(tmp_path: Path) -> None:
    kept = "        metrics = score(env)\n        log.info(metrics)\n"
    kept += "        if metrics['mean_jaccard'] > best:\n            save()\n"
    score = "def score(env):\n    return {'mean_jaccard': 1.0, 'success_rate': 1.0}\n\n"
    text = score + LOOP + kept.replace("best", "best_jaccard")
    put(tmp_path, train_dot_py=LEARN + text + MAIN)
    assert metric(tmp_path) == "mean_jaccard"
    # What is logged as a return is surer.
    logged = "        writer.add_scalar('eval/return', 1.0)\n"
    put(tmp_path, train_dot_py=LEARN + text + logged + MAIN)
    assert metric(tmp_path) == "eval/return"


def test_the_score_of_one_sample_is_no_metric(tmp_path: Path) -> None:
    dumped = "        file.write(json.dumps({'prompt': p, 'score': s}) + '\\n')\n"
    put(
        tmp_path,
        scoring_dot_py="import json\n\ndef evaluate(file):\n    for s in scores:\n" + dumped
        + "    return {'eval/all/avg_score': 1.0}\n",
        train_dot_py=LEARN + "from scoring import evaluate\n\n" + LOOP
        + "        stats = evaluate(file)\n        tracker.log(stats)\n" + MAIN,
    )  # fmt: skip
    assert metric(tmp_path) == "eval/all/avg_score"


def test_functions_of_a_library_log_by_themselves(tmp_path: Path) -> None:
    text = LEARN + "from baselines.{0} import {0}\n\ndef main():\n    {0}.learn(env=env)\n" + MAIN
    put(tmp_path, train_dot_py=text.format("ppo2"))
    assert metric(tmp_path) == "eprewmean"
    put(tmp_path, train_dot_py=text.format("deepq"))
    assert metric(tmp_path) == "mean 100 episode reward"
