"""Every kind of algorithm that turns knobs learns from what clients send."""

from __future__ import annotations

from typing import Any

import pytest
from learner_support import Client, Corridor, Point, Server, learn, spec_for

from assay.policies.model_file import parse_snapshot

POINT_GOOD = -6.0  # the best is -1.8; standing still gives -45

ON_POLICY = {"lr": 3e-3, "hidden": [16]}
CONTROL = {
    "lr": 3e-3, "hidden": [32], "env_steps": 2000, "learning_starts": 200, "train_every": 2,
    "batch_size": 64, "buffer_size": 5000, "gamma": 0.9,
}  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "batches", "settings"),
    [
        ("ppo", 20, ON_POLICY | {"horizon": 200, "minibatch_size": 50, "epochs": 8}),
        ("sac", 20, CONTROL),
        ("td3", 20, CONTROL),
        ("ddpg", 20, CONTROL),
    ],
)
def test_knobs(algorithm: str, batches: int, settings: dict[str, Any]) -> None:
    before, after, _ = learn(Point, algorithm, batches, 70, settings)
    assert before < 2 * POINT_GOOD
    assert after > POINT_GOOD


def test_statistics_and_scaling_travel_with_the_model() -> None:
    settings = ON_POLICY | {
        "horizon": 200, "minibatch_size": 50, "epochs": 8,
        "normalize_obs": True, "normalize_reward": True,
    }  # fmt: skip
    _, after, server = learn(Point, "ppo", 20, 70, settings)
    assert after > POINT_GOOD
    assert parse_snapshot(server.publications[-1].snapshot).architecture.normalization is not None


def test_before_learning_starts_clients_explore_as_widely_as_they_can() -> None:
    spec = spec_for(Point(), "td3", **CONTROL)
    server = Server(spec)
    client = Client(server, Point())
    fields = client.collect(150)
    assert fields["action"].std() > 1.0  # of [-2, 2]
    server.send("one", client.pack(fields))
    server.send("one", client.play(60))
    assert server.version == 2  # at once, when learning has begun
    assert client.collect(100)["action"].std() < fields["action"].std()
    choices = Server(spec_for(Corridor(), "dqn", learning_starts=300, buffer_size=500, epsilon=0.1))
    actions = Client(choices, Corridor()).collect(200)["action"]
    assert 60 < actions.sum() < 140
