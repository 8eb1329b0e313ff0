"""Play."""

from quadruped.utils.helpers import get_args, make_env, make_runner


def play(args):
    env, cfg = make_env(args)
    runner = make_runner(env, cfg, args)
    runner.load(cfg.runner.checkpoint)
    policy = runner.get_inference_policy()
    obs = env.get_observations()
    for _ in range(1000):
        obs, _, _rewards, _dones, _infos = env.step(policy(obs))


if __name__ == "__main__":
    play(get_args())
