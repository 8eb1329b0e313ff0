"""What benchmark scripts share: measuring in a process of its own, and how a script ends.

Such a process has one thread and answers with a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from assay.core.errors import EXIT_USER_ERROR, AssayError

ONE_THREAD = {n: "1" for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
_SHOWN = 12  # last lines of a process that failed


def ask(
    words: Sequence[str],
    name: str,
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what a Python script with arguments prints in its last line.

    Args:
        words: The script and its arguments.
        name: What it is called where it fails.
        timeout: Seconds.
        env: Variables besides those of this process.

    Raises:
        AssayError: It failed, and the end of what it wrote is shown; or it took too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, *words], env={**os.environ, **ONE_THREAD, **(env or {})},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise AssayError(f"{name}: no result after {timeout:.0f} s") from None
    last = done.stdout.splitlines()[-1:] or [""]
    if done.returncode or not last[0].startswith("{"):
        tail = "\n  ".join((done.stdout + done.stderr).splitlines()[-_SHOWN:])
        raise AssayError(f"{name}: failed with exit code {done.returncode}\n  {tail}")
    found: dict[str, Any] = json.loads(last[0])
    return found


def caches(place: str) -> dict[str, str]:
    """Return the variables that keep compiled steps of a measurement in a directory of its own."""
    return {"ASSAY_CACHE": f"{place}/assay", "TORCHINDUCTOR_CACHE_DIR": f"{place}/inductor"}


def finish(main: Callable[[], int]) -> NoReturn:
    """Run a script and exit; a mistake of the user is one message and exit code 2."""
    try:
        sys.exit(main())
    except AssayError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USER_ERROR)
