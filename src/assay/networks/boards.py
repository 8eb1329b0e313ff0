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
    lines hold 1, 2, ... pieces of one side and none of the other. The value is a tanh.

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
            within = torch.zeros(game.cells, len(game.lines))  # which cell is in which line
            for line, cells in enumerate(game.lines):
                within[torch.from_numpy(cells), line] = 1.0
            self.register_buffer("lines", within, persistent=False)
            width += 2 * (game.in_row - 1) * len(game.lines)
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
            seen = torch.cat([seen, self._line_features(x.flatten(2))], 1)
        x = self.layers(seen)
        return torch.cat([self.policy(x), torch.tanh(self.value(x))], 1)

    def _line_features(self, sides: Tensor) -> Tensor:
        """Return 1 where a line holds k pieces of one side alone, [B, 2 (in_row - 1) lines]."""
        own, other = (sides @ self.lines).unbind(1)  # [B, lines] pieces of each side
        free = (other == 0).float(), (own == 0).float()
        counts = range(1, self.game.in_row)
        found = [(own == k).float() * free[0] for k in counts]
        found += [(other == k).float() * free[1] for k in counts]
        return torch.cat(found, 1)


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
