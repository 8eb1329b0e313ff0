"""Train the learning cases with their shipped presets, many seeds in parallel, and go on later.

    python benchmarks/learning.py --cases all --jobs 16 --out runs/learning
    python benchmarks/report.py --collect runs/learning

Each seed is a process of its own on one thread. A seed whose result is there, from the same
resolved configuration, is not run again; one that was interrupted (Ctrl-C, SIGTERM, or the time
limit of a seed) is resumed from its checkpoint, exactly where it was.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
import numpy as np
from cases import CASES, FINAL_EPISODES, Case, parse_cases
from children import finish

from assay.core.errors import AssayError, ConfigError

INTERRUPTED = 3
GRACE_SECONDS = 120


def result_path(out: Path, case: Case, seed: int) -> Path:
    """Return where the result of one seed is kept."""
    return out / "seeds" / f"{case.name}-{seed}.json"


def resolved(case: Case, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Return the fully resolved configuration of one seed, as plain values."""
    from assay.loops.config import resolve

    return resolve(case.algorithm, case.env, case.settings(seed, device)).to_dict()


def finished(out: Path, case: Case, seed: int, device: str = "cpu") -> bool:
    """Return whether the result of this very configuration is there."""
    try:
        result = evidence.read_json(result_path(out, case, seed))
    except evidence.EvidenceError:
        return False
    return result.get("config_hash") == evidence.config_hash(resolved(case, seed, device))


# ---------------------------------------------------------------------- one seed, in a child


def run_seed(case: Case, seed: int, out: Path, device: str, keep: bool) -> int:
    """Train, evaluate and store one seed; return the exit code."""
    from assay import api
    from assay.evaluation.evaluate import load_evaluations

    config = resolved(case, seed, device)
    run = train_or_resume(out / "runs", f"{case.name}-{seed}", config)
    if run.status != "done":
        return INTERRUPTED
    # Seeds of its own: neither those of training nor those of the curve.
    final = run.evaluate(FINAL_EPISODES, seed=1_000_000 + seed)
    curve = load_evaluations(run.directory)
    seconds = _training_seconds(run.metrics()["time/elapsed"][1])
    evidence.write_json(
        result_path(out, case, seed),
        {
            "schema": evidence.SCHEMA,
            "case": case.name,
            "algorithm": case.algorithm,
            "env": case.env,
            "env_steps": case.env_steps,
            "seed": seed,
            "config_hash": evidence.config_hash(config),
            "config": config,
            "evaluation": {
                "episodes": FINAL_EPISODES,
                "seed": final.seed,
                "mean": round(final.mean, 4),
                "iqm": round(final.iqm, 4),
                "std": round(final.std, 4),
                "returns": evidence.rounded(final.returns),
                **_successes(case, final),
            },
            "curve": {
                "env_steps": [steps for steps, _ in curve],
                "mean": evidence.rounded((found.mean for _, found in curve), 2),
            },
            "train_seconds": round(seconds, 2),
            "env_steps_per_second": round(case.env_steps / seconds, 1),
            "machine": evidence.machine(),
        },
    )
    if not keep:
        api.open_run(run.path).directory.delete()
    return 0


def _successes(case: Case, final: Any) -> dict[str, Any]:
    if case.measure != "success":
        return {}
    if final.success is None:
        raise ConfigError(
            f"{case.name} is judged by its successes, but {case.env} does not report them.",
            "Its last info must have `is_success` or `success`.",
        )
    successes = [int(value) for value in final.success]
    return {"success_rate": round(sum(successes) / len(successes), 4), "success": successes}


def train_or_resume(root: Path, name: str, config: dict[str, Any]) -> Any:
    """Return the run of a configuration: the one that is there, resumed if need be, or a new one.

    Args:
        root: Where runs are kept.
        name: Of the run; one of another configuration is replaced.
        config: Fully resolved.
    """
    from assay import api
    from assay.runs import checkpoint

    try:
        run = api.open_run(root / name)
    except AssayError:
        run = None
    if run is not None:
        if run.config.to_dict() == config and run.status == "done":
            return run
        started = checkpoint.latest(run.directory.checkpoints_path) is not None
        if run.config.to_dict() == config and started:
            return api.resume(run.path, force=True)
        run.directory.delete()
    return api.train(config["algorithm"], config["env"], root=root, name=name, config=config)


