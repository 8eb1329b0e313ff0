"""What the audit learnt from repositories that it had never seen, rule by rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_repositories import TRAIN, audit, code, first, put

from assay.study.repo.audit import inspect


def in_step(body: str, base: str = "") -> str:
    """Return an environment with the body of a step."""
    return (
        f"import gymnasium as gym\n\n{base}\nclass Grid(gym.Env):\n"
        "    def reset(self):\n        return 0\n\n"
        f"    def step(self, action):\n{body}"
    )


# ---------------------------------------------------------------------- rewards and ends


PAYS = """
return self.state, -1, self.near > 3, {}                                           # rt
if action: return 0, 1.0, True, {}                                                 # rt
obs, reward, done = self._move(action); return obs, reward, done, {}               # rt
obs, reward = advance(action); return obs, reward, False, {}                       # r
return dict(obs=0, reward=-abs(action), done=self.time > 9)                        # rt
return {KEYS.REWARDS: -self.far}                                                   # r
profit = self.price * action; reward = profit; return 0, reward, False, {}         # r
reward = self.profits[action].sum(); return 0, reward, False, {}                   # r
reward = self.step_score; return 0, reward, False, {}                              # r
reward = float(np.log(max(self.worth, 1) / self.before)); return 0, reward, False, {} # r
terminated = bool(self._state.get("finished", False)); return 0, 0, terminated, {}  # t
terminated = bool(self._state.get("done", False)); return 0, 0, terminated, {}      # -
if action: reward = self.goal_reward; return 0, reward, False, {}                  # r
done = bool(self._state["solved"]); return 0, 0, done, {}                          # t
if action: self.terminations = {i: True for i in self.agents}                      # t
return self.view(), reward, bool(reward)                                           # t
return 0, 0.0, False, {}                                                           # -
reward = self.last_reward; return 0, reward, bool(self.done), {}                   # -
return 0, self.total_reward, False, {}                                             # -
obs, reward, done = self.receive(); return obs, reward, done, {}                   # -
obs, reward, done, info = self.env.step(action); return obs, reward, done, info    # -
obs, reward = self.after(reward); return obs, reward, False, {}                    # -
done = self.env.is_done(); return 0, reply.reward, done, {}                        # -
reward = self.unwrapped.get_reward(); return 0, reward, False, {}                  # -
far = -norm(self.tip); reward = far; return 0, reward, False, {}                   # r
won, near = self._goal(action); reward = won; return 0, reward, False, {}          # r
if self.near > 3: self.state.set_terminal(True)                                    # t
self.state.set_terminal(other.is_terminal())                                       # -
self.state.set_terminal(False)                                                     # -
"""


@pytest.mark.parametrize("line", PAYS.strip().split("\n"))
def test_a_step_pays_and_ends_in_many_ways(tmp_path: Path, line: str) -> None:
    body, _, found = line.partition("#")
    put(tmp_path, grid_dot_py=in_step(f"        {body}\n", "def advance(a):\n    return 0, 1\n"))
    seen = audit(tmp_path)
    assert bool(seen.reward) is ("r" in found)
    assert bool(seen.termination) is ("t" in found)


def test_an_exception_may_end_an_episode(tmp_path: Path) -> None:
    body = "        try:\n            self.go()\n        except ValueError:\n"
    body += "            done = True\n        return 0, 0, done, {}\n"
    put(tmp_path, grid_dot_py=in_step(body))
    assert code(audit(tmp_path).termination) == {"grid.py": ["Grid.step"]}


def test_helpers_of_a_step_work_out_what_it_returns(tmp_path: Path) -> None:
    body = "        return self._STEP(action)\n\n    def _STEP(self, action):\n"
    body += (
        "        if action:\n            reward = self.values[action]\n            done = True\n"
    )
    put(tmp_path, one_dot_py=in_step(body + "        return 0, reward, done, {}\n"))
    body = "        return self.move(action)\n\n    def move(self, action):\n        reward = 0\n"
    body += "        reward += self.bonus\n        return 0, reward\n"
    put(tmp_path, two_dot_py=in_step(body))
    # A sum over the rewards of others is none of its own.
    put(tmp_path, three_dot_py=in_step(body.replace("self.bonus", "their_reward")))
    assert set(code(audit(tmp_path).reward)) == {"one.py", "two.py"}
    assert set(code(audit(tmp_path).termination)) == {"one.py"}


def test_a_bonus_and_a_reward_among_helpers_are_found(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=TRAIN,
        expl_dot_py="class Explore:\n    def _intr_reward(self, seq):\n"
        "        return self.scale * seq\n",
        ppo_dot_py="def regularize(reward, far):\n    kl_penalty_rewards = -0.1 * far\n"
        "    return reward + kl_penalty_rewards\n",
        utils_dot_py="def get_reward(opt, cfg):\n    return opt.near * cfg.scale\n",
    )
    assert set(code(audit(tmp_path).reward)) == {"expl.py", "ppo.py", "utils.py"}


def test_functions_named_after_rewards_are_found_by_their_names(tmp_path: Path) -> None:
    put(
        tmp_path,
        rewards__text_dot_py="def format_reward_func(prompt, action):\n    return len(prompt)\n\n"
        "def load_reward_model(path, action):\n    return read(path)\n",
        vision__shaper_dot_py="def shape_reward(env, action):\n    return 3 * look(action)\n",
        static__models_dot_py="import gym\n\nclass Pendulum:\n"
        "    def reward_fn_batch(states, actions):\n        return -states ** 2\n\n"
        "    def terminate_fn_batch(states, actions):\n        return states > 2\n",
        static__base_dot_py="class Base:\n"
        "    def terminate_fn_batch(states, actions):\n        return np.zeros(len(states))\n",
        env__terrain_dot_py="class Terrain:\n    def getreward(self):\n        return 3 * self.x\n",
    )
    seen = audit(tmp_path)
    assert code(seen.reward) == {
        "rewards/text.py": ["format_reward_func"],
        "static/models.py": ["Pendulum.reward_fn_batch"],
        "env/terrain.py": ["Terrain.getreward"],
        "vision/shaper.py": ["shape_reward"],
    }
    assert code(seen.termination) == {"static/models.py": ["Pendulum.terminate_fn_batch"]}


def test_a_wrapper_pays_and_ends_by_what_it_returns(tmp_path: Path) -> None:
    text = """
