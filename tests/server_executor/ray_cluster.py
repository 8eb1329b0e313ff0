"""A small Ray cluster on this machine, which the tests of the back end share."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from assay.server.executor.ray import NAMESPACE

# A node whose processes are gone refuses the check and is given up after about two seconds. One
# that is only slow, because the machine is busy, has half a minute: a cluster that gave up all its
# nodes would have no place for any learner.
_SYSTEM = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 3,
}
_NODE = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "memory": 4 << 30,  # what learners may reserve, whatever is free on the machine just now
    "include_dashboard": False,
    # On loopback, by an address that Ray does not replace by one that others can reach.
    "node_ip_address": "127.0.0.2",
}


class RayCluster:
    """A head without cores, so that learners run on nodes that can be killed."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        args = {**_NODE, "num_cpus": 0, "_system_config": _SYSTEM}
        self._cluster = Cluster(initialize_head=True, head_node_args=args)
        self.address: str = self._cluster.address

    def connect(self) -> None:
        """Connect this process once, so that executors find it connected and leave it so."""
        import ray

        ray.init(self.address, namespace=NAMESPACE, log_to_driver=False)

    def add_node(self, num_cpus: int = 1) -> None:
        """Begin a node."""
        self._cluster.add_node(**{**_NODE, "num_cpus": num_cpus})

    def kill_node(self, name: str) -> None:
        """Kill all of a node's processes at once, as a loss of power would.

        Args:
            name: How its id begins.
        """
        (node,) = [one for one in self._cluster.worker_nodes if one.node_id.startswith(name)]
        # First the one that would begin the others again, and would tell the cluster of them.
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        for one in [raylet, *raylet.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def shutdown(self) -> None:
        """End all of it."""
        self._cluster.shutdown()


@contextlib.contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Yield a cluster whose workers can import the tests' hosts."""
    # Sockets in it have names of at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as place:
        path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        changed = {
            "PYTHONPATH": os.pathsep.join(path),
            "RAY_TMPDIR": place,
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
        }
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            cluster = RayCluster()
            try:
                yield cluster
            finally:
                import ray

                ray.shutdown()
                cluster.shutdown()
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
