"""Group commitment: callers that come at the same time share one sync."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from assay.server.errors import Reason, RejectionError
from assay.server.store.store import Ack, Incoming, Refused, Store


class GroupCommitter:
    """Commits what several threads hand in together, so that they share one sync.

    While one group is on its way to the disk, the next one gathers; nobody waits for a timer.
    """

    def __init__(self, store: Store, *, most_bytes: int = 64 << 20) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._waiting: list[tuple[Incoming, Future[Ack | Refused]]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="assay-commit", daemon=True)
        self._thread.start()

    def submit(self, batch: Incoming) -> Future[Ack | Refused]:
        """Hand in a batch; the answer comes when it is durable or refused.

        Batches of one client are committed in the order in which they are handed in.

        Raises:
            RejectionError: DRAINING, once it was closed.
        """
        answer: Future[Ack | Refused] = Future()
        with self._wake:
            if self._closed:
                raise RejectionError(Reason.DRAINING, "The server is shutting down.")
            self._waiting.append((batch, answer))
            self._wake.notify()
        return answer

    def close(self) -> None:
        """Commit what was handed in, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _work(self) -> None:
        while group := self._next_group():
            try:
                answers = self._store.append([batch for batch, _ in group])
            except BaseException as error:
                for _, answer in group:
                    answer.set_exception(error)
            else:
                for (_, answer), value in zip(group, answers, strict=True):
                    answer.set_result(value)

    def _next_group(self) -> list[tuple[Incoming, Future[Ack | Refused]]]:
        with self._wake:
            while not self._waiting and not self._closed:
                self._wake.wait()
            size = taken = 0
            for batch, _ in self._waiting:
                size += len(batch.payload)
                if taken and size > self._most_bytes:
                    break
                taken += 1
            group, self._waiting = self._waiting[:taken], self._waiting[taken:]
            return group
