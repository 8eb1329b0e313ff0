"""Act by a table: for every information set of a game a distribution over actions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import AssayError, ConfigError
from assay.core.types import ACTION_MASK, Action, Spaces, State, Tree
from assay.functional.games.tree import Floats, GameTree, normalized

INFORMATION = "information"  # the entry of an observation that says what a player knows


@dataclass(eq=False)
class StrategyTable:
    """What counterfactual regret minimisation keeps of a game; empty until it has seen one.

    Attributes:
        vectors: [I, D] what is observed in each information set.
        legal: [I, A] which actions there are.
        regret: [I, A] cumulative regrets.
        average: [I, A] the sum of the strategies so far.
        iterations: How many there were.
    """

    vectors: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    legal: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    regret: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    average: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    iterations: int = 0

    def begin(self, tree: GameTree) -> None:
        """Take on a game, if there is none yet.

        Raises:
            AssayError: There is one, and this is another.
        """
        if not self.vectors.size:
            self.vectors, self.legal = tree.vectors, tree.legal
            self.regret, self.average = np.zeros(tree.legal.shape), np.zeros(tree.legal.shape)
        elif not np.array_equal(self.vectors, tree.vectors):
            raise AssayError(
                f"The strategy is one for another game than '{tree.name}'.",
                "Start a new run for this game.",
            )

    def strategy(self) -> Floats:
        """Return the average strategy [I, A]."""
        return normalized(self.average, self.legal)

    def state(self) -> State:
        """Return all of it."""
        return {
            "vectors": self.vectors, "legal": self.legal, "regret": self.regret,
            "average": self.average, "iterations": self.iterations,
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        self.vectors, self.legal = np.array(state["vectors"]), np.array(state["legal"], np.bool_)
        self.regret, self.average = np.array(state["regret"]), np.array(state["average"])
        self.iterations = int(state["iterations"])


class TablePolicy:
    """Acts by the average strategy of a table.

    A mixed strategy has no best action: it is drawn from, whether exploring or not.
    """

    wants_rewards = False

    def __init__(self, spaces: Spaces, table: StrategyTable, rng: np.random.Generator) -> None:
        self.spaces, self.table, self.rng = spaces, table, rng
        self._rows: tuple[Any, dict[bytes, int]] = (None, {})

    def probabilities(self, obs: Tree) -> Floats:
        """Return the probability of each action for observations of N moments [N, A].

        Raises:
            AssayError: What is observed is not an information set of the game that was learned.
        """
        table = self.table
        if not isinstance(obs, Mapping) or INFORMATION not in obs:
            raise AssayError("The observation has no entry 'information': it is not of a game.")
        mask = np.asarray(obs[ACTION_MASK], np.bool_)
        if not table.iterations:  # nothing was learned yet
            return normalized(np.zeros(mask.shape), mask)
        if self._rows[0] is not table.vectors:
            keys = {row.tobytes(): number for number, row in enumerate(table.vectors)}
            self._rows = (table.vectors, keys)
        known = np.ascontiguousarray(obs[INFORMATION], np.float32)
        rows = [self._rows[1].get(row.tobytes(), -1) for row in known]
        # What is seen after the end of a game is not an information set, and nothing follows.
        strange = next((k for k, row in enumerate(rows) if row < 0 and known[k].any()), None)
        if strange is not None:
            raise AssayError(
                f"No information set of the game has the numbers {known[strange].tolist()}.",
                "Give observations of the game that the run learned.",
            )
        found = np.append(table.strategy(), np.zeros((1, mask.shape[1])), axis=0)[rows]
        return normalized(found, mask)

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Draw actions for N observations."""
        odds = np.cumsum(self.probabilities(obs), axis=1)
        drawn = self.rng.random((len(odds), 1)) * odds[:, -1:]
        return Action((odds <= drawn).sum(axis=1), carry)

    def initial_carry(self, n: int) -> Tree:
        """Return None: nothing is carried from step to step."""
        return None

    def rewarded(self, carry: Tree, reward: Any) -> Tree:
        """Return the carry as it is."""
        return carry

    def module(self) -> NoReturn:
        """Refuse: a file holds one action for an observation, and this is a mixed strategy."""
        raise ConfigError(
            "A mixed strategy has no best action, so that it cannot be exported as one.",
            "Write it as a strategy file: `assay evaluate equilibria GAME RUN --out DIRECTORY`.",
        )

    @property
    def head(self) -> NoReturn:
        """Refuse: nothing is computed by a network."""
        raise ConfigError(
            "A strategy of a game has no network, and cannot be judged from recorded data.",
            "Measure it exactly: `assay evaluate equilibria GAME RUN`.",
        )
