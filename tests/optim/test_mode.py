"""How steps are executed: what is asked for, where, and for how long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import ConfigError
from assay.optim import mode as mode_module
from assay.optim.mode import UPDATES_THAT_PAY, choose_mode, has_compiler


@pytest.mark.parametrize(
    ("compile", "device", "updates", "compiler", "mode"),
    [
        (False, "cpu", 10**9, True, "eager"),
        (False, "cuda", 10**9, True, "eager"),
        (True, "cpu", 1, True, "compiled"),
        ("auto", "cpu", UPDATES_THAT_PAY, True, "compiled"),
        ("auto", "cpu", UPDATES_THAT_PAY - 1, True, "eager"),
        ("auto", "cpu", 10**9, False, "eager"),
        ("auto", "cuda", 1, False, "cuda_graph"),
        ("auto", "mps", 10**9, True, "eager"),
    ],
)
def test_mode(
    compile: Any,
    device: str,
    updates: int,
    compiler: bool,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: compiler)
    assert choose_mode(compile, torch.device(device), updates) == mode


def test_compiling_on_demand_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: False)
    with pytest.raises(ConfigError, match="compile=true needs a C\\+\\+ compiler"):
        choose_mode(True, torch.device("cpu"), 1)


def test_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not has_compiler()
    fake = tmp_path / "clang++"
    fake.touch(0o755)
    assert has_compiler()
