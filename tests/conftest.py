"""What all tests share: no cache of compiled steps that changes numbers, and no waiting for disks.

Tests kill processes, but nobody cuts the power: what was written is there without waiting for the
disk, which is slow and shared by all test processes. A test about what is flushed, or about a disk
that fails, replaces the same functions.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import forking
import pytest
import typer.testing

# A shell that starts the tests in the background has them ignore Ctrl-C, as would all programs that
# they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

forking.install()

# `compile=auto` changes to compiled steps when there are some, which no test can foresee. Those
# that are about it set the variable to "auto", and a cache of their own.
os.environ["ASSAY_COMPILE"] = "false"


def _leave_it_to_the_system(descriptor: int) -> None:
    """Let the system write a file when it likes to."""


# Here and not in a fixture: `os.fdatasync` is a default of arguments, read at import.
os.fsync = os.fdatasync = _leave_it_to_the_system

from assay.runs import provenance  # noqa: E402 (its modules read what is replaced above)

# Every run records the state of its repository, and no test changes this one.
_ROOT = Path(__file__).parents[1]
_describe = provenance._git
_of_here = functools.cache(lambda: _describe(_ROOT))
provenance._git = lambda cwd: _of_here() if cwd == _ROOT else _describe(cwd)

# A `CliRunner` would build all commands of `assay` for every line that a test gives it.
typer.testing._get_command = functools.cache(typer.testing._get_command)


def pytest_configure(config: pytest.Config) -> None:
    """Let Git see once that nothing has changed.

    After a clone it reads every file again for each run that records its provenance, until somebody
    refreshes its index.
    """
    if not hasattr(config, "workerinput") and shutil.which("git"):
        command = ["git", "update-index", "-q", "--refresh"]
        subprocess.run(command, cwd=config.rootpath, capture_output=True, check=False)


def pytest_collection_finish() -> None:
    """Spare Python from looking for garbage among twelve thousand tests and their modules."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let every test process begin with its share of the slow tests.

    Each gets a piece of the list, one after the other. A slow test that came late would leave the
    other processes without work at the end. Slow tests that share a fixture of their module, such
    as a cluster of Ray, are for one process, so that it is made once.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    slow = [item for item in items if item.get_closest_marker("slow")]
    fast = [item for item in items if not item.get_closest_marker("slow")]
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for _, together in itertools.groupby(slow, _belonging):
        min(shares, key=len).extend(together)
    size, start = len(items) // workers, 0
    items.clear()
    for number, share in enumerate(shares):
        end = start + size - len(share) if number < workers - 1 else len(fast)
        items += share + fast[start:end]
        start = end


@pytest.fixture
def quick_cloning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate who acted by few updates, in tests that do not ask how well that is done."""
    from assay.evaluation.offline import OfflineEvaluator

    defaults = OfflineEvaluator.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "cloning_updates", 100)


def _belonging(item: Any) -> str:
    """Return the module of a test that has a fixture of it; of any other test, itself."""
    fixtures = itertools.chain(*item._fixtureinfo.name2fixturedefs.values())
    shared = any(fixture.scope == "module" for fixture in fixtures)
    return str(item.path) if shared else str(item.nodeid)
