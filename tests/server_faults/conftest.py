"""The fault tests stand on the helpers of their neighbours."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for place in ("server_client", "server_gateway"):
    path = str(HERE.parent / place)
    if path not in sys.path:
        sys.path.append(path)
