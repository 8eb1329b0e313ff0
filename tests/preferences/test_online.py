"""The whole loop: it ends, goes on where it was stopped, and learns from comparisons alone."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from assay.core.errors import ConfigError, DataError, RunError
from assay.experts.reward_model import FitSettings
from assay.preferences import online
from assay.preferences.files import PreferenceSet
from assay.preferences.online import Learned, Plan, fall_error, is_hacked, learn
from assay.preferences.oracle import ask_oracle
from assay.runs import checkpoint
from assay.study.files.contract import Metric
from assay.study.measure.extractors import extract

PLAN = Plan(pairs=9, rounds=2, length=4, episodes=4)
FIT = FitSettings(members=2, hidden=(8,), epochs=2)
SAC: dict[str, Any] = {
    "hidden": (8,), "batch_size": 8, "learning_starts": 20, "buffer_size": 1000, "env_steps": 400,
    "sinks": (), "compile": False, "eval_every": 0, "eval_episodes": 1, "max_episode_steps": 25,
    "log_every": 20, "train_every": 5,
}  # fmt: skip
PPO: dict[str, Any] = {
    "hidden": (8,), "num_envs": 1, "horizon": 32, "minibatch_size": 32, "epochs": 1,
    "env_steps": 256, "sinks": (), "compile": False, "eval_every": 0, "eval_episodes": 1,
    "log_every": 32, "max_episode_steps": 8,
}  # fmt: skip


def run(
    place: Path,
    ask: Any = ask_oracle,
    algorithm: str = "sac",
    env: str = "Pendulum-v1",
    **options: Any,
) -> Learned:
    settings = SAC if algorithm == "sac" else PPO
    return learn(
        algorithm, env, place, ask,
        **{"plan": PLAN, "settings": settings, "fitting": FIT, **options},
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "ppo"])
def test_it_trains_asks_fits_and_goes_on(algorithm: str, tmp_path: Path) -> None:
    made = run(tmp_path, algorithm=algorithm)
    total = made.run.config.run.total
    assert made.run.status == "done"
    assert [one.env_steps for one in made.rounds] == [total // 4, total // 2, total]
    # Of nine pairs three are asked for in each round; of three, none is held out.
    assert [one.comparisons for one in made.rounds] == [3, 6, 9]
    changed = [e for e in made.run.directory.events() if e["kind"] == "ConfigChanged"]
    assert len(changed) == 2
    assert made.run.directory.config["run"]["reward_model"] == str(tmp_path / "models" / "02")
    assert made.extra_steps > 0 and all(one.learned_return is not None for one in made.rounds)
    for before, one in pairwise(made.rounds):  # the true return is compared with the row before
        assert f"true return {before.true_return:.4g} to {one.true_return:.4g} (" in one.compared
    written = json.loads((tmp_path / "rounds.json").read_text())
    assert [one["env_steps"] for one in written["rounds"]] == [r.env_steps for r in made.rounds]
    again = run(tmp_path, algorithm=algorithm)  # it is done
    assert again.rounds == made.rounds and again.extra_steps == made.extra_steps


@pytest.mark.slow
def test_stopped_while_it_asks_it_goes_on_with_the_same_pairs(tmp_path: Path) -> None:
    asked: list[set[str]] = []

    def leave(found: PreferenceSet) -> None:
        asked.append(set(found.pairs()))
        if len(found.batches) == 1:
            ask_oracle(found)

    with pytest.raises(RunError, match=r"3 pairs of .* are not answered"):
        run(tmp_path, leave)
    assert [len(one) for one in asked] == [3, 6]
    made = run(tmp_path)
    pairs = PreferenceSet.open(tmp_path / "pairs").pairs()
    assert asked[1] <= set(pairs) and len(pairs) == 9 and made.run.status == "done"
    whole = run(tmp_path / "whole")
    one, two = (m.run.metrics()["rollout/learned_return_mean"][1] for m in (made, whole))
    np.testing.assert_array_equal(one, two)


def test_the_replay_can_be_asked_about_without_further_steps(tmp_path: Path) -> None:
    plan = Plan(pairs=9, rounds=2, length=4, episodes=4, actor="replay", by="chance")
    made = run(tmp_path, plan=plan)
    assert made.extra_steps == 4 * 25  # of the random actions at the start
    # What a study sets against each other: the learned return and the true one.
    for key in ("rollout/learned_return_mean", "rollout/return_mean"):
        metric = Metric(name="watched", source={"kind": "assay", "key": key})
        last = made.run.metrics()[key][1][-1]
        assert extract(metric, made.run.path, tmp_path / "none") == pytest.approx(last)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dqn takes no learned reward"):
        learn("dqn", "CartPole-v1", tmp_path, ask_oracle, plan=PLAN)
    with pytest.raises(ConfigError, match="Leave reward_model out"):
        run(tmp_path, settings={**SAC, "reward_model": "x"})
    with pytest.raises(ConfigError, match="pairs=2, rounds=4"):
        run(tmp_path, plan=Plan(pairs=2))
    assert not list(tmp_path.iterdir())
    (tmp_path / "loop.json").write_text('{"algorithm": "ppo"}')
    with pytest.raises(ConfigError, match="is of a loop with algorithm=ppo"):
        run(tmp_path)


def test_hacking_is_a_learned_return_that_rises_while_the_true_one_falls() -> None:
    up, down = np.array([0.0, 1.0, 2.0]), np.array([2.0, 1.0, 0.0])
    assert is_hacked(down, up)
    assert not is_hacked(up, up) and not is_hacked(down, down)
    assert not is_hacked(np.array([2.0, 9.0, 1.9]), up)  # it hardly fell
    assert not is_hacked(np.array([1.0]), np.array([1.0]))


def test_a_fall_within_noise_is_no_hacking() -> None:
    true, learned = np.array([24.13, 23.90]), np.array([1.90, 2.02])
    assert is_hacked(true, learned, 0.07) and not is_hacked(true, learned, 0.08)
    # Returns 1, 2 and 3 have the standard deviation 1; 1/6 + 1/3 = 1/2, and of 100 at most.
    returns = np.array([1.0, 2.0, 3.0])
    assert fall_error(returns, 6) == pytest.approx(0.5**0.5)
    assert fall_error(returns, 900) == pytest.approx((1 / 100 + 1 / 3) ** 0.5)
    assert fall_error(returns[:1], 6) == np.inf


@pytest.mark.parametrize(("last", "hacked"), [(23.9, False), (15.0, True)])
def test_a_round_is_judged_by_its_episodes(
    last: float, hacked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 100 episodes with a standard deviation of 10.05: the difference has an error of 1.42.
    recent = np.array([(last - 10, 20), (last + 10, 20)] * 50)
    saved = {"collector": {"episodes": {"recent": recent}}}
    monkeypatch.setattr(checkpoint, "latest", lambda path: path)
    monkeypatch.setattr(checkpoint, "read_checkpoint", lambda path, sections: saved)
    monkeypatch.setattr(online, "progress_of", lambda directory: 8000)
    metrics = {
        "rollout/return_mean": ([2000, 4000, 6000, 8000], [9.0, 24.1, 24.0, last]),
        "rollout/length_mean": ([2000, 4000, 6000, 8000], [20.0] * 4),
        "rollout/learned_return_mean": ([4000, 6000, 8000], [5.0, 1.9, 2.02]),
    }
    run = SimpleNamespace(metrics=lambda: metrics, directory=SimpleNamespace(checkpoints_path="x"))
    model = SimpleNamespace(facts={"quality": None, "comparisons": 9})
    before = [online.Round(0, 4000, 6, None, None, 24.1, 5.0, False)]
    made = online._round(run, model, 1, before)  # type: ignore[arg-type]
    assert made.hacked == hacked
    assert made.compared == (
        f"learned return 1.9 to 2.02, true return 24.1 to {last:.4g} (standard error of the "
        "difference 1.4)"
    )


def test_a_constant_reward_stops_the_loop(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"All 3 answers .* are equal"):
        run(tmp_path, algorithm="ppo", env="CartPole-v1")
    assert not (tmp_path / "run").exists()
