"""The command line."""

import hydra
from hydra.utils import instantiate


@hydra.main(config_path="conf", config_name="config", version_base=None)
def run(cfg):
    logger = instantiate(cfg.logger)
    agent = instantiate(cfg.agent)
    agent.begin(cfg.env, logger)


def measure(cfg):
    agent = instantiate(cfg.agent)
    agent.load_checkpoint(cfg.checkpoint)
    return agent.evaluate_policy(cfg.env)


@hydra.main(config_path="conf", config_name="config", version_base=None)
def evaluation(cfg):
    print(measure(cfg))
