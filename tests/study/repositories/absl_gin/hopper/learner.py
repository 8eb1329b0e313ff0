"""Evolution strategies on a hopper."""

import json

import gin
import jax
from absl import app, flags

from hopper.envs import Hopper

FLAGS = flags.FLAGS
flags.DEFINE_string("gin_file", None, "Settings.")
flags.DEFINE_integer("seed", 0, "Seed.")


@gin.configurable
def train(seed: int, steps: int = 100, learning_rate: float = 0.01) -> None:
    env = Hopper()
    params = jax.numpy.zeros(3)
    state = env.reset(jax.random.PRNGKey(seed))
    with open("progress.jsonl", "a") as file:
        for step in range(steps):
            loss, gradient = jax.value_and_grad(lambda p: env.step(state, p).reward)(params)
            params = params + learning_rate * gradient
            row = {"step": step, "mean_return": float(loss), "fall_rate": float(state.done)}
            file.write(json.dumps(row) + "\n")


def main(argv) -> None:
    gin.parse_config_file(FLAGS.gin_file)
    train(FLAGS.seed)


if __name__ == "__main__":
    app.run(main)
