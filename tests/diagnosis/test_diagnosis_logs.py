"""Logs of other programs: formats, columns that are guessed or given, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from assay.core.errors import AssayError, ConfigError, RunError
from assay.diagnosis.reading import read_log
from assay.diagnosis.report import diagnose

ROWS = 30


def progress(path: Path, **changes: object) -> Path:
    """Write what Stable-Baselines3's CSV logger writes for PPO, with columns changed."""
    columns: dict[str, object] = {
        "time/total_timesteps": np.arange(1, ROWS + 1) * 2048,
        "time/fps": np.full(ROWS, 900.0),
        "rollout/ep_rew_mean": np.linspace(20.0, 450.0, ROWS),
        "rollout/ep_len_mean": np.linspace(20.0, 450.0, ROWS),
        "train/entropy_loss": np.linspace(-0.69, -0.3, ROWS),
        "train/approx_kl": np.full(ROWS, 0.01),
        "train/clip_fraction": np.full(ROWS, 0.1),
        "train/explained_variance": np.linspace(0.0, 0.9, ROWS),
        "train/learning_rate": np.full(ROWS, 3e-4),
        "train/value_loss": np.linspace(10.0, 30.0, ROWS),
        "train/n_updates": np.arange(1, ROWS + 1) * 10,
    } | {name.replace("__", "/"): value for name, value in changes.items()}
    lines = [",".join(columns)]
    for i in range(ROWS):
        # The first row comes before the first update: its cells are empty.
        row = ["" if i == 0 and n.startswith("train/") else str(v[i]) for n, v in columns.items()]
        lines.append(",".join(row))
    path.write_text("\n".join(lines) + "\n")
    return path


def names(path: Path, **columns: str) -> list[str]:
    return [one.name for one in diagnose(path, columns).findings if one.severity != "info"]


