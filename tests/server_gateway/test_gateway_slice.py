"""The smallest slice: register, open, stream, watch, fetch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gateway_support import SPEC, batch, running, wait_for

from assay.server.protocol import assay_pb2 as pb
from assay.server.store.store import iterate


def test_a_client_sends_experience_and_gets_a_model(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        ada = server.client("ada")
        reply = ada.register()
        assert reply.created and reply.policy == "queue" and reply.spec_hash == SPEC.hash()
        assert not ada.register().created
        opened = ada.open(spec_hash=reply.spec_hash)
        assert opened.epoch == 1 and opened.credit_batches == 32
        assert list(opened.limits.codecs) == [pb.RAW, pb.ZSTD]

        stream = ada.stream()
        wait_for(lambda: stream.acks)
        assert (stream.acks[0].epoch, stream.acks[0].committed) == (1, 0)
        sent = [batch(1, seq) for seq in range(1, 6)]
        stream.send(*sent)
        stream.wait_committed(5)
        stored = list(iterate(server.store, "queue"))
        assert [one.payload for one in stored] == [one.SerializeToString() for one in sent]
        assert {one.client for one in stored} == {"ada"}

        watch = ada.watch()
        assert server.puppet().publish() == 1
        info = next(watch)
        assert (info.version, info.channel, info.policy) == (1, "stable", "queue")
        found, data = ada.fetch(sha256=info.sha256)
        assert found.version == 1 and hashlib.sha256(data).hexdigest() == info.sha256
        assert server.puppet().publish() == 2
        assert next(watch).version == 2
        assert ada.fetch(version=2)[0].version == 2
        watch.cancel()
        stream.close()
        stream._thread.join(20)
        assert stream.error is None  # a stream that the client closed does not end with an error
