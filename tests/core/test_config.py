"""Settings that are wrong are named once; settings that would do nothing are refused."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
from pydantic import AfterValidator, Field

from assay.core.config import Model, parse, reject_unused_setting
from assay.core.errors import ConfigError


class Settings(Model):
    prioritized: bool = Field(False)
    alpha: float = Field(0.6)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [({}, False), ({"alpha": 0.6}, False), ({"alpha": 0.7}, True),
     ({"alpha": 0.7, "prioritized": True}, False)],
)  # fmt: skip
def test_a_changed_setting_that_nothing_reads_is_refused(settings, refused) -> None:
    parsed = Settings(**settings)

    def check() -> None:
        reject_unused_setting(parsed, "alpha", active=parsed.prioritized, why="prioritized=false")

    if refused:
        with pytest.raises(ConfigError, match=r"alpha=0\.7 has no effect with prioritized=false"):
            check()
    else:
        check()


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
