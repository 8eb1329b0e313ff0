"""kill -9 of a trainer and of the whole server: `assay serve` with real learners in processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from gateway_support import SPEC
from players import Player, stored_numbers
from served import Served, until

from assay.server.store.store import Store

SETTINGS = {"horizon": 64, "num_envs": 1, "minibatch_size": 32, "hidden": [8]}
STEADY, VICTIM = (
    SPEC.model_copy(update={"name": name, "settings": SETTINGS}) for name in ("steady", "victim")
)


@pytest.mark.slow
def test_a_trainer_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    # All versions are counted in the end, however many a slow machine makes of them.
    with Served(tmp_path / "data", retention={"every": 3600.0}) as server:
        players: dict[str, Player] = {}

        def version(name: str) -> int:
            return players[name].connection.status().acting.version or 0

        try:
            for spec in (STEADY, VICTIM):  # one after the other, so that we know whose is whose
                player = Player(server.address, "ada", spec=spec, batch_steps=32)
                players[spec.name] = player.start()
                until(lambda name=spec.name: version(name) >= 1, f"a model of {spec.name}")
            steady, victim = server.learners()
            until(lambda: version("victim") >= 3, "a version that was learned")
            before = version("steady")
            victim.kill()
            # The other policy learns on meanwhile, and so does a new learner of this one.
            new = until(lambda: [one for one in server.learners() if one != victim][1:], "another")
            assert server.learners()[0] == steady and len(new) == 1
            until(lambda: version("steady") > before, "the steady one")
            at = version("victim")
            until(lambda: version("victim") > at + 1, "what the new one learned")
            status = players["steady"].connection.status()
            assert status.failures == 0 and status.acting.rejected_models == 0
            newest = {name: version(name) for name in players}
            # In order, and under load.
            assert server.end(signal.SIGTERM) == 0, server.text
            assert "Drained" in server.text
            check(tmp_path / "data", players, newest)
        finally:
            for player in players.values():
                player.finish(0.0)
                player.connection.close(0.0)


def check(data: Path, players: dict[str, Player], newest: dict[str, int]) -> None:
    """Hold what the store has against what the clients were told."""
    with Store(data) as store:
        assert store.repairs == []
        for name, player in players.items():
            numbers = stored_numbers(store, name)["ada"]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= player.acknowledged > 0
            learner = store.registry.learner(name)
            versions = [one.version for one in store.registry.models(name, newest=10**6)]
            assert versions == list(range(learner.version, 0, -1))
            assert learner.version >= newest[name]
            # Each version grew from the one before, also across the kills.
            parents = [one.parent for one in store.registry.models(name, newest=10**6)]
            assert parents[:-1] == versions[1:]
