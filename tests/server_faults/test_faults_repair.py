"""Damage on the disk, found when `assay serve` starts again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from players import Player, numbers_in
from served import Forge, until

from assay.server.store.sqlite import DATABASE
from assay.server.store.store import Store


def filled(forge: Forge, player: Player) -> None:
    """Let a client send something, and kill the server."""
    forge.start()
    player.play(41)
    until(lambda: player.acknowledged >= 40, "acknowledgements")
    forge.end()


def segments(forge: Forge) -> list[Path]:
    found = Path(forge.config["data"]).glob("policies/queue/segments/*")
    return sorted(path for path in found if path.is_file())


def test_a_torn_segment_is_cut_back_and_reported() -> None:
    with Forge() as forge:
        player = Player(forge.address, "ada")
        try:
            filled(forge, player)
            last = segments(forge)[-1]
            with open(last, "ab") as file:
                file.write(os.urandom(137))  # a write that the power cut short
            forge.start()
            assert any(str(last.name) in repair for repair in forge.repairs), forge.repairs
            player.play(10)
            assert player.finish(), player.connection.status()
        finally:
            player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        assert numbers_in(forge.config["data"]) == {"ada": list(range(player.steps))}


def test_committed_batches_that_the_disk_has_lost_are_named() -> None:
    with Forge() as forge:
        player = Player(forge.address, "ada")
        try:
            filled(forge, player)
            last = segments(forge)[-1]
            os.truncate(last, last.stat().st_size - 10)
            forge.start()
            # Acknowledged, and gone with the disk: this cannot be repaired, but it is said.
            assert any("lost" in one and "'ada'" in one for one in forge.repairs), forge.repairs
            player.play(10)
            assert player.finish(), player.connection.status()
        finally:
            player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        numbers = numbers_in(forge.config["data"])["ada"]
        missing = sorted(set(range(player.steps)) - set(numbers))
        assert numbers == sorted(set(numbers))
        assert missing == list(range(36, 40))  # the last batch before the damage, and no other


def test_learning_goes_on_behind_a_damaged_batch_and_checkpoint() -> None:
    with Forge() as forge:
        player = Player(forge.address, "ada")
        try:
            forge.start()
            player.play(401)
            until(lambda: player.acknowledged >= 400, "acknowledgements")
            until(lambda: forge.metric("assay_model_version") >= 5, "versions, of 8 batches each")
            forge.end()
            with Store(Path(forge.config["data"])) as store:
                learner = store.registry.learner("queue")
                blobs = Path(forge.config["data"]) / "policies" / "queue" / "blobs"
                (blobs / str(learner.checkpoint)).write_bytes(b"nonsense")
                last = store.registry.last_position("queue")
                place = store.registry.batches("queue", last - 1, 1)[0].place
            with open(segments(forge)[-1], "r+b") as file:
                file.seek(place.offset + place.size - 9)
                file.write(b"nonsense")
            forge.start()
            assert any("cannot be read" in one for one in forge.repairs), forge.repairs
            player.play(80)
            until(lambda: forge.metric("assay_model_version") >= learner.version + 2, "versions")
            until(lambda: forge.metric("assay_learner_skipped_batches") == 1, "the metric")
            assert forge.metric("assay_learner_restarts") == 0
            said = forge.log.read_text()
            assert f"batch {last} (of 'ada', session 1, {last}) is passed over" in said
            assert "Learning goes on from the one before it" in said
        finally:
            player.connection.close(0.0)


def test_a_corrupt_index_is_built_again_and_reported() -> None:
    with Forge() as forge:
        player = Player(forge.address, "ada")
        try:
            filled(forge, player)
            registry = Path(forge.config["data"]) / "registry"
            database = registry / DATABASE
            database.write_bytes(os.urandom(database.stat().st_size))
            for end in ("-wal", "-shm"):  # which would fix it
                (registry / f"{DATABASE}{end}").unlink(missing_ok=True)
            forge.start()
            assert any("built again" in one for one in forge.repairs), forge.repairs
            assert forge.metric("assay_steps_total") == 40
            player.play(10)
            assert player.finish(), player.connection.status()
        finally:
            player.connection.close(0.0)
        assert forge.end(signal.SIGTERM) == 0
        assert numbers_in(forge.config["data"]) == {"ada": list(range(player.steps))}
