"""The races of world models: what their table says, and that both sides do the same."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import world_speed

from assay.networks.dynamics import DynamicsEnsemble


def runs(race: str, side: str, rates: list[float]) -> list[dict[str, Any]]:
    return [
        {"race": race, "side": side, "repeat": k, "updates_per_second": rate}
        for k, rate in enumerate(rates)
    ]


def test_the_table_has_the_faster_of_our_sides_against_the_peer() -> None:
    race = "ensemble, fit"
    found = runs(race, "loop", [10.0, 12.0, 8.0]) + runs(race, "assay-eager", [15.0, 15.0, 15.0])
    assert race not in world_speed.table({"runs": found})  # a side is missing
    slow = found + runs(race, "assay", [20.0, 30.0, 24.0])
    assert "loop: 10/s | 2.4x [2.0x, 3.0x] | 3x | **no** |" in world_speed.table({"runs": slow})
    fast = found + runs(race, "assay", [30.0, 36.0, 40.0])
    assert "| 3.6x [3.0x, 5.0x] | 3x | yes |" in world_speed.table({"runs": fast})
    assert "Not measured" in world_speed.table(None)


def test_the_loop_learns_what_the_ensemble_learns() -> None:
    """Equal weights give an equal loss, so that the race is of the same work."""
    torch.manual_seed(0)
    members = world_speed.Members(3, 1, (8, 8))
    model = DynamicsEnsemble(3, 1, members=world_speed.MEMBERS, hidden=(8, 8))
    with torch.no_grad():
        for k, net in enumerate(members.nets):
            layers = [layer for layer in net if isinstance(layer, torch.nn.Linear)]
            for i, layer in enumerate(layers):
                columns = len(layer.weight)
                model.weights[i][k, :, :columns].copy_(layer.weight.t())
                model.biases[i][k, 0, :columns].copy_(layer.bias)
            model.weights[-1][k, :, columns:].zero_()  # the end, which the loop does not have
    inputs, targets = torch.randn(7, 5, 4), torch.randn(7, 5, 4)
    loss, _ = model.loss(inputs, targets, torch.zeros(7, 5), torch.zeros(()))
    # The bounds of the log-variance are one pair for the whole ensemble, and one for each here.
    bounds = 0.01 * (model.max_log_var.sum() - model.min_log_var.sum())
    losses = [members.loss(k, inputs[k], targets[k]) for k in range(world_speed.MEMBERS)]
    expected = torch.stack(losses).sum() - (world_speed.MEMBERS - 1) * bounds
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("side", ["loop", "assay-eager"])
@pytest.mark.parametrize("race", ["ensemble, fit of Pendulum", "ensemble, rollout"])
def test_every_side_of_the_ensemble_runs(
    race: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_speed, "pin", lambda core: True)
    monkeypatch.setattr(world_speed, "ROLLOUTS", 50)
    settings = world_speed.RACES[race] | {"updates": 1, "race": race, "side": side, "core": 0}
    found = world_speed.child(settings)
    assert found["updates_per_second"] > 0 and found["pinned"]
