"""Points for loyal customers."""

import gym

POINTS = {"silver": 1.0, "gold": 2.0}


class Wizard:
    """A form in several pages."""

    def __init__(self):
        self.page = 0

    def reset(self):
        self.page = 0

    def step(self):
        self.page += 1
        return self.page


def compute_reward(order):
    return POINTS["gold"] * order.total


def randomize_banner(banners):
    return sorted(banners, key=hash)


def member(name):
    return gym.members.make(name)
