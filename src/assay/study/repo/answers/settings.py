"""How a repository is configured and launched, and where its results are written to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from assay.study.files.records import Answer
from assay.study.repo.answers.ranking import THRESHOLD, Found, ranked
from assay.study.repo.files import words
from assay.study.repo.parameters import command_line
from assay.study.repo.purpose import is_script
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Condition

_SINKS = {
    "tensorboardlogger": "tensorboard", "summarywriter": "tensorboard", "wandblogger": "wandb",
    "csvlogger": "csv", "mlflowlogger": "custom", "neptunelogger": "custom",
    "cometlogger": "custom",
}  # fmt: skip
_CHOICES = ("wandb", "tensorboard", "custom")
_CHOSEN = ("tensorboard", "wandb", "csv", "jsonl", "json")
_TARGET = re.compile(rf"^\s*-?\s*_target_:\s*[\"']?[\w.]*\.({'|'.join(_SINKS)})\b", re.IGNORECASE)
_LAUNCH_LINES = (
    ("slurm", 0.9, re.compile(r"^#SBATCH\s|^\s*(\$\s*)?(sbatch|srun)\s+\S|^.*submitit_slurm")),
    ("tmux", 0.85, re.compile(r"\btmux\s+(new|new-session|send-keys|new-window|split-window)\b")),
    ("torchrun", 0.85, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*(uv run |poetry run )?torchrun\s+\S")),
    ("torchrun", 0.85, re.compile(r"\bpython3?\s+-m\s+torch\.distributed\.(run|launch)\b")),
    ("ray", 0.8, re.compile(r"\bray\s+(job\s+submit|submit|up|start)\b")),
    ("kubernetes", 0.85, re.compile(r"\bkubectl\s+(apply|create|run)\b")),
    ("custom", 0.6, re.compile(r"^[\s$`>-]*(\w+=\S*\s+)*accelerate\s+launch\b")),
)  # fmt: skip


def config(repo: Repository) -> tuple[Answer, ...]:
    """Return the systems by which scripts are configured."""
    near = repo.relevant()
    scripts = {*repo.chosen["train"], *repo.chosen["evaluate"]}
    first = {fact.path for script in repo.chosen["train"][:1] for fact in repo.closure(script, 12)}
    made_of = {key for path in repo.chosen["train"][:1] for key in repo.facts[path].config}
    found: list[Found] = []
    typed = {"tyro", "hydra", "argparse", "absl", "gin"}
    for fact in near:
        used = set(fact.config) | (made_of if fact.path in first else set())
        for system, hit in fact.config.items():
            confidence = hit.confidence
            if scripts and fact.path not in scripts:
                # The command line of another script that happens to be imported.
                if system in typed and is_script(fact):
                    continue
                confidence -= 0.05
            if first and fact.path not in first:
                confidence -= 0.1
            if not scripts:
                if system in typed | {"yaml"} and not is_script(fact):
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
        if not repo.files.is_test(path) and any(item.value == "gin" for item in found):
            found.append(Found("gin", f"{path}:1", 0.9))
    if any(item.value == "hydra" for item in found):
        found = [item for item in found if item.value != "yaml" or item.confidence > 0.74]
    return ranked([item for item in found if item.confidence >= 0.6], 6, noted=("custom",))


def logging(repo: Repository) -> tuple[Answer, ...]:
    """Return the sinks that results are written to, those that are on by default first."""
    near = repo.relevant()
    found = []
    for fact in near:
        for sink, hit in fact.logging.items():
            if sink != "stdout" or (repo.own and fact.path in repo.near()):  # not a library's
                found.append(Found(sink, f"{fact.path}:{hit.line}", hit.confidence, hit.name))
    found += _instances(repo) if near else []
    found += _offered(repo) if repo.own else []
    found += _named(repo)
    if not found:
        # Metrics go somewhere, by a way that is none of the known ones.
        for fact in near:
            for hit in fact.metrics[:1]:
                if hit.confidence >= 0.85:
                    found.append(Found("custom", f"{fact.path}:{hit.line}", 0.5))
    states = defaults(repo, {str(item.value) for item in found})
    judged = [
        replace(item, confidence=_weighed(item, _state(repo, item, states))) for item in found
    ]
    recorded = any(item.value != "stdout" and item.confidence >= 0.6 for item in judged)
    if recorded:  # what is printed beside a record is for people
        judged = [i for i in judged if i.value != "stdout" or i.note != "print"]
    return ranked(judged, 7, noted=("custom",))


def _offered(repo: Repository) -> list[Found]:
    """Return the sinks of a package's own loggers that nothing imports: settings choose them."""
    found = []
    for fact in repo.searched():
        about = {"logger", "loggers", "logging"} & set(words("/".join(fact.path.split("/")[-2:])))
        if about and fact.path not in repo.own and not is_script(fact):
            for sink in set(_CHOSEN) & set(fact.logging):
                hit = fact.logging[sink]
                found.append(Found(sink, f"{fact.path}:{hit.line}", hit.confidence - 0.3, hit.name))
    return found


