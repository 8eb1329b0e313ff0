"""Ask Git about a repository without running anything that the repository brings.

Hooks, file-system monitors, external diffs, prompts and the network are off, and Git's own
variables of the caller are not passed on. Objects are what they are: `git replace` and grafts,
which show another object or parent in their place, have no effect.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from assay.core.errors import RunError

_SAFE = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "protocol.allow=never"),
    *("-c", "core.quotePath=false"),
)


class GitError(RunError):
    """Git refused, is missing, or there is no repository."""


def git(
    root: Path,
    *arguments: str,
    data: bytes | None = None,
    timeout: float | None = None,
    index: Path | None = None,
) -> str:
    """Run one Git command in `root` and return what it printed.

    `data` is what the command reads on its standard input; without a `timeout` in seconds it may
    take for ever; `index` is a file that it uses in place of the repository's own.

    Raises:
        GitError: It failed or took too long; the message holds what Git printed.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    environment |= {"GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    environment |= {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": os.devnull}
    environment |= {"GIT_INDEX_FILE": str(index)} if index else {}
    command = ["git", *_SAFE, "-C", str(root), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, input=data, env=environment, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise GitError(f"`git {' '.join(arguments)}` took over {timeout:g} s.") from None
    except FileNotFoundError:
        raise GitError(
            "Git is not installed.", "Install it (on Debian: apt install git)."
        ) from None
    except OSError as error:
        raise GitError(f"Git cannot be run: {error.strerror or error}.") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise GitError(f"`git {' '.join(arguments)}` failed in '{root}': {said}.")
    return done.stdout.decode(errors="surrogateescape")


def repository(path: Path) -> Path | None:
    """Return the top of the repository around `path`, or None if there is none."""
    try:
        return Path(git(path, "rev-parse", "--show-toplevel").rstrip("\n"))
    except GitError:
        return None
