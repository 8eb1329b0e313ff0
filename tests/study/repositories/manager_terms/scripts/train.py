"""Train with RSL-RL."""

import argparse

from isaaclab.app import AppLauncher

parser = argparse.ArgumentParser()
parser.add_argument("--task")
parser.add_argument("--seed", type=int, default=None)
AppLauncher.add_app_launcher_args(parser)
args, hydra_args = parser.parse_known_args()
app = AppLauncher(args).app

import gymnasium as gym  # noqa: E402
from isaaclab_tasks.utils.hydra import hydra_task_config  # noqa: E402
from rsl_rl.runners import OnPolicyRunner  # noqa: E402


@hydra_task_config(args.task, "rsl_rl_cfg_entry_point")
def main(env_cfg, agent_cfg):
    env = gym.make(args.task, cfg=env_cfg)
    runner = OnPolicyRunner(env, agent_cfg.to_dict(), log_dir="logs")
    runner.learn(num_learning_iterations=agent_cfg.max_iterations)


if __name__ == "__main__":
    main()
