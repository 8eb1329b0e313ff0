"""The benchmarks of learning from recorded data: what they would do and how they judge."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import dataset_memory  # noqa: E402
import offline  # noqa: E402
import offline_speed  # noqa: E402
import offline_table  # noqa: E402

from assay.core.errors import ConfigError  # noqa: E402
from assay.data.files import load  # noqa: E402
from assay.data.summary import summarise  # noqa: E402
from assay.evaluation import fitted_q  # noqa: E402
from assay.testing.envs import Identity  # noqa: E402

SETS = {
    quality: {"sha256": quality, "episodes": 1, "steps": 1, "mean": mean}
    for quality, mean in zip(offline.QUALITIES, (0.0, 50.0, 40.0, 100.0), strict=True)
}


def store(
    path: Path,
    scores: dict[tuple[str, str], list[float]],
    env: str = "Pendulum-v1",
    tuned: dict[str, list[float]] | None = None,
) -> Path:
    """Write results: (quality, algorithm) -> scores by seed; `tuned` by algorithm."""
    lines = [vars_of(offline.Part("prepare", env)) | {"sets": SETS}]
    for (quality, algorithm), values in scores.items():
        for seed, mean in enumerate(values, 1):
            part = offline.Part("learn", env, quality, algorithm, seed)
            lines.append(vars_of(part) | {"mean": mean, "sha256": quality, "over": {}})
    for algorithm, values in (tuned or {}).items():
        for seed, mean in enumerate(values, 1):
            part = offline.Part("tune", env, "medium", algorithm, seed)
            steps = 10_000 if algorithm == "sac" else 5_000
            lines.append(vars_of(part) | {"mean": mean, "env_steps": steps})
    rank = {"policies": list("abcde"), "spearman": 0.9}
    lines.append(vars_of(offline.Part("rank", env)) | rank)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def vars_of(part: offline.Part) -> dict[str, Any]:
    return {name: getattr(part, name) for name in offline.Part.__slots__}


def test_parts_leave_out_what_does_not_exist_or_fit() -> None:
    todo = offline.parts(["CartPole-v1", "Pendulum-v1"], offline.ALGORITHMS, ["medium"], [1, 2])
    assert [part.env for part in todo["prepare"]] == ["CartPole-v1", "Pendulum-v1"]
    learned = {(part.env, part.algorithm) for part in todo["learn"]}
    assert ("CartPole-v1", "iql") in learned and ("Pendulum-v1", "td3_bc") in learned
    assert ("CartPole-v1", "td3_bc") not in learned
    assert len({part.name for part in todo["learn"]}) == len(todo["learn"])
    hopper = offline.parts(["Hopper-v5"], ["bc"], ["expert"], [1])["learn"]
    assert [part.updates for part in hopper] == [50_000]
    assert not offline.parts(["Hopper-v5"], ["bc"], ["replay"], [1])["learn"]  # PPO keeps none
    assert offline.parts(["Hopper-v5"], ["bc"], ["expert"], [1], 7)["learn"][0].updates == 7


def test_a_difference_counts_where_both_tests_find_it() -> None:
    base = [10.0, 11.0, 9.0, 10.5, 9.5]
    found = offline_table.against(base, {"far": [20.0, 21.0, 19.0, 20.5, 19.5], "same": base[::-1]})
    assert found["far"].verdict == "better"
    assert found["far"].difference.point == pytest.approx(10.0)
    assert found["same"].verdict == "not shown"
    assert offline_table.against([20.0, 21.0, 19.0], {"low": [1.0, 2.0, 0.0]})["low"].verdict in (
        "worse",
        "not shown",
    )
    assert offline_table.against([1.0], {"one": [2.0]})["one"].verdict == "unknown"


def test_the_table_says_which_goals_are_met(tmp_path: Path) -> None:
    low, high = [40.0, 41.0, 39.0, 40.5, 39.5], [80.0, 81.0, 79.0, 80.5, 79.5]
    path = store(
        tmp_path / "store.jsonl",
        {
            ("medium", "bc"): low,
            ("medium", "iql"): high,
            ("replay", "bc"): low,
            ("replay", "iql"): low[::-1],
            ("expert", "bc"): high,
            ("expert", "td3_bc"): [96.0, 97.0, 95.0, 96.0, 96.0],
            ("medium", "mopo"): [60.0, 61.0, 45.0, 60.0, 60.0],
        },
        tuned={"sac": high, "iql": [85.0] * 5, "cql": low},
    )
    text = offline_table.table(path)
    assert "| Pendulum-v1 medium (50.00) | iql above BC | +40.00 [+38.85, +41.15] | yes |" in text
    assert "| Pendulum-v1 replay (40.00) | iql above BC |" in text
    replay = next(x for x in text.splitlines() if "replay (40.00) | iql above BC" in x)
    assert replay.endswith("| no |")
    assert "| Pendulum-v1 expert (100.0) | td3_bc at 95% of the expert | 96% | yes |" in text
    assert "fitted Q ranks 5 policies | Spearman 0.90 | yes |" in text
    assert "mopo above the set with every seed | at least 45.00 against 50.00 | no |" in text
    tuned = [line for line in text.splitlines() if "then online" in line]
    assert "iql after 5,000 steps as good as sac after 10,000 | 85" in tuned[0]
    assert tuned[0].endswith("| yes |") and tuned[1].endswith("| no |")
    assert "Not measured yet" in offline_table.table(tmp_path / "nothing.jsonl")


def test_sets_that_were_recorded_again_are_compared_by_themselves(tmp_path: Path) -> None:
    low, high = [40.0, 41.0, 39.0, 40.5, 39.5], [80.0, 81.0, 79.0, 80.5, 79.5]
    path = store(tmp_path / "a.jsonl", {("medium", "bc"): low, ("medium", "iql"): high})
    again = {"medium": {**SETS["medium"], "sha256": "again", "mean": 45.0}}
    lines = [vars_of(offline.Part("prepare", "Pendulum-v1")) | {"sets": SETS | again}]
    for algorithm, values in (("bc", high), ("cql", high)):
        for seed, mean in enumerate(values, 1):
            part = offline.Part("learn", "Pendulum-v1", "medium", algorithm, seed)
            lines.append(vars_of(part) | {"mean": mean, "sha256": "again", "over": {"samples": 4}})
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    text = offline_table.table(path)
    assert "| Pendulum-v1 medium (50.00) | iql above BC | +40.00 [+38.85, +41.15] | yes |" in text
    assert "| Pendulum-v1 medium (45.00) | cql above BC | 0 [" in text
    assert "| Pendulum-v1 | medium | 45.00 | cql samples=4 | 80.00 [" in text


@pytest.mark.parametrize(("last", "met"), [([-900.0, -400.0, -300.0], "yes"), ([-2, -1, -3], "no")])
def test_returns_that_are_asked_for_are_followed_if_they_rise_with_every_seed(
    tmp_path: Path, last: list[float], met: str
) -> None:
    path = store(tmp_path / "store.jsonl", {("replay", "dt"): [1.0, 1.0]})
    asked = [-1000.0, -500.0, -100.0]
    with path.open("a") as file:
        for seed, got in enumerate(([-800.0, -600.0, -200.0], last), 1):
            part = offline.Part("follow", "Pendulum-v1", "replay", "dt", seed)
            file.write(json.dumps(vars_of(part) | {"asked": asked, "got": got}) + "\n")
    [line] = [x for x in offline_table.table(path).splitlines() if "dt follows" in x]
    assert "the returns -1,000.0, -500.0, -100.0 |" in line and line.endswith(f"| {met} |")
    assert f"rising with {2 if met == 'yes' else 1} of 2 seeds" in line
    assert line in offline_table.page_table("dt", path)


def test_ranked_policies_differ_in_their_return() -> None:
    truths = {f"p{k}": value for k, value in enumerate([0.0, 1.0, 50.0, 50.5, 99.5, 100.0])}
    assert offline.apart(truths) == ["p0", "p2", "p4"]
    many = {str(k): float(k) for k in range(40)}
    chosen = offline.apart(many)
    assert len(chosen) == offline.RANKED and (chosen[0], chosen[-1]) == ("0", "39")


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = store(tmp_path / "store.jsonl", {("medium", "bc"): [1.0]})
    asked: list[str] = []

    def answer(script: Path, spec: Any, name: str, timeout: float) -> dict[str, Any] | None:
        asked.append(name)
        return None if "iql" in name else {"mean": 2.0, "seconds": 1.0, "sha256": "medium"}

    monkeypatch.setattr(offline, "answer", answer)
    todo = offline.parts(["Pendulum-v1"], ["bc", "iql"], ["medium"], [1, 2])
    failed = offline.run(todo, tmp_path, out, jobs=1)
    assert failed == 2
    assert sorted(asked) == [
        "learn-Pendulum-v1-medium-bc-2",
        "learn-Pendulum-v1-medium-iql-1",
        "learn-Pendulum-v1-medium-iql-2",
    ]
    assert offline.scores(out)["Pendulum-v1", "medium", "medium"]["bc"] == {1: 1.0, 2: 2.0}


@pytest.mark.slow
def test_a_whole_benchmark_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = "OfflineIdentity-v0"
    gym.register(env, entry_point=lambda: Identity(gym.spaces.Discrete(3)))
    fast = {"num_envs": 2, "learning_starts": 50, "buffer_size": 500, "lr": 1e-2}
    task = offline.Task(env, "dqn", 400, 6, updates=10, settings=fast)
    monkeypatch.setitem(offline.TASKS, env, task)
    small = {"width": 16, "layers": 1, "context": 4}
    tuned = {(env, "replay", "dt"): small}
    monkeypatch.setattr(offline, "TUNED", tuned)

    def here(script: Path, spec: Any, name: str, timeout: float) -> dict[str, Any] | None:
        asked, place, results = spec
        return offline.do(offline.Part(**asked), Path(place), Path(results))

    monkeypatch.setattr(offline, "answer", here)
    monkeypatch.setattr(offline, "EPISODES", 5)
    monkeypatch.setattr(fitted_q.FitSettings, "__init__", _quick_fit)
    out, work = tmp_path / "out.jsonl", tmp_path / "work"
    todo = offline.parts([env], ["bc", "iql", "dt"], ["replay"], [1])
    assert [part.name for part in todo["follow"]] == [f"follow-{env}-replay-dt-1"]
    assert [part.name for part in todo["tune"]] == [
        f"tune-{env}-medium-dqn-1", f"tune-{env}-medium-iql-1",
    ]  # fmt: skip
    assert offline.run(todo, work, out, jobs=1) == 0
    assert {path.name for path in (work / "sets").iterdir()} == {
        f"{env}-{quality}.hdf5" for quality in offline.QUALITIES
    }
    assert {found[:2] for found in offline.scores(out)} == {(env, "replay")}
    text = offline_table.table(out)
    assert f"| {env} | replay |" in text
    [followed] = offline.lines_of(out, "follow")
    returns = summarise(load(work / "sets" / f"{env}-replay.hdf5")).returns
    low, span = returns.min(), np.ptp(returns)
    assert followed["asked"] == pytest.approx([low + share * span for share in (0.1, 0.5, 0.9)])
    assert len(followed["got"]) == 3
    # Again: everything is there.
    monkeypatch.setattr(offline, "answer", lambda *_: pytest.fail("done before"))
    assert offline.run(todo, work, out, jobs=1) == 0


_fit_settings = fitted_q.FitSettings.__init__


def _quick_fit(self: Any, **options: Any) -> None:
    _fit_settings(self, **({"updates": 20, "members": 1} | options))


def test_a_generated_set_is_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    made = dataset_memory.noise(0.001)
    assert made.nbytes == pytest.approx(1e6, rel=0.1)
    arrays = dataset_memory.in_memory(0.001)
    assert arrays.content_hash == made.content_hash
    assert made.episode(0).truncated[-1] and not made.episode(0).truncated[:-1].any()
    dataset_memory.write_sparse(made, tmp_path / "sparse.hdf5")
    sparse = load(tmp_path / "sparse.hdf5")
    assert sparse.schema == made.schema and len(sparse) == len(made)
    assert not sparse.episode(0).obs.any()
    options = argparse.Namespace(size=1e9, sparse=False)
    with pytest.raises(ConfigError, match="GB left"):
        dataset_memory.measure(options, tmp_path)


def test_a_share_below_the_target_is_a_miss() -> None:
    def side(rate: float) -> list[dict[str, Any]]:
        return [{"updates_per_second": rate, "allocated_bytes": 500_000_000}]

    found = {
        "size_gb": 20.0, "limit_gb": 4.0, "share": 0.75,
        "runs": {"mapped": side(75.0), "in_memory": side(100.0)},
    }  # fmt: skip
    assert "75% of the 100 from a set in memory" in dataset_memory.line("written", found)
    written, sparse = dataset_memory.lines(
        {"sparse": found | {"share": 0.9}, "written": found}
    ).splitlines()
    assert "(written)" in written and "**missed**" in written
    assert "(sparse)" in sparse and "**missed**" not in sparse


def test_each_kind_of_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_memory, "STORE", tmp_path / "dataset_memory.json")
    for kind, share in (("written", 0.5), ("sparse", 0.9), ("written", 0.6)):
        dataset_memory.store(kind, {"share": share})
    held = dataset_memory.evidence.read_json(dataset_memory.STORE)
    assert (held["written"]["share"], held["sparse"]["share"]) == (0.6, 0.9)


def test_ratios_of_offline_updates_are_of_medians() -> None:
    runs = [
        {"algorithm": "iql", "library": library, "updates_per_second": rate}
        for library, rates in (("d3rlpy", (100.0, 110.0, 90.0)), ("assay", (350.0, 300.0, 400.0)))
        for rate in rates
    ]
    text = offline_speed.table({"runs": runs})
    assert "| 350.0/s | 100.0/s | 3.5x [2.7x, 4.4x] | 3x | yes | - | - | - |" in text
    counts = [
        {"algorithm": "iql", "library": library, "operations": n, "operations_per_second": rate}
        for library, n, rate in (("assay", 2e9, 1e12), ("d3rlpy", 3e9, 9e11))
    ]
    text = offline_speed.table({"runs": runs + counts})
    assert "| 2.00, 3.00 GFLOP | 500.0/s at 1000 GFLOP/s | 5.0x |" in text
    assert "Not measured" in offline_speed.table(None)
    rows = offline_speed.steps()
    assert len(rows["reward"]) == offline_speed.STEPS
    assert np.abs(rows["action"]).max() < 1.0 and rows["truncated"].sum() == 100