def _named(repo: Repository) -> list[Found]:
    """Return the sinks that the default of a setting names: `loggers: [csv]`."""
    found = []
    for script in repo.chosen["train"][:1]:
        for name, option in command_line(repo, script, ("python", script), "").options.items():
            last = name.rpartition(".")[2].lstrip("-").replace("-", "_")
            if _CHOOSERS.match(last) and option.path and option.line:
                for sink in _chosen_by_name({last: option.default}, set(_CHOSEN)):
                    found.append(Found(sink, f"{option.path}:{option.line}", 0.75, name))
    for fact in repo.relevant() if repo.own else ():
        for fields in fact.fields.values():
            for name, option in fields.items():
                chosen = {name: option.default} if _CHOOSERS.match(name) else {}
                for sink in _chosen_by_name(chosen, set(_CHOSEN)):
                    found.append(Found(sink, f"{fact.path}:{option.line}", 0.7, name))
    return found


def _state(repo: Repository, item: Found, states: dict[str, str]) -> str:
    """Return whether a sink is on by default; what the first train command never runs is off."""
    path = item.place.rpartition(":")[0]
    if path.endswith(".py") and path not in repo.near():
        return "off"
    return states.get(str(item.value), "")


def _weighed(item: Found, state: str) -> float:
    """Return how sure a sink is, given that it is on or off by default."""
    if state == "off":
        return max(min(item.confidence - 0.25, 0.54), THRESHOLD)
    if state == "on" and item.value != "stdout":
        return min(item.confidence + 0.05, 1.0)
    return item.confidence


def _instances(repo: Repository) -> list[Found]:
    """Return the sinks that settings name, to be made when a script is run."""
    found = []
    for path in repo.files.ending(".yaml", ".yml"):
        text = "" if repo.files.is_test(path) or path.startswith(".") else repo.files.text(path)
        for number, line in enumerate(text.split("\n") if "_target_" in text else (), 1):
            target = _TARGET.match(line)
            if target:
                sink = _SINKS[target[1].lower()]
                found.append(Found(sink, f"{path}:{number}", 0.8, target[1]))
    return found


def defaults(repo: Repository, sinks: set[str]) -> dict[str, str]:
    """Return which sinks are on and which are off unless one asks otherwise."""
    scripts = [*repo.chosen["train"][:3], *repo.chosen["evaluate"][:1]]
    known, files = _known(repo, scripts)
    _add_yaml(repo, known)
    named = _chosen_by_name(known, sinks)
    states: dict[str, str] = {}
    for sink in sinks:
        if named:
            states[sink] = "on" if sink in named else "off" if sink in _CHOICES else ""
            if states[sink]:
                continue
        uses = [
            use
            for script in scripts[:1]
            for fact in repo.closure(script, 6)
            for use in fact.sinks
            if use.name == sink
        ]
        uses = [use for use in uses if use.starts] or uses
        verdicts = [
            {_holds(use.under, known) for use in uses if use.defined is defined}
            for defined in (False, True)  # what turns it on, and what is turned on
        ]
        if uses:
            off = any(False in seen and True not in seen for seen in verdicts)
            on = all(True in seen for seen in verdicts if seen)
            states[sink] = "off" if off else "on" if on else ""
        made = [item.place.rpartition(":")[0] for item in _instances(repo) if item.value == sink]
        if made and files:
            states[sink] = "on" if set(made) & files else "off"
    return states


def by_default(repo: Repository) -> Callable[[tuple[Condition, ...]], bool | None]:
    """Return what tells whether conditions hold for the first train command as it is."""
    known, _ = _known(repo, repo.chosen["train"][:1], variables=False)
    return lambda under: _holds(under, known)


def _add_yaml(repo: Repository, known: dict[str, Any]) -> None:
    """Add the defaults that YAML files give to what a sink depends on, the most frequent one."""
    asked = {
        name.rpartition(".")[2].strip("_")
        for fact in repo.relevant()
        for use in fact.sinks
        for name, _ in use.under
    }
    asked = {name for name in asked if known.get(name) is None and name.isidentifier()}
    if not asked:
        return
    pattern = re.compile(rf"^\s*({'|'.join(sorted(asked))}):[ \t]*([^#\n]*)", re.MULTILINE)
    counted: dict[str, Counter[str]] = {}
    for path in repo.files.ending(".yaml", ".yml"):
        if not repo.files.is_test(path):
            for name, value in pattern.findall(repo.files.text(path)):
                counted.setdefault(name, Counter())[value.strip().strip("\"'")] += 1
    for name, values in counted.items():
        known[name] = values.most_common(1)[0][0]


