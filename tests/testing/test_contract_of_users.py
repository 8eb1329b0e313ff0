"""The contract suites hold for algorithms that are named by their place, as users' are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from assay.testing.algorithms import AlgorithmContract

SOURCE = '''
from assay.algorithms.a2c import A2C
from assay.core.registry import register


@register(loop="on_policy", actions=("Discrete",), family="trial", paper="trial")
class Mine(A2C):
    """A2C under another name."""
'''


def test_a_name_with_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "contracted.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)

    class Contract(AlgorithmContract):
        algorithm = "contracted:Mine"

    Contract().test_refuses_other_action_spaces()
    sys.modules.pop("contracted")
