"""What the scripts share."""

import argparse

from rsl_rl.runners import OnPolicyRunner

from quadruped.envs.config import TrotCfg
from quadruped.envs.quadruped import Quadruped


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="trot")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--headless", action="store_true")
    return parser.parse_args()


def make_env(args):
    return Quadruped(TrotCfg()), TrotCfg()


def make_runner(env, cfg, args):
    return OnPolicyRunner(env, vars(cfg.runner), log_dir="logs")
