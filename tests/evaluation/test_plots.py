"""Curves are aggregated as they should be, and drawings land in files and terminals."""

from __future__ import annotations

import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay.evaluation.formatting
import assay.evaluation.plots
from assay.core.errors import ConfigError, RunError
from assay.evaluation.compare import compare
from assay.evaluation.plots import (
    aggregate,
    plot_comparison,
    plot_curves,
    plot_panels,
    read_curves,
    text_chart,
)

PNG = b"\x89PNG\r\n\x1a\n"


def curve(steps: list[int], values: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(steps, np.int64), np.array(values, np.float64)


def test_curves_at_the_same_steps_are_reduced_point_by_point() -> None:
    curves = [curve([10, 20], [level, level + 10]) for level in (0.0, 1.0, 2.0, 3.0, 100.0)]
    band = aggregate(curves)
    assert band.counts.tolist() == [10, 20]
    assert band.iqm.tolist() == [2.0, 12.0]  # of 1, 2, 3
    assert (band.low >= [0.0, 10.0]).all() and (band.low < band.iqm).all()
    assert (band.high <= [100.0, 110.0]).all() and (band.high > band.iqm).all()
    assert np.allclose(band.high - band.low, (band.high - band.low)[0])  # the same resamples


def test_curves_at_other_steps_are_interpolated_where_all_of_them_are() -> None:
    band = aggregate([curve([0, 100], [0.0, 10.0]), curve([50, 150], [0.0, 0.0])])
    assert (band.counts[0], band.counts[-1]) == (50, 100)
    assert (band.iqm[0], band.iqm[-1]) == (2.5, 5.0)
    with pytest.raises(ConfigError, match="do not overlap: one begins at 200"):
        aggregate([curve([0, 100], [0.0, 1.0]), curve([200], [0.0])])


def test_one_seed_has_no_band_and_values_that_are_not_finite_are_left_out() -> None:
    band = aggregate([curve([0, 10, 20], [math.nan, 1.0, 2.0])])
    assert band.counts.tolist() == [10, 20]
    assert np.isnan(band.low).all() and np.isnan(band.high).all()
    with pytest.raises(ConfigError, match="no finite value"):
        aggregate([curve([0], [math.nan])])


def test_a_wider_level_gives_a_wider_band() -> None:
    curves = [curve([1], [float(v)]) for v in range(10)]
    narrow, wide = aggregate(curves, level=0.5), aggregate(curves, level=0.99)
    assert wide.low[0] < narrow.low[0] < narrow.high[0] < wide.high[0]


def test_learning_curves_become_a_file(make_group: Any, tmp_path: Path) -> None:
    groups = [make_group("low", [1.0, 2.0, 3.0]), make_group("high", [7.0])]
    png = plot_curves(groups, "eval/return_mean", tmp_path / "new" / "curves.png", title="Title")
    assert png.read_bytes().startswith(PNG)
    svg = plot_curves(groups, "eval/return_mean", tmp_path / "curves.svg").read_text()
    assert "<svg" in svg
    # Text is drawn as glyphs, with the text itself in a comment.
    for text in ("low (3 seeds)", "high (1 seed)", "environment steps", "evaluation return"):
        assert f">{text}<" in svg
    with pytest.raises(RunError, match="no metric 'train/x'"):
        plot_curves(groups, "train/x", tmp_path / "x.png")


def test_a_comparison_becomes_a_file(make_group: Any, make_run: Any, tmp_path: Path) -> None:
    arms = [
        make_group("base", [10.0, 11.0, 12.0, 13.0, 14.0]),
        make_group("good", [60.0, 61.0, 62.0, 63.0, 64.0]),
        make_group("same", [10.0, 11.0, 12.0, 13.0, 14.0]),
        make_run("alone", {500: [0.0], 1000: [5.0]}).path,
    ]
    comparison = compare(arms)
    assert plot_comparison(comparison, tmp_path / "c.png").read_bytes().startswith(PNG)
    svg = plot_comparison(comparison, tmp_path / "c.svg").read_text()
    for text in (
        "CartPole-v1, 1k steps",
        "baseline, 5 seeds",
        "better, 5 seeds",
        "no difference shown, 5 seeds",
        "cannot tell, 1 seed",
    ):
        assert f">{text}<" in svg


def test_panels_share_a_file_and_keep_a_note(tmp_path: Path) -> None:
    rising = (np.array([0, 10]), np.array([0.0, 1.0]))
    panels = {f"Env{i}-v0": {"ours": [rising, rising], "theirs": [rising]} for i in range(4)}
    svg = plot_panels(panels, "eval/return_mean", tmp_path / "a.svg", note="curves 17").read_text()
    assert svg.count(">ours (2 seeds)<") == 4 and ">Env3-v0<" in svg and "curves 17" in svg
    again = plot_panels(panels, "eval/return_mean", tmp_path / "b.svg", note="curves 17")
    assert again.read_text() == svg
    with pytest.raises(ConfigError, match="at least one panel"):
        plot_panels({}, "eval/return_mean", tmp_path / "c.svg")


def test_unusable_files_are_refused(make_group: Any, tmp_path: Path) -> None:
    group = make_group("a", [1.0, 2.0])
    with pytest.raises(ConfigError, match=r"ends in '.pdf': expected .png or .svg"):
        plot_curves([group], "eval/return_mean", tmp_path / "x.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="Cannot write"):
        plot_curves([group], "eval/return_mean", tmp_path / "file" / "x.png")
    with pytest.raises(ConfigError, match="nothing to draw"):
        plot_curves([], "eval/return_mean", tmp_path / "x.png")


def test_the_text_chart_puts_curves_where_they_belong() -> None:
    rising, falling = curve([0, 2000], [0.0, 9.0]), curve([0, 1000], [9.0, 4.5])
    chart = text_chart({"up": [rising], "down": [falling]}, width=21, height=10).splitlines()
    cells = [line.partition("┤")[2].ljust(21) for line in chart[:10]]
    assert (cells[0][0], cells[0][20], cells[9][0], cells[9][20]) == ("○", "●", "●", " ")
    assert all("○" not in row[11:] for row in cells)  # it ends at half of the steps
    assert chart[0].startswith("9.00 ┤") and chart[9].startswith("   0 ┤")
    assert chart[11].split() == ["0", "2k", "env_steps"]
    assert chart[12].split() == ["●", "up", "○", "down"]
    with pytest.raises(ConfigError, match="expected at least 2 x 2"):
        text_chart({"up": [rising]}, height=1)


def test_the_text_chart_of_a_flat_line_or_a_single_point() -> None:
    flat = text_chart({"a": [curve([0, 10], [5.0, 5.0])]}, width=10, height=3).splitlines()
    assert flat[1] == "5.00 ┤●●●●●●●●●●"
    point = text_chart({"a": [curve([0, 10], [1.0, 2.0])], "b": [curve([7], [1.5])]}, width=5)
    assert point.count("○") == 2  # the point and its name


def test_curves_are_read_by_short_names(make_group: Any) -> None:
    curves = read_curves([make_group("a", [1.0, 2.0])], "eval/return_mean")
    assert list(curves) == ["a"]
    assert [values.tolist() for _, values in curves["a"]] == [[0.0, 1.0], [0.0, 2.0]]


def test_examples_are_true() -> None:
    results = doctest.testmod(assay.evaluation.formatting)
    assert results.attempted and not results.failed