class TestColumns:
    def test_stable_baselines_are_read(self, tmp_path: Path) -> None:
        case = read_log(progress(tmp_path / "progress.csv"))
        assert case.columns["rollout/return_mean"] == "rollout/ep_rew_mean"
        assert case.columns["train/lr"] == "train/learning_rate"
        assert (case.kind, case.count, case.updates) == ("csv", ROWS * 2048, ROWS * 10)
        counts, values = case.series["train/entropy"]  # logged as what is minimised
        assert values[-1] == pytest.approx(0.3) and counts[-1] == ROWS * 2048
        assert len(values) == ROWS - 1 and counts[0] == 2 * 2048

    def test_a_healthy_log_is_healthy(self, tmp_path: Path) -> None:
        assert names(progress(tmp_path / "progress.csv")) == []

    @pytest.mark.parametrize(
        ("changes", "rule"),
        [
            ({"train__value_loss": [1.0] * 20 + [float("nan")] * 10}, "diverged"),
            ({"train__learning_rate": np.zeros(ROWS)}, "learning_rate"),
            ({"rollout__ep_rew_mean": np.full(ROWS, 21.3) + np.arange(ROWS) % 2}, "never_improves"),
            ({"train__approx_kl": np.full(ROWS, 0.9)}, "kl_spikes"),
            ({"rollout__ep_len_mean": np.ones(ROWS)}, "episodes_end_at_once"),
            ({"rollout__ep_rew_mean": np.zeros(ROWS)}, "no_reward_signal"),
        ],
    )
    def test_failures_are_found(
        self, tmp_path: Path, changes: dict[str, object], rule: str
    ) -> None:
        assert rule in names(progress(tmp_path / "progress.csv", **changes))

    def test_evidence_names_the_column_of_the_log(self, tmp_path: Path) -> None:
        path = progress(tmp_path / "progress.csv", train__approx_kl=np.full(ROWS, 0.9))
        (one,) = [f for f in diagnose(path).findings if f.name == "kl_spikes"]
        assert "train/approx_kl" in one.evidence and one.command is None

    def test_the_names_of_others(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        rows = [
            {"global_step": 100 * i, "charts/episodic_return": float(i), "losses/entropy": 0.6,
             "losses/approx_kl": 0.01, "losses/clipfrac": 0.1, "losses/qf1_values": 1.0,
             "charts/SPS": 50, "eval/mean_reward": float(i), "losses/value_loss": 2.0}
            for i in range(1, 20)
        ]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case = read_log(path)
        assert case.columns == {
            "env_steps": "global_step", "rollout/return_mean": "charts/episodic_return",
            "train/entropy": "losses/entropy", "train/approx_kl": "losses/approx_kl",
            "train/clip_fraction": "losses/clipfrac", "train/q_mean": "losses/qf1_values",
            "time/env_steps_per_second": "charts/SPS", "eval/return_mean": "eval/mean_reward",
        }  # fmt: skip
        assert "losses/value_loss" in case.series and case.count == 1900

    def test_columns_can_be_given(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_text("t,wins,total_loss\n" + "".join(f"{i},{i % 3},1\n" for i in range(40)))
        assert "rollout/return_mean" not in read_log(path).columns
        case = read_log(path, {"rollout/return_mean": "wins", "env_steps": "t"})
        assert case.columns["rollout/return_mean"] == "wins" and case.count == 39
        assert "never_improves" in names(path, **{"rollout/return_mean": "wins", "env_steps": "t"})


class TestFormats:
    def test_a_monitor(self, tmp_path: Path) -> None:
        path = tmp_path / "0.monitor.csv"
        episodes = "".join(f"{i * 2.0},1,{i}.0\n" for i in range(1, 40))
        path.write_text('#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t\n' + episodes)
        case = read_log(path)
        assert case.kind == "sb3-monitor" and case.count == 39
        assert "episodes_end_at_once" in names(path)

    def test_tensorboard(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard")
        from assay.runs.metrics import Record
        from assay.runs.sinks import TensorBoardSink

        sink = TensorBoardSink(tmp_path)
        for i in range(1, 30):
            value = float("nan") if i > 20 else 1.0
            metrics = {"rollout/ep_rew_mean": 10.0 * i, "losses/value_loss": value}
            sink.log(Record(i * 100, i, i, float(i), metrics))
        sink.close()
        (path,) = tmp_path.glob("*tfevents*")
        assert names(path) == ["diverged"]
        assert read_log(path).columns["rollout/return_mean"] == "rollout/ep_rew_mean"

    def test_evaluations(self, tmp_path: Path) -> None:
        path = tmp_path / "evaluations.npz"
        results = np.linspace(10, 400, 12)[:, None] + np.zeros(5)
        np.savez(path, timesteps=np.arange(1, 13) * 1000, results=results)
        case = read_log(path)
        assert case.columns == {"eval/return_mean": "results"} and names(path) == []


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "text", "error", "message"),
        [
            ("x.csv", "", RunError, "holds no numbers"),
            ("x.csv", "name,colour\na,red\n", RunError, "holds no numbers"),
            ("x.csv", "apples,pears\n1,2\n2,3\n", ConfigError, "No column of"),
            ("x.txt", "return 3\n", ConfigError, "neither a run nor a log"),
            ("x.json", "{", AssayError, "not readable JSON"),
        ],
    )
    def test_logs_that_say_nothing(
        self, tmp_path: Path, name: str, text: str, error: type[AssayError], message: str
    ) -> None:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(error, match=message):
            diagnose(path)

    def test_what_is_there_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "x.csv"
        path.write_text("apples,pears\n1,2\n2,3\n")
        with pytest.raises(ConfigError, match="It has: apples, pears") as caught:
            diagnose(path)
        assert "--column rollout/return_mean=COLUMN" in str(caught.value.fix)
        with pytest.raises(ConfigError, match="no column 'aples'") as caught:
            diagnose(path, {"rollout/return_mean": "aples"})
        assert caught.value.fix == "Did you mean 'apples'?"
        with pytest.raises(ConfigError, match="no such metric") as caught:
            diagnose(path, {"rollout/return_men": "apples"})
        assert caught.value.fix == "Did you mean 'rollout/return_mean'?"
