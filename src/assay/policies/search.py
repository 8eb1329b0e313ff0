"""A policy that searches the tree of a board game before every move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import Action, Spaces, Tree
from assay.functional.boards import BoardGame, Boards
from assay.functional.tree_search import search, visit_policy
from assay.policies import description
from assay.policies.exploration import GreedyActions
from assay.policies.heads import Extras, Params
from assay.policies.numpy_network import Described
from assay.policies.parts import Array
from assay.policies.policy import Policy


@dataclass(frozen=True)
class SearchOptions:
    """How a `SearchPolicy` searches.

    Attributes:
        simulations: Positions that are looked at before a move; 0 takes the best by the network.
        exploring: As many before a move that explores.
        c_puct: Weight of priors against values.
        noise_alpha: Of the Dirichlet noise at the root, when it explores.
        noise_share: Share of the noise in the priors.
        sampled_moves: The first moves of a game, which are drawn when it explores.
        temperature: Of these; 1 draws by the visits.
        random_moves: The first moves of a game, each of which is any legal one with a probability
            of 1/2, when it explores.
    """

    simulations: int
    exploring: int
    c_puct: float
    noise_alpha: float
    noise_share: float
    sampled_moves: int
    temperature: float
    random_moves: int = 0


class PriorHead:
    """The best move by the logits of a network that returns a value in its last column."""

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.actions = GreedyActions(space)

    def choose(
        self, params: Params, n: int, mask: Array | None, rng: np.random.Generator | None
    ) -> tuple[Array, Extras]:
        """Return the best legal moves; it does not explore."""
        return self.actions.best(params()[:, :-1], mask), {}

    def best(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Return the best legal moves in torch."""
        return self.actions.decide(params[:, :-1], mask)

    def describe(self, network: Described) -> description.Head:
        """Refuse: clients without torch have no search."""
        raise NotImplementedError


class SearchPolicy(Policy):
    """Search from every board that it is given, all of them at once.

    It explores by noise at the root, by drawing the first moves of a game by their visits, and by
    playing some of them at random, so that it also learns from openings that it would avoid. The
    extras are what the network learns from: `visits`, the share of visits of each move, and
    `value`, what the search thinks of the position. Without exploration it takes the move that was
    visited most: a function of the board alone.
    """

    network: Any

    def __init__(
        self,
        spaces: Spaces,
        game: BoardGame,
        network: nn.Module,
        options: SearchOptions,
        *,
        device: torch.device,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(spaces, network, PriorHead(spaces.action), device=device, rng=rng)
        self.game, self.options = game, options

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose moves for N observations, as `Policy.act` does."""
        options, game = self.options, self.game
        if not explore and not options.simulations:
            return super().act(obs, carry)
        boards = game.boards(obs)
        legal = game.legal(boards)
        noise = None
        if explore:
            alpha = np.full(game.actions, options.noise_alpha)
            # Gamma draws are those of a Dirichlet once they are scaled, which the search does.
            noise = self.rng.gamma(alpha, size=legal.shape).astype(np.float32)
        simulations = options.exploring if explore else options.simulations
        found = search(
            game, boards, self.evaluate, simulations=simulations, c_puct=options.c_puct,
            noise=noise, noise_share=options.noise_share,
        )  # fmt: skip
        shares = visit_policy(found.visits, legal)
        best = np.where(shares == shares.max(1, keepdims=True), found.priors, -1.0).argmax(1)
        if not explore:
            return Action(best)
        played = np.count_nonzero(boards, axis=1)
        moves = np.where(played < options.sampled_moves, self._draw(shares), best)
        if options.random_moves:
            any_move = np.where(legal, self.rng.random(legal.shape), -1.0).argmax(1)
            astray = (played < options.random_moves) & (self.rng.random(len(played)) < 0.5)
            moves = np.where(astray, any_move, moves)
        return Action(moves, None, {"visits": shares, "value": found.value})

    def _draw(self, shares: Array) -> Array:
        """Return moves [N] that are drawn by shares^(1 / temperature)."""
        # In logarithms, since a small temperature is a large power; then by the Gumbel trick.
        with np.errstate(divide="ignore"):
            logits = np.log(shares) / self.options.temperature
        return np.asarray((logits + self.rng.gumbel(size=shares.shape)).argmax(1))

    @torch.no_grad()
    def evaluate(self, boards: Boards) -> tuple[Array, Array]:
        """Return what the network says about boards: logits of moves, and values."""
        game = self.game
        seen = torch.from_numpy(boards).view(-1, game.rows, game.columns).to(self.device)
        out = self.network({game.name: seen}).cpu().numpy()
        return out[:, :-1], out[:, -1]

    def module(self) -> nn.Module:
        """Return the network as a module `observation -> best move`, where nothing is searched.

        Raises:
            ConfigError: It searches, which a module cannot do.
        """
        self._refuse_search("exported")
        return super().module()

    def snapshot(self, algorithm: str, **options: Any) -> Any:
        """Refuse, as `module` does; without a search, as `Policy.snapshot` does."""
        self._refuse_search("run by clients")
        return super().snapshot(algorithm, **options)

    def _refuse_search(self, what: str) -> None:
        if self.options.simulations:
            raise ConfigError(
                f"This policy searches the game's tree before every move, and cannot be {what}.",
                "Take its network alone, which plays worse: assay export RUN --set simulations=0.",
            )
