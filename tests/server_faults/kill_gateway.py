"""Kill the gateway again and again under real clients, and count what is lost or doubled.

    python kill_gateway.py --kills 1000

Clients number their steps (the reward is the number) and send them in small batches while a gateway
is started and killed with SIGKILL: every other time as soon as it was forked, so that the kill hits
its opening, else some time after it has acknowledged something new. In the end a gateway runs to an
orderly end, and the store must hold every step of every client once, in order. A learner in the
gateway counts the batches it is given; what it has learned from must be exactly what was stored.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
for _place in (HERE, HERE.parent / "server_client", HERE.parent / "server_gateway"):
    if str(_place) not in sys.path:
        sys.path.append(str(_place))

from fault_hosts import tally  # noqa: E402
from gateway_support import SPEC  # noqa: E402
from players import Player, stored_numbers  # noqa: E402
from served import Forge, until  # noqa: E402

from assay.server.store.store import Store, iterate  # noqa: E402


@dataclass
class Result:
    """What came out of a loop."""

    kills: int = 0
    acknowledged: int = 0
    stored: int = 0
    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    unanswered: int = 0
    sessions: int = 0
    versions: int = 0
    repaired: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.kills} kills, {self.acknowledged} steps acknowledged, {self.stored} stored, "
            f"{self.sessions} sessions, {self.versions} versions, {self.repaired} repairs, "
            f"{self.lost} lost, {self.doubled} duplicated, {self.unanswered} decisions missed"
        )


def run(
    kills: int,
    seed: int = 0,
    *,
    clients: int = 3,
    learner: str = "Tally",
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Result:
    """Kill so often, and return what was lost; options are of `gateway_forge`."""
    rng = random.Random(seed)
    result = Result(kills)
    with Forge() as forge:
        # The clients are there before the first server.
        players = [Player(forge.address, f"client-{i}") for i in range(clients)]
        try:
            for player in players:
                player.start()
            for kill in range(kills):
                forge.fork(learner, **options)
                if kill % 2:
                    forge.ready()
                    result.repaired += len(forge.repairs)
                    before = [player.acknowledged for player in players]
                    until(
                        lambda before=before: any(
                            player.acknowledged > was
                            for player, was in zip(players, before, strict=True)
                        ),
                        f"an acknowledgement after kill {kill}\n{forge.log.read_text()[-2000:]}",
                    )
                    time.sleep(0.05 * rng.random())
                else:
                    time.sleep(0.3 * rng.random())
                forge.end(signal.SIGKILL)
                if progress is not None and (kill + 1) % 100 == 0:
                    progress(f"{kill + 1} kills")
            forge.start(learner, **options)
            result.repaired += len(forge.repairs)
            for player in players:
                if not player.finish():
                    result.problems.append(f"{player.name} kept {player.connection.status()}")
            for player in players:
                status = player.connection.status()
                result.acknowledged += status.acknowledged_steps
                result.sessions += status.epoch
                result.unanswered += player.wrong + player.steps - status.acting.decisions
                result.unanswered += sum(status.acting.errors.values())
                player.connection.close()
            if forge.end(signal.SIGTERM):
                result.problems.append("the last gateway did not end in order")
        finally:
            for player in players:
                player.finish(0.0)
                player.connection.close(0.0)
        with Store(Path(forge.config["data"])) as store:
            _compare(store, players, result, bool(learner))
    return result


def _compare(store: Store, players: list[Player], result: Result, learns: bool) -> None:
    found = stored_numbers(store)
    for player in players:
        numbers = found.pop(player.name, [])
        result.stored += len(numbers)
        result.lost += player.steps - len(set(numbers))
        result.doubled += len(numbers) - len(set(numbers))
        result.disordered += sum(b <= a for a, b in itertools.pairwise(numbers))
    result.problems += [f"steps of '{name}', whom nobody knows" for name in found]
    if not learns:
        return
    learner = store.registry.learner(SPEC.name)
    result.versions = learner.version
    versions = [one.version for one in store.registry.models(SPEC.name, newest=learner.version)]
    if versions != list(range(learner.version, 0, -1)):
        result.problems.append(f"versions {versions[:20]}...")
    # An orderly end saves what was learned, and leaves what the learner had not come to.
    stored = [(one.position, one.payload) for one in iterate(store, SPEC.name)]
    given = [one for one in stored if one[0] <= learner.position]
    wanted = tally({"batches": 0, "crc": 0}, given)
    assert learner.checkpoint is not None
    learned = json.loads(store.blobs(SPEC.name).get(learner.checkpoint))
    if learned != wanted:
        result.problems.append(f"the learner has learned {learned}; stored was {wanted}")


def main() -> int:
    """Run the loop and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    result = run(options.kills, options.seed, progress=lambda text: print(text, file=sys.stderr))
    print(result.line())
    for problem in result.problems:
        print(problem, file=sys.stderr)
    return int(bool(result.lost or result.doubled or result.disordered or result.problems))


if __name__ == "__main__":
    sys.exit(main())
