"""Frozen configuration models and the rules by which settings combine.

Precedence: defaults < preset < the user's YAML < `key=value`. An unknown key is an error that
names the nearest known one; nothing is silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

import pydantic
import yaml

from assay.core import fast_yaml
from assay.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from assay.core.types import Problem, Spaces

ModelT = TypeVar("ModelT", bound="Model")
_MEMBER = re.compile(r"(str|int|float|bool)$|(dict|list|tuple)\[")  # of a union, in a place
_MODULE = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Z])")  # in front of the name of a type


class Model(pydantic.BaseModel):
    """Base of every configuration model: frozen, and strict about unknown keys."""

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _no_flags_for_numbers(cls, values: Any) -> Any:
        # In Python true equals 1; given for a number it is a mistake.
        for name, value in values.items() if isinstance(values, dict) else ():
            field = cls.model_fields.get(name)
            if isinstance(value, bool) and field is not None and not _takes_flags(field.annotation):
                given = str(value).lower()
                raise ValueError(f"{name}={given}: true and false are not allowed here")
        return values

    @classmethod
    def meanings(cls) -> dict[str, tuple[str, Any, str]]:
        """Return `{name: (type, default, meaning)}` for help texts."""
        rows = {}
        for name, info in cls.model_fields.items():
            kind = getattr(info.annotation, "__name__", None) or str(info.annotation)
            if "[" in str(info.annotation) or "|" in str(info.annotation):
                kind = _MODULE.sub("", str(info.annotation))
            required = info.is_required()
            default = None if required else info.get_default(call_default_factory=True)
            rows[name] = (kind, default, info.description or "")
        return rows


def _takes_flags(annotation: Any) -> bool:
    """Return whether true and false are among the values of a type."""
    if annotation in (bool, Any):
        return True
    return any(arg is True or _takes_flags(arg) for arg in get_args(annotation))


def parse(
    model: type[ModelT], values: Mapping[str, Any], *, what: str, fix: str | None = None
) -> ModelT:
    """Build `model` from `values`, turning validation failures into one clear message.

    `what` is being configured, for the message ("ppo", "the run"), and `fix` how it is written.

    Raises:
        ConfigError: Names each bad key with its value, what was expected and the nearest name.
    """
    try:
        return model(**values)
    except pydantic.ValidationError as error:
        found = error.errors()
        # Of values that are wrong themselves it is said again that there are too few right ones.
        inner = {item["loc"][:-1] for item in found}
        found = [one for one in found if one["type"] != "too_short" or one["loc"] not in inner]
        lines = [_line(model, items) for items in _by_setting(model, found)]
        raise ConfigError(f"Bad settings for {what}: " + "; ".join(lines), fix) from None


class _Count(Model):
    value: int = pydantic.Field(gt=0)


def whole_number(name: str, value: Any) -> int:
    """Return a whole number of at least 1, read as a setting is: 1e5 is one.

    Raises:
        ConfigError: It is none; `name` is what it is called.

    Example:
        >>> whole_number("budget", 1e5)
        100000
    """
    try:
        return _Count(value=value).value
    except pydantic.ValidationError:
        raise ConfigError(f"{name}={value!r}: expected a whole number of at least 1.") from None


def example(model: type[Model], name: str) -> str:
    """Return how settings name a model, with the examples of the fields that it needs.

    Example:
        >>> class Crop(Model):
        ...     rows: int = pydantic.Field(examples=[60])
        >>> example(Crop, "crop")
        '{crop: {rows: 60}}'
    """
    needed = [
        f"{key}: {(field.examples or ['...'])[0]}"
        for key, field in model.model_fields.items()
        if field.is_required()
    ]
    return f"{{{name}: {{{', '.join(needed)}}}}}" if needed else name


def _by_setting(model: type[Model], errors: Sequence[Any]) -> list[list[Any]]:
    """Merge the errors that the members of a union report for one value."""
    groups: dict[Any, list[Any]] = {}
    for number, item in enumerate(errors):
        field = model.model_fields.get(str(item["loc"][0])) if item["loc"] else None
        union = field is not None and get_origin(field.annotation) in (Union, UnionType)
        # A member adds its name to the place: ("alpha", "float").
        merged = union and len(item["loc"]) == 2 and isinstance(item["loc"][1], str)
        # So does one of an item of a list: ("wrappers", 0, "str").
        merged |= len(item["loc"]) == 3 and bool(_MEMBER.match(str(item["loc"][2])))
        groups.setdefault(item["loc"][:-1] if merged else number, []).append(item)
    return list(groups.values())


# What pydantic calls by Python's names.
_PLAIN = {
    "dict_type": "expected names with values, such as {name: value}",
    "path_type": "expected the path of a file",
}


def _line(model: type[Model], items: list[Any]) -> str:
    """Describe the error in one setting."""
    item = items[0]
    key = ".".join(map(str, item["loc"])) or "settings"
    if item["type"] == "extra_forbidden":
        return f"unknown setting '{key}'. {nearest(key, model.model_fields)}"
    if len(items) > 1:
        # "Input should be a valid number, unable to parse ..." and "Input should be 'auto'"
        same = "Input should be "
        wanted = [one["msg"].partition(", ")[0].removeprefix(same) for one in items]
        place = ".".join(map(str, item["loc"][:-1]))
        return f"{place}={item['input']!r}: {same.lower()}{' or '.join(wanted)}"
    reason = str(item["msg"]).removeprefix("Value error, ")
    reason = _PLAIN.get(item["type"], reason[0].lower() + reason[1:])
    if item["type"] == "tuple_type":
        given = item["input"]
        reason = (
            f"expected a list, such as {[given] if isinstance(given, (int, float)) else '[a, b]'}"
        )
    if item["type"] == "too_short":
        reason = f"expected a list of {item['ctx']['min_length']} or more"
    # An error about several settings together does not need to repeat all their values.
    if isinstance(item["input"], Mapping) and not item["loc"]:
        return reason
    value = "" if isinstance(item["input"], Mapping) else f"={item['input']!r}"
    return f"{key}{value}: {reason}"


class UnusedSettingError(ConfigError):
    """A setting has no effect.

    Attributes:
        setting: Its name.
    """

    def __init__(self, setting: str, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.setting = setting


class Settings(Model):
    """Settings of an algorithm, or a group of them, that refuse what would have no effect."""

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults for a task without a preset, where they differ from the fields'.

        They are measured on environments that nobody tuned (`benchmarks/defaults.py`). What is
        `given` stays as it is, and the others are chosen to go with it.

        Args:
            problem: What is known of the task.
            given: Settings that are decided, `num_envs` among them.
        """
        return {}

    def unused(self, spaces: Spaces) -> Iterator[tuple[str, str]]:
        """Yield `(name, why)` for each setting that nothing reads.

        A class declares the rules of its own settings, without `super()`: `reject_unused` asks
        every class that the settings inherit from. `why` completes "has no effect ...", such as
        "with prioritized=false" or "because the action space is not a Box".
        """
        yield from ()

    def all_unused(self, spaces: Spaces) -> Iterator[tuple[str, str]]:
        """Yield what `unused` of every group yields."""
        for group in type(self).__mro__:
            if "unused" in vars(group):
                yield from vars(group)["unused"](self, spaces)

    def reject_unused(self, spaces: Spaces) -> None:
        """Refuse settings that were changed although nothing will read them.

        Raises:
            UnusedSettingError: One is not at its default, and a rule of `unused` names it.
        """
        for name, why in self.all_unused(spaces):
            self.reject_changed(name, why)

    def reject_changed(self, name: str, why: str) -> None:
        """Refuse the setting `name`, which nothing reads, unless it is at its default.

        Raises:
            UnusedSettingError: It was changed.
        """
        default = type(self).model_fields[name].get_default(call_default_factory=True)
        value = getattr(self, name)
        if value != default:
            raise UnusedSettingError(
                name,
                f"{name}={value} has no effect {why}.",
                f"Leave {name} out (its default is {default}), or change what switches it off.",
            )


