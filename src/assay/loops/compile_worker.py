"""The process that compiles a run's optimizer steps while the run goes on eagerly.

`python -m assay.loops.compile_worker` reads a state from its standard input: the run's
configuration, the spaces, and what the steps are called with. It builds the algorithm again and
compiles into the cache, where the run finds it. A failure is one line on its standard output.

It ends with the run: when its standard input is closed before it was told to go on alone, it kills
its whole process group, a running compiler included. It also ends if it takes too long.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.core.types import State

HEADER = 8  # bytes that say how long the order is
GO_ON = b"."  # what a run sends that is over, so that the step is there for the next one
PATIENCE_SECONDS = 900.0
NICENESS = 5  # the run comes first where there is no spare core; a quarter of one is left
_REASON_LENGTH = 500  # of a failure's reason: the run may not read it before this process ends


def main() -> int:
    """Compile what standard input asks for; return the exit code."""
    order = _read(int.from_bytes(_read(HEADER), "big"))
    threading.Thread(target=_end_with_the_run, daemon=True).start()
    limit = threading.Timer(PATIENCE_SECONDS, _end)
    limit.daemon = True
    limit.start()
    os.nice(NICENESS)
    try:
        from assay.runs.checkpoint import state_from_bytes

        compile_steps(state_from_bytes(order))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        print(reason[:_REASON_LENGTH])
        return 1
    return 0


def compile_steps(order: State) -> None:
    """Build the algorithm of an order and compile its steps."""
    import torch

    from assay.core.types import Spaces
    from assay.envs.space_codec import space_from_state
    from assay.envs.spaces import ActionMap, ObservationMap
    from assay.envs.teams import team_from_state
    from assay.loops.config import RunConfig
    from assay.loops.training import build_algorithm
    from assay.optim.compiled_step import CompiledStep, Signature

    torch.set_num_threads(order["threads"])  # compiled code holds a place per thread
    spaces = order["spaces"]
    observations = ObservationMap(space_from_state(spaces["observation"]), spaces["mask_size"])
    actions = ActionMap(space_from_state(spaces["action"]))
    config = RunConfig.from_dict(order["config"])
    run = config.run.model_copy(update={"device": "cpu", "compile": True})
    algorithm = build_algorithm(
        config.model_copy(update={"run": run}),
        Spaces(observations.space, actions.space, team_from_state(spaces.get("team"))),
        run.clock(),
    )
    for name, call in order["steps"].items():
        inputs = tuple((tuple(shape), getattr(torch, kind)) for shape, kind in call["inputs"])
        signature = Signature(tuple(call["names"]), inputs, call["gather"])
        step = algorithm.steps[name]
        assert isinstance(step, CompiledStep)  # by compile=True above
        step.prepare(signature)


def _read(size: int) -> bytes:
    """Read so many bytes of standard input.

    Not through `sys.stdin`, on whose lock a thread that reads would keep Python from ending.
    """
    data = b""
    while len(data) < size:
        more = os.read(0, size - len(data))
        if not more:  # the run ended before it said what to compile
            sys.exit(1)
        data += more
    return data


def _end_with_the_run() -> None:
    """Wait until the run is over; end at once unless it said to go on."""
    if os.read(0, 1) != GO_ON:
        _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():  # ours alone: the compiler is in it, and nobody else
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
