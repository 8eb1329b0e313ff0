"""How steps are executed: what is asked for, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from assay.core.errors import ConfigError
from assay.optim import mode as mode_module
from assay.optim.mode import VARIABLE, can_fuse, choose_mode, has_compiler


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("compile", "device", "mode"),
    [
        (False, "cpu", "eager"),
        (False, "cuda", "eager"),
        (True, "cpu", "compiled"),
        (True, "cuda", "cuda_graph"),
        ("auto", "cpu", "auto"),
        ("auto", "cuda", "cuda_graph"),
        ("auto", "mps", "eager"),
    ],
)
def test_mode(compile: Any, device: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: True)
    assert choose_mode(compile, torch.device(device)) == mode


def test_what_is_cached_needs_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: False)
    assert choose_mode("auto", torch.device("cpu")) == "auto"


def test_auto_can_be_turned_off_for_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: True)
    monkeypatch.setenv(VARIABLE, "false")
    assert choose_mode("auto", torch.device("cpu")) == "eager"
    assert choose_mode(True, torch.device("cpu")) == "compiled"
    monkeypatch.setenv(VARIABLE, "off")
    with pytest.raises(ConfigError, match="ASSAY_COMPILE=off in the environment"):
        choose_mode("auto", torch.device("cpu"))


def test_compiling_on_demand_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mode_module, "has_compiler", lambda: False)
    with pytest.raises(ConfigError, match="compile=true needs a C\\+\\+ compiler"):
        choose_mode(True, torch.device("cpu"))


def test_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not has_compiler()
    fake = tmp_path / "clang++"
    fake.touch(0o755)
    assert has_compiler()


@pytest.mark.parametrize(("triton", "compiler"), [(True, True), (True, False), (False, True)])
def test_kernels_are_fused_where_both_compilers_are(
    triton: bool, compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = object() if triton else None
    monkeypatch.setattr(mode_module.importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(mode_module, "has_compiler", lambda: compiler)
    assert can_fuse() is (triton and compiler)
