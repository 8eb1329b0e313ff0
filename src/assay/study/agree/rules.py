"""Rules that a contract, or a candidate under it, has to keep before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from assay.runs.git import GitError, git, repository
from assay.study.agree import checkout
from assay.study.agree.protocol import evaluated_files, matching, named_files, protected_files
from assay.study.agree.scope import changed_files, checked_out
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError
from assay.study.record.study import Study

_ONLINE = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL")
_LOCAL_MODES = ("offline", "disabled", "dryrun")
# In a unified diff: a hunk inside a function that is named for the reward, or a changed line that
# defines one or assigns to a reward.
_REWARD = re.compile(
    r"^(@@.*@@.*\bdef\s+\w*reward|[-+](?![-+]{2})\s*(def\s+\w*reward|[\w.]*reward\w*\s*[-+*/]?=[^=]))",
    re.MULTILINE | re.IGNORECASE,
)
# What documents write where a user's own name belongs: <file>, path/to/x, your_metric, FILE.csv.
_STANDS_FOR = re.compile(
    r"<[\w ./-]+>|\bpath/to/|\byour[-_]\w"
    r"|(?<![A-Za-z0-9_])(?:TODO|FIXME|TBD|XXX|PATH|FILE|FILENAME|KEY|METRIC)(?![A-Za-z0-9_])"
)


def refuse_placeholders(agreed: Contract) -> None:
    """Refuse a metric whose file or key was never filled in.

    Raises:
        StudyError: Names the field and its value.
    """
    for field, text in _sources(agreed.metrics.model_dump(mode="json"), "metrics"):
        found = _STANDS_FOR.search(text)
        if found:
            how = f"assay study contract set {field}=VALUE"
            raise StudyError(
                f"{field} is '{text}', where '{found[0]}' stands for something to fill in.",
                f"Name what a run writes: {'edit contract.yaml' if '[' in field else how}. "
                "assay study metrics --out DIR tries it on the output of a run.",
            )


def _sources(value: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield every path, key and step that a metric is read by, with its field."""
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _sources(item, f"{place}[{i}]")
    elif isinstance(value, dict) and isinstance(source := value.get("source"), dict):
        # The key of printed metrics is a pattern, which may hold any of these.
        names = ("path", "step") if source["kind"] == "stdout" else ("path", "key", "step")
        yield from ((f"{place}.source.{name}", source[name] or "") for name in names)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _sources(item, f"{place}.{name}")


def refuse_unreflected(study: Study, agreed: Contract, candidate: Candidate) -> None:
    """Refuse a change of the reward that builds on no reflection, unless the contract says why.

    What a candidate calls itself does not matter where its patch changes reward code.

    Raises:
        StudyError: It does not; the candidate's own word is not enough.
    """
    waived = "reward-reflection" in agreed.experiment.exceptions
    if candidate.reflection or waived:
        return
    touched = reward_code(study, candidate.change.patch)
    if candidate.kind == "reward-engineering" or touched:
        what = f"its patch changes reward code ({', '.join(touched)})" if touched else "its kind"
        raise StudyError(
            f"'{candidate.id}' ({candidate.kind}) changes the reward and builds on no reward "
            f"reflection: {what}.",
            "Make one of an earlier run (assay study reflect RUN) and name it in 'reflection', or "
            "agree in the contract on why there is none: experiment.exceptions.reward-reflection.",
        )


def reward_code(study: Study, patch: str) -> list[str]:
    """Return where a patch changes reward code.

    That is a file that the audit of the repository found to hold it, or that is named for it, and
    a function or an assignment that is, wherever it is.
    """
    if not patch:
        return []
    known: set[str] = set()
    if (study.task_path / "adapter.yaml").exists():
        answers = study.adapter().reward
        known = {place.rpartition(":")[0] for answer in answers for place in answer.evidence}
    paths = changed_files(study.root, patch)
    found = [path for path in paths if path in known or "reward" in PurePosixPath(path).name]
    if not found and _REWARD.search(patch):
        found = paths
    return found


def refuse_unguarded(root: Path, agreed: Contract) -> None:
    """Refuse an evaluation whose own script may be changed.

    Raises:
        StudyError: The evaluation command runs a file of the repository that is not among
            `evaluation.files`.
    """
    kept = {path for pattern in agreed.evaluation.files for path in matching(root, pattern)}
    for path in evaluated_files(root, agreed):
        short = path.relative_to(root.resolve()).as_posix()
        if short not in kept:
            raise StudyError(
                f"The evaluation command runs '{short}', which is not in evaluation.files, so "
                "that it could be changed between two runs.",
                f"Add '{short}' to evaluation.files; what it imports is added automatically.",
            )


