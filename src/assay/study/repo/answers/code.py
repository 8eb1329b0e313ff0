"""Where a task pays rewards, ends, gets harder and is randomised."""

from __future__ import annotations

import re
from collections.abc import Iterable

from assay.study.files.records import Answer
from assay.study.repo.answers.ranking import EVIDENCE, THRESHOLD, place_key
from assay.study.repo.hints import HINTS
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Hit
from assay.study.repo.words import SLOTS

FILES = 200
NAMES = 100  # of one file
_YAML_SLOTS = {
    "reward": re.compile(
        r"^_?(reward|rewards|reward_(scales|weights|config|terms|coefs?|cfg|params))$"
    ),
    "termination": re.compile(r"^(termination|terminations|termination_conditions)$"),
    "curriculum": re.compile(r"^\w*curriculum\w*$"),
    "randomization": re.compile(
        r"^(domain_rand(omi[sz]ation)?|randomi[sz]ation(_params)?|randomi[sz]e\w*|dr_params)$"
    ),
}
_OFF = {"false", "null", "none", "~", "off", "no", "0", "{}", "[]", "''", '""'}


def code(repo: Repository) -> dict[str, tuple[Answer, ...]]:
    """Return the files of the task's code, by what they are for."""
    places: dict[str, dict[str, list[Hit]]] = {slot: {} for slot in SLOTS}
    functions: dict[str, list[tuple[str, int]]] = {}
    for fact in repo.searched():
        for name, (line, first) in fact.functions.items():
            if first in ("env", "self", "sim", "task"):
                functions.setdefault(name, []).append((fact.path, line))
    for fact in repo.searched():
        for slot in SLOTS:
            for hit in fact.code[slot]:
                places[slot].setdefault(fact.path, []).append(hit)
        for slot, name, function, line in fact.terms:
            hit = Hit(name or function, line, 0.9 if function else 0.8)
            places[slot].setdefault(fact.path, []).append(hit)
            for path, where in functions.get(function, ()):
                if slot != "randomization" or not function.startswith("reset"):
                    places[slot].setdefault(path, []).append(Hit(function, where, 0.85))
    for slot, path, hit in _settings(repo):
        places[slot].setdefault(path, []).append(hit)
    return {slot: _files(repo, found) for slot, found in places.items()}


def _files(repo: Repository, places: dict[str, list[Hit]]) -> tuple[Answer, ...]:
    answers = []
    for path, hits in places.items():
        confidence = max(hit.confidence for hit in hits)
        if confidence < THRESHOLD:
            continue
        hits = sorted(hits, key=lambda hit: hit.line)
        names = list(dict.fromkeys(hit.name for hit in hits if hit.name))
        strongest = sorted(hits, key=lambda hit: -hit.confidence)[:EVIDENCE]
        evidence = tuple(dict.fromkeys(f"{path}:{h.line}" for h in strongest))
        value = {"file": path, "names": names[:NAMES]}
        weight = (-confidence, path not in repo.own, -min(len(names), 10), place_key(path))
        answers.append((weight, Answer(value=value, confidence=confidence, evidence=evidence)))
    answers.sort(key=lambda item: item[0])
    return tuple(answer for _, answer in answers[:FILES])


def _settings(repo: Repository) -> Iterable[tuple[str, str, Hit]]:
    """Yield the parts of YAML and Gin files that set rewards, endings and randomness."""
    for path in repo.files.ending(".yaml", ".yml"):
        hidden = path.startswith(".") or repo.files.is_test(path)
        if hidden or path.rpartition("/")[2] in (HINTS, "mkdocs.yml", "environment.yml"):
            continue
        text = repo.files.text(path)
        if not re.search("reward|terminat|curricul|random|domain_rand", text):
            continue
        lines = text.split("\n")
        for number, line in enumerate(lines, 1):
            match = re.match(r"^(\s*)([\w-]+):\s*([^#]*?)\s*(#.*)?$", line)
            if match:
                for slot, pattern in _YAML_SLOTS.items():
                    key = match[2].lower()
                    if pattern.match(key) and _sets(lines, number, len(match[1]), match[3], slot):
                        yield slot, path, Hit(match[2], number, 0.7)
                scaled = re.search(r"reward_?(scale|weight|coef)", match[2], re.IGNORECASE)
                if scaled and re.match(r"^-?[\d.]", match[3]):
                    yield "reward", path, Hit(match[2], number, 0.65)
    for path in repo.files.ending(".gin"):
        for number, line in enumerate(repo.files.text(path).split("\n"), 1):
            match = re.match(r"^([\w./]*(?:[Rr]eward)\w*)\.(\w+)\s*=", line)
            if match and not repo.files.is_test(path):
                yield "reward", path, Hit(f"{match[1]}.{match[2]}", number, 0.65)


def _sets(lines: list[str], number: int, indent: int, value: str, slot: str) -> bool:
    """Return whether a YAML key switches something on or has numbers below it."""
    value = value.strip().lower()
    if value:
        plain = value not in _OFF and not value.startswith(("&", "*", "$"))
        if slot == "curriculum":
            return plain and not value.startswith("[")
        return plain and (slot == "randomization" or value.startswith("{"))
    for line in lines[number : number + 60]:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if len(line) - len(line.lstrip()) <= indent:
            return False
        if slot != "reward" or re.search(r":\s*-?[\d.]+", line):
            return True
    return False
