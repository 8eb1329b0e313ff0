"""The ground."""


def raise_slope(env, ids):
    env.slope[ids] += 0.1 * (env.distance[ids] > 4.0)


def draw_friction(env, ids, range):
    env.friction[ids] = env.rng.uniform(*range)