import gymnasium as gym

class Strict(gym.Wrapper):
    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if info["legal"]:
            return obs, reward, terminated, truncated, info
        return obs, self._penalty, True, truncated, info
"""
    put(tmp_path, strict_dot_py=text)
    seen = audit(tmp_path)
    assert code(seen.reward) == code(seen.termination) == {"strict.py": ["Strict.step"]}
    put(tmp_path, strict_dot_py=text.replace("self._penalty, True", "reward, terminated"))
    assert audit(tmp_path).reward == audit(tmp_path).termination == ()


def test_learners_that_change_rewards_are_reward_code(tmp_path: Path) -> None:
    put(
        tmp_path,
        hook_dot_py="import gym\n\nclass Shaping:\n    def post(self, batch):\n"
        "        batch['reward'].mul_(self.scale)\n        batch['value'].mul_(2)\n",
        rnd_dot_py="import torch\n\ndef train(env):\n"
        "    intrinsic_reward = torch.pow(guess - truth, 2).sum(-1)\n",
        other_dot_py="def train(env):\n    intrinsic_reward = rnd.pay(obs)\n",
    )
    assert code(audit(tmp_path).reward) == {"hook.py": ["Shaping.post"], "rnd.py": ["train"]}


# ---------------------------------------------------------------------- commands


def test_what_learns_from_rewards_comes_before_what_learns_from_examples(tmp_path: Path) -> None:
    put(tmp_path, pkg__bc_dot_py=TRAIN, pkg__dpo_dot_py=TRAIN, pkg__ppo_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} pkg/ppo.py"
    put(tmp_path, README_dot_md="```\npython pkg/bc.py --epochs 3\npython pkg/ppo.py --lr 1\n```\n")
    assert first(audit(tmp_path).train).startswith("{python} pkg/ppo.py --lr 1")


def test_placeholders_with_spaces_are_one_word(tmp_path: Path) -> None:
    put(
        tmp_path,
        pkg__ppo_dot_py=TRAIN,
        pkg__sft_dot_py=TRAIN,
        README_dot_md="```\ntorchrun \\\n  --nproc_per_node=<number of GPUs> \\\n"
        "  -m pkg.ppo \\\n  <args>\n```\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "{python} -m pkg.ppo"
    assert first(found.launcher) == "torchrun"


def test_a_trainer_that_is_called_trains(tmp_path: Path) -> None:
    put(
        tmp_path,
        examples_dot_py="import gymnasium as gym\nfrom pkg import DQNTrainer\n\n"
        "def CartPole():\n    env = gym.make('CartPole-v1')\n    trainer = DQNTrainer(env)\n"
        "    params = trainer(100)\n\nif __name__ == '__main__':\n    CartPole()\n",
    )
    assert first(audit(tmp_path).train) == "{python} examples.py"


def test_an_agent_that_is_tested_is_evaluated(tmp_path: Path) -> None:
    test = "import gym\n\nif __name__ == '__main__':\n    agent = Agent(gym.make('A'))\n"
    put(tmp_path, train_dot_py=TRAIN, test_model_dot_py=test + "    agent.test()\n")
    assert first(audit(tmp_path).evaluate) == "{python} test_model.py"
    put(tmp_path, test_model_dot_py=test + "    agent.show()\n")
    assert first(audit(tmp_path).evaluate) == "none"


def test_what_trains_only_among_benchmarks_is_the_answer(tmp_path: Path) -> None:
    put(tmp_path, pkg__benchmarks__trainers_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} pkg/benchmarks/trainers.py"
    put(tmp_path, pkg__train_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} pkg/train.py"


def test_a_plot_is_no_training_even_if_nothing_else_is(tmp_path: Path) -> None:
    reaches = "import gym\nfrom pkg import core\n\nif __name__ == '__main__':\n    main()\n"
    core = "def fit(env):\n    obs, reward, done, info = env.step(0)\n    loss.backward()\n"
    put(tmp_path, pkg__core_dot_py=core, plot__main_dot_py=reaches)
    put(tmp_path, README_dot_md="```\npython plot/main.py results\n```\n")
    assert first(audit(tmp_path).train) == "none"


def test_python_2_is_read(tmp_path: Path) -> None:
    put(
        tmp_path,
        main_dot_py="import gym\n\ndef main():\n    env = gym.make('A')\n    try:\n"
        "        obs, reward, done, info = env.step(0)\n    except ValueError, error:\n"
        "        print 'Total Reward: ', error\n    agent.learn(3)\n\n"
        "if __name__ == '__main__':\n    main()\n",
    )
    inspected = inspect(tmp_path)
    assert first(inspected.adapter.train) == "{python} main.py"
    assert "unreadable code" in inspected.findings[0]


def test_a_verb_may_be_named_by_keyword(tmp_path: Path) -> None:
    put(
        tmp_path,
        pyproject_dot_toml="[project.scripts]\ntool = 'pkg.cli:app'\n",
        pkg__cli_dot_py="import typer\nimport gymnasium\n\napp = typer.Typer()\n\n"
        "@app.command()\ndef train():\n    agent.learn(total=1)\n\n"
        "@app.command(name='eval')\ndef judge():\n    evaluate_policy(model)\n",
    )
    found = audit(tmp_path)
    assert first(found.train) == "tool train {parameters}"
    assert first(found.evaluate).startswith("tool eval")


def test_a_module_may_be_told_what_to_do(tmp_path: Path) -> None:
    lines = "python -m tool fetch --limit 9\npython -m tool train --env A\npython -m tool play -n 3"
    main = "import argparse\nimport gymnasium\n\n\ndef main():\n"
    main += "    parsers = argparse.ArgumentParser().add_subparsers()\n"
    main += "".join(f"    parsers.add_parser('{verb}')\n" for verb in ("fetch", "play", "train"))
    put(tmp_path, README_dot_md=f"```\n{lines}\n```\n", tool__agent_dot_py=TRAIN)
    for name, text in {"__init__": "import gymnasium\n", "__main__": main + TRAIN}.items():
        (tmp_path / "tool" / f"{name}.py").write_text(text)
    found = audit(tmp_path)
    assert first(found.train).startswith("{python} -m tool train --env A")
    assert first(found.evaluate).startswith("{python} -m tool play -n 3")


def test_a_document_may_name_a_script_by_another_directory(tmp_path: Path) -> None:
    put(tmp_path, pkg__examples__train_dqn_dot_py=TRAIN, pkg__old__copies__train_dqn_dot_py=TRAIN)
    put(tmp_path, README_dot_md="```\npython examples_v1/train_dqn.py --epoch 5\n```\n")
    assert first(audit(tmp_path).train).startswith("{python} pkg/examples/train_dqn.py --epoch 5")
    put(tmp_path, pkg__other__train_dqn_dot_py=TRAIN)  # now it could be either
    assert "--epoch" not in first(audit(tmp_path).train)


def test_comments_of_a_script_say_how_it_is_run(tmp_path: Path) -> None:
    note = "    # Train with 'python learn.py cartpole'.\n"
    put(tmp_path, learn_dot_py=TRAIN + note)
    assert first(audit(tmp_path).train) == "{python} learn.py cartpole"
    put(tmp_path, learn_dot_py=TRAIN + note.replace("learn.py", "other.py"))
    assert first(audit(tmp_path).train) == "{python} learn.py"
    put(tmp_path, learn_dot_py=TRAIN + note.replace("cartpole", '--env="a b"'))
    assert first(audit(tmp_path).train) == "{python} learn.py"  # only a part could be read


def test_loops_without_an_environment_may_train(tmp_path: Path) -> None:
    net = "def train_net(examples, reward):\n    loss.backward()\n"
    main = "from net import Net\n\nif __name__ == '__main__':\n    model.train_net(games())\n"
    put(tmp_path, net_dot_py=net, main_dot_py=main, README_dot_md="# AlphaZero for our game\n")
    assert first(audit(tmp_path).train) == "{python} main.py"
    rllib = "from ray.rllib.algorithms.ppo import PPOConfig\n\npolicy = PPOConfig().build()\n"
    put(tmp_path, main_dot_py=rllib + "for _ in range(9):\n    policy.train()\n")
    assert first(audit(tmp_path).train) == "{python} main.py"
    assert first(audit(tmp_path).metrics) == "env_runners/episode_return_mean"


def test_relative_imports_of_a_package_lead_to_its_files(tmp_path: Path) -> None:
    put(
        tmp_path,
        pkg__workers__rollout_dot_py="def rollout():\n    wandb.log({'mean_return': 1})\n",
        pkg__workers__other_dot_py="def more():\n    wandb.log({'max_return': 1})\n",
        pkg__bc_dot_py="def bc():\n    wandb.log({'eval_return': 1})\n",
        pkg__ppo_dot_py="from pkg.workers import Rollout\n" + TRAIN,
    )
    text = "from .rollout import Rollout\nfrom . import other\n"
    (tmp_path / "pkg" / "workers" / "__init__.py").write_text(text)
    names = [answer.value for answer in audit(tmp_path).metrics]
    assert names == ["mean_return", "max_return", "eval_return"]  # what training uses comes first


# ---------------------------------------------------------------------- metrics and their sinks


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("rows.append({'update': 1, 'eval_return': score})", "eval_return"),
        ("train_log['Episode Returns'].append(score)", "Episode Returns"),
        ("self._metrics[mode]['reward'].append(score)", "reward"),
        ("stats = {'returns/mean': 1, 'env/resets': 2}", "returns/mean"),
        ("print('Episode {} Reward Rate {}'.format(1, score))", "Reward Rate"),
        ("print('Mean reward: %.2f' % score)", "Mean reward"),
        ("print('Total reward:', score)", "Total reward"),
        ("print('points in the reward function:', score)", "none"),
        ("result['reward_mean'] = score\nsend(result)", "reward_mean"),
        ("batch['reward'] = score\nsend(batch)", "none"),
        (
            "values = {'score': 1}\nlog_metrics({f'eval/{k}': v for k, v in values.items()})",
            "eval/score",
        ),
        (
            "values = {'score': 1}\nnew = {'eval/' + k: v for k, v in values.items()}\n"
            "wandb.log(new)",
            "eval/score",
        ),
        ("info['Metric/episode_reward'] = score", "Metric/episode_reward"),
        ("metrics['best_mean_score'] = 1\nmetrics['mean_score'] = score", "mean_score"),
        ("parts.append({'reward': score})", "none"),  # what is kept there is not said
    ],
)  # fmt: skip
def test_metrics_have_names_in_many_places(tmp_path: Path, lines: str, name: str) -> None:
    inner = lines.replace("\n", "\n        ")
    text = TRAIN + f"\n\ndef report(score):\n    for mode in range(3):\n        {inner}\n"
    put(tmp_path, train_dot_py=text)
    assert first(audit(tmp_path).metrics) == name


def test_models_made_by_name_log_what_their_library_logs(tmp_path: Path) -> None:
    text = "import stable_baselines3\n" + TRAIN
    put(tmp_path, train_dot_py=text)
    assert first(audit(tmp_path).metrics) == "none"  # whoever learns here
    put(tmp_path, train_dot_py=text.replace("total=1", "total_timesteps=1"))
    assert first(audit(tmp_path).metrics) == "rollout/ep_rew_mean"
    put(tmp_path, train_dot_py="import gym\nfrom ray import tune\n\ntune.run('PPO', config={})\n")
    assert first(audit(tmp_path).metrics) == "episode_reward_mean"


def test_a_usage_line_is_no_command_and_a_dash_no_module(tmp_path: Path) -> None:
    usage = "```\npython my-pkg/train.py [-h] [--algo {ppo}]\n```\n"
    text = "from . import core\n" + TRAIN
    put(tmp_path, README_dot_md=usage, **{"my-pkg__train_dot_py": text})
    assert first(audit(tmp_path).train) == "{python} my-pkg/train.py"


def test_what_stands_in_brackets_may_be_left_out(tmp_path: Path) -> None:
    put(tmp_path, README_dot_md="```\npython train.py [--games 20]\n```\n", train_dot_py=TRAIN)
    assert first(audit(tmp_path).train) == "{python} train.py"


def test_what_is_off_by_default_decides_no_study(tmp_path: Path) -> None:
    text = """
