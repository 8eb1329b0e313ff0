"""What ends an episode."""


def fallen(env):
    return env.height < 0.4


def left_the_ground(env, height):
    return env.height > height
