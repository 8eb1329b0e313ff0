"""How a script of a foreign repository takes its settings, and which it has.

What Hydra would compose for it by default is read from its YAML files alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from assay.study.repo.files import Files, words
from assay.study.repo.options import is_seed, kind_of, seeds
from assay.study.repo.purpose import is_script
from assay.study.repo.repository import Repository
from assay.study.repo.walk import Facts, Hit, Option
from assay.study.repo.words import OTHER_CONFIGS

_LIMIT = 400
_DEPTH = 4
_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
_NESTED = 5


@dataclass
class CommandLine:
    """How a script takes settings: their form, and all that are known, as they are typed."""

    form: str  # `--{name}={value}`, `{name}={value}`; empty where it takes none
    options: dict[str, Option] = field(default_factory=dict)
    composed: Composed | None = None  # by Hydra
    hydra: bool = False  # `@hydra.main`, which takes `hydra.run.dir` as well
    sacred: bool = False  # settings go behind the word `with`


def command_line(repo: Repository, target: str, argv: tuple[str, ...], verb: str) -> CommandLine:
    """Return how a script takes its settings.

    Args:
        repo: The repository.
        target: The script.
        argv: The command as it is documented, which shows the form where the code does not.
        verb: The subcommand, if there is one.
    """
    fact = repo.facts[target]
    systems = {
        key
        for item in repo.closure(target, 2)
        if item is fact or not is_script(item)
        for key, hit in item.config.items()
        if takes_settings(key, hit)
    }
    called = bool(fact.config) or argv[0] in repo.scripts.entries or bool(verb)
    line = CommandLine("--{name}={value}")
    custom = fact.config.get("custom")
    hydra = "hydra" in systems and ("hydra" in fact.config or not fact.options)
    if hydra:
        line = _hydra(repo, target, argv)
    elif custom is not None and custom.name == "sacred":
        settings = _near_settings(repo, target) or {"seed": Option(0)}  # it always has one
        line = CommandLine("{name}={value}", settings, sacred=True)
    elif not systems and any(item.dotted for item in repo.closure(target, 2)):
        line = CommandLine("{name}={value}", _structured(repo, target))
    elif not systems and not called:
        line.form = _form(argv)
        if line.form:
            line.options = _near_settings(repo, target)
            if line.form.startswith("--"):
                line.options = {f"--{name}": option for name, option in line.options.items()}
    else:
        line.options = _declared(repo, target, verb, systems)
        if not seeds(line.options) and not systems:
            # A parser of the repository's own, made from a file of defaults.
            loaded = _near_settings(repo, target)
            line.options |= {f"--{name}": option for name, option in loaded.items()}
        line.form = _flag_form(fact, systems, line.options)
        if repo.hints.parameter_format and repo.of_stack(target):
            line.form = repo.hints.parameter_format
    return line


def takes_settings(system: str, hit: Hit) -> bool:
    """Return whether a config system reads the command line."""
    if system == "hydra":  # `compose` and the like take no arguments from it
        tail = hit.name.rpartition(".")[2]
        return tail == "main" or "hydra" in tail.lower()
    return system in {"tyro", "argparse", "absl", "gin"} or hit.name in OTHER_CONFIGS


def _hydra(repo: Repository, target: str, argv: tuple[str, ...]) -> CommandLine:
    line = CommandLine("{name}={value}")
    called = [entry.function for word, entry in repo.scripts.entries.items() if word in argv]
    for fact in repo.closure(target, 2):
        if fact.hydra:
            first = next(iter(fact.hydra))
            place = next((fact.hydra[name] for name in called if name in fact.hydra), None)
            line.composed = compose(repo.files, fact.path, *(place or fact.hydra[first]))
            line.options = dict(line.composed.settings)
            line.hydra = True
            break
    if not line.options:
        typed = _parsed(repo, target)
        line.options = {name.lstrip("-"): option for name, option in typed.items()}
    if not line.options:
        line.options = _near_settings(repo, target)
    if "argparse" in repo.facts[target].config:  # it takes the rest to Hydra
        line.options = {**_placed(repo.facts[target].options, target), **line.options}
    return line


def _flag_form(fact: Facts, systems: set[str], options: dict[str, Option]) -> str:
    bindings = [option for option in options if option.endswith(("bindings", "gin_param"))]
    if "gin" in systems and bindings:
        return bindings[0] + "={name}={value}"
    if "gin" in fact.config and "absl" not in systems and not options:
        return "--gin_bindings={name}={value}"
    long = [name for name in options if name.startswith("--")]
    return "-{name}={value}" if options and not long else "--{name}={value}"


def _structured(repo: Repository, target: str) -> dict[str, Option]:
    """Return the settings of a script that reads them with OmegaConf, without Hydra."""
    found: dict[str, Option] = {}
    for item in repo.closure(target, 2):
        for name in item.structured:
            found |= _of_class(repo, item.path, name, "", 0)
    return found or _near_settings(repo, target)


def _form(argv: tuple[str, ...]) -> str:
    """Return how a command takes settings, judged by those that a document gives it."""
    if any(re.match(r"--[a-z]", part) for part in argv):
        return "--{name}={value}"
    return "{name}={value}" if any(re.match(r"\+*[a-z][\w.]*=", part) for part in argv) else ""


def _declared(repo: Repository, target: str, verb: str, systems: set[str]) -> dict[str, Option]:
    """Return the options of a script, its own before those that what it imports declares."""
    fact = repo.facts[target]
    function = fact.verbs.get(verb, "")  # what another verb takes is none of this one's
    found = {
        name: option
        for name, option in _placed(fact.options, target).items()
        if not function or function in fact.owners.get(name, {function})
    }
    found = {**_parsed(repo, target, function), **found}
    # A script with a command line of its own does not take that of what it imports.
    alone = "tyro" in systems and "argparse" not in fact.config
    for item in repo.closure(target, 2)[1:] if not alone or verb else ():
        of_verb = bool(verb) and item.path.endswith(f"/{verb}.py")
        if of_verb or (not is_script(item) and ({"argparse", "absl"} & set(item.config))):
            found = {**_placed(item.options, item.path), **_parsed(repo, item.path), **found}
    if {"argparse", "absl"} & systems and not any(is_seed(name) for name in found) and not alone:
        # Functions that fill the parser of their caller may be further away.
        for item in repo.closure(target, 5)[1:]:
            if (
                item.options
                and not is_script(item)
                and not item.config
                and not repo.files.is_test(item.path)
            ):
                found = {**_placed(item.options, item.path), **found}
    for flag, default in fact.config_files:
        for name, option in _python_config(repo, default).items():
            found.setdefault(f"--{flag}.{name}", option)
    if verb or not found:
        for item in repo.closure(target, 2):
            if verb in item.signatures and item.parsed:
                found = {**_of_function(repo, item.path, verb, unwrap=False), **found}
    return dict(list(found.items())[:_LIMIT])


def _placed(options: dict[str, Option], path: str) -> dict[str, Option]:
    return {name: replace(option, path=option.path or path) for name, option in options.items()}


def _parsed(repo: Repository, path: str, function: str = "") -> dict[str, Option]:
    """Return the options that a command line has by what it is made of, or one function of it."""
    found: dict[str, Option] = {}
    fact = repo.facts[path]
    only = {function} & {name for name, _ in fact.parsed}
    for name, unwrap in fact.parsed:
        if only and name not in only:
            continue
        if name in fact.signatures:
            found |= _of_function(repo, path, name, unwrap=unwrap)
        else:
            found |= _of_class(repo, path, name, "--", 0)
    if fact.flat:  # `tyro.conf.OmitArgPrefixes`
        found = {f"--{name.rpartition('.')[2].lstrip('-')}": o for name, o in found.items()}
    return found


def _of_function(repo: Repository, path: str, name: str, *, unwrap: bool) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for argument, option in repo.facts[path].signatures[name].items():
        prefix = "--" if unwrap else f"--{argument}."
        inner = _of_class(repo, path, option.kind, prefix, 0)
        if inner:
            found |= inner
        elif not unwrap:
            dashed = name in repo.facts[path].dashed
            typed = argument.replace("_", "-") if dashed else argument
            found[f"--{typed}"] = replace(option, path=path)
    return found


def _of_class(repo: Repository, path: str, name: str, prefix: str, depth: int) -> dict[str, Option]:
    """Return the fields of a class, also of those that its fields and its bases are."""
    home = next((f for f in repo.closure(path, 4) if name in f.fields), None) if name else None
    if home is None or depth > _DEPTH:
        return {}
    found: dict[str, Option] = {}
    for base in home.bases.get(name, ()):
        if base != name:
            found |= _of_class(repo, home.path, base, prefix, depth + 1)
    for item, option in home.fields[name].items():
        inner: dict[str, Option] = {}
        if option.kind[:1].isupper():
            inner = _of_class(repo, home.path, option.kind, f"{prefix}{item}.", depth + 1)
        found |= inner or {f"{prefix}{item}": replace(option, path=home.path)}
        if len(found) > _LIMIT:
            break
    return found


def _python_config(repo: Repository, default: str) -> dict[str, Option]:
    """Return what a config in Python sets: `config.seed = 42`."""
    path = repo.files.script(default.partition(":")[0], ("",)) if default else None
    text = repo.files.text(path) if path else ""
    found: dict[str, Option] = {}
    for number, row in enumerate(text.split("\n"), 1):
        match = re.match(r"^\s*\w*(?:config|cfg)\w*\.([\w.]+)\s*=\s*[^=]", row)
        if match:
            found.setdefault(match[1], Option(number, path=path or ""))
    return found


def _near_settings(repo: Repository, target: str) -> dict[str, Option]:
    """Return the settings of the YAML file that lies nearest to a script and has a seed."""
    best: dict[str, Option] = {}
    for path in _near(repo, target):
        for name, option in read_settings(repo.files, path).items():
            best.setdefault(re.sub(r"^defaults?\.", "", name), option)
        if any(is_seed(name) for name in best):
            return dict(list(best.items())[:_LIMIT])
        best = {}
    return {}


def _near(repo: Repository, target: str) -> Iterable[str]:
    here = target.rpartition("/")[0]
    found = [
        path
        for path in repo.files.ending(".yaml", ".yml")
        if not repo.files.is_test(path)
        and not path.startswith(".")
        and (path.startswith(here) or {"conf", "config", "configs", "cfg"} & set(words(path)))
    ]
    named = {"config", "configs", "default", "defaults", "base", "train"}
    return sorted(found, key=lambda p: (not named & set(words(p.rpartition("/")[2])), p.count("/")))


# ---------------------------------------------------------------------- what Hydra would compose


@dataclass
class Composed:
    """The settings of a script, by their dotted names, and the files they are from."""

    settings: dict[str, Option] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    groups: dict[str, str] = field(default_factory=dict)  # with the directory of their choices


def compose(files: Files, script: str, path: str, name: str) -> Composed:
    """Return the default config of a script, as its defaults lists compose it.

    Args:
        files: The repository.
        script: The file with `@hydra.main`.
        path: Its `config_path`; relative to the script, or `pkg://` and a package.
        name: Its `config_name`.
    """
    found = Composed()
    root = _root(files, script, path, name)
    if root is not None:
        _add(files, root, _with_suffix(name), "", found, 0)
    return found


def read_settings(files: Files, path: str, package: str = "") -> dict[str, Option]:
    """Return the settings of one YAML file, by their dotted names."""
    try:
        node = yaml.compose(files.text(path), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return {}
    found: dict[str, Option] = {}
    if isinstance(node, yaml.MappingNode):
        _flatten(node, package, path, found, 0)
    return found


def _root(files: Files, script: str, path: str, name: str) -> str | None:
    here = script.rpartition("/")[0]
    wanted = _with_suffix(name)
    if path.startswith("pkg://"):
        place = path.removeprefix("pkg://").replace(".", "/")
        near = ["", "src", here]
    else:
        place, near = path or ".", [here]
    for start in near:
        joined = os.path.normpath(os.path.join(start, place)).replace(os.sep, "/")
        joined = "" if joined == "." else joined
        if f"{joined}/{wanted}".lstrip("/") in files:
            return joined
    found = [item for item in files.ending(".yaml", ".yml") if item.endswith("/" + wanted)]
    parent = path.rstrip("/").rpartition("/")[2]
    if parent.strip("."):
        found = [item for item in found if f"/{parent}/" in "/" + item] or found
    roots = {item.removesuffix("/" + wanted) for item in found}
    return roots.pop() if name and len(roots) == 1 else None


def _with_suffix(name: str) -> str:
    return name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"


def _add(files: Files, root: str, name: str, package: str, found: Composed, depth: int) -> None:
    path = f"{root}/{name}".lstrip("/")
    if path not in files or depth > _NESTED or path in found.files:
        return
    text = files.text(path)
    header = _PACKAGE.search(text)
    if header:
        package = "" if header[1] == "_global_" else header[1]
    found.files.append(path)
    own = read_settings(files, path, package)
    after: list[tuple[str, str]] = []
    for group, option in _defaults(text):
        if group.startswith("override "):
            group = group.removeprefix("override ")
        group = group.removeprefix("optional ")
        group, _, at = group.partition("@")
        here = "" if group.startswith("/") or not group else name.rpartition("/")[0]
        group = group.strip("/")
        whole = f"{here}/{group}".strip("/")
        if group and group != "hydra" and not group.startswith("hydra/"):
            found.groups.setdefault(whole, f"{root}/{whole}".lstrip("/"))
            at = at.replace("_global_", "").replace("_here_", package) if at else ""
            after.append((f"{whole}/{_with_suffix(option)}", at or whole.replace("/", ".")))
        elif not group:
            beside = name.rpartition("/")[0]
            after.append((f"{beside}/{_with_suffix(option)}".lstrip("/"), package))
    for other, below in after:
        _add(files, root, other, below, found, depth + 1)
    found.settings = {**found.settings, **own}


def _defaults(text: str) -> list[tuple[str, str]]:
    """Return the defaults list of a config: groups and their options."""
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    items = values.get("defaults", []) if isinstance(values, dict) else []
    found = []
    for item in items if isinstance(items, list) else []:
        if isinstance(item, dict):
            found += [(str(key), str(value)) for key, value in item.items() if value is not None]
        elif isinstance(item, str) and item != "_self_":
            group, _, option = item.rpartition("/")
            found.append(("", f"{group}/{option}".strip("/")))
    return found


def _flatten(
    node: yaml.MappingNode, prefix: str, path: str, found: dict[str, Option], depth: int
) -> None:
    for key, value in node.value:
        name = f"{prefix}.{key.value}".strip(".") if isinstance(key, yaml.ScalarNode) else ""
        listed = name == "defaults" and isinstance(value, yaml.SequenceNode)
        if not name or listed or name == "hydra" or key.value.startswith("_"):
            continue
        line = key.start_mark.line + 1
        if isinstance(value, yaml.MappingNode) and depth < 8:
            _flatten(value, name, path, found, depth + 1)
        elif isinstance(value, yaml.ScalarNode):
            default = _scalar(value)
            unset = default == "???"
            kind = "" if unset else kind_of(default)
            found[name] = Option(line, kind, None if unset else default, required=unset, path=path)
        elif isinstance(value, yaml.SequenceNode):
            items = [_scalar(v) for v in value.value if isinstance(v, yaml.ScalarNode)]
            found[name] = Option(line, "", items, path=path)


def _scalar(node: yaml.ScalarNode) -> Any:
    if node.style in ("'", '"'):
        return node.value
    try:
        value = yaml.safe_load(node.value)
    except (yaml.YAMLError, ValueError):
        return node.value
    if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
        return float(value)  # YAML 1.1 takes 1e-3 for a word
    return value if isinstance(value, str | int | float | bool) or value is None else node.value
