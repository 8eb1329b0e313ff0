"""Evaluate."""

import tyro

from gait.settings.walk import Experiment


def main():
    config = tyro.cli(Experiment)
    algo = config.make_algo()
    algo.load_checkpoint(config.checkpoint)
    print(algo.evaluate_policy())


if __name__ == "__main__":
    main()
