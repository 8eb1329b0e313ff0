"""Rates and quantiles by hand."""

from __future__ import annotations

import pytest

from assay.server.gateway.hosted import Rates
from assay.server.gateway.metrics import Histogram, Meters, Metric, quantile


def test_a_rate_is_taken_over_the_window_and_not_over_all_time() -> None:
    rates = Rates(window=10.0)
    for second in range(100):
        # 10 a second at first, then nothing.
        rates.sample(float(second), (10.0 * min(second, 50), 1.0))
    assert rates.per_second() == (0.0, 0.0)
    for second in range(100, 105):
        rates.sample(float(second), (500.0 + 20.0 * (second - 99), 1.0))
    # Five of the ten seconds had 20 a second.
    assert rates.per_second() == pytest.approx((10.0, 0.0))


def test_one_sample_has_no_rate_and_a_hasty_one_does_not_count() -> None:
    rates = Rates()
    assert rates.per_second() == ()
    rates.sample(0.0, (5.0,))
    rates.sample(0.1, (50.0,))
    assert rates.per_second() == ()
    rates.sample(1.0, (6.0,))
    assert rates.per_second() == (1.0,)


def test_quantiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert quantile(values, 0.5) == 51.0
    assert quantile(values, 0.99) == 100.0
    assert quantile([7.0], 0.99) == 7.0


def test_a_histogram_remembers_the_latest_values_of_each_policy() -> None:
    histogram = Histogram("h", "", ("policy",), "histogram")
    for value in range(1500):
        histogram.observe(float(value), "a")
    histogram.observe(0.5, "b")
    assert histogram.recent("a") == [float(value) for value in range(500, 1500)]
    assert histogram.recent("b") == [0.5] and histogram.recent("c") == []
    histogram.forget("a")
    assert histogram.recent("a") == [] and histogram.recent("b") == [0.5]


def test_a_policys_numbers_are_added_up_over_other_labels() -> None:
    metric = Metric("m", "", ("policy", "reason"), "counter")
    metric.add(2, "a", "X")
    metric.add(3, "a", "Y")
    metric.add(5, "b", "X")
    assert metric.total("a") == 5 and metric.total("c") == 0


def test_what_goes_beside_a_learners_metrics() -> None:
    meters = Meters()
    meters.steps.set(400, "a")
    meters.restarts.set(2, "a")
    for seconds in (0.001, 0.002, 0.003):
        meters.ack_seconds.observe(seconds, "a")
    beside = meters.of_policy("a")
    assert beside["server/steps_received"] == 400
    assert beside["server/restarts"] == 2
    assert beside["server/ack_p50_seconds"] == 0.002
    assert meters.of_policy("b")["server/ack_p99_seconds"] == 0.0
