"""Strategies as files: for every information set the probability of each action.

    {"game": "kuhn_poker", "strategy": {"J": {"pass": 0.8, "bet": 0.2}, "Jb": [1, 0], ...}}

Probabilities are named by actions, where those that are left out are 0, or are a list of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import DataError
from assay.core.wording import counted
from assay.functional.games.tree import Floats, GameTree

_TOLERANCE = 1e-6  # by which probabilities may miss 1, as numbers in files are rounded
_FIX = "Give every information set of the game one distribution over its legal actions."


def strategy_from_dict(tree: GameTree, content: Any, what: str = "The strategy") -> Floats:
    """Return a strategy [I, A] from what a file holds.

    Raises:
        DataError: It is of another game, lacks an information set, or is not a distribution.
    """
    if not isinstance(content, Mapping) or not isinstance(content.get("strategy"), Mapping):
        raise DataError(
            f"{what} has no entry 'strategy' with probabilities by information set.", _FIX
        )
    game = content.get("game", tree.name)
    if game != tree.name:
        raise DataError(f"{what} is one for '{game}', and the game is '{tree.name}'.")
    table = content["strategy"]
    unknown = next((name for name in table if name not in tree.infoset_index), None)
    if unknown is not None:
        raise DataError(
            f"{what} has '{unknown}', which is not an information set of '{tree.name}'."
        )
    missing = [name for name in tree.infoset_names if name not in table]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(f"{what} lacks the information set '{missing[0]}'{more}.", _FIX)
    rows = [_row(tree, name, table[name], what) for name in tree.infoset_names]
    return np.stack(rows)


def _row(tree: GameTree, name: str, given: Any, what: str) -> Floats:
    where = f"{what} has in '{name}'"
    if isinstance(given, Mapping):
        strange = next((key for key in given if key not in tree.action_names), None)
        if strange is not None:
            known = ", ".join(tree.action_names)
            raise DataError(f"{where} the action '{strange}'; expected {known}.", _FIX)
        given = [given.get(action, 0.0) for action in tree.action_names]
    try:
        row = np.array(given, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{where} {given!r}, which are not probabilities.", _FIX) from None
    if row.shape != (tree.num_actions,):
        raise DataError(
            f"{where} {counted(row.size, 'number')}; expected {tree.num_actions}.", _FIX
        )
    if not (np.isfinite(row).all() and (row >= 0).all()):
        raise DataError(f"{where} {row.tolist()}: a probability is below 0 or not a number.", _FIX)
    if abs(row.sum() - 1.0) > _TOLERANCE:
        raise DataError(f"{where} probabilities that add up to {row.sum():g}, not 1.", _FIX)
    legal = tree.legal[tree.infoset_index[name]]
    if row[~legal].any():
        action = tree.action_names[int(np.flatnonzero(~legal & (row > 0))[0])]
        raise DataError(f"{where} the action '{action}', which is not legal there.", _FIX)
    return row / row.sum()


def read_strategy(tree: GameTree, path: Path) -> Floats:
    """Return the strategy of a JSON file.

    Raises:
        DataError: The file cannot be read, or is not a strategy for the game.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise DataError(f"'{path}' is not JSON: {error}.", "Give a strategy file.") from None
    return strategy_from_dict(tree, content, f"'{path}'")
