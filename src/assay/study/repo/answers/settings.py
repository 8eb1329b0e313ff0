"""How a repository is configured, and where its results are written to."""

from __future__ import annotations

import re

from assay.study.files.records import Answer
from assay.study.repo.answers.ranking import Found, ranked
from assay.study.repo.commands import is_script
from assay.study.repo.files import is_test
from assay.study.repo.repository import Repository

_SINKS = {
    "tensorboardlogger": "tensorboard", "summarywriter": "tensorboard", "wandblogger": "wandb",
    "csvlogger": "csv", "mlflowlogger": "custom", "neptunelogger": "custom",
    "cometlogger": "custom",
}  # fmt: skip
_TARGET = re.compile(rf"^\s*-?\s*_target_:\s*[\"']?[\w.]*\.({'|'.join(_SINKS)})\b", re.IGNORECASE)


def config(repo: Repository) -> tuple[Answer, ...]:
    """Return the systems by which scripts are configured."""
    near = repo.relevant()
    scripts = {*repo.chosen["train"], *repo.chosen["evaluate"]}
    found: list[Found] = []
    command_line = {"tyro", "hydra", "argparse", "absl", "gin"}
    for fact in near:
        used = {key for key in fact.config}
        for system, hit in fact.config.items():
            confidence = hit.confidence
            if scripts and fact.path not in scripts:
                # The command line of another script that happens to be imported.
                if system in command_line and is_script(fact):
                    continue
                confidence -= 0.05
            if not scripts:
                if system in command_line | {"yaml"} and not is_script(fact):
                    continue
                confidence -= 0.3
            if system == "dataclasses" and used & {"tyro", "hydra"}:
                continue  # what the command line is made from
            found.append(Found(system, f"{fact.path}:{hit.line}", confidence, hit.name))
    # A task that is registered by name is imported by no script, and its settings count.
    for fact in repo.searched() if scripts else ():
        if fact.path not in repo.own and (fact.terms or any(fact.code.values())):
            for system in {"dataclasses", "custom"} & set(fact.config):
                hit = fact.config[system]
                place = f"{fact.path}:{hit.line}"
                found.append(Found(system, place, hit.confidence - 0.1, hit.name))
    for path in repo.files.ending(".gin"):
        if not is_test(path) and any(item.value == "gin" for item in found):
            found.append(Found("gin", f"{path}:1", 0.9))
    if any(item.value == "hydra" for item in found):
        found = [item for item in found if item.value != "yaml" or item.confidence > 0.74]
    return ranked(found, 6, noted=("custom",))


def logging(repo: Repository) -> tuple[Answer, ...]:
    """Return the sinks that results are written to."""
    near = repo.relevant()
    found = []
    for fact in near:
        for sink, hit in fact.logging.items():
            if sink != "stdout" or repo.own:  # what a library prints is no record
                found.append(Found(sink, f"{fact.path}:{hit.line}", hit.confidence, hit.name))
    for path in repo.files.ending(".yaml", ".yml") if near else ():
        if not is_test(path) and not path.startswith("."):
            for number, line in enumerate(repo.files.text(path).split("\n"), 1):
                target = _TARGET.match(line)  # what Hydra will make an instance of
                if target:
                    sink = _SINKS[target[1].lower()]
                    found.append(Found(sink, f"{path}:{number}", 0.8, target[1]))
    if not found:
        # Metrics go somewhere, by a way that is none of the known ones.
        for fact in near:
            for hit in fact.metrics[:1]:
                if hit.confidence >= 0.85:
                    found.append(Found("custom", f"{fact.path}:{hit.line}", 0.5))
    return ranked(found, 7, noted=("custom",))
