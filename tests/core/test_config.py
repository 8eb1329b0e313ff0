"""Settings that are wrong are named once; settings that would do nothing are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import pytest
from gymnasium.spaces import Box, Discrete
from pydantic import AfterValidator, Field

from assay.core.config import (
    Model,
    Settings,
    UnusedSettingError,
    parse,
    parse_assignments,
    read_yaml,
)
from assay.core.errors import ConfigError
from assay.core.types import Spaces

SPACES = Spaces(Box(0, 1), Discrete(2))


class Priority(Settings):
    prioritized: bool = Field(False)
    alpha: float = Field(0.6)

    def unused(self, spaces: Spaces) -> Iterator[tuple[str, str]]:
        if not self.prioritized:
            yield "alpha", "with prioritized=false"


class Spread(Settings):
    spread: float = Field(1.0)

    def unused(self, spaces: Spaces) -> Iterator[tuple[str, str]]:
        if not isinstance(spaces.action, Box):
            yield "spread", "because the action space is not a Box"


class Both(Priority, Spread):
    lag: int = Field(0)

    def unused(self, spaces: Spaces) -> Iterator[tuple[str, str]]:
        yield "lag", "with anything"


@pytest.mark.parametrize(
    "settings", [{}, {"alpha": 0.6}, {"alpha": 0.7, "prioritized": True}, {"lag": 0}]
)
def test_settings_that_are_read_or_at_their_default_are_accepted(settings) -> None:
    Both(**settings).reject_unused(SPACES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0.7}, "alpha=0.7 has no effect with prioritized=false."),
        ({"spread": 2.0}, "spread=2.0 has no effect because the action space is not a Box."),
        ({"lag": 1}, "lag=1 has no effect with anything."),
    ],
)
def test_rules_of_every_group_are_kept(settings, message) -> None:
    with pytest.raises(UnusedSettingError, match=re.escape(message)) as caught:
        Both(**settings).reject_unused(SPACES)
    assert caught.value.setting == next(iter(settings))


def test_rules_see_the_spaces() -> None:
    Spread(spread=2.0).reject_unused(Spaces(SPACES.observation, Box(0, 1)))


def _positive(value: float | Literal["auto"]) -> float | Literal["auto"]:
    if value != "auto" and value <= 0:
        raise ValueError("expected a number above 0, or auto")
    return value


class Unions(Model):
    plain: int | Literal["auto"] = "auto"
    checked: Annotated[float | Literal["auto"], AfterValidator(_positive)] = "auto"
    optional: float | None = Field(None, gt=0)
    mode: Literal["auto"] | bool = "auto"
    widths: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"plain": 0.5}, ["plain=0.5: input should be a valid integer or 'auto'"]),
        ({"checked": "x"}, ["checked='x': input should be a valid number or 'auto'"]),
        ({"checked": -1}, ["checked=-1: expected a number above 0, or auto"]),
        ({"mode": 3}, ["mode=3: input should be 'auto' or a valid boolean"]),
        ({"widths": "64"}, ["widths='64': expected a list, such as [a, b]"]),
        ({"widths": 64}, ["widths=64: expected a list, such as [64]"]),
        ({"optional": -1.0}, ["optional=-1.0: input should be greater than 0"]),
        (
            {"plain": "x", "optional": 0.0},
            ["plain='x': input should be a valid integer or 'auto'",
             "optional=0.0: input should be greater than 0"],
        ),
        (
            {"widths": ["a", 1, "b"]},
            ["widths.0='a': input should be a valid integer, unable to parse string as an integer",
             "widths.2='b': input should be a valid integer, unable to parse string as an integer"],
        ),
    ],
)  # fmt: skip
def test_one_mistake_is_one_message(values, lines) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Unions, values, what="test")
    assert caught.value.message == "Bad settings for test: " + "; ".join(lines)


def test_a_wrong_value_of_a_list_is_told_once() -> None:
    class Some(Model):
        choice: tuple[float, ...] = Field(min_length=1)

    with pytest.raises(ConfigError) as caught:
        parse(Some, {"choice": ["a"]}, what="x")
    assert "choice.0='a'" in caught.value.message and "1 or more" not in caught.value.message


def test_exponents_are_numbers_inside_of_lists_and_files_too(tmp_path: Path) -> None:
    given = parse_assignments(["a=[1e-3, 2E5, -1e+2]", "b={c: 1e3}", "d=['1e3', 1e3x, e3]"])
    assert given == {"a": [0.001, 2e5, -100.0], "b": {"c": 1000.0}, "d": ["1e3", "1e3x", "e3"]}
    file = tmp_path / "grid.yaml"
    file.write_text("obs_noise: [1e-1, 3e-1]\n")
    assert read_yaml(file) == {"obs_noise": [0.1, 0.3]}
