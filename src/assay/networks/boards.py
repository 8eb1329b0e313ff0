"""A network that sees a board and says which moves promise what."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from assay.core.types import Tree
from assay.functional.boards import BoardGame


class BoardNetwork(nn.Module):
    """Logits of moves and the value of a board for who is to move, [B, actions + 1].

    The board goes in as two planes, one for each side. With blocks it is read by convolutions of
    3 x 3 with residual connections, without them by an MLP. With `lines` the MLP also sees which
    lines hold 1, 2, ... pieces of one side and none of the other, and which empty cells would
    complete a line of each side. The value is a tanh.

    Args:
        game: What is played.
        hidden: Widths of the hidden layers; behind blocks there is one, of the last width.
        blocks: Residual blocks; 0 is an MLP.
        channels: Of the blocks.
        lines: Whether it sees lines, where there are no blocks.
    """

    lines: Tensor

    def __init__(
        self,
        game: BoardGame,
        hidden: Sequence[int],
        blocks: int = 0,
        channels: int = 32,
        lines: bool = False,
    ) -> None:
        super().__init__()
        self.game = game
        self.shape = game.rows, game.columns
        self.stem: nn.Module | None = None
        width = 2 * game.cells
        self.sees_lines = lines and not blocks
        if self.sees_lines:
            self.register_buffer("lines", torch.from_numpy(game.within), persistent=False)
            width += 2 * (game.in_row - 1) * len(game.lines) + 2 * game.cells
        if blocks:
            self.stem = nn.Conv2d(2, channels, 3, padding=1)
            self.blocks = nn.ModuleList(_Residual(channels) for _ in range(blocks))
            self.squeeze = nn.Conv2d(channels, 8, 1)  # what the heads read of every cell
            width, hidden = 8 * game.cells, hidden[-1:]
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [nn.Linear(width, size), nn.ReLU()]
            width = size
        self.layers = nn.Sequential(*layers)
        self.policy = nn.Linear(width, game.actions)
        self.value = nn.Linear(width, 1)
        for head in (self.policy, self.value):  # begins without an opinion
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)

    def forward(self, obs: Tree) -> Tensor:
        """Return logits and value, [B, actions + 1]."""
        board = obs[self.game.name]
        x = torch.stack([(board > 0).float(), (board < 0).float()], 1)  # [B, 2, rows, columns]
        if self.stem is not None:
            x = F.relu(self.stem(x))
            for block in self.blocks:
                x = block(x)
            x = F.relu(self.squeeze(x))
        seen = x.flatten(1)
        if self.sees_lines:
            seen = torch.cat([seen, *self._line_features(board.flatten(1).float())], 1)
        x = self.layers(seen)
        return torch.cat([self.policy(x), torch.tanh(self.value(x))], 1)

    def _line_features(self, board: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 where a line holds k pieces of one side alone, and where a piece completes one.

        [B, 2 (in_row - 1) lines] for 1, 2, ... own pieces and then the other's, and [B, 2 cells].
        """
        last = self.game.in_row - 1
        sums, pieces = board @ self.lines, board.abs() @ self.lines  # [B, lines]
        alone = torch.where(sums.abs() == pieces, sums, 0.0)
        counts = torch.tensor([*range(1, last + 1), *range(-1, -last - 1, -1)], device=board.device)
        found = (alone[:, None] == counts[:, None]).float()  # [B, 2 last, lines]
        lacking = found[:, [last - 1, 2 * last - 1]]  # one piece
        cells = (lacking @ self.lines.T > 0) & (board == 0)[:, None]  # [B, 2, cells]
        return found.flatten(1), cells.flatten(1).float()


class _Residual(nn.Module):
    """x + conv(relu(conv(x))), which begins as x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.second.weight)
        assert self.second.bias is not None
        nn.init.zeros_(self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.second(F.relu(self.first(x))))