def _training_seconds(elapsed: np.ndarray) -> float:
    """Add up the sessions of a run: the clock in its log starts again with each of them."""
    restarts = np.flatnonzero(np.diff(elapsed) < 0)
    return float(elapsed[restarts].sum() + elapsed[-1])


# ---------------------------------------------------------------------- all seeds, in the parent


@dataclass(slots=True)
class Job:
    """One seed that runs."""

    case: Case
    seed: int
    process: subprocess.Popen[bytes]
    started: float
    stopped: float | None = None

    @property
    def name(self) -> str:
        """Return what it is called in messages and logs."""
        return f"{self.case.name} seed {self.seed}"


class Pool:
    """Run jobs as processes, some at a time, and end them at a good state when asked to.

    Args:
        options: What the command line said.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.stopping = False
        self.failures = 0
        self.running: list[Job] = []

    def run(self, pending: list[tuple[Case, int]]) -> None:
        """Run all, the longest first."""
        pending = sorted(pending, key=lambda item: item[0].minutes)
        while self.running or (pending and not self.stopping):
            while pending and len(self.running) < self.options.jobs and not self.stopping:
                self.running.append(self._start(*pending.pop()))
            time.sleep(0.1)
            for job in list(self.running):
                self._watch(job)

    def stop(self, signum: int, frame: Any) -> None:
        """Ask every child to save itself, and start no more."""
        self.stopping = True
        for job in self.running:
            self._ask_to_stop(job)

    def _start(self, case: Case, seed: int) -> Job:
        options = self.options
        log = options.out / "logs" / f"{case.name}-{seed}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, __file__, "--one", case.name, str(seed)]
        command += ["--out", str(options.out), "--device", options.device]
        command += ["--keep-runs"] if options.keep_runs else []
        threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **threads},
                # Ctrl-C reaches the parent alone, which then asks the children in order.
                start_new_session=True,
            )
        return Job(case, seed, process, time.monotonic())

    def _watch(self, job: Job) -> None:
        now = time.monotonic()
        code = job.process.poll()
        if code is None:
            limit = self.options.case_timeout
            if limit and job.stopped is None and now - job.started > limit:
                self._ask_to_stop(job)
            elif job.stopped is not None and now - job.stopped > GRACE_SECONDS:
                job.process.kill()
            return
        self.running.remove(job)
        self._tell(job, code, now - job.started)

    def _ask_to_stop(self, job: Job) -> None:
        if job.stopped is None:
            job.stopped = time.monotonic()
            job.process.terminate()

    def _tell(self, job: Job, code: int, seconds: float) -> None:
        if code == 0:
            path = result_path(self.options.out, job.case, job.seed)
            result = evidence.read_json(path)
            score = evidence.seed_score(job.case, result["evaluation"])
            print(f"{job.name}: {score:.4g} ({job.case.goal}) after {seconds:.0f} s", flush=True)
            return
        self.failures += 1
        log = self.options.out / "logs" / f"{job.case.name}-{job.seed}.log"
        if code == INTERRUPTED or job.stopped is not None:
            print(f"{job.name}: interrupted; the same command goes on with it", flush=True)
        else:
            tail = "\n  ".join(log.read_text(errors="replace").splitlines()[-8:])
            print(f"{job.name}: failed with exit code {code}\n  {tail}", flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the learning cases.")
    parser.add_argument("--cases", default="all", help=f"all, or some of: {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, help="seeds 1 to N of each case, not its own number")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"), help="where to work")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--case-timeout", type=float, help="seconds after which a seed is stopped")
    parser.add_argument("--keep-runs", action="store_true", help="keep the run directories")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "SEED"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in ("seeds", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name} is {value}; expected at least 1.")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; return 0 when every result is there."""
    options = parse(arguments)
    if options.one is not None:
        name, seed = options.one
        return run_seed(CASES[name], int(seed), options.out, options.device, options.keep_runs)
    wanted = [
        (case, k + 1)
        for case in parse_cases(options.cases)
        for k in range(options.seeds or case.seeds)
    ]
    pending = [(c, s) for c, s in wanted if not finished(options.out, c, s, options.device)]
    print(f"{len(wanted) - len(pending)} of {len(wanted)} seeds are done; {len(pending)} to run.")
    pool = Pool(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pool.stop)
    pool.run(pending)
    return 1 if pool.failures or pool.stopping else 0


if __name__ == "__main__":
    finish(main)
