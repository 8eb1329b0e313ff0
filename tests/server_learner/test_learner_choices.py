"""Every kind of algorithm that chooses learns from what clients send."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from learner_support import Client, Corridor, Server, learn, spec_for, train

CORRIDOR_BEST = 0.9  # five steps of -0.02, and 1

ON_POLICY = {"lr": 3e-3, "hidden": [16]}
VALUE = {
    "lr": 3e-3, "hidden": [16], "env_steps": 2000, "learning_starts": 200, "train_every": 4,
    "updates": 2, "batch_size": 32, "buffer_size": 5000, "seed": 1,
}  # fmt: skip
GREEDY = {"target_every": 50, "epsilon": "linear:1:0.05:0.5"}
IMPLICIT = {"cosines": 8, "quantiles": 8, "target_quantiles": 8}


@pytest.mark.parametrize(
    ("algorithm", "batches", "settings"),
    [
        ("ppo", 20, ON_POLICY | {"horizon": 16, "num_envs": 8, "minibatch_size": 32, "seed": 2}),
        ("a2c", 40, ON_POLICY | {"horizon": 32, "optimizer": "adam", "seed": 2}),
        ("impala", 40, ON_POLICY | {"horizon": 32, "optimizer": "adam", "seed": 2}),
        ("dqn", 30, VALUE | GREEDY | {"n_step": 3}),
        ("qrdqn", 30, VALUE | GREEDY | {"quantiles": 8, "seed": 2}),
        ("c51", 30, VALUE | GREEDY | {"atoms": 21, "v_min": -1, "v_max": 1, "seed": 2}),
        ("iqn", 30, VALUE | GREEDY | IMPLICIT | {"acting_quantiles": 4}),
        ("fqf", 30, VALUE | GREEDY | {"cosines": 8, "fractions": 4, "head_hidden": [16]}),
        ("sac", 30, VALUE | {"train_every": 2, "updates": 1, "batch_size": 64, "alpha": 0.02}),
    ],
)
def test_choices(algorithm: str, batches: int, settings: dict[str, Any]) -> None:
    before, after, server = learn(Corridor, algorithm, batches, 60, settings)
    assert before < 0.5  # it does not begin with the answer
    assert after == pytest.approx(CORRIDOR_BEST)
    assert [one.version for one in server.publications] == list(range(1, server.version + 1))


def test_cartpole() -> None:
    settings = {
        "horizon": 32, "num_envs": 16, "minibatch_size": 128, "epochs": 7, "lr": 3e-3,
        "gamma": 0.98, "gae_lambda": 0.9,
    }  # fmt: skip
    spec = spec_for(gym.make("CartPole-v1"), "ppo", **settings)
    server = Server(spec)
    clients = [Client(server, gym.make("CartPole-v1"), str(i), i) for i in range(4)]
    train(server, clients, 60, 128)
    played = [total for client in clients for total in client.totals[-5:]]
    assert np.mean(played) > 120  # chance balances for 22 steps
