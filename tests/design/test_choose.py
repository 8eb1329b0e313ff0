"""The selector on described problems whose right family is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.design.choose import choose
from assay.design.problem import Problem

HERE = Path(__file__).parent
DESCRIBED = yaml.safe_load((HERE / "described.yaml").read_text())
HELD_OUT = yaml.safe_load((HERE / "held_out.yaml").read_text())


def mismatch(described: dict[str, Any]) -> str:
    """Return in what the first choice is not what is known to be right, or ""."""
    fitting, _ = choose(Problem(**described["problem"]))
    if not fitting:
        return "nothing fits"
    spec, expect = fitting[0].spec, described["expect"]
    for key in ("family", "loop"):
        if key in expect and getattr(spec, key) not in expect[key]:
            return f"{spec.name}: {key} is {getattr(spec, key)}, expected {expect[key]}"
    if "expert" in expect and spec.expert != expect["expert"]:
        return f"{spec.name}: expert is {spec.expert}"
    for key in ("traits", "actions"):
        missing = set(expect.get(key, ())) - set(getattr(spec, key))
        if missing:
            return f"{spec.name}: lacks {missing}"
    return ""


@pytest.mark.parametrize("described", DESCRIBED, ids=lambda one: one["about"][:40])
def test_the_first_choice_is_of_the_right_family(described: dict[str, Any]) -> None:
    assert mismatch(described) == ""
