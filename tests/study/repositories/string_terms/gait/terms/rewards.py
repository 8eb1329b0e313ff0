"""What is paid."""


def upright(env):
    return 1.0 - env.tilt.abs()


class FootSlip:
    def __init__(self, cfg, env):
        self.threshold = cfg.threshold

    def __call__(self, env):
        return (env.foot_speed * (env.foot_force > self.threshold)).sum()