def parse_assignments(items: list[str]) -> dict[str, Any]:
    """Turn `["lr=3e-4", "env_steps=100_000"]` into typed values.

    Values are read as YAML, with Python's underscores and exponents allowed in numbers.

    Example:
        >>> parse_assignments(["lr=3e-4", "env_steps=100_000", "hidden=[64, 64]", "dueling=true"])
        {'lr': 0.0003, 'env_steps': 100000, 'hidden': [64, 64], 'dueling': True}
    """
    values: dict[str, Any] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"'{item}' is not a setting.", "Write settings as key=value.")
        try:
            values[key.strip()] = _scalar(text.strip())
        except yaml.YAMLError as error:
            reason = getattr(error, "problem", None) or "it cannot be read"
            fix = "Close every bracket, as in key=[{a: 1}, b], and put quotes around it in a shell."
            if isinstance(error, fast_yaml.RepeatedKeyError):
                fix = "Leave one of them out."
            raise ConfigError(f"'{item}' is not a list or a mapping: {reason}.", fix) from None
    return values


class _Loader(fast_yaml.UniqueKeys, yaml.SafeLoader):
    """Reads 1e-3 as a number, which YAML 1.1 wants to have a dot, and each key once."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), [*"-+0123456789"]
)


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    try:
        return yaml.load(text, _Loader)
    except fast_yaml.RepeatedKeyError:
        raise
    except yaml.YAMLError:
        # What begins with a bracket may be a command: {python} train.py --seed {seed}.
        if text[:1] in ("[", "{") and any(text.count(a) != text.count(b) for a, b in ("[]", "{}")):
            raise
        return text


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping, naming the file and line where it is malformed."""
    try:
        values = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"No such file: '{path}'.", "Give the path of a YAML file.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}' is not readable YAML: {error}") from None
    except OSError as error:
        raise ConfigError(f"Cannot read '{path}': {error.strerror}.") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(f"'{path}' holds a {type(values).__name__}; expected `key: value` lines.")
    return values
