"""The measurement of learning from comparisons: its scores and its verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
import preferences

from assay.core.errors import ConfigError
from assay.experts.reward_model import FitSettings
from assay.preferences.files import PreferenceSet
from assay.preferences.fit import fit
from assay.preferences.oracle import ask_oracle
from assay.preferences.sample import random_source, sample


def stored(out: Path, case: str, means: list[float], **facts: Any) -> None:
    for seed, mean in enumerate(means, 1):
        content = {"schema": evidence.SCHEMA, "case": case, "seed": seed, "mean": mean, **facts}
        evidence.write_json(out / "seeds" / f"{case}-{seed}.json", content)


def test_scores_lie_between_random_actions_and_the_true_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "random_return", lambda: -1100.0)
    stored(tmp_path, "true", [-100.0, -200.0])
    stored(tmp_path, "clean", [-200.0, -200.0, -50.0], accuracy=0.95, calibration_error=0.07)
    stored(tmp_path, "noisy", [-600.0, -650.0])
    stored(tmp_path, "wrong", [-1100.0])
    cases = preferences.collect(tmp_path)["cases"]
    # The third seed of "clean" has nothing to be compared with.
    assert cases["clean"]["scores"] == [0.9, 1.0] and cases["clean"]["passed"]
    assert cases["noisy"]["scores"] == [0.5, 0.5] and not cases["noisy"]["passed"]
    assert cases["wrong"]["scores"] == [0.0] and cases["wrong"]["passed"]  # a control
    assert cases["true"]["passed"] is None and "clip" not in cases
    shown = preferences.table({"cases": cases})
    row = "| clean | ≥ 0.9 | 0.95 | 0.90, 1.00 | -200, -200 | 0.95, 0.95 | 0.07, 0.07 | yes |"
    assert row in shown and "| wrong | < 0.5 | 0.00 |" in shown


def test_drift_is_the_growth_of_the_spread_from_the_first_refit_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "random_return", lambda: -1100.0)
    stored(tmp_path, "drift-none", [-150.0, -160.0], spreads=[0.5, 0.75, 1.5])
    stored(tmp_path, "drift-tanh", [-150.0, -160.0], spreads=[0.5, 0.5, 0.6])
    stored(tmp_path, "drift-clip", [-150.0], spreads=[1.0, 2.0])
    found = preferences.collect(tmp_path)
    assert found["cases"] == {} and len(preferences.all_seeds(found)) == 5
    drift = found["drift"]
    assert drift["drift-none"]["growth"] == [3.0, 3.0] and drift["drift-none"]["passed"]
    assert drift["drift-tanh"]["iqm"] == 1.2 and drift["drift-tanh"]["passed"]
    assert not drift["drift-clip"]["passed"]  # it is bounded, and grew as much as drift does
    row = "| none | 0.50 to 1.50, 0.50 to 1.50 | 3.00, 3.00 | 3.00 | ≥ 2 | -150, -160 | yes |"
    assert row in preferences.table(found)


def test_the_spread_is_of_the_same_steps_for_every_model(tmp_path: Path) -> None:
    place, made = tmp_path, []
    sample(place / "pairs", [random_source("Pendulum-v1", episodes=3)], pairs=12, length=5)
    pairs = PreferenceSet.open(place / "pairs")
    ask_oracle(pairs)
    for number, epochs in enumerate((1, 10)):
        free = preferences.FREE | {"hidden": (8,), "epochs": epochs}
        made.append(
            fit(pairs, place / "models" / f"{number:02d}", FitSettings(bound="none", **free))
        )
    # Steps once more, without the buffer that the script uses.
    rows = pairs.batches[0].dataset.transitions(np.arange(600))
    obs, action = (torch.from_numpy(rows[name]) for name in ("obs", "action"))
    said = [model.rewards(obs, action).numpy() for model in made]
    expected = [float(np.std(one, ddof=1)) for one in said]
    assert preferences.spreads(place, 2) == pytest.approx(expected, rel=1e-3)
    assert expected[0] != pytest.approx(expected[1], rel=0.01)


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown case 'cleen'"):
        preferences.main(["--cases", "cleen"])