import gymnasium
import tyro
from dataclasses import dataclass

@dataclass
class Args:
    save_model: bool = %s

if __name__ == "__main__":
    args = tyro.cli(Args)
    agent.learn(total=1)
    returns = []
    if returns:
        writer.add_scalar("charts/episodic_return", 1)
    if args.save_model:
        writer.add_scalar("eval/episodic_return", 1)
"""
    put(tmp_path, train_dot_py=text % "False")
    assert first(audit(tmp_path).metrics) == "charts/episodic_return"
    put(tmp_path, train_dot_py=text % "True")
    assert first(audit(tmp_path).metrics) == "eval/episodic_return"


@pytest.mark.parametrize(
    ("line", "sinks"),
    [
        ("path.write_text(json.dumps(metrics))", ["json"]),
        ("save_json(metrics, path)", ["json"]),
        ("atomic_write_csv(path, results)", ["csv"]),
        ("log_file.write('\\t'.join(scores))", ["csv"]),
        ("frame.to_csv(os.path.join(out, 'actor_loss.csv'))", ["csv"]),
        ("scores_file.write(str(episode) + ',' + str(score) + '\\n')", ["csv"]),
        ("notes_file.write(str(episode) + ',' + str(path) + '\\n')", []),
        ("save_json(config, path)", []),
        ("tqdm.write(', '.join(scores))", []),
    ],
)
def test_results_are_written_in_many_ways(tmp_path: Path, line: str, sinks: list[str]) -> None:
    put(tmp_path, train_dot_py=TRAIN + f"\n\ndef finish(out):\n    {line}\n")
    assert [answer.value for answer in audit(tmp_path).logging] == sinks


def test_a_library_prints_what_it_is_told_to(tmp_path: Path) -> None:
    text = "from stable_baselines3 import PPO\n\nif __name__ == '__main__':\n    PPO({}).learn(9)\n"
    put(tmp_path, train_dot_py=text.format("verbose=1"))
    assert first(audit(tmp_path).logging) == "stdout"
    put(tmp_path, train_dot_py=text.format("verbose=1, tensorboard_log='runs'"))
    assert [answer.value for answer in audit(tmp_path).logging] == ["tensorboard"]
    put(tmp_path, train_dot_py=text.format("verbose=0"))
    assert first(audit(tmp_path).logging) == "none"


def test_a_failed_import_and_a_main_guard_turn_no_logger_off(tmp_path: Path) -> None:
    text = """
