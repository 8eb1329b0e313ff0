"""What a game is: histories that players and chance extend until it is over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from assay.core.errors import EnvError
from assay.functional.games.tree import CHANCE, TERMINAL, GameTree

MAX_HISTORIES = 2_000_000  # a tree of so many takes about 300 MB


class History(ABC):
    """A moment of a game. It never changes: `child` returns another one."""

    @property
    @abstractmethod
    def player(self) -> int:
        """Return who acts: a player, `CHANCE` or `TERMINAL`."""

    @abstractmethod
    def legal_actions(self) -> Sequence[int]:
        """Return what whoever acts can do, in rising order."""

    @abstractmethod
    def chance_probabilities(self) -> Sequence[float]:
        """Return the probability of each of the `legal_actions` of chance."""

    @abstractmethod
    def child(self, action: int) -> History:
        """Return what follows from an action."""

    @abstractmethod
    def information(self) -> str:
        """Return all that the player who acts has seen, as one name.

        Two players never see the same name.
        """

    @abstractmethod
    def information_vector(self) -> Sequence[float]:
        """Return the same as numbers: other ones for every other name."""

    @abstractmethod
    def returns(self) -> Sequence[float]:
        """Return what each player got, at the end."""


# The probability of each legal action, in their order.
Player = Callable[[History], Sequence[float]]


def moved_on(moment: History, player: Player, rng: np.random.Generator) -> tuple[int, History]:
    """Let chance act, or a player, and return what was done and what follows."""
    chance = moment.player == CHANCE
    odds = moment.chance_probabilities() if chance else player(moment)
    legal = moment.legal_actions()
    place = int(np.searchsorted(np.cumsum(odds), rng.random(), side="right"))
    action = int(legal[min(place, len(legal) - 1)])
    return action, moment.child(action)


class Game(ABC):
    """A game of a known number of players with perfect recall.

    Attributes:
        name: What it is called.
        num_players: How many play.
        action_names: What actions are called; an action is a place in it.
        vector_size: The length of `History.information_vector`.
    """

    name: str
    num_players: int
    action_names: tuple[str, ...]
    vector_size: int

    @abstractmethod
    def start(self) -> History:
        """Return the moment before anything has happened."""


def compile_game(game: Game, max_histories: int = MAX_HISTORIES) -> GameTree:
    """Write a game out as arrays.

    Raises:
        EnvError: It has more histories than that, or two information sets that look the same.
    """
    nodes, level = [game.start()], [game.start()]
    parent, action, chance, levels = [-1], [0], [1.0], [0, 1]
    while level:
        following: list[History] = []
        first = levels[-2]
        for offset, node in enumerate(level):
            if node.player == TERMINAL:
                continue
            legal = node.legal_actions()
            odds = node.chance_probabilities() if node.player == CHANCE else [1.0] * len(legal)
            for choice, probability in zip(legal, odds, strict=True):
                following.append(node.child(choice))
                parent.append(first + offset)
                action.append(choice)
                chance.append(probability)
            if len(nodes) + len(following) > max_histories:
                raise EnvError(
                    f"The game '{game.name}' has more than {max_histories:,} histories, too many "
                    "to write out.",
                    "Choose a smaller one, or train a best response: "
                    "assay.best_responses.train_best_response.",
                )
        level = following
        if level:
            nodes += level
            levels.append(len(nodes))
    return _arrays(game, nodes, parent, action, chance, levels)


def _arrays(
    game: Game,
    nodes: list[History],
    parent: list[int],
    action: list[int],
    chance: list[float],
    levels: list[int],
) -> GameTree:
    index: dict[str, int] = {}
    infoset: list[int] = []
    owners: list[int] = []
    legal, vectors = [], []
    for node in nodes:
        if node.player < 0:
            infoset.append(-1)
            continue
        name = node.information()
        number = index.setdefault(name, len(index))
        infoset.append(number)
        allowed = np.zeros(len(game.action_names), np.bool_)
        allowed[list(node.legal_actions())] = True
        if number == len(owners):
            owners.append(node.player)
            legal.append(allowed)
            vectors.append(np.asarray(node.information_vector(), np.float32))
        elif owners[number] != node.player or not np.array_equal(legal[number], allowed):
            raise EnvError(
                f"The information set '{name}' of the game '{game.name}' has histories of two "
                "players, or with other actions.",
                "Name information sets so that everything a player has seen is in the name.",
            )
    if len({vector.tobytes() for vector in vectors}) < len(vectors):
        raise EnvError(
            f"Two information sets of the game '{game.name}' have the same numbers.",
            "Let information_vector() tell apart what information() does.",
        )
    players = [node.player for node in nodes]
    nothing = [0.0] * game.num_players
    returns = [node.returns() if node.player == TERMINAL else nothing for node in nodes]
    return GameTree(
        name=game.name,
        num_players=game.num_players,
        parent=np.array(parent),
        action=np.array(action),
        player=np.array(players),
        infoset=np.array(infoset),
        chance=np.array(chance, np.float64),
        returns=np.array(returns, np.float64),
        levels=tuple(levels),
        infoset_names=tuple(index),
        infoset_player=np.array(owners),
        legal=np.array(legal),
        vectors=np.array(vectors),
        action_names=game.action_names,
    )
