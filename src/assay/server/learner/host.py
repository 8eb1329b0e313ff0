"""What an executor runs: frames in, frames out, one learner behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from assay.server.learner.learner import Learner
from assay.server.learner.messages import CHECKPOINT, CONSUME, START, Consume, Frame, Start


class LearnerHost:
    """Dispatches the calls of a supervisor to a `Learner`."""

    def __init__(self) -> None:
        self._learner: Learner | None = None

    def handle(self, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Frame:
        """Answer one call.

        Raises:
            AssayError: A spec or setting cannot be used, or learning failed for a known reason.
            ValueError: The call is unknown, or comes before `start`.
        """
        method = head["method"]
        if method == START:
            self._learner = None  # its memory first
            self._learner = Learner()
            return self._learner.start(Start.from_frame(head, blobs)).to_frame()
        if self._learner is None:
            raise ValueError(f"the call '{method}' came before '{START}'")
        if method == CONSUME:
            return self._learner.consume(Consume.from_frame(head, blobs)).to_frame()
        if method == CHECKPOINT:
            publication = self._learner.checkpoint()
            if publication is None:
                return {"publication": None}, ()
            inner, parts = publication.to_frame()
            return {"publication": inner}, parts
        raise ValueError(f"the call '{method}' is unknown")
