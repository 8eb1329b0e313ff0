"""An extensive-form game as arrays, and what follows from a strategy in it.

A strategy is an array [I, A]: for every information set the probability of each action, 0 where it
is not legal. One array holds the strategies of all players, since every information set belongs to
one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

CHANCE = -1
TERMINAL = -2

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GameTree:
    """All histories of a game, by depth, the children of a history side by side.

    N histories, P players, I information sets, A actions.

    Attributes:
        name: What the game is called.
        num_players: P.
        parent: [N] the history before; -1 of the root, which is the first.
        action: [N] what led here from there.
        player: [N] who acts: a player, `CHANCE` or `TERMINAL`.
        infoset: [N] what the player who acts knows; -1 where none does.
        chance: [N] the probability of what chance did to lead here; 1 where it did nothing.
        returns: [N, P] what everybody gets; 0 where the game goes on.
        levels: Where each depth begins, and N.
        infoset_names: What each information set is called; no two have the same name.
        infoset_player: [I] whose it is.
        legal: [I, A] which actions there are.
        vectors: [I, D] each information set as numbers; no two are the same.
        action_names: What actions are called.
    """

    name: str
    num_players: int
    parent: Ints
    action: Ints
    player: Ints
    infoset: Ints
    chance: Floats
    returns: Floats
    levels: tuple[int, ...]
    infoset_names: tuple[str, ...]
    infoset_player: Ints
    legal: NDArray[np.bool_]
    vectors: NDArray[np.float32]
    action_names: tuple[str, ...]

    @property
    def num_infosets(self) -> int:
        """Return I."""
        return len(self.infoset_names)

    @property
    def num_actions(self) -> int:
        """Return A."""
        return self.legal.shape[1]

    @cached_property
    def infoset_index(self) -> dict[str, int]:
        """Return the number of each information set by its name."""
        return {name: index for index, name in enumerate(self.infoset_names)}

    @cached_property
    def mover(self) -> Ints:
        """Return who led to each history [N]; `CHANCE` also for the root."""
        return np.where(self.parent < 0, CHANCE, self.player[self.parent])

    @cached_property
    def slot(self) -> Ints:
        """Return where the probability of each history's last action is in a flat strategy [N].

        Where chance led there it is 0, and means nothing.
        """
        index = self.infoset[self.parent] * self.num_actions + self.action
        return np.where(self.mover >= 0, index, 0)

    @cached_property
    def moves(self) -> tuple[Ints, ...]:
        """Return the histories that each player's actions led to."""
        return tuple(np.flatnonzero(self.mover == player) for player in range(self.num_players))

    @cached_property
    def steps(self) -> tuple[tuple[slice, Ints, Ints, Ints], ...]:
        """Return for each depth but the first: its histories, their parents, and the families.

        A family is the children of one parent: the number of the family of each history of this
        depth, and who the parents are.
        """
        found = []
        for first, last in zip(self.levels[1:-1], self.levels[2:], strict=True):
            parents = self.parent[first:last]
            owners, family = np.unique(parents, return_inverse=True)
            found.append((slice(first, last), parents, family, owners))
        return tuple(found)

    @cached_property
    def own_depth(self) -> Ints:
        """Return how many decisions its player took before each information set [I]."""
        count = np.zeros((len(self.parent), self.num_players), np.int64)
        for here, parents, _, _ in self.steps:
            count[here] = count[parents]
            rows = np.flatnonzero(self.mover[here] >= 0)
            count[here][rows, self.mover[here][rows]] += 1
        depth = np.zeros(self.num_infosets, np.int64)
        acting = np.flatnonzero(self.infoset >= 0)
        depth[self.infoset[acting]] = count[acting, self.player[acting]]
        return depth

    def uniform(self) -> Floats:
        """Return the strategy that takes every legal action equally often."""
        return self.legal / self.legal.sum(axis=1, keepdims=True)

    def edges(self, strategy: Floats) -> Floats:
        """Return with which probability each history follows from the one before it [N]."""
        return np.where(self.mover >= 0, strategy.reshape(-1)[self.slot], self.chance)

    def own_reach(self, edges: Floats, player: int) -> Floats:
        """Return a player's (or chance's) own part in reaching each history [N]."""
        factor = np.where(self.mover == player, edges, 1.0)
        reached = np.ones(len(self.parent))
        for here, parents, _, _ in self.steps:
            reached[here] = reached[parents] * factor[here]
        return reached

    @cached_property
    def chance_reach(self) -> Floats:
        """Return the part of chance in reaching each history [N]."""
        return self.own_reach(self.chance, CHANCE)

    def others_reach(self, edges: Floats, player: int) -> Floats:
        """Return the part of chance and all other players in reaching each history [N]."""
        others = [p for p in range(self.num_players) if p != player]
        parts = [self.own_reach(edges, other) for other in others]
        return np.multiply.reduce([*parts, self.chance_reach])

    def reach(self, edges: Floats) -> Floats:
        """Return how likely each history is [N]."""
        reached = np.ones(len(self.parent))
        for here, parents, _, _ in self.steps:
            reached[here] = reached[parents] * edges[here]
        return reached

    def values(self, edges: Floats, player: int) -> Floats:
        """Return what a player gets on average from each history on [N]."""
        value = self.returns[:, player].copy()
        for here, _, family, owners in reversed(self.steps):
            # Adds one after the other, which NumPy's sums do not: rounding is OpenSpiel's.
            value[owners] = np.bincount(family, edges[here] * value[here])
        return value

    def expected_returns(self, strategy: Floats) -> Floats:
        """Return what every player gets on average when all follow a strategy [P]."""
        reached = self.reach(self.edges(strategy))
        return reached @ self.returns

    def expected_length(self, strategy: Floats) -> float:
        """Return how many decisions of players a game has on average."""
        reached = self.reach(self.edges(strategy))
        return float(reached[self.player >= 0].sum())

    def combine(self, strategies: list[Floats]) -> Floats:
        """Return one strategy in which each player follows that of its own number."""
        return np.stack(strategies)[self.infoset_player, np.arange(self.num_infosets)]


def normalized(weights: Floats, legal: NDArray[np.bool_]) -> Floats:
    """Return weights [I, A] as a strategy; uniform where there is no weight."""
    kept = np.where(legal, weights, 0.0)
    total = np.add.accumulate(kept, axis=1)[:, -1:]  # one after the other, as OpenSpiel does
    uniform = legal / legal.sum(axis=1, keepdims=True)
    return np.where(total > 0, kept / np.where(total > 0, total, 1.0), uniform)
