"""The available memory: the container's, where it is less than the machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from assay.core import system_memory


def test_the_containers_memory_counts_if_it_is_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_memory, "_CGROUP", tmp_path)
    total = system_memory.total_bytes()
    assert total >= system_memory.available_bytes() > 2**20
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert system_memory.total_bytes() == total and system_memory.available_bytes() > 2**20
    (tmp_path / "memory.max").write_text("1000\n")
    assert system_memory.total_bytes() == 1000 and system_memory.available_bytes() == 400
