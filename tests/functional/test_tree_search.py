"""Tree search on positions whose answer is known, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from assay.envs.boards.players import solve
from assay.functional.boards import CONNECT_FOUR, TICTACTOE, BoardGame, Boards
from assay.functional.tree_search import masked_softmax, search, visit_policy


def board(game: BoardGame, text: str) -> Boards:
    """Return a board from rows of x (to move), o and dots."""
    signs = {"x": 1, "o": -1, ".": 0}
    return np.array([[signs[c] for c in text.replace(" ", "")]], np.int8).reshape(1, game.cells)


def opinion(logits: np.ndarray):
    """Return an evaluation that prefers the same moves everywhere."""

    def evaluate(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
        return np.tile(logits, (len(boards), 1)), np.zeros(len(boards), np.float32)

    return evaluate


def blank(game: BoardGame):
    """Return an evaluation that knows nothing."""
    return opinion(np.zeros(game.actions, np.float32))


WIN = [
    (TICTACTOE, "xx. oo. ...", 2),
    (TICTACTOE, "x.. ox. o..", 8),
    (CONNECT_FOUR, "....... " * 4 + "ooo.... xxx....", 3),
    (CONNECT_FOUR, "....... ....... ...x... ...x.o. ...x.o. ...o.o.", 3),
    # a diagonal, from the bottom left
    (CONNECT_FOUR, "....... ....... ....... ..xo... .xox... xoxo..o", 3),
]
BLOCK = [
    (TICTACTOE, "oo. x.. ..x", 2),
    (TICTACTOE, "o.x .ox ...", 8),
    (CONNECT_FOUR, "....... " * 5 + "xooo...", 4),
    (CONNECT_FOUR, "....... ....... ....... ..o.... ..o.x.. ..ox.x.", 2),
]


@pytest.mark.parametrize(("game", "text", "move"), WIN)
def test_a_win_in_one_is_found(game: BoardGame, text: str, move: int) -> None:
    found = search(game, board(game, text), blank(game), simulations=100)
    assert np.flatnonzero(found.visits[0]).tolist() == [move]
    assert found.value[0] == 1.0


@pytest.mark.parametrize(("game", "text", "move"), BLOCK)
def test_a_threat_is_blocked(game: BoardGame, text: str, move: int) -> None:
    found = search(game, board(game, text), blank(game), simulations=200)
    assert found.visits[0].argmax() == move


def test_illegal_moves_are_never_visited() -> None:
    rng = np.random.default_rng(0)
    for game in (TICTACTOE, CONNECT_FOUR):
        boards = game.initial(40)
        strange = rng.normal(size=game.actions).astype(np.float32) * 8
        while len(boards):
            noise = np.ones((len(boards), game.actions), np.float32)
            found = search(game, boards, opinion(strange), simulations=12, noise=noise)
            legal = game.legal(boards)
            assert not found.visits[~legal].any()
            assert not found.priors[~legal].any()
            assert found.visits.any(1).all() and (found.visits.sum(1) <= 12).all()
            moves = np.array([rng.choice(np.flatnonzero(row)) for row in legal])
            after = game.play(boards, moves)
            boards = after.boards[~after.over]


def test_a_root_that_is_over_is_worth_what_it_is_and_not_searched() -> None:
    asked = []

    def evaluate(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
        asked.extend(boards.tolist())
        return blank(TICTACTOE)(boards)

    over = [board(TICTACTOE, "ooo xx. x.."), board(TICTACTOE, "xox xoo oxx")]
    found = search(TICTACTOE, np.concatenate(over), evaluate, simulations=5)
    assert found.value.tolist() == [-1.0, 0.0] and not found.visits.any() and not asked
    # Beside one that goes on, too.
    both = np.concatenate([*over, TICTACTOE.initial(1)])
    found = search(TICTACTOE, both, evaluate, simulations=5)
    assert found.visits.sum(1).tolist() == [0, 0, 5]
    np.testing.assert_array_equal(found.value[:2], [-1.0, 0.0])
    assert over[0][0].tolist() not in asked


def test_three_simulations_by_hand() -> None:
    """An empty board; priors 3/4 for cell 7 and 1/4 for cell 8; values by hand."""
    root = TICTACTOE.initial(1)
    logits = np.full(9, -40.0, np.float32)
    logits[[7, 8]] = np.log(3.0), 0.0

    def evaluate(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
        # Who is to move after 7 was taken believes to be at 0.5.
        return np.tile(logits, (len(boards), 1)), np.where(boards[:, 7] != 0, 0.5, 0.1).astype(
            np.float32
        )

    priors = search(TICTACTOE, root, evaluate, simulations=0).priors[0]
    np.testing.assert_allclose(priors[[7, 8]], [0.75, 0.25], rtol=1e-6)
    # 1: U(7) = 0.75 c, U(8) = 0.25 c: takes 7, whose child says 0.5, so W(7) = -0.5.
    one = search(TICTACTOE, root, evaluate, simulations=1, c_puct=1.0)
    assert one.visits[0, [7, 8]].tolist() == [1, 0]
    np.testing.assert_allclose(one.value[0], (0.1 - 0.5) / 2)
    # 2: score(7) = -0.5 + 0.75 sqrt(2) / 2 = 0.03, score(8) = 0.25 sqrt(2) = 0.35: takes 8.
    two = search(TICTACTOE, root, evaluate, simulations=2, c_puct=1.0)
    assert two.visits[0, [7, 8]].tolist() == [1, 1]
    np.testing.assert_allclose(two.value[0], (0.1 - 0.5 - 0.1) / 3, rtol=1e-6)
    # 3: score(7) = -0.5 + 0.75 sqrt(3) / 2 = 0.15, score(8) = -0.1 + 0.25 sqrt(3) / 2 = 0.12: 7,
    # then 8 below it, after which the first player is to move and believes to be at 0.5.
    three = search(TICTACTOE, root, evaluate, simulations=3, c_puct=1.0)
    assert three.visits[0, [7, 8]].tolist() == [2, 1]
    np.testing.assert_allclose(three.value[0], (0.1 - 0.5 - 0.1 + 0.5) / 4, atol=1e-7)


def test_a_forced_win_is_proven_and_nothing_else_is_counted() -> None:
    # Three in the bottom row with both ends free cannot be stopped: 1 and 4 make them.
    root = board(CONNECT_FOUR, "....... " * 5 + "..xx..o")
    found = search(CONNECT_FOUR, root, blank(CONNECT_FOUR), simulations=40)
    assert found.value[0] == 1.0
    assert len(np.flatnonzero(found.visits[0])) == 1 and found.visits[0].argmax() in (1, 4)


def test_what_is_proven_is_true_and_enough_is() -> None:
    """Against the table of tic-tac-toe: no wrong proof, and with 300 simulations most are found."""
    rng, table = np.random.default_rng(1), solve(TICTACTOE)
    live = [np.frombuffer(key, np.int8) for key, (_, best) in table.items() if best.any()]
    boards = rng.permutation(np.stack(live))[:600]
    known = [table[one.tobytes()] for one in boards]
    worth, best = np.array([k[0] for k in known]), np.stack([k[1] for k in known])
    found = search(TICTACTOE, boards, blank(TICTACTOE), simulations=300)
    proven = np.abs(found.value) == 1.0
    np.testing.assert_array_equal(found.value[proven], worth[proven])
    assert proven[worth != 0].mean() > 0.95 and not proven[worth == 0].any()
    assert not found.visits[(worth == 1) & proven][~best[(worth == 1) & proven]].any()


def test_trees_do_not_know_of_each_other() -> None:
    """A tree among many is the tree that it is alone."""
    game, rng = CONNECT_FOUR, np.random.default_rng(2)
    boards = game.initial(30)
    for _ in range(6):
        moves = np.array([rng.choice(np.flatnonzero(row)) for row in game.legal(boards)])
        boards = game.play(boards, moves).boards
    weights = rng.normal(size=(game.cells, game.actions + 1)).astype(np.float32)

    def evaluate(some: Boards) -> tuple[np.ndarray, np.ndarray]:
        # Row by row, so that the sums do not depend on how many there are.
        out = np.stack([(row[:, None] * weights).sum(0) for row in some.astype(np.float32)])
        return out[:, :-1], np.tanh(out[:, -1])

    noise = rng.random((30, game.actions)).astype(np.float32)
    together = search(game, boards, evaluate, simulations=40, noise=noise)
    for row in range(0, 30, 7):
        alone = search(game, boards[[row]], evaluate, simulations=40, noise=noise[[row]])
        np.testing.assert_array_equal(alone.visits[0], together.visits[row])
        np.testing.assert_array_equal(alone.value[0], together.value[row])


def test_noise_is_at_the_root_alone() -> None:
    """A root of one legal move has the prior 1 whatever the noise, and so has all below."""
    noise = np.array([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 3.0]], np.float32)
    found = search(TICTACTOE, TICTACTOE.initial(1), blank(TICTACTOE), simulations=1, noise=noise)
    expected = 0.75 / 9 + 0.25 * noise[0] / 4
    np.testing.assert_allclose(found.priors[0], expected, rtol=1e-6)
    # Noise that is only on move 8, and so strong that nothing else is tried at the root, does not
    # reach the position after it: there, the moves are tried in their order.
    noise = np.eye(9, dtype=np.float32)[[8]]
    seen: list[np.ndarray] = []

    def evaluate(boards: Boards) -> tuple[np.ndarray, np.ndarray]:
        seen.extend(boards)
        return blank(TICTACTOE)(boards)

    search(TICTACTOE, TICTACTOE.initial(1), evaluate, simulations=4, noise=noise, noise_share=1.0)
    assert [np.flatnonzero(b).tolist() for b in seen] == [[], [8], [0, 8], [1, 8], [2, 8]]


def test_shares_of_visits() -> None:
    legal = np.array([[True, False, True], [True, False, True], [False] * 3])
    visits = np.array([[3, 0, 1], [0, 0, 0], [0, 0, 0]])
    expected = [[0.75, 0.0, 0.25], [0.5, 0.0, 0.5], [1 / 3] * 3]
    np.testing.assert_allclose(visit_policy(visits, legal), expected, rtol=1e-6)
    probs = masked_softmax(np.array([[1.0, 9.0, 1.0 + np.log(3)]], np.float32), legal[:1])
    np.testing.assert_allclose(probs, [[0.25, 0.0, 0.75]], rtol=1e-6)
