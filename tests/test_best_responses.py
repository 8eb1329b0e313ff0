"""Best responses that are trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import assay
from assay.best_responses import agent_strategy, learned_strategy, train_best_response
from assay.core.errors import AssayError, EnvError
from assay.envs.games.registry import make_tree
from assay.functional.games.tree import normalized

KUHN, STAG = make_tree("kuhn_poker"), make_tree("stag_hunt")
TINY: dict[str, Any] = {"env_steps": 600, "hidden": (16,), "learning_starts": 50, "batch_size": 16}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASSAY_RUNS", str(tmp_path / "runs"))


def test_a_hunter_learns_to_join() -> None:
    """Against stag nine times in ten, stag is worth 3.6 and hare 2.9; uniformly hare is better."""
    joins = np.array([[0.5, 0.5], [0.9, 0.1]])
    settings = TINY | {"lr": 3e-3}
    found = train_best_response("stag_hunt", joins, seat=0, tree=STAG, **settings)
    assert found.exact == pytest.approx(3.6) and found.value == pytest.approx(3.6)
    found = train_best_response("stag_hunt", seat=0, tree=STAG, **settings)
    assert found.exact == pytest.approx(2.5) and found.value == pytest.approx(2.5)


def test_without_a_tree_the_value_is_played() -> None:
    settings = TINY | {"lr": 3e-3}
    found = train_best_response("stag_hunt", seat=1, episodes=400, **settings)
    assert found.exact is None and 0 < found.error < 0.1
    assert found.value == pytest.approx(2.5, abs=4 * found.error)


def test_an_agent_is_asked_in_every_information_set() -> None:
    run = assay.train("ppo", "kuhn_poker", env_steps=256, num_envs=4, horizon=32, hidden=(8,),
                      minibatch_size=32, sinks=(), eval_every=0, preset=False)  # fmt: skip
    strategy = learned_strategy(KUHN, run.path)
    np.testing.assert_allclose(strategy, normalized(strategy, KUHN.legal))
    assert ((strategy > 0) & (strategy < 1)).all()  # it samples
    greedy = agent_strategy(KUHN, assay.load(run.path), sampled=False)
    np.testing.assert_array_equal(greedy.argmax(axis=1), strategy.argmax(axis=1))
    with pytest.raises(EnvError, match="does not play 'leduc_poker'"):
        learned_strategy(make_tree("leduc_poker"), run.path)


def test_bad_input() -> None:
    with pytest.raises(AssayError, match="needs the tree"):
        train_best_response("stag_hunt", STAG.uniform(), seat=0)
    with pytest.raises(AssayError, match="no value is exact"):
        train_best_response("stag_hunt", lambda m: [1.0, 0.0], seat=0, tree=STAG, **TINY)
    with pytest.raises(EnvError, match="seat=2"):
        train_best_response("stag_hunt", seat=2, **TINY)


@pytest.mark.slow
@pytest.mark.parametrize("seat", [0, 1])
def test_dqn_finds_what_uniform_play_in_kuhn_gives_away(seat: int) -> None:
    """Five seeds of the default budget are in benchmarks/evidence/games."""
    found = train_best_response("kuhn_poker", seat=seat, tree=KUHN, seed=1, env_steps=3_000)
    assert found.exact is not None and found.exact - found.value < 0.02
