"""How segments of many clients become rollouts for on-policy algorithms with a memory.

A client begins every episode with an empty memory and acts through it with one model. So what it
remembers at any step follows from the observations of its episode. Here each client's steps get a
column of their own, which begins with what the policy remembers of the steps before: nothing at an
episode's beginning, else what was left when the client's last column ended. Where steps before are
missing, nobody knows what the client remembered, and what follows stays out of the policy gradient
until its next episode.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm
from assay.buffers.rollout import Rollout
from assay.core.types import State, Tree, action_mask, tree_map
from assay.functional.recurrent import by_step, chunks_of
from assay.server.learner.feed import remember
from assay.server.learner.imitation import MINIBATCH, Imitation
from assay.server.learner.rollout_feed import Piece, RolloutFeed

Array = np.ndarray[Any, Any]


class SequenceFeed(RolloutFeed):
    """Steps for an on-policy algorithm with a memory."""

    def __init__(self, algorithm: Algorithm, max_lag: int | None, *, imitate: bool) -> None:
        super().__init__(algorithm, max_lag, imitate=imitate)
        self.chunk: int = algorithm.hp.chunk
        self._columns: Rollout | None = None
        # What the policy remembers of clients whose episodes go on, and before which step.
        self._memories: dict[str, tuple[tuple[int, int, int], Tree]] = {}

    def _actor(self) -> list[nn.Parameter]:
        net = self.policy.net
        return [p for part in (net.encoder, net.memory, net.head) for p in part.parameters()]

    def _prepared(self) -> Rollout:
        runs = self._runs()
        self._columns = data = self.rollout.side_by_side([run[0].begin for run in runs], self.chunk)
        memories = [self._memory_before(run[0]) for run in runs]
        for column, memory in enumerate(memories):
            if memory is None:
                over = np.flatnonzero((data.terminated | data.truncated)[:, column])
                data.extras["policy_weight"][: over[0] + 1, column] = 0.0
        known = [self._empty() if memory is None else memory for memory in memories]
        data.initial_carry = tree_map(lambda *rows: np.concatenate(rows), *known)
        params, carries, _ = self._walk(data)
        if data.finals is not None:
            data.finals.carry = carries
        self._neutralise(data, lambda: params)
        self._keep(data, runs)
        return data

    def _runs(self) -> list[list[Piece]]:
        """Return the pieces that follow one another without a gap, client by client."""
        runs = [[self.pieces[0]]]
        for one, other in itertools.pairwise(self.pieces):
            if one.client == other.client and one.after == other.first:
                runs[-1].append(other)
            else:
                runs.append([other])
        return runs

    def _memory_before(self, piece: Piece) -> Tree:
        """Return the carry [1, ...] before a piece, or None where nobody knows it."""
        if piece.first[-1] == 0:
            return self._empty()
        place, carry = self._memories.get(piece.client, (None, None))
        return carry if place == piece.first else None

    def _empty(self, count: int = 1) -> Tree:
        return self.algorithm.initial_carry(count)

    def _walk(self, data: Rollout) -> tuple[Tensor, Tree, Tree]:
        """Let the policy see the columns step by step, as it does while acting.

        Returns:
            Its parameters [T * N, P], the carries after truncated steps in the order of the
            rollout's finals, and those before every chunk.
        """
        obs = self.algorithm.normalized(data.obs)
        over = data.terminated | data.truncated
        finals, empty, carry = data.finals, self._empty(data.num_envs), data.initial_carry
        count = 0 if finals is None else len(finals.step)
        after_finals = self._empty(count)
        params, starts = [], []
        for t in range(data.length):
            if t % self.chunk == 0:
                starts.append(carry)
            given, after = self.policy.advance(tree_map(lambda x, t=t: x[t], obs), carry)
            params.append(np.array(given))  # its memory is used again
            if finals is not None:
                these = np.flatnonzero(finals.step == t)
                envs = finals.env[these]
                for name, kept in after_finals.items():
                    kept[these] = after[name][envs]
            carry = {
                name: np.where(over[t].reshape(-1, *[1] * (new.ndim - 1)), empty[name], new)
                for name, new in after.items()
            }
        before = tree_map(lambda *rows: np.concatenate(rows), *starts)
        device = self.algorithm.device
        return torch.from_numpy(np.concatenate(params)).to(device), after_finals, before

    def _keep(self, data: Rollout, runs: list[list[Piece]]) -> None:
        """Note what is remembered of clients whose episodes go on after this rollout."""
        for column, run in enumerate(runs):
            last = run[-1]
            self._memories.pop(last.client, None)
            if last.ends[-1]:
                continue
            finals = data.finals
            assert finals is not None  # the rollout cut the episode here
            row = last.end - 1 - run[0].begin
            [k] = np.flatnonzero((finals.step == row) & (finals.env == column))
            carry = tree_map(lambda x, k=k: x[k : k + 1].copy(), finals.carry)
            remember(self._memories, last.client, (last.after, carry))

    def _clone(self, imitation: Imitation, heuristic: Array) -> None:
        data, net = self._columns, self.policy.net
        assert data is not None
        acted = np.zeros(data.valid.shape, np.float32)
        acted.T[data.valid.T] = heuristic
        first = np.zeros_like(acted)
        first[1:] = (data.terminated | data.truncated | ~data.valid)[:-1]
        carries = self.policy.tensors(self._walk(data)[2])
        rows = {"first": first, "acted": acted, "action": data.action}
        device = self.algorithm.device
        cut = {k: chunks_of(torch.from_numpy(v).to(device), self.chunk) for k, v in rows.items()}
        seen = tree_map(
            lambda x: chunks_of(x, self.chunk),
            self.policy.tensors(self.algorithm.normalized(data.obs)),
        )
        examples = torch.nonzero(cut["acted"].any(1)).squeeze(1)

        def loss(index: Tensor) -> Tensor:
            these = examples[index]
            obs = tree_map(lambda x: by_step(x[these]), seen)
            carry = tree_map(lambda x: x[these], carries)
            y, _ = net.remember(obs, carry, cut["first"][these].transpose(0, 1))
            params = net.head(y.flatten(0, 1))
            action, weight = (by_step(cut[name][these]) for name in ("action", "acted"))
            log_prob = self.distribution.log_prob(params, action, action_mask(obs))
            mean: Tensor = -(log_prob * weight).sum() / weight.sum()
            return mean

        size = max(1, MINIBATCH // self.chunk)
        imitation.update(loss, len(examples), share=float(heuristic.mean()), size=size)

    def state(self) -> State:
        """Return everything that later updates depend on, what is remembered included."""
        memories = [
            {"client": client, "place": list(place), "carry": carry}
            for client, (place, carry) in self._memories.items()
        ]
        return super().state() | {"memories": memories}

    def load_state(self, state: State) -> None:
        """Put back what `state` returned."""
        super().load_state(state)
        self._memories = {
            one["client"]: (tuple(one["place"]), one["carry"]) for one in state["memories"]
        }
