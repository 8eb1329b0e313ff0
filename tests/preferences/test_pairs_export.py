"""Comparisons as a dataset that a policy learns from without a reward model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from preference_samples import ACTION, OBS, answered, source
from typer.testing import CliRunner

from assay.cli.app import app
from assay.core.errors import DataError
from assay.data.collect import from_episodes
from assay.data.dataset import Episode
from assay.data.files import load
from assay.preferences.export import export
from assay.preferences.files import PreferenceSet
from assay.preferences.oracle import ask_oracle
from assay.preferences.sample import sample


def test_each_comparison_is_two_episodes_one_after_the_other(tmp_path: Path) -> None:
    found = answered(tmp_path / "set", pairs=20)
    pairs = [pair for pair in found.pairs().values() if not pair.held_out]
    choices = {label.pair: label.choice for label in found.labels()}
    found.add_labels([(pairs[0].id, "equal", "ann"), (pairs[1].id, "unsure", "ann")])
    made = export(found, tmp_path / "pairs.npz")
    again = load(tmp_path / "pairs.npz")
    assert again.content_hash == made.content_hash
    assert again.metadata["preferences"] == found.digest()
    # "unsure" says nothing, "equal" says that both are worth the same; held-out ones are left out.
    assert made.num_episodes == 2 * (len(pairs) + 1)
    whole = found.batches[0].dataset
    rows = iter(again.episodes())
    for pair in pairs:
        worths = [(1.0, 0.0) if choices[pair.id] == "left" else (0.0, 1.0)]
        worths = [(0.5, 0.5), *worths] if pair is pairs[0] else worths
        for worth in worths:  # "ann" comes before "oracle"
            for segment, expected in zip((pair.left, pair.right), worth, strict=True):
                one, source = next(rows), whole.episode(segment.episode)
                steps = slice(segment.start, segment.start + 4)
                np.testing.assert_array_equal(one.action, source.action[steps])
                np.testing.assert_array_equal(one.obs, source.obs[segment.start : steps.stop + 1])
                assert one.extras["preferred"].tolist() == [expected] * 4
                assert one.truncated.tolist() == [False, False, False, True]


def test_a_segment_that_ended_is_not_truncated(tmp_path: Path) -> None:
    ends, no = np.arange(3) == 2, np.zeros(3, bool)
    episodes = [
        Episode(np.full((4, 2), i / 9), np.zeros((3, 1)), np.arange(3.0) * i, ends, no)
        for i in range(8)
    ]
    made = source(from_episodes(episodes, OBS, ACTION))
    sample(tmp_path / "set", [made], pairs=4, length=3)
    found = PreferenceSet.open(tmp_path / "set")
    ask_oracle(found)
    for one in export(found, tmp_path / "pairs.npz").episodes():
        assert one.terminated.tolist() == [False, False, True] and not one.truncated.any()


def test_the_command(tmp_path: Path) -> None:
    answered(tmp_path / "set", pairs=20)
    words = ["prefer", "export", str(tmp_path / "set"), "--out", str(tmp_path / "pairs.npz")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "17 pairs of 4 steps" in done.stdout
    assert "contrast=0.1" in done.stderr
    nobody = CliRunner().invoke(app, [*words, "--without", "oracle"])
    assert nobody.exit_code == 2 and "no answers" in nobody.stderr


def test_nothing_to_learn_from(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no preferences"):
        export(PreferenceSet.open(tmp_path), tmp_path / "pairs.npz")
