"""PPO, which the settings name as a string."""

from torch.utils.tensorboard import SummaryWriter


class PPO:
    def learn(self):
        writer = SummaryWriter("runs")
        for step in range(100):
            rollout = self.collect()
            loss = self.loss(rollout)
            loss.backward()
            writer.add_scalar("Train/mean_reward", rollout.reward.mean(), step)

    def collect(self):
        _, reward, _, _ = self.env.step(self.act())
        return reward
