"""A trotting robot."""

import torch


class Quadruped:
    """Many robots at once."""

    def __init__(self, cfg):
        self.cfg = cfg
        self.extras = {}

    def step(self, actions):
        self.actions = actions
        self.post_physics_step()
        return self.obs_buf, None, self.rew_buf, self.reset_buf, self.extras

    def post_physics_step(self):
        self.check_termination()
        self.compute_reward()
        self.reset_idx(self.reset_buf.nonzero())

    def check_termination(self):
        self.reset_buf = torch.any(self.contact_forces > 1.0, dim=1)
        self.reset_buf |= self.episode_length_buf > self.max_episode_length

    def compute_reward(self):
        self.rew_buf[:] = 0.0
        for name, function in self.reward_functions.items():
            self.rew_buf += function() * self.reward_scales[name]

    def reset_idx(self, env_ids):
        if self.cfg.terrain.curriculum:
            self._update_terrain_curriculum(env_ids)
        self.extras["episode"] = {}
        self.extras["episode"]["terrain_level"] = self.levels.mean()

    def _update_terrain_curriculum(self, env_ids):
        self.levels[env_ids] += self.distance[env_ids] > 4.0

    def _randomize_friction(self, props, env_id):
        low, high = self.cfg.domain_rand.friction_range
        props[0].friction = low + (high - low) * torch.rand(1)
        return props

    def _reward_tracking_lin_vel(self):
        error = torch.square(self.commands[:, :2] - self.base_lin_vel[:, :2]).sum(1)
        return torch.exp(-error / 0.25)

    def _reward_torques(self):
        return torch.sum(torch.square(self.torques), dim=1)

    def _reward_feet_air_time(self):
        return torch.sum((self.feet_air_time - 0.5) * self.first_contact, dim=1)
