"""Large models travel as differences, and however many ask, the server reads each file once."""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_support import SPEC, Client, Running, refused, running, snapshot, wait_for

from assay.policies import description as arch
from assay.policies import layers
from assay.policies.model_file import make_snapshot
from assay.server.errors import Reason
from assay.server.gateway import hub as hub_module
from assay.server.gateway.config import ServerConfig
from assay.server.model_delta import apply_delta
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.blobs import Blobs


def large(version: int, hidden: int = 1024) -> bytes:
    """Return a model of two wide layers, each version a small step from the one before."""
    rng = np.random.default_rng(0)
    widths = (3, hidden, hidden, 3)
    arrays: dict[str, Any] = {}
    parts: list[Any] = []
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        step = np.random.default_rng(version).normal(size=(after, before)) * 3e-5
        arrays[f"w{i}"] = (rng.normal(size=(after, before)) * 0.03 + step).astype(np.float32)
        arrays[f"b{i}"] = np.zeros(after, np.float32)
        parts.append(layers.Dense(weight=f"w{i}", bias=f"b{i}"))
    architecture = arch.Architecture(
        version=version,
        epoch=1,
        algorithm="ppo",
        observation={"kind": "box", "shape": [3], "dtype": "float32", "low": None, "high": None},
        action={"kind": "discrete", "n": 3, "start": 0},
        inputs=(arch.Entry(key=None, width=3),),
        layers=tuple(parts),
        head=arch.Categorical(n=3),
    )
    return make_snapshot(architecture, arrays).data


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetch(client: Client, **which: Any) -> tuple[pb.ModelChunk, bytes]:
    chunks = list(client.call(client.models.Fetch, pb.FetchRequest(policy="queue", **which)))
    assert not any(chunk.base_sha256 for chunk in chunks[1:])
    return chunks[0], b"".join(chunk.data for chunk in chunks)


