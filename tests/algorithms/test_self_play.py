"""Self-play in games of hidden information: exact evaluation, IPPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import assay
from assay.best_responses import learned_strategy
from assay.core.errors import AssayError, EnvError
from assay.envs.games.registry import make_tree
from assay.envs.make import make_vector
from assay.evaluation.game import GameResult, policy_strategy
from assay.functional.games.best_response import exploitation
from assay.testing.algorithms import Rig

KUHN = make_tree("kuhn_poker")
SMALL: dict[str, Any] = {"horizon": 4, "minibatch_size": 8, "hidden": (8,), "epochs": 1}


def rig(env: str = "kuhn_poker", num_envs: int = 4, **settings: Any) -> Rig:
    """Return IPPO in all seats of a game."""
    table = make_vector(env, num_envs, env_kwargs={"seat": "all"})
    return Rig("ippo", table, num_envs=num_envs, **(SMALL | settings))


def silenced(net: Any) -> Any:
    """Set all of a network to zeros, and return the bias of its policy."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    return next(p for p in net.head.parameters() if p.ndim == 1)


class TestStrategyOfAgents:
    def test_a_network_of_zeros_plays_uniformly(self) -> None:
        learner: Any = rig().algorithm
        silenced(learner.nets[0])
        strategy = policy_strategy(KUHN, learner.policy, sampled=True)
        np.testing.assert_allclose(strategy, KUHN.uniform())

    def test_each_player_is_asked_for_its_own_information_sets(self) -> None:
        learner: Any = rig(sharing="none").algorithm
        for net, favourite in zip(learner.nets, (1, 0), strict=True):
            silenced(net).data[favourite] = 9.0
        strategy = policy_strategy(KUHN, learner.policy, sampled=False)
        assert strategy[KUHN.infoset_player == 0].argmax(1).tolist() == [1] * 6
        assert strategy[KUHN.infoset_player == 1].argmax(1).tolist() == [0] * 6

    def test_probabilities_are_those_that_agents_sample(self) -> None:
        learner: Any = rig(seed=3).algorithm
        strategy = policy_strategy(KUHN, learner.policy, sampled=True)
        crew = learner.crews[0]
        for place in range(KUHN.num_infosets):
            seat = int(KUHN.infoset_player[place])
            seen = np.zeros((1, 2, 11), np.float32)
            seen[0, seat] = KUHN.vectors[place]
            obs = {"obs": seen, "action_mask": np.ones((1, 4), np.int8)}
            logits = learner.policy.policies[crew.name].parameters(crew.see(obs))[seat]
            odds = np.exp(logits) / np.exp(logits).sum()
            np.testing.assert_allclose(strategy[place], odds, rtol=1e-5)

    def test_illegal_actions_have_no_probability(self) -> None:
        tree = make_tree("leduc_poker")
        learner: Any = rig("leduc_poker").algorithm
        strategy = policy_strategy(tree, learner.policy, sampled=True)
        assert not strategy[~tree.legal].any()
        np.testing.assert_allclose(strategy.sum(1), 1.0)

    def test_another_game_and_a_memory_are_refused(self) -> None:
        learner: Any = rig().algorithm
        with pytest.raises(EnvError, match="does not play 'leduc_poker'"):
            policy_strategy(make_tree("leduc_poker"), learner.policy, sampled=True)
        learner = rig(memory="gru", memory_size=4, chunk=4).algorithm
        with pytest.raises(AssayError, match="has a memory"):
            policy_strategy(KUHN, learner.policy, sampled=True)


def test_a_run_is_evaluated_exactly(tmp_path: Path) -> None:
    run = assay.train(
        "ippo", "kuhn_poker", env_steps=64, num_envs=4, eval_every=32, root=tmp_path,
        compile=False, preset=False, entropy_coef=0.1, **SMALL,
    )  # fmt: skip
    assert run.config.run.env_kwargs == {"seat": "all"}
    counts, logged = run.metrics()["eval/exploitability"]
    assert counts.tolist() == [32, 64]
    result = run.evaluate()
    assert isinstance(result, GameResult)
    assert result.figures["exploitability"] == pytest.approx(float(logged[-1]))
    exact = learned_strategy(KUHN, run.path)
    again = policy_strategy(KUHN, assay.load(run.path).policy, sampled=True)
    np.testing.assert_array_equal(exact, again)


def test_agents_with_a_memory_play_games_instead(tmp_path: Path) -> None:
    run = assay.train(
        "ippo", "kuhn_poker", env_steps=32, num_envs=4, root=tmp_path, compile=False, preset=False,
        memory="gru", memory_size=4, chunk=4, **SMALL,
    )  # fmt: skip
    assert "eval/exploitability" not in run.metrics()
    assert run.evaluate(episodes=4).agents is not None


def test_self_play_leaves_less_to_exploit() -> None:
    learner = rig(
        num_envs=64, horizon=32, minibatch_size=512, epochs=4, hidden=(64, 64), gamma=1.0, lr=2e-3,
        entropy_coef=0.3, normalize_advantage=False, env_steps=20_480,
    )  # fmt: skip
    strategy = policy_strategy(KUHN, learner.train().algorithm.policy, sampled=True)
    assert exploitation(KUHN, strategy).exploitability < 0.25  # uniform play: 0.458
