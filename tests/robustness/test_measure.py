"""Losses, intervals and verdicts, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from assay.core.errors import ConfigError
from assay.robustness.measure import Played, Point, check_tolerance, check_worth, judge


def played(*cells: list[float], nominal: list[float], floor: float = 0.0) -> Played:
    return Played("run", np.array(nominal), floor, tuple(map(np.array, cells)))


def test_a_loss_is_a_share_of_what_the_run_is_worth_beyond_random_actions() -> None:
    # worth 100 - 20 = 80; it loses 40 and 20
    one = played([60.0, 80.0], nominal=[100.0, 100.0], floor=20.0)
    assert one.losses(0).tolist() == [0.5, 0.25]
    (cell,) = judge([Point("x", 1)], [one], 0.2).cells
    assert (cell.mean, cell.loss.point) == (70.0, 0.375)


def test_losses_are_paired_by_episode() -> None:
    # Each episode loses 10, though episodes differ by much more: the interval has no width below.
    returns = [100.0, 200.0, 300.0, 400.0]
    one = played([r - 10 for r in returns], nominal=returns, floor=0.0)
    (cell,) = judge([Point("x", 1)], [one], 0.2).cells
    assert cell.loss.point == pytest.approx(0.04) and cell.loss.low == pytest.approx(0.04)


def test_episodes_that_are_all_alike_do_not_prove_that_all_are() -> None:
    one = played([100.0] * 10, nominal=[100.0] * 10)
    (cell,) = judge([Point("x", 1)], [one], 0.2).cells
    # 1 - 0.025^(1 / 10): so many could fail and not be seen with a probability of 2.5 %
    assert cell.loss.high == pytest.approx(1 - 0.025**0.1)
    assert cell.outcome == "not shown"
    enough = played([100.0] * 50, nominal=[100.0] * 50)
    assert judge([Point("x", 1)], [enough], 0.2).outcome == "holds"


def test_intervals_hold_for_all_cells_together() -> None:
    rng = np.random.default_rng(0)
    cells = [list(rng.normal(90, 5, 40)) for _ in range(10)]
    alone = judge([Point("x", 0)], [played(cells[0], nominal=[100.0] * 40)], 0.2)
    points = [Point("x", i) for i in range(10)]
    together = judge(points, [played(*cells, nominal=[100.0] * 40)], 0.2)
    assert together.cells[0].loss.level == pytest.approx(0.995)
    assert together.cells[0].loss.low < alone.cells[0].loss.low


def test_several_runs_are_measured_over_runs_and_not_over_episodes() -> None:
    nominal = [100.0] * 30
    runs = [played([100.0 - loss] * 30, nominal=nominal) for loss in (10, 20, 60)]
    (cell,) = judge([Point("x", 1)], runs, 0.2).cells
    assert cell.loss.point == pytest.approx(0.3)
    assert cell.loss.low < 0 < 0.6 < cell.loss.high  # three runs say little


def test_one_failing_cell_fails_all_and_is_the_worst() -> None:
    one = played([99.0, 98.0] * 25, [20.0, 30.0] * 25, nominal=[100.0, 101.0] * 25)
    verdict = judge([Point("x", 1), Point("y", 2)], [one], 0.2)
    assert [cell.outcome for cell in verdict.cells] == ["holds", "fails"]
    assert verdict.outcome == "fails" and verdict.worst[0].point.axis == "y"
    assert "1 of 2 cost more than 20%" in verdict.sentence() and "y=2" in verdict.sentence()


def test_a_run_that_is_worth_nothing_is_refused() -> None:
    check_worth("run", np.array([9.0, 10.0, 11.0]), 1.0)
    with pytest.raises(ConfigError, match=r"random actions 10.*: it has nothing to lose"):
        check_worth("run", np.array([9.0, 10.0, 11.0]), np.array([9.0, 11.0]))
    with pytest.raises(ConfigError, match=r"floor is 10.*: it has nothing to lose") as caught:
        check_worth("run", np.array([9.0, 10.0, 11.0]), 10.0)
    assert "lower --floor" in str(caught.value.args)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_tolerance_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match="expected a share"):
        check_tolerance(share)
