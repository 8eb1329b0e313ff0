"""What measures a result, and what judges it: two hashes, each made of named parts.

The protocol's hash covers what measures: the evaluation part of the contract, the metrics with
their sources, the environment and its version, and the bytes of every file that does the measuring.
Two arms are compared only if they carry the same one. How a result is judged (the test, the minimum
effect, the limits of guardrails) is not part of it: a candidate is frozen by both, the baseline by
what measures it alone. Alpha and the number of candidates freeze nobody; what is spent of alpha is
in the ledger.

Every part has a name, a field or a file, so that whoever finds two hashes that differ can say why.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from assay.study.files.base import Sha256
from assay.study.files.candidate import Candidate
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, StudyError, digest
from assay.study.record import kinds
from assay.study.record.study import Study

EXTRACTORS = f"{ROOT}/shared/metric_extractors"
_CACHE = "__pycache__"
_RULES = ("test", "looks")  # of the evaluation: a candidate is held to them
_JUDGES = (*_RULES, "alpha", "power", "expected_candidates")  # what of it measures nothing
_LIMITS = {  # of a metric: what judges it, or is only shown
    "direction", "unit", "minimum_effect", "seed_bound", "bound", "margin", "training_reward",
    "why_training_reward",
}  # fmt: skip


def protected_files(root: Path, contract: Contract) -> dict[str, str]:
    """Return the hash of every file that candidates must not touch, by path.

    These are the evaluation's files with what they import, what the scope protects, and the
    study's own directory without what the study itself writes as it goes on. A symbolic link is
    hashed as a link: one that takes a file's place does not pass for it.

    Raises:
        StudyError: A pattern matches nothing, or leaves the repository.
    """
    found: dict[str, str] = {}
    for pattern in (*contract.evaluation.files, *contract.scope.protected):
        paths = matching(root, pattern)
        if not paths:
            raise StudyError(
                f"'{pattern}' is protected but matches no file in '{root}'.",
                "Fix the pattern: changes of a file that is missing cannot be seen.",
            )
        found |= {path: fingerprint(root / path) for path in paths}
    found |= measuring_imports(root, contract)
    return dict(sorted((found | _hashes(root, [f"{EXTRACTORS}/**"])).items()))


def measuring_imports(root: Path, contract: Contract) -> dict[str, str]:
    """Return the hash of every file that the evaluation command imports from the repository.

    What the contract calls changeable is left out: there a person answers for it.
    """
    open_to_change = {
        path for pattern in contract.evaluation.changeable for path in matching(root, pattern)
    }
    paths = [path for path in imported_files(root, contract) if path not in open_to_change]
    return {path: fingerprint(root / path) for path in paths}


def _hashes(root: Path, patterns: Iterable[str]) -> dict[str, str]:
    paths = (path for pattern in patterns for path in matching(root, pattern))
    return {path: fingerprint(root / path) for path in paths}


def measures(root: Path, contract: Contract) -> dict[str, Sha256]:
    """Return a hash of everything that measures, by the name of the field or file."""
    found = {
        "task.env": digest(contract.task.env),
        "task.env_version": digest(contract.task.env_version),
    }
    fields = contract.evaluation.model_dump(mode="json", exclude={"pools", *_JUDGES})
    found |= {f"evaluation.{name}": digest(value) for name, value in fields.items()}
    for metric in contract.metrics.all():
        plain = metric.model_dump(mode="json", exclude=_LIMITS)
        found[f"metric {metric.name}"] = digest(plain)
    files = _hashes(root, [*contract.evaluation.files, f"{EXTRACTORS}/**"])
    files |= measuring_imports(root, contract)
    return found | {path: digest(value) for path, value in files.items()}


def protocol_hash(root: Path, contract: Contract) -> Sha256:
    """Return the hash that both arms of a comparison must carry."""
    return digest(measures(root, contract))


def judging(contract: Contract) -> dict[str, Sha256]:
    """Return a hash of every rule that a candidate is judged by, by the name of the field."""
    evaluation = contract.evaluation.model_dump(mode="json", include=set(_RULES))
    found = {f"evaluation.{name}": digest(value) for name, value in evaluation.items()}
    metrics = [contract.metrics.primary, *contract.metrics.guardrails]
    return found | {
        f"limits of {metric.name}": digest(metric.model_dump(mode="json", include=_LIMITS))
        for metric in metrics
    }


def frozen_parts(candidate: Candidate, contract: Contract, protocol: str) -> dict[str, Sha256]:
    """Return a hash of all that a candidate is frozen by, by the name of the field or file."""
    plain = candidate.model_dump(mode="json")
    file = f"candidates/{candidate.id}.yaml"
    stop = contract.experiment.stop.model_dump(mode="json", exclude={"failures", "candidates"})
    found = {f"{file} ({name})": digest(value) for name, value in plain.items()}
    found |= {f"experiment.stop.{name}": digest(value) for name, value in stop.items()}
    if candidate.kind not in kinds.UNJUDGED:
        found |= judging(contract)
    return found | {"protocol": protocol}


def registration_hash(candidate: Candidate, contract: Contract, protocol: str) -> Sha256:
    """Return the hash that a candidate is frozen by before its first run."""
    return digest(frozen_parts(candidate, contract, protocol))


def named(parts: Mapping[str, str]) -> dict[str, str]:
    """Return parts with short hashes: enough to say in the ledger which one changed."""
    return {name: value[:12] for name, value in parts.items()}


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Name the parts that are not what they were, in order."""
    before, after = named(then), named(now)
    return sorted(n for n in {*before, *after} if before.get(n) != after.get(n))


def change_hash(candidate: Candidate, base: str, parameters: Mapping[str, Any]) -> Sha256:
    """Return a hash of what a candidate changes, whatever it calls itself."""
    patch = candidate.change.patch.strip()
    return digest({"base": base, "parameters": dict(parameters), "patch": patch})


