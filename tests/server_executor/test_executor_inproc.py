from __future__ import annotations

from executor_contract import ExecutorContract

from assay.server.executor import make_executor
from assay.server.executor.base import Executor


class TestInproc(ExecutorContract):
    isolates = False

    def make(self) -> Executor:
        return make_executor("inproc")
