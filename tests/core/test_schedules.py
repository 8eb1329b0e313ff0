import math

import pytest

from assay.core.config import Model, parse
from assay.core.errors import ConfigError
from assay.core.schedules import ProbabilitySchedule, Schedule, constant, cosine, linear


class Settings(Model):
    lr: Schedule = Schedule.parse("linear:3e-4:0")


def test_values_by_hand():
    assert [constant(2.0)(p) for p in (0, 0.5, 1)] == [2, 2, 2]
    assert [linear(1.0, 0.0)(p) for p in (0, 0.25, 1)] == [1, 0.75, 0]
    early = linear(1.0, 0.5, until=0.5)
    assert [early(p) for p in (0, 0.25, 0.5, 0.9)] == [1, 0.75, 0.5, 0.5]
    wave = cosine(1.0, 0.0)
    assert wave(0.0) == 1
    assert wave(0.25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    assert wave(1.0) == pytest.approx(0)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (3e-4, constant(3e-4)),
        (1, constant(1.0)),
        ("3e-4", constant(3e-4)),
        ("constant:0.5", constant(0.5)),
        ("linear:3e-4:0", linear(3e-4, 0.0)),
        ("cosine:1:0.05:0.5", cosine(1.0, 0.05, 0.5)),
        (linear(1.0, 0.0), linear(1.0, 0.0)),
    ],
)
def test_parse_and_text_round_trip(spec, expected):
    schedule = Schedule.parse(spec)
    assert schedule == expected
    assert Schedule.parse(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("linaer:1:0", "Did you mean 'linear'"),
        ("linear:1", "two or three values after 'linear', found 1"),
        ("linear:1:x", "'x' is not a number"),
        ("fast", "'fast' is not a number"),
        ("constant:1:2", "one value"),
        (-1.0, "at least 0"),
        (float("nan"), "finite"),
        ("linear:1:0:2", "until=2.0"),
        (None, "is not a schedule"),
        (True, "is not a schedule"),
    ],
)
def test_bad_specs_say_what_was_expected(spec, words):
    with pytest.raises(ConfigError) as error:
        Schedule.parse(spec)
    assert words in str(error.value)
    assert "linear:3e-4:0" in str(error.value)


def test_as_a_field_of_a_model():
    assert Settings().lr == linear(3e-4, 0.0)
    assert parse(Settings, {"lr": 0.1}, what="x").lr == constant(0.1)
    assert Settings(lr=0.1).model_dump() == {"lr": 0.1}
    assert Settings(lr="cosine:1:0:0.5").model_dump(mode="json") == {"lr": "cosine:1.0:0.0:0.5"}
    assert Settings(**Settings(lr="cosine:1:0:0.5").model_dump()).lr == cosine(1.0, 0.0, 0.5)
    with pytest.raises(ConfigError, match=r"lr='linear:x:0'.*'x' is not a number"):
        parse(Settings, {"lr": "linear:x:0"}, what="x")
    assert Settings.model_json_schema()["properties"]["lr"]["anyOf"]


class Shares(Model):
    epsilon: ProbabilitySchedule


def test_a_share_stays_between_0_and_1() -> None:
    assert parse(Shares, {"epsilon": "linear:1:0.05:0.1"}, what="test").epsilon(0.0) == 1
    for spec, value in ((1.5, "1.5"), ("linear:1:2", "2"), ("cosine:3:0", "3")):
        with pytest.raises(ConfigError, match=rf"epsilon=.*reaches {value}; .*\[0, 1\]"):
            parse(Shares, {"epsilon": spec}, what="test")