def _known(
    repo: Repository, scripts: list[str], *, variables: bool = True
) -> tuple[dict[str, Any], set[str]]:
    """Return the defaults of all settings by the last part of their names, and Hydra's files."""
    known: dict[str, Any] = {}
    files: set[str] = set()
    for script in scripts:
        line = command_line(repo, script, ("python", script), "")
        if line.composed is not None:
            files |= set(line.composed.files)
        for name, option in line.options.items():
            parts = re.sub(r"^-+", "", name).replace("-", "_").split(".")
            known.setdefault(parts[-1], option.default)
            known.setdefault("_".join(parts[-2:]), option.default)  # `wandb.enabled`
            if parts[-1] in ("enabled", "enable", "use", "activate", "active") and parts[1:]:
                known.setdefault(parts[-2], option.default)
        for fact in repo.closure(script, 4):
            for fields in (*fact.fields.values(), *fact.signatures.values()):
                for name, option in fields.items():
                    other = _CHOOSERS.match(name) and not name.startswith("logger")
                    if not option.required and not other:
                        known.setdefault(name, option.default)
            for name, value in fact.assigned.items() if variables else ():
                if not _CHOOSERS.match(name):
                    known.setdefault(name, value)
    return known, files


_CHOOSERS = re.compile(
    r"^(loggers?|logger_(type|name|backend)|log(ging)?_(type|backend|tool)|trackers?|report_to|writer|log_with|logger_kwargs|logging)$"
)


def _chosen_by_name(known: dict[str, Any], sinks: set[str]) -> set[str]:
    """Return the sinks that a setting such as `logger: wandb` names."""
    found: set[str] = set()
    for name, default in known.items():
        if _CHOOSERS.match(name) and isinstance(default, str | list | tuple):
            values = [default] if isinstance(default, str) else default
            text = " ".join(str(value).lower() for value in values)
            spoken = set(words(text)) | {"tensorboard" if "tb" in words(text) else ""}
            found |= {sink for sink in sinks if sink in spoken}
    return found


def _holds(under: tuple[tuple[str, Any], ...], known: dict[str, Any]) -> bool | None:
    """Return whether conditions hold by default; None if that cannot be seen."""
    sure: bool | None = True
    for dotted, wanted in under:
        joined, last = dotted.replace(".", "_").strip("_"), dotted.rpartition(".")[2].strip("_")
        name = joined if joined in known else last
        if name not in known:
            spoken = {*words(dotted), str(wanted).lower()}
            if spoken & {"wandb", "tensorboard", "track", "tb", "logger", "comet"}:
                sure = None
            continue
        default = known[name]
        if wanted is ...:
            holds = default is not None
        elif isinstance(wanted, bool):
            holds = (str(default).lower() not in ("none", "false", "0", "", "[]")) is wanted
        elif isinstance(default, list | tuple):
            holds = wanted in default
        else:
            holds = default == wanted or (isinstance(wanted, str) and wanted in str(default))
        if not holds:
            return False
    return sure


# ---------------------------------------------------------------------- launchers


def launcher(repo: Repository, train: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return what runs are started with; nothing where nothing trains."""
    found = []
    for fact in repo.relevant():
        for name, hit in fact.launchers.items():
            found.append(Found(name, f"{fact.path}:{hit.line}", hit.confidence))
    for fact in repo.searched():
        if is_script(fact) and "custom" in fact.launchers:
            hit = fact.launchers["custom"]
            found.append(Found("custom", f"{fact.path}:{hit.line}", hit.confidence))
    for command in repo.scripts.commands:
        if command.distributed and command.target in repo.chosen["train"]:
            found.append(Found("torchrun", command.place, 0.9))
    for path in repo.files.paths:
        if not path.endswith(".py") and not repo.files.is_test(path):
            found.extend(_launchers_in(path, repo.files.text(path)))
    plain = [
        answer
        for answer in train
        if not {"sbatch", "srun", "torchrun", "ray"} & set(answer.value["command"])
    ]
    if plain:
        found.append(Found("local", plain[0].evidence[0], max(0.6, plain[0].confidence - 0.1)))
    return ranked(found, 7) if train else ()


def _launchers_in(path: str, text: str) -> list[Found]:
    found: list[Found] = []
    if path.endswith((".yaml", ".yml")):
        kind = re.search(r"^kind:\s*(Job|Pod|\w*Job|CronJob|StatefulSet)\s*$", text, re.MULTILINE)
        if kind and re.search(r"^apiVersion:", text, re.MULTILINE):
            line = text.count("\n", 0, kind.start()) + 1
            found.append(Found("kubernetes", f"{path}:{line}", 0.85))
    if path.endswith((".txt", ".cfg", ".toml", ".gin")):
        return found
    if not re.search("SBATCH|sbatch|srun|submitit|tmux|torch|ray|kubectl|accelerate", text):
        return found
    for number, row in enumerate(text.split("\n"), 1):
        for name, confidence, pattern in _LAUNCH_LINES:
            if len(row) < 1000 and pattern.search(row):
                found.append(Found(name, f"{path}:{number}", confidence))
    return found
