"""The store under kill -9, power cuts and a full disk, each in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KILLS = int(os.environ.get("ASSAY_KILLS", "20"))


def run(*command: str, **options: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("mode", ["kill", "power"])
def test_nothing_acknowledged_is_lost_or_doubled_by_random_kills(mode: str) -> None:
    if mode == "power" and not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to know which file was synced")
    script = str(HERE / "kill_loop.py")
    said = run(sys.executable, script, "--kills", str(KILLS), "--mode", mode)
    assert said.startswith(f"{KILLS} kills")
    # It did get somewhere between the kills.
    assert int(re.findall(r"(\d+) acknowledged", said)[0]) >= KILLS // 2


def test_the_kill_loop_notices_a_store_that_lies(tmp_path: Path) -> None:
    # Acknowledging without a sync must not get past the loop, or the loop proves nothing.
    code = (
        "import os, sys; import kill_loop as k\n"
        "def sync(self, descriptor):\n"
        "    self.syncs += 1\n"
        "    if abs(self.crash_at) == self.syncs: os._exit(9)\n"
        "    self.say(synced=os.readlink(f'/proc/self/fd/{descriptor}'), size=16)\n"
        "k.Writer.sync = sync\n"
        f"loop = k.Loop(k.Path({str(tmp_path / 'store')!r}), 'power', 1)\n"
        "for _ in range(20): loop.once()\n"
        "loop.check()\n"
    )
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to know which file was synced")
    done = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


FILL = """
import resource, sys
from pathlib import Path
from assay.server.errors import Reason
from assay.server.spec import Box, Discrete, PolicySpec
from assay.server.store.store import Ack, Incoming, Store, iterate

place, how = Path(sys.argv[1]), sys.argv[2]
spec = PolicySpec(name="p", observation=Box(shape=(2,)), action=Discrete(n=2), algorithm="ppo")
ballast = place / "ballast"
store = Store(place / "store")
store.register(spec)
store.open_session("p", "ada")
if how == "tmpfs":
    ballast.write_bytes(bytes(300_000))
else:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
acked = refused = 0
seq = 1
while refused < 20 and seq < 1000:
    (answer,) = store.append([Incoming("p", "ada", 1, seq, 1, b"%d " % seq * 300)])
    if isinstance(answer, Ack):
        acked, seq = seq, seq + 1
    else:
        assert answer.error.reason == Reason.RESOURCE_EXHAUSTED, answer
        assert answer.committed == acked
        refused += 1
assert refused == 20, "the disk did not fill up"
try:
    store.publish("p", store.registry.open_learner("p").epoch, acked, bytes(600_000))
    raise SystemExit("published on a full disk")
except Exception as error:
    assert error.reason == Reason.RESOURCE_EXHAUSTED, error
seen = [int(one.payload.split()[0]) for one in iterate(store, "p")]
assert seen == list(range(1, acked + 1)), seen
if how == "tmpfs":
    ballast.unlink()
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
for _ in range(10):
    (answer,) = store.append([Incoming("p", "ada", 1, seq, 1, b"%d " % seq * 300)])
    assert isinstance(answer, Ack), answer
    seq += 1
store.close()
with Store(place / "store") as again:
    assert again.repairs == [], again.repairs
    seen = [int(one.payload.split()[0]) for one in iterate(again, "p")]
    assert seen == list(range(1, seq)), seen
print("filled", acked)
"""


def test_a_full_disk_acknowledges_nothing_and_recovers(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m tmpfs {tmp_path}"
    unshare = shutil.which("unshare")
    # In a mount namespace of its own, which goes away with the process.
    probe = [unshare or "", "--mount", "sh", "-c", mount]
    if unshare is None or os.geteuid() or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("needs root and mount namespaces to make a small file system")
    script = f'{mount} && "$0" -c "$1" {tmp_path} tmpfs'
    said = run(unshare, "--mount", "sh", "-c", script, sys.executable, FILL)
    assert said.startswith("filled")


def test_a_file_size_limit_acknowledges_nothing_and_recovers(tmp_path: Path) -> None:
    assert run(sys.executable, "-c", FILL, str(tmp_path), "rlimit").startswith("filled")
