"""Train."""

from quadruped.utils.helpers import get_args, make_env, make_runner


def train(args):
    env, cfg = make_env(args)
    runner = make_runner(env, cfg, args)
    runner.learn(num_learning_iterations=cfg.runner.max_iterations)


if __name__ == "__main__":
    train(get_args())
