"""Learn over the training server and locally with the same settings, and compare seed by seed.

    python benchmarks/server_learning.py --seeds 5 --jobs 5 --clients 3 --out runs/server
    python benchmarks/server_learning.py --out runs/server --store
    python benchmarks/server_learning.py --quick          # does the harness work?

Every seed is a server of its own (`assay serve`, one learner process) with several client
processes, each of which plays its share of the environment steps. The last model is judged exactly
as the local runs of `learning.py` are: the same episodes, the same number of them. A seed whose
result is there is not run again.

Clients of a simulator can wait, so they do: with `overflow=block`, a small buffer and a small
backlog nobody runs far ahead of the learner, and data is about as fresh as in a local run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence
import numpy as np
from cases import CASES, FINAL_EPISODES, Case
from children import finish

from assay.core.errors import AssayError, ConfigError

CASE = "ppo-lunarlander"
EVIDENCE = evidence.ROOT / "evidence" / "server-learning.json"
BACKLOG_STEPS = 1_024
BATCH_STEPS = 128
POLICY = "lander"
START_SECONDS = 120.0
SEED_SECONDS = 3_600.0


def result_path(out: Path, seed: int) -> Path:
    """Return where the result of one seed is kept."""
    return out / f"{CASE}-server-{seed}.json"


# ---------------------------------------------------------------------- the parts of one seed


@contextlib.contextmanager
def server(seed: int) -> Iterator[str]:
    """Run `assay serve` in a directory of its own and yield its address."""
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "server.json"
        config.write_text(
            json.dumps(
                {
                    "data": f"{directory}/data",
                    "listen": "127.0.0.1:0",
                    "backlog_steps": BACKLOG_STEPS,
                    "learner": {"seed": seed},
                }
            )
        )
        command = [sys.executable, "-m", "assay", "serve", "--config", str(config)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            yield _address(process)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    """Read where a server listens from what it says."""
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.replace(",", " ").split():
            if word.startswith("127.0.0.1:"):
                return word.rstrip(".")
    raise AssayError(f"The server ended with code {process.wait()} before it listened.")


def options(case: Case, seed: int, steps: int) -> dict[str, Any]:
    """Return what every client of a seed registers."""
    settings = {"preset": case.env, "seed": seed, "env_steps": steps, **case.overrides}
    return {
        "algorithm": case.algorithm,
        "settings": settings,
        "batch_steps": BATCH_STEPS,
        "buffer_steps": 2 * BATCH_STEPS,
        "overflow": "block",
        "block_seconds": 600.0,
        "stall_seconds": 600.0,
    }


def play(case: Case, address: str, seed: int, number: int, share: int, steps: int) -> None:
    """Be one client: play a share of the steps."""
    import assay

    with assay.connect_env(
        case.env,
        address,
        POLICY,
        client=f"player-{number}",
        wait_seconds=START_SECONDS,
        env_seed=1_000 * seed + number,
        **options(case, seed, steps),
    ) as runner:
        runner.run(steps=share)
        if not runner.connection.flush(60.0):
            raise AssayError(f"Client {number} could not send everything.")
        status = runner.connection.status()
        if status.acting.dropped_steps or status.refused_steps:
            raise AssayError(f"Client {number} lost steps: {status}.")


class Served:
    """The newest model of a server, as an agent that can be evaluated."""

    def __init__(self, case: Case, address: str, seed: int, steps: int) -> None:
        import assay

        with assay.connect_env(
            case.env, address, POLICY, client="judge", wait_seconds=START_SECONDS,
            explore=False, **options(case, seed, steps),
        ) as runner:  # fmt: skip
            loaded = runner.connection.agent.keeper.current
        if loaded is None:
            raise AssayError("The server has no model.")
        self.policy, self.version = loaded.policy, loaded.version

    def act(self, obs: Any, carry: Any, explore: bool) -> Any:
        """Return the best action for each row."""
        from assay.core.types import Action

        return Action(np.array([self.policy.act(row[None])[0] for row in obs]))

    def initial_carry(self, n: int) -> None:
        """Return nothing: these policies have no memory."""


def run_seed(case: Case, seed: int, out: Path, clients: int, steps: int) -> None:
    """Learn one seed over a server and store its result."""
    from assay.evaluation.evaluate import evaluate

    started = time.monotonic()
    with server(seed) as address:
        players = [
            subprocess.Popen(
                [
                    sys.executable, __file__, "--play", address, str(seed), str(number),
                    str(-(-steps // clients)), str(steps),
                ]
            )
            for number in range(clients)
        ]  # fmt: skip
        try:
            codes = [player.wait(SEED_SECONDS) for player in players]
        finally:
            for player in players:
                player.kill()
        if any(codes):
            raise AssayError(f"Clients of seed {seed} ended with the codes {codes}.")
        trained = time.monotonic() - started
        agent = Served(case, address, seed, steps)
    final = evaluate(agent, case.env, episodes=FINAL_EPISODES, seed=1_000_000 + seed)
    evidence.write_json(
        result_path(out, seed),
        {
            "schema": evidence.SCHEMA,
            "case": case.name,
            "env_steps": steps,
            "seed": seed,
            "clients": clients,
            "version": agent.version,
            "mean": round(final.mean, 4),
            "returns": evidence.rounded(final.returns),
            "train_seconds": round(trained, 1),
            "machine": evidence.machine(),
        },
    )
    print(f"seed {seed}: {final.mean:.1f} at version {agent.version}, {trained:.0f} s", flush=True)


# ---------------------------------------------------------------------- judging


def store(case: Case, out: Path) -> dict[str, Any]:
    """Put the seeds together with the local evidence and return what is stored.

    Raises:
        ConfigError: Not every seed of the local runs was run over a server.
    """
    local = evidence.read_learning(evidence.LEARNING / f"{case.name}.json")
    found = []
    for entry in local["seeds"]:
        try:
            one = evidence.read_json(result_path(out, entry["seed"]))
        except evidence.EvidenceError:
            raise ConfigError(f"Seed {entry['seed']} was not run over a server.") from None
        if one["env_steps"] != case.env_steps:
            raise ConfigError(f"Seed {entry['seed']} has {one['env_steps']} steps.")
        found.append(one)
    machine = found[0]["machine"]
    seeds = [{k: v for k, v in one.items() if k not in ("machine", "schema")} for one in found]
    content = {"schema": evidence.SCHEMA, "case": case.name, "seeds": seeds, "machine": machine}
    evidence.write_json(EVIDENCE, content)
    return content


def lines(content: Mapping[str, Any]) -> str:
    """Return the comparison as a table."""
    from assay.evaluation.statistics import welch_test

    local = evidence.read_learning(evidence.LEARNING / f"{content['case']}.json")
    served = [float(np.mean(one["returns"])) for one in content["seeds"]]
    alone = [entry["evaluation"]["mean"] for entry in local["seeds"]]
    interval = welch_test(served, alone).interval
    assert interval is not None
    clients = content["seeds"][0]["clients"]
    rows = [
        "| | each seed | mean |",
        "|---|---|---|",
        f"| over the server, {clients} clients | {_each(served)} | {np.mean(served):.1f} |",
        f"| in one process | {_each(alone)} | {np.mean(alone):.1f} |",
        "",
        f"{local['env']}, {local['env_steps']:,} environment steps, {len(served)} seeds, "
        f"{FINAL_EPISODES} episodes each. The difference of the means is {interval.point:+.1f}, "
        f"95 % interval [{interval.low:+.1f}, {interval.high:+.1f}].",
    ]
    return "\n".join(rows)


def _each(values: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and return the exit code."""
    parser = argparse.ArgumentParser(description="Learn over the server and compare.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="seeds at the same time")
    parser.add_argument("--clients", type=int, default=3, help="client processes of a seed")
    parser.add_argument("--out", type=Path, default=Path("runs/server-learning"))
    parser.add_argument("--store", action="store_true", help="write the evidence from --out")
    parser.add_argument("--quick", action="store_true", help="few steps, nothing is stored")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--play", nargs=5, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    case = CASES[CASE]
    if chosen.play:
        address, *numbers = chosen.play
        play(case, address, *map(int, numbers))
        return 0
    steps = 40_000 if chosen.quick else case.env_steps
    if chosen.seed is not None:
        run_seed(case, chosen.seed, chosen.out, chosen.clients, steps)
        return 0
    if chosen.store:
        print(lines(store(case, chosen.out)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) if chosen.quick else chosen.out
        out.mkdir(parents=True, exist_ok=True)
        return _run_all(chosen, out)


def _run_all(chosen: argparse.Namespace, out: Path) -> int:
    """Run the seeds that have no result yet, some at a time."""
    waiting = [s for s in range(1, chosen.seeds + 1) if not result_path(out, s).exists()]
    running: list[subprocess.Popen[bytes]] = []
    failed = 0
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    while waiting or running:
        while waiting and len(running) < chosen.jobs:
            command = [sys.executable, __file__, "--seed", str(waiting.pop(0)), "--out", str(out)]
            command += ["--clients", str(chosen.clients)] + ["--quick"] * chosen.quick
            running.append(subprocess.Popen(command, env=environment))
        time.sleep(0.2)
        failed += sum(bool(one.poll()) for one in running)
        running = [one for one in running if one.poll() is None]
    return 1 if failed else 0


if __name__ == "__main__":
    finish(main)
