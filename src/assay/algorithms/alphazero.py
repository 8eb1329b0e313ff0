"""AlphaZero (Silver et al. 2018, arXiv:1712.01815): search and self-play, for board games.

A network gives each position a prior over moves and a value for who is to move. A Monte-Carlo tree
search led by both chooses the moves of both players; the network learns what the search preferred
and how the games ended. The rules are those of `assay.functional.boards`, found by the name of the
observation's entry.

All games of a run are searched together: each simulation adds one position to every tree and
values them in one call. Games go into an ordinary replay. Its n-step return with gamma = -1 is the
outcome for who was to move, since rewards of the two players have opposite signs; positions of
games that are still going on teach the policy only.

Deviations: the search looks two moves ahead by the rules and proves wins and losses, which the
paper does without, as it does without `lines`, which shows the network more than the board,
`value_mix`, which adds the search's value to the outcome, and `random_moves`, which plays openings
that the agent would avoid; c_puct is constant, where the paper lets it grow slowly; a move that was
never tried counts as a draw; a tree is not kept for the next move; the first `learning_starts`
moves of a run are random; a residual block has no batch normalisation; no games are resigned.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import ReplaySettings, Unused
from assay.buffers.replay_protocol import Replay
from assay.core.errors import ConfigError
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import ACTION_MASK, Batch, Problem, Spaces
from assay.functional.boards import game_of
from assay.networks.boards import BoardNetwork
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.search import SearchOptions, SearchPolicy


@register(
    loop="off_policy",
    actions=("Discrete",),
    family="search",
    paper="arXiv:1712.01815",
    traits=("rules",),
)
class AlphaZero(Algorithm):
    """Tree search with a learned prior and value, by self-play. For board games of known rules."""

    gives_extras = True
    plays_itself = True
    acting_settings = frozenset({"simulations", "c_puct"})

    class Hyperparameters(ReplaySettings):
        """Settings of AlphaZero."""

        lr: Schedule = Field(constant(2e-3), description="Learning rate or schedule.")
        gamma: float = Field(1.0, ge=0, le=1, description="What a move later takes off an outcome.")
        batch_size: int = Field(256, gt=0, description="Positions per gradient step.")
        buffer_size: int = Field(50_000, gt=0, description="Positions kept in the replay.")
        learning_starts: int = Field(1000, ge=0, description="Random moves before learning.")
        train_every: int = Field(128, gt=0, description="Moves per round of updates.")
        updates: int = Field(4, gt=0, description="Gradient steps per round.")
        simulations: int = Field(
            32, ge=0, description="Positions searched per move; 0 (to act): the network's best."
        )
        training_simulations: int | None = Field(
            None, gt=0, description="Positions searched per move of self-play; None: simulations."
        )
        c_puct: float = Field(1.5, gt=0, description="Weight of priors against values in searches.")
        noise_alpha: float = Field(1.0, gt=0, description="Dirichlet noise at the root.")
        noise_share: float = Field(0.25, ge=0, le=1, description="Share of the noise in priors.")
        sampled_moves: int = Field(
            8, ge=0, description="Moves at a game's start that are drawn by their visits."
        )
        temperature: float = Field(1.0, gt=0, description="Of these draws; lower is greedier.")
        random_moves: int = Field(
            0, ge=0, description="First moves of a game, each of them any legal one half the time."
        )
        value_coef: float = Field(1.0, ge=0, description="Weight of the value loss.")
        value_mix: float = Field(
            0.0, ge=0, le=1, description="Share of the search's value, beside the outcome, in z."
        )
        weight_decay: float = Field(1e-4, ge=0, description="Weight of the L2 penalty.")
        symmetries: bool = Field(True, description="Turn and mirror the boards to learn from.")
        hidden: tuple[int, ...] = Field((128, 128), description="Widths of the hidden layers.")
        blocks: int = Field(0, ge=0, description="Residual blocks; 0: an MLP.")
        channels: int = Field(32, gt=0, description="Channels of the residual blocks.")
        lines: bool = Field(
            False, description="Show the MLP lines of one side alone, and cells that complete one."
        )

        @classmethod
        def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
            """Return the start and the size of a replay that leave a short run time to learn."""
            size = min(max(problem.env_steps // 4, 10_000), 200_000)
            return {"buffer_size": size, "learning_starts": min(1000, problem.env_steps // 20)}

        def unused(self, spaces: Spaces) -> Unused:
            """Yield what belongs to bootstrapped returns, to blocks and to draws."""
            yield "n_step", "because a position learns how its game ended"
            if not self.blocks:
                yield "channels", "with blocks=0"
            else:
                yield "lines", f"with blocks={self.blocks}"
            if self.noise_share == 0:
                yield "noise_alpha", "with noise_share=0"
            if self.sampled_moves == 0:
                yield "temperature", "with sampled_moves=0"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        game = self.game = game_of(spaces.observation, self.spec.name)
        trained = hp.simulations if hp.training_simulations is None else hp.training_simulations
        if context.learns and not trained:
            raise ConfigError(
                "simulations=0 has nothing to learn from: the network would follow itself.",
                "Search at least a few positions per move.",
            )
        if not hp.hidden:
            raise ConfigError("hidden=() leaves the heads nothing to read.", "Give one width.")
        # z_t = sum_j (-gamma)^j r_{t+j}: the outcome for who was to move.
        self.needs = hp.needs(n_step=game.cells, gamma=-hp.gamma)
        network = BoardNetwork(game, hp.hidden, hp.blocks, hp.channels, hp.lines)
        self.network = network.to(self.device)
        self.step = self.make_step(
            [Objective("network", self.network, self._loss, Adam(max_grad_norm=hp.max_grad_norm))]
        )
        options = SearchOptions(
            hp.simulations, trained, hp.c_puct, hp.noise_alpha, hp.noise_share, hp.sampled_moves,
            hp.temperature, hp.random_moves,
        )  # fmt: skip
        self.policy = SearchPolicy(
            spaces, game, self.network, options, device=self.device, rng=self.rng
        )

    def update(self, data: Replay[Batch]) -> None:
        """Take one gradient step on positions of past games."""
        self.step(self._batch(data.sample(self.hp.batch_size)), self.hp.lr(self.clock.progress))

    def _batch(self, sample: Batch) -> dict[str, Tensor]:
        """Name a sample for the loss, with each position turned by a random symmetry."""
        game, rows = self.game, len(sample.reward)
        board = sample.obs[game.name].flatten(1)  # [B, cells]
        legal, pi = sample.obs[ACTION_MASK], sample.extras["visits"]  # [B, actions]
        z = torch.lerp(sample.reward, sample.extras["value"], self.hp.value_mix)  # [B]
        if self.hp.symmetries:
            cells, moves = game.symmetries  # [S, cells], [S, actions]
            turn = self.rng.integers(len(cells), size=rows)
            at, move = self.tensors(cells[turn]), self.tensors(moves[turn])
            board, legal, pi = board.gather(1, at), legal.gather(1, move), pi.gather(1, move)
        return {
            "board": board.view(-1, game.rows, game.columns), "legal": legal, "pi": pi,
            "z": z, "ended": sample.terminated,
        }  # fmt: skip

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        hp, pi, ended = self.hp, batch["pi"], batch["ended"]
        out = self.network({self.game.name: batch["board"]})
        v = out[:, -1]
        # A finite number, since 0 * -inf is not one.
        log_p = out[:, :-1].masked_fill(batch["legal"] == 0, -1e9).log_softmax(1)
        # l = (z - v)^2 - pi^T log p + c |theta|^2
        policy_loss = -(pi * log_p).sum(1).mean()
        value_loss = (ended * (batch["z"] - v).square()).sum() / ended.sum().clamp(min=1.0)
        penalty = sum((p.square().sum() for p in self.network.parameters()), torch.zeros_like(v[0]))
        loss = policy_loss + hp.value_coef * value_loss + hp.weight_decay * penalty
        entropy = -torch.special.xlogy(pi, pi).sum(1).mean()
        return loss, {
            "policy_loss": policy_loss, "value_loss": value_loss, "search_entropy": entropy,
            "value_mean": v.mean(),
        }  # fmt: skip