import gymnasium
try:
    import wandb
except ImportError:
    wandb = None

def log(name="run"):
    if wandb is None:
        return
    wandb.log({"score": 1})

if __name__ == "__main__":
    agent.learn(total=1)
    log()
    writer = SummaryWriter("out")
    print(f"score: {score}")
"""
    put(tmp_path, train_dot_py=text)
    found = audit(tmp_path).logging
    assert {answer.value for answer in found} == {"wandb", "tensorboard"}
    assert all(answer.confidence > 0.9 for answer in found)


def test_what_goes_to_a_log_file_is_a_record(tmp_path: Path) -> None:
    text = TRAIN + "\n\ndef report(score):\n    for _ in range(3):\n"
    text += "        logger.info('mean score = %.2f', score)\n"
    put(tmp_path, train_dot_py=text)
    assert [answer.value for answer in audit(tmp_path).logging] == ["stdout"]
    put(tmp_path, train_dot_py="import logging\nlogging.basicConfig(filename='a.log')\n" + text)
    assert [answer.value for answer in audit(tmp_path).logging] == ["custom"]
    assert first(audit(tmp_path).metrics) == "mean score"


def test_loggers_that_settings_choose_are_offered(tmp_path: Path) -> None:
    wandb = "import wandb\n\nclass WandbLogger:\n    def log(self):\n        wandb.init()\n"
    put(tmp_path, train_dot_py=TRAIN, pkg__utils__logger_dot_py=wandb, pkg__other_dot_py=wandb)
    found = audit(tmp_path).logging
    assert [(a.value, a.evidence) for a in found] == [("wandb", ("pkg/utils/logger.py:5",))]


def test_metrics_behind_a_logger_switch_decide(tmp_path: Path) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\n"
    text += "parser.add_argument('--use_wandb', action='store_true')\nargs = parser.parse_args()\n"
    text += TRAIN + "    if args.use_wandb:\n        wandb.log({'eval/return': 1, 'return': 1})\n"
    put(tmp_path, train_dot_py=text)
    assert first(audit(tmp_path).metrics) == "eval/return"


def test_settings_may_be_a_class_of_constants_or_a_pydantic_model(tmp_path: Path) -> None:
    fields = "".join(f"    a{number} = {number}\n" for number in range(5))
    put(tmp_path, train_dot_py="class Config:\n" + fields + TRAIN)
    assert [answer.value for answer in audit(tmp_path).config] == ["custom"]
    put(tmp_path, train_dot_py="class Table:\n" + fields + TRAIN)
    assert audit(tmp_path).config == ()
    model = "from pydantic import BaseModel\n\nclass RunConfig(BaseModel):\n    lr: float = 1.0\n"
    put(tmp_path, train_dot_py=model + TRAIN)
    assert [answer.value for answer in audit(tmp_path).config] == ["custom"]


def test_what_a_listener_prints_is_a_measure(tmp_path: Path) -> None:
    listener = "class {}:\n    def done(self, event):\n"
    listener += "        print('Trial ' + str(event.trial) + ', avg reward:' + str(event.reward))\n"
    put(tmp_path, train_dot_py=listener.format("ConsoleListener") + TRAIN)
    assert first(audit(tmp_path).metrics) == "avg reward"
    put(tmp_path, train_dot_py=listener.format("Helper") + TRAIN)
    assert first(audit(tmp_path).metrics) == "none"


def test_what_shapes_rewards_is_found(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_dot_py=TRAIN,
        shaper_dot_py="class HeightRewardShaper:\n    def reshape(self, rewards, observations):\n"
        "        return [r + 3 * o for r, o in zip(rewards, observations)]\n",
        plain_dot_py="class RewardShaper:\n    def reshape(self, rewards, observations):\n"
        "        return rewards\n",
    )
    assert set(code(audit(tmp_path).reward)) == {"shaper.py"}