class Reads:
    """Counts what is read from the disk, and which differences are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: Counter[str] = Counter()
        self.made: Counter[tuple[str, str]] = Counter()
        get, make = Blobs.get, hub_module.make_delta

        def counted(blobs: Blobs, digest: str) -> bytes:
            self.files[digest] += 1
            return get(blobs, digest)

        def made(base: bytes, result: bytes) -> bytes | None:
            self.made[sha(base), sha(result)] += 1
            return make(base, result)

        monkeypatch.setattr(Blobs, "get", counted)
        monkeypatch.setattr(hub_module, "make_delta", made)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as here:
        here.client().register(SPEC)
        yield here


def test_a_model_above_the_threshold_comes_as_a_difference(server: Running, reads: Reads) -> None:
    ada, puppet = server.client(), server.puppet()
    files = {version: large(version) for version in (1, 2)}
    for data in files.values():
        puppet.publish(data=data)
    assert len(files[2]) > ServerConfig().differences.above  # type: ignore[operator]
    first, whole = fetch(ada, version=1)
    assert whole == files[1] and not first.base_sha256
    first, delta = fetch(ada, version=2, base_sha256=sha(whole))
    assert first.base_sha256 == sha(whole) and first.info.sha256 == sha(files[2])
    assert first.info.size == len(files[2]) and len(delta) < 0.75 * len(files[2])
    assert apply_delta(whole, delta, first.info.sha256) == files[2]
    # Who does not ask, as the C++ client, gets the whole file.
    assert fetch(ada, version=2)[1] == files[2]
    assert fetch(ada, sha256=sha(files[2]))[1] == files[2]
    # Once for all, also when it is asked for by its hash.
    for _ in range(5):
        assert fetch(ada, sha256=sha(files[2]), base_sha256=sha(whole))[1] == delta
    assert reads.made == {(sha(files[1]), sha(files[2])): 1}
    assert set(reads.files.values()) == {1}
    meters = server.gateway.hub.meters
    wait_for(lambda: meters.differences.get("queue") == 6)
    assert meters.fetches.get("queue") == 9
    sent = len(files[1]) + 2 * len(files[2]) + 6 * len(delta)
    assert meters.fetched_bytes.get("queue") == sent


def test_a_base_that_is_of_no_use_gives_the_whole_file(server: Running, tmp_path: Path) -> None:
    ada, puppet = server.client(), server.puppet()
    files = [large(version) for version in (1, 2)]
    for data in (*files, snapshot(3)):
        puppet.publish(data=data)
    checkpoint = sha(b"state 1")
    foreign = sha(snapshot(3))  # a model of the policy, but laid out otherwise
    for base in (checkpoint, foreign, "0" * 64, "nonsense", "ü" * 70, sha(files[1])):
        first, data = fetch(ada, version=2, base_sha256=base)
        assert data == files[1] and not first.base_sha256, base
    (path,) = tmp_path.rglob(sha(files[0]))
    path.write_bytes(b"x" + files[0][1:])
    first, data = fetch(ada, version=2, base_sha256=sha(files[0]))  # damaged on the server's disk
    assert data == files[1] and not first.base_sha256


def test_the_threshold_anchors_and_the_switch(tmp_path: Path) -> None:
    small = [large(version, hidden=32) for version in range(1, 10)]

    def differences(where: str, **settings: Any) -> list[bool]:
        with running(tmp_path / where, differences=settings) as server:
            ada = server.client()
            ada.register()
            for data in small:
                server.puppet().publish(data=data)
            found = []
            for i, data in enumerate(small[1:], 1):
                first, sent = fetch(ada, version=i + 1, base_sha256=sha(small[i - 1]))
                found.append(bool(first.base_sha256))
                if found[-1]:
                    sent = apply_delta(small[i - 1], sent, first.info.sha256)
                assert sent == data
            return found

    assert not any(differences("default"))
    assert not any(differences("above", above=len(small[0]) + 100))
    assert all(differences("all", above=len(small[0])))
    # Versions 4 and 8 are anchors.
    assert differences("anchors", above=0, anchor=4) == [i % 4 != 0 for i in range(2, 10)]
    assert not any(differences("each", above=0, anchor=1))
    assert not any(differences("off", above=None))


def test_many_who_ask_at_once_make_one_difference(tmp_path: Path, reads: Reads) -> None:
    with running(tmp_path, differences={"above": 0}) as server:
        server.client().register()
        files = [large(version, hidden=256) for version in (1, 2)]
        for data in files:
            server.puppet().publish(data=data)
        found: list[bytes] = []

        def ask(number: int) -> None:
            client = server.client(f"client-{number}")
            found.append(fetch(client, version=2, base_sha256=sha(files[0]))[1])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 12 and len(set(found)) == 1
        assert set(reads.made.values()) == {1} and set(reads.files.values()) == {1}


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_two_watchers_and_a_thousand_fetches_read_each_file_once(
    server: Running, reads: Reads
) -> None:
    versions = [large(version, hidden=192) for version in range(1, 11)]
    stop = threading.Event()
    seen: dict[str, list[int]] = {"ada": [], "bob": []}
    calls = []

    def follow(name: str) -> None:
        call = server.client(name).watch()
        calls.append(call)
        try:
            for info in call:
                seen[name].append(info.version)
        except Exception:
            assert stop.is_set()

    threads = [threading.Thread(target=follow, args=(name,), daemon=True) for name in seen]
    for thread in threads:
        thread.start()
    client = server.client("cleo")
    before = 0
    for number, data in enumerate(versions, 1):
        server.puppet().publish(data=data)
        wait_for(lambda n=number: all(told and told[-1] == n for told in seen.values()))
        for _ in range(100):
            assert len(fetch(client, sha256=sha(data))[1]) == len(data)
        if number == 2:
            before = resident()
    assert reads.files == {sha(data): 1 for data in versions}
    assert resident() - before < 40 << 20  # of 150 MB that were sent
    assert server.gateway.hub.snapshots.bytes < sum(map(len, versions)) + 10_000
    stop.set()
    for call in calls:
        call.cancel()
    for thread in threads:
        thread.join(20)


def test_the_cache_is_bounded(
    server: Running, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [large(version, hidden=128) for version in range(1, 9)]
    kept = server.gateway.hub.snapshots
    monkeypatch.setattr(kept, "_most_bytes", 3 * len(files[0]) + 1000)
    for data in files:
        server.puppet().publish(data=data)
    for data in (*files, *files):
        assert fetch(server.client(), sha256=sha(data))[1] == data
        assert kept.bytes <= 3 * len(files[0]) + 1000
    assert set(reads.files.values()) == {2}
    # One that is larger than all of it is still served, and kept alone.
    monkeypatch.setattr(kept, "_most_bytes", 10)
    assert fetch(server.client(), version=1)[1] == files[0]
    assert kept.bytes < len(files[0]) + 1000


def test_a_version_that_was_pruned_is_unknown(tmp_path: Path) -> None:
    options: dict[str, Any] = {"retention": {"versions": 2, "every": 0.05}}
    with running(tmp_path, differences={"above": 0}, **options) as server:
        ada = server.client()
        ada.register()
        puppet = server.puppet()
        stable, puppet._channel = puppet._channel, lambda: None
        files = [large(version, hidden=32) for version in range(1, 7)]
        puppet.publish(data=files[0])
        assert fetch(ada, version=1)[1] == files[0]  # it is in memory now
        for data in files[1:5]:
            puppet.publish(data=data)
        puppet._channel = stable
        puppet.publish(data=files[5])
        wait_for(lambda: len(server.store.registry.models("queue")) <= 3)
        for which in ({"version": 1}, {"sha256": sha(files[0])}):
            error = refused(ada.fetch, **which)
            assert error.reason is Reason.UNKNOWN_VERSION, which
            assert "'queue'" in error.message
        # As a base it is of no use any more, and no reason to refuse.
        first, data = fetch(ada, version=6, base_sha256=sha(files[0]))
        assert data == files[5] and not first.base_sha256
