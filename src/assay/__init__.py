"""Assay: a workbench for reinforcement learning.

    import assay

    run = assay.train("ppo", "CartPole-v1", env_steps=100_000)
    run.evaluate(episodes=20)
    agent = assay.load(run.path)
    action = agent.act(obs)

Every registered algorithm is a class, too, by its own name:

    fqf = assay.FQF("CartPole-v1", lr=3e-4).train(50_000)
    action = fqf.predict(obs)

The names below are imported when they are first used, so `import assay` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "train": "assay.api",
    "resume": "assay.api",
    "load": "assay.api",
    "open_run": "assay.api",
    "record": "assay.recording",
    "learned_reward": "assay.experts.rewards",
    "Discriminator": "assay.networks.discriminator",
    "Agent": "assay.api",
    "Run": "assay.api",
    "algorithm_class": "assay.managed.classes",
    "Managed": "assay.managed.classes",
    "register_network": "assay.networks.custom",
    "data": "assay.data",
    "connect": "assay.server.client.connect",
    "connect_env": "assay.server.client.adapter",
    "compare": "assay.evaluation.compare",
    "evaluate": "assay.evaluation.evaluate",
    "evaluate_offline": "assay.offline_evaluation",
    "events": "assay.loops.events",
    "STOP": "assay.loops.events",
    "AssayError": "assay.core.errors",
}
_MODULES = ("data", "events")
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        return _algorithm(name)
    module = importlib.import_module(_HOME[name])
    return module if name in _MODULES else getattr(module, name)


def _algorithm(name: str) -> Any:
    """Return the class of the algorithm of this name."""
    if name[:1].isupper():  # as classes are; nothing else is worth looking for
        from assay.core import registry

        if name.lower() in {key.replace("_", "") for key in registry.names()}:
            return importlib.import_module(_HOME["Managed"]).class_named(name)
    raise AttributeError(f"module 'assay' has no attribute '{name}'")


def __dir__() -> list[str]:
    from pathlib import Path
    from re import findall

    # The classes of algorithms, without importing them: the stub names them.
    stub = Path(__file__).with_suffix(".pyi").read_text()
    return sorted([*__all__, *findall(r"(?m)^class (\w+)\(Managed\)", stub)])