def refuse_dirty(root: Path, agreed: Contract) -> None:
    """Refuse a working tree with changes that no candidate declared.

    Raises:
        StudyError: Names the first file.
    """
    if "dirty-tree" in agreed.experiment.exceptions:
        return
    try:
        out = git(root, "status", "--porcelain", "-z", "--untracked-files=no")
    except GitError:
        if repository(root) is None:
            return
        raise
    changed = [entry[3:] for entry in out.split("\0") if entry]
    changed = [path for path in changed if not path.startswith(f"{ROOT}/")]
    if changed:
        raise StudyError(
            f"The working tree has uncommitted changes ({changed[0]}).",
            "Commit or stash them: a run must say exactly which code it ran. Or have them waived: "
            "assay study contract set 'experiment.exceptions.dirty-tree=WHY', and approve "
            "experiment.",
        )


def refuse_uncommitted(root: Path, agreed: Contract, base: str | None) -> None:
    """Refuse a contract that names files which no run would have: its commit lacks them.

    Args:
        root: The repository.
        agreed: The contract.
        base: The commit that the study's first candidate was registered on; None before that,
            where it is the commit that is checked out; "" without Git.

    Raises:
        StudyError: Names the first file, and what to do.
    """
    commit = checked_out(root) if base is None else base
    if not commit:
        return
    try:
        held = checkout.entries(root, commit)
    except GitError:
        return  # a launch says that the commit is not here
    inside = checkout.submodules(held)  # they hold files of their own
    for path in _needed(root, agreed):
        places = [path, *(place.as_posix() for place in PurePosixPath(path).parents)]
        if path not in held and not any(place in inside for place in places):
            raise StudyError(
                f"Runs would not have '{path}', which the contract names: it is not in commit "
                f"{commit[:12]}.",
                "Commit it first; or, if Git is not to hold it, name it in baseline.untracked."
                if base is None
                else "All runs of this study have the code of that commit. Begin a new study on "
                "the code that is here: assay study init --study NAME --activate.",
            )


def _needed(root: Path, agreed: Contract) -> list[str]:
    """Return the files that commands name and that measure; without those that are linked in."""
    commands = (*agreed.baseline.command, *agreed.evaluation.command)
    words = [word for whole in commands for word in (whole, whole.partition("=")[2])]
    words = [word for word in words if word and not PurePosixPath(word).is_absolute()]
    top = root.resolve()
    named = [path.relative_to(top).as_posix() for path in named_files(root, agreed, words)]
    linked = [PurePosixPath(path) for path in agreed.baseline.untracked]
    named = [path for path in named if not any(map(PurePosixPath(path).is_relative_to, linked))]
    measuring = [path for path in protected_files(root, agreed) if not path.startswith(f"{ROOT}/")]
    return [*named, *measuring]


def refuse_network(agreed: Contract) -> None:
    """Refuse a contract whose metrics or environment would use the network against its own word.

    Raises:
        StudyError: Names the metric or variable, and every permission that is missing.
    """
    for metric in agreed.metrics.all():
        if not remote(metric.source.path):
            continue
        what = f"Metric '{metric.name}' is read from '{metric.source.path}', which"
        lacking = _forbidden(agreed, metric.source.kind == "wandb")
        if lacking:
            raise _no_network(what, lacking)
        raise StudyError(
            f"{what} is not a file of a run.",
            "Have the run write it, or fetch it beforehand: W&B's offline files are read as well.",
        )
    for name, value in agreed.baseline.env.items():
        local = name == "WANDB_MODE" and value.lower() in _LOCAL_MODES
        lacking = _forbidden(agreed, wandb=True)
        if name in _ONLINE and not local and lacking:
            raise _no_network(f"{name}={value} in baseline.env", lacking)


def remote(path: str) -> bool:
    """Return whether a path is an address instead.

    Example:
        >>> remote("wandb://team/project/run"), remote("logs/run.wandb")
        (True, False)
    """
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def _forbidden(agreed: Contract, wandb: bool) -> list[str]:
    """Return the permissions that the contract does not give."""
    lacking = [] if agreed.experiment.network else ["experiment.network is false"]
    if wandb and not agreed.experiment.wandb:
        lacking.append("experiment.wandb is false")
    return lacking


def _no_network(what: str, lacking: list[str]) -> StudyError:
    return StudyError(
        f"{what} needs the network, which the contract does not allow: {'; '.join(lacking)}.",
        "A person allows it there, and then: assay study contract approve experiment --by NAME",
    )
