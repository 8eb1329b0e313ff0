"""The game of snake."""


class SnakeEnv:
    """Eat, and do not hit the wall."""

    def __init__(self, seed):
        self.head = 0

    def reset(self):
        self.head = 0
        return self.head

    def step(self, action):
        self.head += 1 if action else -1
        reward, done = 0.0, False
        if self.head == 5:
            reward = 1.0
        if abs(self.head) > 5:
            reward = -1.0
            done = True
        return self.head, reward, done, {}
