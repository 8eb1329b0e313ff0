"""Evaluate the hopper."""

import jax
from absl import app, flags

from hopper.envs import Hopper

FLAGS = flags.FLAGS
flags.DEFINE_string("checkpoint", None, "Where the parameters are.")
flags.DEFINE_integer("episodes", 10, "How many.")


def main(argv) -> None:
    env = Hopper()
    params = jax.numpy.load(FLAGS.checkpoint)
    state = env.reset(jax.random.PRNGKey(0))
    for _ in range(FLAGS.episodes):
        state = env.step(state, params)


if __name__ == "__main__":
    app.run(main)
