"""Training that benchmark scripts share: interrupted runs go on, and only whole ones count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import assay
from assay.core.errors import AssayError


def trained(place: Path, algorithm: str, env: str, **settings: Any) -> assay.Run:
    """Return a run that has been trained to its end, in a directory of its own.

    Raises:
        AssayError: It was interrupted.
    """
    if place.exists():
        run = assay.open_run(place)
        run = run if run.status == "done" else assay.resume(place)
    else:
        run = assay.train(algorithm, env, root=place.parent, name=place.name, **settings)
    if run.status != "done":
        raise AssayError(f"The run '{place}' is {run.status}.", "Start this again to go on.")
    return run
