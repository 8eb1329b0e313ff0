"""The measurement of learning from comparisons: its scores and its verdicts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import evidence
import preferences

from assay.core.errors import ConfigError


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


def test_an_unknown_case_is_refused() -> None:
    with pytest.raises(ConfigError, match="Unknown case 'cleen'"):
        preferences.main(["--cases", "cleen"])
