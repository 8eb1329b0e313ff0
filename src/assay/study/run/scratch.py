"""A place for temporary files that one process has to itself."""

from __future__ import annotations

import contextlib
import getpass
import os
import tempfile
from collections.abc import Iterator, Mapping

TEMPORARY = "TMPDIR"
_COMPILED = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def scratch(env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Make a directory for temporary files, removed afterwards; yield the variables that say so.

    So nothing that a run leaves there is read by the next one, or by its evaluation. It is in the
    system's own, where the names of sockets do not get too long. What torch compiles stays where it
    would be: it is found by its content, and takes minutes to make.
    """
    given = env.get(TEMPORARY, "")
    usual = given if os.path.isabs(given) and os.access(given, os.W_OK) else tempfile.gettempdir()
    with tempfile.TemporaryDirectory(
        prefix="assay-run-", dir=usual, ignore_cleanup_errors=True
    ) as place:
        found = {TEMPORARY: place}
        with contextlib.suppress(KeyError, OSError):  # a container without a user database
            compiled = os.path.join(usual, f"torchinductor_{getpass.getuser()}")
            found[_COMPILED] = env.get(_COMPILED, compiled)
        yield found
