"""Train."""

import tyro

from gait.settings.walk import Experiment


def main():
    config = tyro.cli(Experiment)
    algo = config.make_algo()
    algo.learn()


if __name__ == "__main__":
    main()
