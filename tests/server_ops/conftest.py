"""The tests of operations use the gateway that tests/server_gateway runs in a thread."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "server_gateway"))