def why_void(study: Study, agreed: Contract, name: str, told: Mapping[str, Any]) -> str:
    """Return what was changed since a candidate was registered, or "" if nothing was.

    Args:
        study: Whose.
        agreed: The contract.
        name: The candidate.
        told: Its registration, as the ledger has it.
    """
    candidate = study.candidate(name)
    now = measures(study.root, agreed)
    parts = frozen_parts(candidate, agreed, digest(now))
    if digest(parts) == told["hash"]:
        return ""
    odd = [part for part in differing(told.get("parts", {}), parts) if part != "protocol"]
    mine = [part for part in odd if part.startswith("candidates/")]
    if mine:
        return f"{', '.join(mine)} was edited after '{name}' was registered"
    if odd:
        return f"how '{name}' is judged was changed after it was registered: {', '.join(odd)}"
    odd = differing(told.get("measures", {}), now)
    return f"how results are measured was changed after '{name}' was registered: {', '.join(odd)}"


def matching(root: Path, pattern: str) -> list[str]:
    """Return the files and links below `root` that a glob matches, as POSIX paths, in order.

    Raises:
        StudyError: The pattern is absolute or leaves the repository.
    """
    if pattern.startswith("/") or ".." in PurePosixPath(pattern).parts:
        raise StudyError(
            f"The pattern '{pattern}' leaves the repository.",
            "Write it relative to the repository's top, without '..'.",
        )
    if pattern.endswith("**"):
        pattern += "/*"
    paths = [p for p in root.glob(pattern) if p.is_symlink() or p.is_file()]
    if _CACHE not in pattern:  # written by Python as it goes
        paths = [p for p in paths if p.parent.name != _CACHE]
    return sorted(p.relative_to(root).as_posix() for p in paths)


def fingerprint(path: Path) -> str:
    """Return the hash of a file's bytes; of a symbolic link, also of where it leads."""
    if path.is_symlink():
        name = hashlib.sha256(str(path.readlink()).encode()).hexdigest()
        return f"link:{name}" + (f":{fingerprint(path.resolve())}" if path.is_file() else "")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprints(env: Mapping[str, str]) -> dict[str, str]:
    """Return a hash of every variable's value: enough to tell that one changed."""
    return {name: digest(value)[:16] for name, value in sorted(env.items())}


def artifacts(out: Path) -> dict[str, str]:
    """Return the hash of every file that a run wrote, by its path; of a link, with its target."""
    paths = [path for path in sorted(out.rglob("*")) if path.is_symlink() or path.is_file()]
    return {path.relative_to(out).as_posix(): fingerprint(path) for path in paths}


# ---------------------------------------------------------------------- what the evaluation imports
# Imports are read from the source; nothing is run. What only a running program can know (a module
# whose name is computed) is found by the run itself, which writes down what it loads.


def evaluated_files(root: Path, agreed: Contract) -> list[Path]:
    """Return the files of the repository that the words of the evaluation command name."""
    return named_files(root, agreed, agreed.evaluation.command)


def named_files(root: Path, agreed: Contract, words: Iterable[str]) -> list[Path]:
    """Return the files of the repository that words of a command name."""
    found, before = [], ""
    for word in words:
        names = [word]
        if before == "-m":
            names = [word.replace(".", "/") + end for end in (".py", "/__main__.py")]
        bases = _search(root, agreed) if before == "-m" else [root / agreed.baseline.cwd]
        for path in ((base / name).resolve() for base in bases for name in names):
            if path.is_file() and path.is_relative_to(root.resolve()):
                found.append(path)
        before = word
    return list(dict.fromkeys(found))


def imported_files(root: Path, agreed: Contract) -> list[str]:
    """Return the files of the repository that the evaluation imports, the ones it runs included."""
    top = root.resolve()
    waiting = [path for path in evaluated_files(root, agreed) if path.suffix == ".py"]
    search = [*dict.fromkeys(path.parent for path in waiting), *_search(root, agreed)]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        at = path.stat()
        for level, name in _imports(path, at.st_mtime_ns, at.st_size):
            bases = [path.parents[level - 1]] if level else search
            waiting += [f for base in bases for f in _files(base, name) if f.is_relative_to(top)]
    return sorted(path.relative_to(top).as_posix() for path in seen)


def _search(root: Path, agreed: Contract) -> list[Path]:
    """Return where modules of the repository are usually found."""
    given = agreed.baseline.env.get("PYTHONPATH", "").split(":")
    places = [root / agreed.baseline.cwd, root, root / "src", *(root / p for p in given if p)]
    return list(dict.fromkeys(place.resolve() for place in places))


def _files(base: Path, name: str) -> Iterator[Path]:
    """Return the files that the import of a dotted name loads from a directory."""
    place = base
    for part in name.split(".") if name else ():
        module, package = place / f"{part}.py", place / part / "__init__.py"
        yield from (path.resolve() for path in (package, module) if path.is_file())
        place = place / part


@functools.lru_cache(maxsize=4096)
def _imports(path: Path, modified: int, size: int) -> tuple[tuple[int, str], ...]:
    """Return the level and name of everything that a file may import; of one version of it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module or ''}.{a.name}" for a in node.names)]
            found += [(node.level, name.strip(".")) for name in names]
        elif isinstance(node, ast.Call) and _imports_by_name(node):
            word = node.args[0]
            if isinstance(word, ast.Constant) and isinstance(word.value, str):
                found.append((0, word.value))
    return tuple(dict.fromkeys(found))


def _imports_by_name(call: ast.Call) -> bool:
    named = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    named = call.func.id if isinstance(call.func, ast.Name) else named
    return named in ("import_module", "__import__") and bool(call.args)
