"""Train the walker."""

import hydra
from omegaconf import DictConfig
from walker.learner import Learner


@hydra.main(config_path="../conf", config_name="config", version_base=None)
def main(cfg: DictConfig) -> None:
    Learner(cfg).run(cfg.steps)


if __name__ == "__main__":
    main()
