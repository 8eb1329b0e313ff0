"""Games whose seats are all played by agents: `seat=all`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from assay.core.errors import EnvError
from assay.envs.checks import check_env
from assay.envs.games.base import Game
from assay.envs.games.kuhn import KuhnPoker
from assay.envs.games.registry import make_tree
from assay.envs.games.table import Table, make_seat
from assay.envs.make import make_env, make_vector
from assay.functional.games.tree import GameTree

KUHN, LEDUC = make_tree("kuhn_poker"), make_tree("leduc_poker")
ALL = {"seat": "all"}


def play(table: Table, rng: np.random.Generator, obs: Any) -> Any:
    """Step with random legal actions of who moves, and return what `step` does."""
    copies, players = obs["alive"].shape
    masks = obs["action_mask"].reshape(copies, players, -1)
    return table.step(np.where(masks, rng.random(masks.shape), -1.0).argmax(2))


def test_one_player_is_alive_and_sees_what_it_knows() -> None:
    table = Table(1, "kuhn_poker")
    obs, _ = table.reset(seed=3)
    assert obs["alive"].tolist() == [[1, 0]]
    known = KUHN.vectors[KUHN.infoset[int(table._variables[0, 0])]]
    assert obs["obs"][0, 0].tolist() == known.tolist() and not obs["obs"][0, 1].any()
    card = int(known[2:5].argmax())
    obs, reward, terminated, _, _ = table.step(np.array([[1, 0]]))  # bet; the other's 0 is nothing
    assert obs["alive"].tolist() == [[0, 1]] and not reward.any() and not terminated.any()
    assert obs["obs"][0, 1, 6] == 1  # the bet is seen
    other = int(obs["obs"][0, 1, 2:5].argmax())
    _, reward, terminated, _, info = table.step(np.array([[0, 1]]))  # call
    won = 2.0 if card > other else -2.0
    assert table.outcome.reward.tolist() == [[won, -won]] and reward.tolist() == [0.0]
    assert terminated.all() and table.outcome.terminated.all()
    assert not info["final_obs"]["alive"].any()


@pytest.mark.parametrize("tree", [KUHN, LEDUC], ids=lambda tree: tree.name)
def test_random_play_earns_what_the_tree_says(tree: GameTree) -> None:
    table, rng = Table(256, tree.name), np.random.default_rng(0)
    obs, _ = table.reset(seed=1)
    got, ended = [], 0
    while ended < 20_000:
        obs, _, terminated, _, _ = play(table, rng, obs)
        got.append(table.outcome.reward[terminated])
        ended += int(terminated.sum())
    found = np.concatenate(got)
    exact = tree.expected_returns(tree.uniform())
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - exact) < 4 * error).all()


def test_cards_are_dealt_evenly() -> None:
    table = Table(1, "kuhn_poker")
    rng = np.random.default_rng(0)
    deals = [table._dealt(0, rng) for _ in range(6000)]
    counts = np.unique(deals, return_counts=True)[1]
    assert len(counts) == 6 and (np.abs(counts - 1000) < 150).all()


def test_an_illegal_action_is_refused_and_one_of_the_others_is_not() -> None:
    table = Table(1, "leduc_poker")
    table.reset(seed=0)
    with pytest.raises(EnvError, match="action 0, which is not legal in") as caught:
        table.step(np.array([[0, 1]]))  # nothing to fold before
    assert "[1, 2]" in caught.value.fix
    table.step(np.array([[1, 0]]))


def test_saved_tables_go_on_as_they_would_have() -> None:
    table, rng = Table(8, "leduc_poker"), np.random.default_rng(0)
    obs, _ = table.reset(seed=5)
    for _ in range(7):
        obs = play(table, rng, obs)[0]
    again = Table(8, "leduc_poker")
    again.set_state(table.get_state())
    both = [(table, np.random.default_rng(1), obs), (again, np.random.default_rng(1), obs)]
    ends = []
    for copies, own, seen in both:
        for _ in range(20):
            seen = play(copies, own, seen)[0]
        ends.append(seen["obs"])
    np.testing.assert_array_equal(*ends)


def test_a_game_is_found_by_its_name_one_copy_or_many() -> None:
    kuhn = make_tree("kuhn_poker")  # a cache keeps a few trees: KUHN may be an older copy
    with make_vector("kuhn_poker", 4, env_kwargs=ALL) as many:
        assert isinstance(many.backend.env.unwrapped, Table) and many.plays_all_seats
        assert many.spaces.team.agents == ("player_0", "player_1")
        assert many.game_tree() is kuhn
    with make_vector("kuhn_poker", 2, env_kwargs=ALL, backend="sync") as one_by_one:
        assert one_by_one.plays_all_seats and one_by_one.game_tree() is kuhn
    with make_vector("kuhn_poker", 2) as seats:
        assert not seats.plays_all_seats


def test_it_passes_the_checks_of_environments() -> None:
    results = check_env("leduc_poker", env_kwargs=ALL, steps=300)
    assert [one for one in results if not one.ok] == []


def test_an_opponent_has_no_seat() -> None:
    with pytest.raises(EnvError, match=r"opponent=x\.json has no seat"):
        make_vector("kuhn_poker", 2, env_kwargs=ALL | {"opponent": "x.json"})
    with pytest.raises(EnvError, match="seat=7: 'kuhn_poker' has 2 players"):
        make_env("kuhn_poker", env_kwargs={"seat": 7})


def test_a_game_of_ones_own() -> None:
    game: Game = KuhnPoker()
    env = make_seat(game, "all")
    obs, _ = env.reset(seed=1)
    assert obs["alive"].sum() == 1 and env.tree().name == "kuhn_poker"
