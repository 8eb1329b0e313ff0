"""The largest numbers that the gateway lets through do not ruin a learner, or end with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from learner_support import Client, Corridor, Point, Server, spec_for

from assay.policies.model_file import parse_snapshot
from assay.runs.checkpoint import state_from_bytes
from assay.server.spec import MOST_LOG_PROB, MOST_VALUE

SMALL = {"hidden": [16], "num_envs": 1}
RECURRENT = {"chunk": 8, "memory_size": 8, "head_hidden": [8]}
ON_POLICY = {
    "ppo": {**SMALL, "horizon": 32, "minibatch_size": 16},
    "recurrent_ppo": {**SMALL, **RECURRENT, "horizon": 32, "minibatch_size": 16},
    "a2c": {**SMALL, "horizon": 32},
    "impala": {**SMALL, "horizon": 32},
}
OFF_POLICY = {
    "dqn": {**SMALL, "learning_starts": 16, "batch_size": 8, "buffer_size": 500},
    "sac": {**SMALL, "learning_starts": 16, "batch_size": 8, "buffer_size": 500},
    "td3": {**SMALL, "learning_starts": 16, "batch_size": 8, "buffer_size": 500},
}
HOSTILE: dict[str, dict[str, float]] = {
    "reward": {"reward": MOST_VALUE},
    "cost": {"reward": -MOST_VALUE},
    "unlikely": {"log_prob": -MOST_LOG_PROB},
    "likely": {"log_prob": MOST_LOG_PROB},
    "rather unlikely": {"log_prob": -1000.0},
    "seen": {"obs": MOST_VALUE},
    "raw": {"raw_action": MOST_VALUE},
    "all": {
        "reward": MOST_VALUE,
        "log_prob": -MOST_LOG_PROB,
        "obs": MOST_VALUE,
        "raw_action": -MOST_VALUE,
    },
}


def assert_sane(server: Server) -> None:
    arrays = parse_snapshot(server.publications[-1].snapshot).arrays
    assert all(np.isfinite(array).all() for array in arrays.values())
    state = state_from_bytes(server.publications[-1].checkpoint)
    for step in state["algorithm"]["optimizer"].values():
        for moments in step["moments"].values():
            assert all(np.isfinite(array).all() for array in moments.values())


def spoil(fields: dict[str, Any], changes: dict[str, float], rows: slice) -> None:
    for name, value in changes.items():
        if name in fields:
            fields[name] = fields[name].copy()
            fields[name][rows] = value


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("env", [Corridor, Point], ids=["choices", "numbers"])
@pytest.mark.parametrize("algorithm", [*ON_POLICY, *OFF_POLICY])
def test_a_hostile_batch_does_not_make_it_diverge(algorithm: str, env: Any, what: str) -> None:
    if (algorithm, env) in (("dqn", Point), ("td3", Corridor)):
        pytest.skip("the algorithm is not for these actions")
    settings = ON_POLICY.get(algorithm) or OFF_POLICY[algorithm]
    server = Server(spec_for(env(), algorithm, **settings), '{"publish_steps": 32}')
    honest, hostile = Client(server, env(), "honest", 1), Client(server, env(), "hostile", 2)
    server.send("honest", honest.play(32))
    before = server.version
    for rows in (slice(3, 4), slice(None)):  # one step of a batch, and all of it
        fields = hostile.collect(32)
        spoil(fields, HOSTILE[what], rows)
        server.send("hostile", hostile.pack(fields))
        server.send("honest", honest.play(32))
    server.send("honest", honest.play(64))
    assert server.learner.bad_batches == 0, "it reached the learner"
    assert server.version > before + 2
    assert_sane(server)


def test_a_late_reward_of_any_size_does_not_make_it_diverge() -> None:
    server = Server(spec_for(Corridor(), "ppo", **ON_POLICY["ppo"]))
    client = Client(server, Corridor())
    server.send("one", client.play(16))
    server.send("one", client.patch(3, MOST_VALUE))
    server.send("one", client.patch(3, MOST_VALUE))
    server.send("one", client.play(16))
    server.send("one", client.play(32))
    assert server.version >= 3
    assert_sane(server)
