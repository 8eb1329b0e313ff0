"""Makes the harness of the fault tests importable: benchmarks and tests share one."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
for _name in ("server_faults", "server_client", "server_gateway"):
    _path = str(TESTS / _name)
    if _path not in sys.path:
        sys.path.append(_path)
