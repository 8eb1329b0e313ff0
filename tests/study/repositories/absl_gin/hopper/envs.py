"""A hopper as pure functions."""

import gin
import jax
from jax import numpy as jnp


@gin.configurable
class Hopper:
    """Hop forward."""

    def __init__(self, forward_weight: float = 1.0) -> None:
        self.forward_weight = forward_weight

    def reset(self, rng):
        return State(jnp.zeros(6), jnp.zeros(()), jnp.zeros(()))

    def step(self, state, action):
        obs = state.obs.at[0].add(action[0])
        forward = self.forward_weight * (obs[0] - state.obs[0])
        reward = forward - 0.001 * jnp.sum(jnp.square(action))
        done = jnp.where(obs[1] < 0.7, 1.0, 0.0)
        return state.replace(obs=obs, reward=reward, done=done)


@jax.tree_util.register_pytree_node_class
class State:
    """What a step carries on."""

    def __init__(self, obs, reward, done) -> None:
        self.obs, self.reward, self.done = obs, reward, done

    def tree_flatten(self):
        return (self.obs, self.reward, self.done), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)
