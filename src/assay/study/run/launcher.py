"""Launch one run of one candidate: check, confirm, reserve, record, start its supervisor."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.runs import provenance
from assay.runs.files import dump_json
from assay.runs.git import GitError, git
from assay.study.agree import budget, checkout, interpreter, spending
from assay.study.agree.protocol import fingerprints
from assay.study.files.base import Phase
from assay.study.files.documents import StudyError, digest, write_json_document, write_text
from assay.study.files.records import RunRecord
from assay.study.record.kinds import PREPARED
from assay.study.record.study import Study
from assay.study.run import gpus, supervisor
from assay.study.run.planning import Plan, plan
from assay.study.run.recovery import recover

LOCKS = ("uv.lock", "poetry.lock", "requirements.txt")


def launch(
    study: Study,
    name: str,
    phase: Phase,
    seed: int,
    *,
    confirm: str | None,
    actor: str,
    between: Callable[[str], None] = lambda step: None,
) -> Plan:
    """Start one run of one candidate; return when its supervisor is started.

    It is confirmed with the token that its dry run shows, which is bound to the candidate as it
    was registered; None is for a loop, which a person confirmed as a whole. `between` is called
    with the name of each step, for tests that kill there.

    Raises:
        StudyError: Something forbids it; nothing was started.
    """
    study.require_writable()
    recover(study)
    planned = plan(study, name, phase, seed)
    if confirm not in (None, planned.token):
        raise StudyError(
            f"'{confirm}' does not confirm this launch.",
            "Read its dry run, which shows the token: "
            f"assay study run {name} --phase {phase} --seed {seed}",
        )
    agreed = study.contract()
    place = study.path / "runs" / planned.run
    _refuse_laid(place)
    with gpus.lease(agreed, planned.gpus) as held:
        write_json_document(place / "run.json", _record(study, planned, held))
        write_text(place / "plan.json", dump_json({"env": planned.env, "actor": actor}).decode())
        (place / "plan.json").chmod(0o600)  # the environment may hold what only this user may read
        between("recorded")
        with study.transaction() as transaction:
            history = transaction.history
            budget.reserve(transaction, agreed.budget, planned.run, planned.candidate.budget, actor)
            facts = {
                "run": planned.run, "candidate": name, "phase": phase, "seed": seed,
                "argv": list(planned.argv), "evaluation": list(planned.evaluation),
                "protocol": planned.protocol, "environment": fingerprints(planned.env),
                "registration": history.registration(name).data["hash"],
                "startup": planned.startup, "untracked": planned.untracked, "gpus": held.names,
                "alpha": spending.due(history, agreed, name, phase),
            }  # fmt: skip
            transaction.append(PREPARED, facts, actor=actor)
            if history.status[name] not in ("launched", "accepted"):
                transaction.move(name, "launched", actor=actor, why=f"{phase} of seed {seed}")
        between("prepared")
        supervisor.start(study, planned.run, held.locks)
        between("started")
    return planned


def _refuse_laid(place: Path) -> None:
    """Refuse a run whose directory holds something before it is launched.

    A launch that was killed may have left the files that are written first; they are replaced.
    """
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        raise StudyError(f"'{place}' is not a directory.", "Remove it, and launch again.")
    laid = {path.name for path in place.iterdir()} if place.exists() else set()
    laid -= {"run.json", "plan.json"}
    if laid:
        raise StudyError(
            f"The directory of run '{place.name}' holds '{min(laid)}', and no such run is on "
            "record: what it holds would be measured as the run's.",
            f"Look at '{place}', find out who made it, and remove it.",
        )


def _record(study: Study, planned: Plan, held: gpus.Lease) -> RunRecord:
    # A worktree of a commit has nothing uncommitted, whatever the repository's own tree has.
    code: dict[str, Any] = {"sha": planned.base}
    if not planned.base:
        code = provenance.collect(list(planned.argv), cwd=study.root)["git"] or {}
    lock = _lock_of(study, planned.base)
    there = provenance.hardware()["gpus"]
    env = planned.env | gpus.variables(held.names)
    pythons = interpreter.interpreters(study.root, study.contract(), planned.env)
    return RunRecord(
        id=planned.run,
        candidate=planned.candidate.id,
        phase=planned.phase,
        seed=planned.seed,
        argv=planned.argv,
        evaluation=planned.evaluation,
        cwd=planned.cwd,
        out="out",
        env={n: "(kept secret)" if provenance.is_secret(n) else v for n, v in env.items()},
        commit=code.get("sha", ""),
        dirty=bool(code.get("dirty", False)),
        diff=code.get("diff", "") and digest(code["diff"]),
        lock=digest(lock) if lock is not None else "",
        versions=interpreter.packages(pythons, planned.env),
        host=platform.node(),
        gpu=", ".join(map(str, there)),
        gpus=gpus.shown(held.names),
        protocol=planned.protocol,
    )


def _lock_of(study: Study, base: str) -> str | None:
    """Return the first file of locked versions as the run sees it, or None if there is none."""
    if not base:
        paths = (study.root / name for name in LOCKS)
        texts = (path.read_text(errors="replace") for path in paths if path.is_file())
        return next(texts, None)
    with contextlib.suppress(GitError):
        held = checkout.entries(study.root, base, *LOCKS)
        for name in LOCKS:
            if name in held:
                return git(study.root, "cat-file", "blob", held[name].id)
    return None
