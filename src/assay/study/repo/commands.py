"""The commands by which a repository is trained and evaluated, found and never run.

Documents, CI files, Makefiles and shell scripts say how a script is called; entry points say what
is installed; the script's own syntax tree says whether it trains or evaluates. A command counts
only if what it runs is in the repository.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from assay.study.repo.files import Files
from assay.study.repo.options import is_seed
from assay.study.repo.walk import Facts
from assay.study.repo.words import WRAPPERS

RUNNERS = {
    *((tool, "run") for tool in ("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda")),
    ("accelerate", "launch"),
}
_INTERPRETER = re.compile(r"^(.*/)?(python|python3|python3\.\d+|torchrun|ipython)$")
_RUNS = re.compile(r"python|\.py|torchrun|\$|\bcd\s|-m\s")
_ASKS = {
    "--help", "-h", "[-h]", "[--help]", "--version", "-V", "print_config", "--print_config",
    "--system_info",
}  # fmt: skip
_ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
_PLACEHOLDER = re.compile(r"<[^>]*>|\.\.\.|\[[a-z_ ]+\]|/path/to|your[-_ ]", re.IGNORECASE)
_STANDS_FOR = re.compile(r"(?:.*=)?(?:[a-z]+_(?:name|id|path)|[A-Z]+_[A-Z_]+)")
_VARIABLE = re.compile(r"\$[\w@*#{(]|\{\{|%\w+%")
_CONTINUED = re.compile(r"\\\s*$")
# How much a place is believed about how a script is called, best first.
_SOURCES = ("readme", "docs", "makefile", "script", "docstring", "ci", "comment")


@dataclass(frozen=True)
class Command:
    """A command that runs something of the repository."""

    target: str  # the file it runs
    argv: tuple[str, ...]
    place: str  # file:line where it stands
    source: str
    context: str = ""  # heading, Makefile target or shell script that it stands under
    distributed: bool = False
    entry: str = ""
    bare: bool = False  # without arguments


@dataclass
class Entry:
    """A console script."""

    name: str
    target: str
    function: str
    place: str
    module: str = ""


@dataclass
class Scripts:
    """Everything that can be run."""

    commands: list[Command] = field(default_factory=list)
    entries: dict[str, Entry] = field(default_factory=dict)
    uv: bool = False

    def mentions(self, text: str) -> bool:
        """Return whether a line may run something, before it is taken apart."""
        return _RUNS.search(text) is not None or any(name in text for name in self.entries)


def find_commands(files: Files, facts: dict[str, Facts]) -> Scripts:
    """Return the commands and the entry points of a repository."""
    project = files.text("pyproject.toml") if "pyproject.toml" in files else ""
    uv = (files.root / "uv.lock").is_file() or "[tool.uv" in project
    scripts = Scripts(entries=_entry_points(files), uv=uv)
    for path in files.paths:
        source = "" if files.is_test(path) else _source(path)
        if source:
            text = files.text(path)
            scripts.commands += _in_text(files, scripts, path, text, source)
    for path, fact in facts.items():
        if not fact.main:
            continue
        for source, said in (("docstring", fact.doc), ("comment", _remarks(files, path))):
            found = _in_text(files, scripts, path, said, source) if "python" in said else []
            scripts.commands += [replace(c, place=f"{path}:1") for c in found if c.target == path]
    return scripts


def _remarks(files: Files, path: str) -> str:
    """Return how comments of a script say that it is run: `# python train.py cartpole`."""
    name = re.escape(path.rpartition("/")[2])
    pattern = rf"#[^\n]*?(python3? +(?:\S*/)?{name}(?: +[\w./=-]+)*)[\"'`.]*$"
    found = re.findall(pattern, files.text(path), re.MULTILINE)
    return "\n".join(found[:5])


def _source(path: str) -> str:
    lower = path.lower()
    name = lower.rpartition("/")[2]
    if lower.startswith((".github/workflows/", ".circleci/")) or name in (
        ".gitlab-ci.yml", "azure-pipelines.yml", ".travis.yml",
    ):  # fmt: skip
        return "ci"
    if name in ("makefile", "gnumakefile", "justfile") or name.endswith(".mk"):
        return "makefile"
    if name.endswith((".sh", ".bash", ".zsh", ".slurm", ".sbatch")) or "." not in name:
        return "script"
    if name.startswith("readme") and name.endswith((".md", ".rst", ".txt")):
        return "readme"
    if name.endswith((".md", ".rst")) and not name.startswith(("change", "history", "news")):
        return "docs"
    return ""


def _in_text(files: Files, scripts: Scripts, path: str, text: str, source: str) -> list[Command]:
    found: list[Command] = []
    here = path.rpartition("/")[0]
    cwd = ""
    heading = path if source == "script" else ""
    values: dict[str, str] = {}
    fenced = source not in ("readme", "docs", "docstring", "comment")
    markdown = path.endswith((".md", ".txt"))
    for number, raw in _joined(text):
        line = raw.strip()
        if markdown and line.startswith(("```", "~~~")) and line.count("```") < 2:
            fenced, cwd = not fenced, ""
            continue
        if source in ("readme", "docs") and not (markdown and fenced):
            if line.startswith("#") or (line and len(line) < 60 and line[-1:] == ":"):
                heading = line.strip("# :")
        elif source == "makefile":
            target = re.match(r"^([\w.-]+)\s*:(?!=)", raw)
            if target:
                heading = target[1]
        assigned = re.match(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*[:?]?=\s*(\S+)\s*(#.*)?$", raw)
        if assigned and (source in ("makefile", "script") or fenced or path.endswith(".rst")):
            values[assigned[1]] = re.sub(r"^\(\s*|\)$", "", assigned[2]).strip("\"'")
        looped = re.match(r"^\s*for\s+(\w+)\s+in\s+[\"'(]*([\w./-]+)", raw)
        if looped:  # the first of what a loop goes through stands for all
            values[looped[1]] = looped[2]
        block = markdown and raw.startswith(("    ", "\t"))  # code without a fence
        shown = fenced or block or path.endswith(".rst") or source in ("docstring", "comment")
        pieces = [line] if shown else []
        if source in ("readme", "docs"):
            pieces += re.findall(r"`{1,3}\s*([^`]+?)\s*`{1,3}", line)
        for piece in pieces:
            if not scripts.mentions(piece):
                continue
            for part in re.split(r"&&|;|\|\||\s\|\s|\s>+\s*\S+|\s&$", piece):
                words_ = _split(_substituted(part, values))
                if words_[:1] == ["cd"] and len(words_) > 1:
                    cwd = words_[1]
                    continue
                command = _command(files, scripts, words_, (cwd, here), f"{path}:{number}", source)
                if command is not None:
                    found.append(replace(command, context=heading))
    return found


def _joined(text: str) -> Iterable[tuple[int, str]]:
    """Yield lines with their numbers; a line that ends in a backslash goes on in the next."""
    kept, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not kept:
            start = number
        if _CONTINUED.search(line) and len(kept) < 4000:
            kept += _CONTINUED.sub(" ", line)
            continue
        yield start, kept + (line.strip() if kept else line)
        kept = ""
    if kept:
        yield start, kept


def _substituted(text: str, values: dict[str, str]) -> str:
    if "$" not in text:
        return text
    text = re.sub(r"\$\{\w+:-([^}$]+)\}", r"\1", text)  # `${1:-walk}`
    return re.sub(
        r"\$(?:\{|\()?([A-Za-z_]\w*)(?:\[\w@]+\])?(?:\}|\))?",
        lambda m: values.get(m[1], m[0]),
        text,
    )


def _split(text: str) -> list[str]:
    text = re.sub(r"^(\s*[-*]\s+)?(run|script|command):\s*[|>]?-?\s*", "", text.strip())
    text = re.sub(r"^(\$|>|%|>>>|-|@|\d+\.)\s*(?=\S)", "", text)
    text = re.sub(r"\s#\s.*$", "", text)
    # `<number of GPUs>` is one word, and `<args>` stands for whatever one likes.
    text = re.sub(r"<[A-Za-z][\w /.-]*>", lambda m: m[0].replace(" ", "_"), text)
    text = re.sub(
        r"\s(<(args|arguments|options|flags|overrides)>|\[(args|options)\])(?=\s|$)", "", text
    )
    text = re.sub(
        r"\s\[--?(?!h\]|help\])[^\]]*\](?=\s|$)", "", text
    )  # `[--episodes 20]` may be left out
    text = re.sub(r"\$\(date[^)]*\)|`date[^`]*`", "{timestamp}", text)
    if not text or text.startswith("#"):
        return []
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _command(
    files: Files,
    scripts: Scripts,
    parts: list[str],
    places: tuple[str, str],
    place: str,
    source: str,
) -> Command | None:
    """Return the command, if it runs something that is in the repository."""
    prefix: list[str] = []
    while parts:
        if _ASSIGNMENT.match(parts[0]) or parts[0] in WRAPPERS:
            parts = parts[1:]
        elif tuple(parts[:2]) in RUNNERS:
            prefix = parts[:2]
            parts = parts[2:]
        elif parts[0].startswith("-"):  # an option of a wrapper
            parts = parts[1:]
        else:
            break
    if not parts or _ASKS & set(parts) or parts[1:2] == ["="]:  # `tool = Tool()` is Python
        return None
    cwd, here = places
    near = tuple(dict.fromkeys((f"{here}/{cwd}".strip("/"), cwd.rstrip("/"), "", here)))
    if _INTERPRETER.match(parts[0]) and parts[1:2] and parts[1] in scripts.entries:
        parts = parts[1:]  # `python tool train`, where only `tool train` can be meant
    name = parts[0]
    interpreter = bool(_INTERPRETER.match(name)) or _VARIABLE.search(name) is not None
    launcher = name.endswith((".sh", ".bat")) and "-p" in parts[:3]  # isaaclab.sh -p script.py
    if name in scripts.entries and name not in ("python", "pip"):
        entry = scripts.entries[name]
        argv = [*prefix, *parts]
        bare = all(re.fullmatch(r"[a-z][\w-]*", part) for part in parts[1:3]) and len(parts) < 3
        return Command(entry.target, tuple(argv), place, source, entry=name, bare=bare)
    # A document that names `train.py` does not yet run it.
    direct = name.endswith(".py") and bool(prefix or name.startswith("./"))
    if not interpreter and not launcher and not direct:
        return None
    index = 0 if name.endswith(".py") else 1
    module = ""
    while index < len(parts) and not parts[index].endswith(".py"):
        if re.fullmatch(r"-[uBOEIsSdvqWX]*m", parts[index]) and index + 1 < len(parts):
            module = parts[index + 1]
            if module in ("torch.distributed.launch", "torch.distributed.run"):
                module, index = "", index + 2
                continue
            break
        if not parts[index].startswith("-") and not parts[index - 1].startswith("-"):
            return None
        index += 1
    if index >= len(parts):
        return None
    target = files.module(module) if module else files.script(parts[index], near)
    if target is None and module:
        target = files.moved(module)
        if target is not None:  # the document is older than the directory
            module = target.removeprefix("src/").removesuffix(".py").replace("/", ".")
        else:  # `python -m train`, beside the document
            target = files.script(module.replace(".", "/") + ".py", (near[0], near[-1]))
            if target is not None:
                module, parts = "", [*parts[:index], *parts[index + 1 :]]
    if target is None or not target.endswith(".py"):
        return None
    if module and target.endswith("/__init__.py"):  # `python -m package` runs its main module
        main = target.removesuffix("__init__.py") + "__main__.py"
        target = main if main in files else target
    distributed = name.endswith("torchrun") or "torch.distributed" in " ".join(parts[:4])
    tail = parts[index + 2 :] if module else parts[index + 1 :]
    run = [module and "-m", module] if module else [target]
    head = (
        [*parts[:index]] if launcher else [*prefix, *([] if prefix and index == 0 else ["python"])]
    )
    argv = [*head, *(part for part in run if part), *_without_variables(tail)]
    return Command(target, tuple(argv), place, source, distributed=distributed, bare=len(tail) == 0)


def _without_variables(tail: list[str]) -> list[str]:
    """Drop what a shell would have filled in, with the option that it belongs to."""
    kept: list[str] = []
    for part in tail:
        key = part.partition("=")[0]
        if not _VARIABLE.search(part):
            kept.append(part)
        elif "=" in part and is_seed(key):
            kept.append(f"{key}={{seed}}")
        elif "=" not in part and kept and kept[-1].startswith("-"):
            if is_seed(kept[-1]):
                kept.append("{seed}")
            else:
                kept.pop()
    return kept


# ---------------------------------------------------------------------- entry points


def _entry_points(files: Files) -> dict[str, Entry]:
    found: dict[str, tuple[str, str]] = {}
    for path in files.paths:
        name = path.rpartition("/")[2]
        if name == "pyproject.toml":
            try:
                data = tomllib.loads(files.text(path))
            except (tomllib.TOMLDecodeError, RecursionError):
                continue
            tables = (_table(data, "project", "scripts"), _table(data, "tool", "poetry", "scripts"))
            for table in tables:
                for script, value in table.items():
                    if isinstance(value, str):
                        found.setdefault(script, (value, path))
        elif name in ("setup.cfg", "setup.py", "entry_points.txt"):
            text = files.text(path)
            if "console_scripts" in text:
                for constant in set(re.findall(r"\{(\w+)\}\s*=\s*[\w.]+:", text)):
                    value = re.search(
                        rf"^{constant}\b[^=\n]*=\s*[\"']([\w.-]+)", text, re.MULTILINE
                    )
                    text = text.replace(f"{{{constant}}}", value[1] if value else constant)
                for script, value in re.findall(
                    r"[\"'\s]([\w.-]+)\s*=\s*([\w.]+:[\w.]+)", text.partition("console_scripts")[2]
                ):
                    found.setdefault(script, (value, path))
    entries = {}
    for script, (value, path) in found.items():
        module, _, function = value.partition(":")
        target = _entry_target(files, module.strip(), path)
        if target is not None:
            line = _line_of(files.text(path), script, value)
            entries[script] = Entry(
                script, target, function.strip(), f"{path}:{line}", module.strip()
            )
    return entries


def _entry_target(files: Files, module: str, near: str) -> str | None:
    """Return the file of an entry point's module; a package's main module is none by name."""
    if not module.endswith(".__main__"):
        return files.module(module, near=near)
    package = files.module(module.removesuffix(".__main__"), near=near)
    main = f"{package.rpartition('/')[0]}/__main__.py" if package else ""
    return main if main in files else None


def _table(data: dict[str, object], *keys: str) -> dict[str, object]:
    value: object = data
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _line_of(text: str, *needles: str) -> int:
    for number, line in enumerate(text.split("\n"), 1):
        if all(needle in line for needle in needles):
            return number
    return 1


def preference(command: Command) -> tuple[int, ...]:
    """Order commands of one script: well documented, complete, plain, short."""
    text = " ".join(command.argv)
    root = command.place.count("/")
    return (
        _SOURCES.index(command.source),
        bool(_PLACEHOLDER.search(text)) or any(_STANDS_FOR.fullmatch(w) for w in command.argv),
        command.distributed,
        command.bare,  # a script that is only named
        root,
        len(command.argv) > 12,
        int(command.place.rpartition(":")[2]),
    )
