"""CFR: the contract of a run, its numbers by hand, and that it solves a game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import assay
from assay.core.errors import AssayError, ConfigError, EnvError, SpaceError
from assay.core.types import Clock
from assay.envs.games.registry import make_tree
from assay.envs.make import make_env, make_vector
from assay.evaluation.evaluate import load_evaluations
from assay.functional.games.best_response import exploitation
from assay.loops.config import RunConfig, resolve
from assay.loops.game import GameLoop
from assay.loops.run_settings import GameSettings
from assay.loops.table import make_loop
from assay.loops.training import build_algorithm
from assay.runs import checkpoint

KUHN = make_tree("kuhn_poker")
PLAIN: dict[str, Any] = {"sinks": (), "preset": False}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))
    return tmp_path


def build(game: str = "kuhn_poker", **settings: Any) -> tuple[Any, Any]:
    """Return the algorithm and its loop, with nothing on the disk."""
    config = resolve("cfr", game, settings, use_preset=False)
    vector = make_vector(game, 1)
    algorithm = build_algorithm(config, vector.spaces, config.run.clock())
    return algorithm, make_loop(algorithm, vector, config.run)


class TestContract:
    """What `AlgorithmContract` checks, for one that has no collector, no network and no batch."""

    def test_its_loop_counts_updates(self) -> None:
        algorithm, loop = build()
        assert isinstance(loop, GameLoop)
        for _ in range(3):
            loop.iterate()
        assert algorithm.updates == algorithm.clock.updates == 3
        assert algorithm.clock.env_steps == 0 and algorithm.clock.unit == "updates"
        metrics = algorithm.drain_metrics()
        assert 0 < metrics["train/regret_bound"] < 10 and algorithm.drain_metrics() == {}

    def test_other_actions_are_refused(self) -> None:
        config = resolve("cfr", "kuhn_poker", use_preset=False)
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        with pytest.raises(SpaceError, match="cfr handles Discrete actions"):
            build_algorithm(config, assay.core.types.Spaces(box, box), Clock(10))

    def test_saved_and_restored_it_goes_on_exactly(self) -> None:
        one, loop = build()
        for _ in range(5):
            loop.iterate()
        two, other = build()
        two.load_state(one.state())
        for each in (loop, other):
            each.iterate()
        np.testing.assert_array_equal(one.table.regret, two.table.regret)
        np.testing.assert_array_equal(one.table.average, two.table.average)
        assert one.drain_metrics() == two.drain_metrics() and two.updates == 6

    def test_a_resumed_run_is_the_undisturbed_one(self) -> None:
        settings = PLAIN | {"updates": 30, "checkpoint_every": 10, "log_every": 5}
        whole = assay.train("cfr", "kuhn_poker", name="whole", **settings)

        def stop(event: Any) -> Any:
            return assay.STOP if event.clock.updates >= 13 else None

        cut = assay.train("cfr", "kuhn_poker", name="cut", callbacks=[stop], **settings)
        assert cut.status == "interrupted"
        cut = assay.resume(cut.path)
        states = [
            checkpoint.read_checkpoint(checkpoint.latest(run.directory.checkpoints_path))
            for run in (whole, cut)
        ]
        for name in ("regret", "average", "iterations"):
            one, two = (state["normalisers"]["table"][name] for state in states)
            np.testing.assert_array_equal(one, two)
        timeless = [
            {k: v[1].tolist() for k, v in run.metrics().items() if not k.startswith("time/")}
            for run in (whole, cut)
        ]
        assert timeless[0] == timeless[1]

    def test_two_runs_of_one_seed_are_the_same_and_so_are_those_of_others(self) -> None:
        """Nothing is drawn while it learns."""
        algorithms = [build(seed=seed) for seed in (1, 1, 2)]
        for _, loop in algorithms:
            for _ in range(4):
                loop.iterate()
        first, *others = (algorithm.table.regret for algorithm, _ in algorithms)
        assert all(np.array_equal(first, other) for other in others)

    def test_another_game_is_not_gone_on_with(self) -> None:
        algorithm, loop = build()
        loop.iterate()
        with pytest.raises(AssayError, match="another game than 'leduc_poker'"):
            algorithm.update(make_tree("leduc_poker"))


def test_an_update_by_hand() -> None:
    """Against uniform play rock is worth 1/3, paper 0, scissors -1/3; then rock is answered."""
    algorithm, loop = build("biased_rock_paper_scissors")
    loop.iterate()
    assert algorithm.table.regret[0] == pytest.approx([1 / 3, 0, -1 / 3])
    assert algorithm.table.regret[1] == pytest.approx([1 / 3, 4 / 3, -5 / 3])
    # The positive regret of the best action in both sets, after one iteration.
    assert algorithm.drain_metrics()["train/regret_bound"] == pytest.approx(1 / 3 + 4 / 3)
    loop.iterate()
    assert algorithm.average_strategy()[0] == pytest.approx([2 / 3, 1 / 6, 1 / 6])


@pytest.mark.parametrize(("plus", "most"), [(False, 0.006), (True, 0.001)])
def test_it_solves_kuhn_poker(plus: bool, most: float) -> None:
    run = assay.train("cfr", "kuhn_poker", updates=300, eval_every=100, plus=plus, **PLAIN)
    found = run.evaluate()
    assert found.figures["exploitability"] < most
    assert found.mean == pytest.approx(-found.figures["exploitability"])
    assert run.metrics()["eval/nash_conv"][0].tolist() == [100, 200, 300]
    kept = load_evaluations(run.directory)
    assert [count for count, _ in kept] == [100, 200, 300]
    assert kept[-1][1].mean == pytest.approx(found.mean)
    bound = run.metrics()["train/regret_bound"][1]
    if not plus:  # what is positive of the regrets bounds NashConv
        assert bound[-1] > found.figures["nash_conv"]


class TestActing:
    def test_a_loaded_agent_plays_the_average_strategy(self) -> None:
        run = assay.train("cfr", "kuhn_poker", updates=200, eval_every=0, **PLAIN)
        agent = assay.load(run.path)
        policy: Any = agent.policy
        obs = {"information": KUHN.vectors, "action_mask": KUHN.legal.astype(np.int8)}
        odds = policy.probabilities(obs)
        assert exploitation(KUHN, odds).exploitability < 0.01
        drawn = np.mean([policy.act(obs).action for _ in range(2000)], axis=0)
        np.testing.assert_allclose(drawn, odds[:, 1], atol=0.05)
        env = make_env("kuhn_poker")
        seen, _ = env.reset(seed=0)
        assert agent.act(seen) in (0, 1)

    def test_what_is_no_information_set_is_refused(self) -> None:
        algorithm, loop = build()
        loop.iterate()
        strange = {"information": np.full((1, 11), 7.0, np.float32), "action_mask": np.ones((1, 2))}
        with pytest.raises(AssayError, match="No information set"):
            algorithm.act(strange, None, False)
        with pytest.raises(AssayError, match="no entry 'information'"):
            algorithm.act(np.zeros((1, 2)), None, False)

    def test_before_the_first_update_it_is_uniform_among_what_is_legal(self) -> None:
        algorithm, _ = build("leduc_poker")
        obs = {"information": np.zeros((1, 38), np.float32), "action_mask": np.array([[0, 1, 1]])}
        assert algorithm.policy.probabilities(obs)[0].tolist() == [0, 0.5, 0.5]

    def test_it_cannot_be_exported_as_one_action(self) -> None:
        from assay.policies.export import export_policy

        algorithm, _ = build()
        with pytest.raises(ConfigError, match="mixed strategy has no best action"):
            export_policy(algorithm.policy, Path("x.onnx"))


class TestSettings:
    def test_a_config_is_read_as_it_was_written(self) -> None:
        config = resolve("cfr", "kuhn_poker", {"updates": 7})
        assert type(config.run) is GameSettings and config.run.total == 7
        assert RunConfig.from_dict(config.to_dict()) == config

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"env_steps": 5}, "cfr collects nothing and is trained for updates"),
            ({"num_envs": 5}, "steps one environment at most"),
            ({"data": "x.npz"}, "takes no recorded data"),
            ({"device": "cuda"}, "device=cuda has no effect on cfr"),
            ({"eval_episodes": 5}, "eval_episodes=5 has no effect on cfr"),
            ({"lr": 0.1}, "Unknown setting for cfr: 'lr'"),
        ],
    )
    def test_what_has_no_meaning_is_refused(self, given: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            resolve("cfr", "kuhn_poker", given)

    def test_an_environment_that_is_no_game_is_refused(self) -> None:
        with pytest.raises(EnvError, match="'CartPole-v1' is not a game"):
            assay.train("cfr", "CartPole-v1", **PLAIN)
