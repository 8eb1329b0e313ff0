"""Commands as a contract takes them: `{python}`, `{seed}`, `{out}` and `{parameters}` in place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from assay.study.repo.commands import RUNNERS
from assay.study.repo.files import words
from assay.study.repo.options import is_seed, seeds
from assay.study.repo.parameters import CommandLine
from assay.study.repo.walk import Option
from assay.study.repo.words import LOADED, READ_PLACES, WRITTEN_PLACES

PARAMETERS = 200
# Directories that a run writes to, best first.
_PLACES = ("out", "output", "log", "logs", "logging", "run", "runs", "work", "working", "result",
    "results", "save", "exp", "experiment", "train", "tensorboard", "tb", "summary", "base",
    "checkpoint", "checkpoints", "ckpt", "artifact", "artifacts", "storage")  # fmt: skip
_KINDS = {"dir", "directory", "path", "folder", "root", "dirpath", "loc", "location", "dirs"}
_EPISODES = re.compile(
    r"(^|[._-])(n|num|max|nb|number)?[._-]?(of[._-])?((eval|test|evaluation)[._-])?episodes?$"
)
_MODEL_FILE = re.compile(
    r"[\w.-]+\.(pt|pth|zip|pkl|ckpt|msgpack|h5|npz|onnx|tar|npy|pickle|cleanrl_model)$"
)
_UNFILLED = re.compile(
    r"<[^>]*>|\[[A-Za-z_ -]+\]|/path/to|your[-_ ]|^path[-_/]|\.\.\.", re.IGNORECASE
)
_STAMP = re.compile(
    r"\$\(date[^)]*\)|`date[^`]*`|\{time(?:stamp)?\}|<time(?:stamp)?>|\$\{now:[^}]*\}"
    r"|(?<!\d)20\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_T .]*[0-2]\d[-_:.]?[0-5]\d(?:[-_:.]?[0-5]\d)?)?"
    r"|(?<![A-Za-z])(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\d\d_\d\d-\d\d-\d\d"
)


@dataclass
class _Draft:
    """A command while its placeholders are put in."""

    words: list[str]
    how: dict[str, str] = field(default_factory=dict)

    def put(
        self, name: str, placeholder: str, line: CommandLine, option: Option, what: str
    ) -> None:
        """Append an option with a placeholder for its value."""
        place = f"{option.path}:{option.line}" if option.path and option.line else ""
        if name.startswith("-"):
            self.words += [name, placeholder]
        else:
            if line.sacred and "with" not in self.words:
                self.words.append("with")
            self.words.append(f"{name}={placeholder}")
        self.how[what] = f"{name}, declared at {place}" if place else name


def ready(
    kind: str,
    argv: tuple[str, ...],
    line: CommandLine,
    place: str,
    *,
    seed: str = "",
    module: str = "",
) -> dict[str, Any]:
    """Return a command with its placeholders, and how each of them was found.

    Args:
        kind: `train` or `evaluate`.
        argv: The command as it is documented.
        line: How its script takes settings.
        place: Where it is documented.
        seed: The option by which its stack takes a seed, where the script does not say.
        module: The module that does the same, if the command is a console script.
    """
    draft = _Draft([word for word in argv if word not in ("\\", "&")])
    _python(draft, module)
    _sweeps(draft)
    _seed(draft, line, place, seed)
    if kind == "train":
        _out(draft, line, place)
    else:
        _trained(draft, line, place)
        _episodes(draft, line, place)
    _stamps(draft)
    if kind == "train" and line.form:
        if line.sacred and "with" not in draft.words:
            draft.words.append("with")
        draft.words.append("{parameters}")
        draft.how["parameters"] = f"settings are given as {line.form}"
    elif kind == "train":
        draft.how["parameters"] = "none: the script takes no settings"
    given = {
        re.sub(r"^[-+]*", "", word).partition("=")[0].replace("-", "_") for word in draft.words
    }
    missing = [
        name
        for name, option in line.options.items()
        if option.required and name.startswith("--") and name[2:].replace("-", "_") not in given
    ]
    value: dict[str, Any] = {
        "command": [_escaped(word) for word in draft.words],
        "parameter_format": line.form,
        "documented": shlex.join(argv),
        "placeholders": draft.how,
    }
    return value | ({"missing": missing[:10]} if missing else {})


def parameters(line: CommandLine) -> list[dict[str, Any]]:
    """Return the settings that a contract could let candidates change, as its form writes them."""
    found = []
    dashes = 2 if line.form.startswith("--") else 1 if line.form.startswith("-") else 0
    for name, option in line.options.items():
        bare = name[dashes:]
        if is_seed(name) or _rank(name, option) < 99 or bare.startswith("-") or option.flag:
            continue
        if dashes and not name.startswith("-" * dashes):
            continue
        row: dict[str, Any] = {"name": bare, "kind": option.kind, "default": option.default}
        if option.choices:
            row["choices"] = list(option.choices)
        if option.path and option.line:
            row["place"] = f"{option.path}:{option.line}"
        found.append(row)
    return found[:PARAMETERS]


def _escaped(word: str) -> str:
    """Double the braces that are not placeholders, as a contract needs it."""
    kept = r"\{(?:python|seed|out|parameters|episodes)\}"
    parts = re.split(f"({kept})", word)
    return "".join(
        part if index % 2 else part.replace("{", "{{").replace("}", "}}")
        for index, part in enumerate(parts)
    )


def _sweeps(draft: _Draft) -> None:
    """Turn a sweep of Hydra into one run: its first values."""
    sweeping = {"-m", "--multirun"} & set(draft.words[1:])
    if not sweeping or draft.words[1] == "-m":
        return
    draft.words = [word for word in draft.words if word not in ("-m", "--multirun")]
    for index, word in enumerate(draft.words):
        key, equals, value = word.partition("=")
        if equals and "," in value and not value.startswith(("[", "{", "'", '"')):
            draft.words[index] = f"{key}={value.partition(',')[0]}"


def _python(draft: _Draft, module: str) -> None:
    first = draft.words
    runner = tuple(first[:2]) in RUNNERS and len(first) > 2  # `tool run` may be a verb
    if runner and (first[2] == "python" or first[2].endswith(".py")):
        draft.how["python"] = f"instead of `{' '.join(first[: 3 if first[2] == 'python' else 2])}`"
        draft.words = ["{python}", *first[3 if first[2] == "python" else 2 :]]
    elif first[0] == "python":
        draft.how["python"] = "the interpreter"
        draft.words = ["{python}", *first[1:]]
    elif "-p" in first[:3]:
        draft.how["python"] = f"none: `{first[0]}` starts its own interpreter"
    elif module:
        at = 3 if runner else 1
        draft.how["python"] = f"instead of `{' '.join(first[:at])}`, a console script"
        draft.words = ["{python}", "-m", module, *first[at:]]
    else:
        name = first[2] if runner else first[0]
        draft.how["python"] = f"none: `{name}` is a console script"


def _documented(draft: _Draft, fits: Callable[[str], object]) -> Iterator[tuple[int, str, str]]:
    """Yield the words with values of the options that fit: where, the option, what stands before.

    That is `out=` in `out=DIR`, and nothing in `--out DIR`.
    """
    for index, word in enumerate(draft.words):
        key, equals, _ = word.partition("=")
        if equals and fits(key):
            yield index, key, f"{key}="
        elif word.startswith("-") and fits(word) and index + 1 < len(draft.words):
            yield index + 1, key, ""


def _seed(draft: _Draft, line: CommandLine, place: str, usual: str) -> None:
    for index, key, before in _documented(draft, is_seed):
        draft.words[index] = before + "{seed}"
        draft.how["seed"] = f"{key}, as documented at {place}"
        # `--seeds 1 2 3` is one seed from now on.
        while not before and "".join(draft.words[index + 1 : index + 2]).isdigit():
            del draft.words[index + 1]
        return
    known = seeds(line.options)
    if known:
        draft.put(known[0], "{seed}", line, line.options[known[0]], "seed")
    elif usual:
        draft.put(usual, "{seed}", line, Option(0), "seed")
        draft.how["seed"] = f"{usual}, as the profile says"
    else:
        draft.how["seed"] = "none: the script takes no seed"


def _rank(name: str, option: Option | None) -> int:
    """Return how likely an option names the directory that a run writes to; 99 if it does not."""
    if option is not None and (option.flag or option.kind in ("bool", "int", "float")):
        return 99
    last = name.rpartition(".")[2].lstrip("-+").lower().replace("-", "_")
    parts = set(words(last))
    if last not in WRITTEN_PLACES and (not parts & _KINDS or parts & READ_PLACES):
        return 99
    if parts & {"checkpoint", "checkpoints", "ckpt"} and not parts & {"dir", "directory", "folder"}:
        return 99  # `--checkpoint-path` is loaded
    known = [rank for rank, word in enumerate(_PLACES) if word in parts or last.startswith(word)]
    return known[0] if known else 99


def _out(draft: _Draft, line: CommandLine, place: str) -> None:
    def writes(key: str) -> bool:
        return _rank(key, line.options.get(key.partition("=")[0])) < 99 and not is_seed(key)

    for index, key, before in _documented(draft, writes):
        if before or not draft.words[index].startswith("-"):
            draft.words[index] = before + "{out}"
            draft.how["out"] = f"{key}, as documented at {place}"
    if "out" in draft.how:
        return
    ranks = ((n.count("."), _rank(n, o), len(n), n) for n, o in line.options.items())
    known = sorted(item for item in ranks if item[1] < 99)
    if line.hydra:
        known = [item for item in known if not _refers(line.options[item[3]])]
        if not known or known[0][0]:
            draft.words.append("hydra.run.dir={out}")
            draft.how["out"] = "hydra.run.dir, which every Hydra script has"
            return
    if line.sacred:
        at = draft.words.index("with") if "with" in draft.words else len(draft.words)
        draft.words.insert(at, "--file_storage={out}")
        draft.how["out"] = "--file_storage, which every Sacred script has"
    elif known:
        draft.put(known[0][3], "{out}", line, line.options[known[0][3]], "out")
    else:
        draft.how["out"] = "none: the script has no option for where it writes to"


def _refers(option: Option) -> bool:
    """Return whether a setting is made of others: `${hydra:run.dir}`."""
    return isinstance(option.default, str) and "${" in option.default


def _trained(draft: _Draft, line: CommandLine, place: str) -> None:
    """Point an evaluation at what training wrote."""
    for index in range(len(draft.words) - 1, 0, -1):
        if "wandb" in words(draft.words[index]) and draft.words[index].startswith("-"):
            bare = "=" not in draft.words[index]
            del draft.words[index : index + 1 + bare]  # what lies on a server is not this run's
    for index, word in enumerate(draft.words[1:], 1):
        key, equals, value = word.partition("=")
        named = set(words(key.rpartition(".")[2]))
        before = draft.words[index - 1]
        if equals and (named & LOADED or _rank(key, None) < 99) and _is_path(value):
            draft.words[index] = f"{key}={_below_out(value)}"
        elif before.startswith("-") and "=" not in before and not word.startswith("-"):
            named = set(words(before))
            if not (named & LOADED or _rank(before, None) < 99) or not _is_path(word):
                continue
            key = before
            draft.words[index] = _below_out(word)
        elif index > 1 and not before.startswith("-") and _is_trained(word) and not equals:
            draft.words[index], key = _below_out(word), "its argument"
        else:
            continue
        draft.how["out"] = f"{key}, as documented at {place}"
    if "out" in draft.how:
        return
    known = []
    for name, option in line.options.items():
        named = set(words(name.rpartition(".")[2]))
        typed = option.kind in ("", "str") and not option.flag and not option.choices
        loaded = named & LOADED and (named & _KINDS or len(named) == 1 or "load" in named)
        if typed and (loaded or _rank(name, option) < 99):
            known.append(
                (not named & LOADED, not option.required, name.count("."), len(name), name)
            )
    if known:
        name = min(known)[-1]
        draft.put(name, "{out}", line, line.options[name], "out")
        draft.how["out"] += "; name the file below it if it wants one"
    else:
        draft.how["out"] = "none: the script has no option for what it loads"


def _is_trained(word: str) -> bool:
    """Return whether an argument by itself is a trained model or the directory of a run."""
    return bool(_MODEL_FILE.search(word)) or ("/" in word and not word.endswith((".py", ".yaml")))


def _is_path(value: str) -> bool:
    if value in ("logs", "runs", "results", "output", "outputs", "checkpoints", "models"):
        return True
    return bool("/" in value or _MODEL_FILE.search(value) or _UNFILLED.search(value)) or not value


def _below_out(value: str) -> str:
    name = value.rstrip("/").rpartition("/")[2]
    return f"{{out}}/{name}" if _MODEL_FILE.fullmatch(name) else "{out}"


def _episodes(draft: _Draft, line: CommandLine, place: str) -> None:
    for index, key, before in _documented(draft, _EPISODES.search):
        if not before or draft.words[index].removeprefix(before).isdigit():
            draft.words[index] = before + "{episodes}"
            draft.how["episodes"] = f"{key}, as documented at {place}"
            return
    known = [n for n, o in line.options.items() if _EPISODES.search(n) and o.kind in ("int", "")]
    if known:
        name = min(known, key=lambda name: (name.count("."), len(name)))
        draft.put(name, "{episodes}", line, line.options[name], "episodes")


def _stamps(draft: _Draft) -> None:
    """Take out times that a document wrote down: no two runs have the same."""
    kept: list[str] = []
    for word in draft.words:
        if not _STAMP.search(word):
            kept.append(word)
        elif "=" not in word and kept and kept[-1].startswith("-"):
            kept.pop()
        elif "/" in word:
            kept.append(f"{word.partition('=')[0]}={{out}}" if "=" in word else "{out}")
    draft.words = kept
