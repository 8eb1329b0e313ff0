"""How segments of many clients become rollouts for on-policy algorithms with a memory.

A client begins every episode with an empty memory. While one model acts, what it remembers follows
from the observations of the episode. So the learner walks through them again with the policy as it
is now; an episode that goes on from one rollout to the next begins there with what was left.

Where steps of an episode are missing, or where not one model alone acted (a first model that came
in mid-episode, a fallback for a while), nobody knows what the client remembered. What follows stays
out of the policy gradient until the client's next episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, RolloutNeeds
from assay.buffers.allocation import Spec
from assay.buffers.rollout import Finals, Rollout, Runs
from assay.core.types import State, Tree, action_mask, tree_map
from assay.functional import losses
from assay.functional.recurrent import by_step, chunks_of
from assay.networks.rnn import Remembering
from assay.server.learner.rollout_feed import MINIBATCH, Imitation, Piece, RolloutFeed
from assay.server.learner.segments import remember

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of an episode that goes on."""

    place: tuple[int, int, int]  # session, episode and step that come next
    version: int  # the model that acts
    carry: Tree  # [1, ...]


class SequenceFeed(RolloutFeed):
    """Steps for an on-policy algorithm with a memory."""

    def __init__(self, algorithm: Algorithm, max_lag: int | None, *, imitate: bool) -> None:
        super().__init__(algorithm, max_lag, imitate=imitate)
        needs, network = algorithm.needs, algorithm.policy.network
        assert isinstance(needs, RolloutNeeds) and isinstance(network, Remembering)
        self.chunk = needs.chunk
        self.network = network
        self._padded: Rollout | None = None
        self._memories: dict[str, Memory] = {}

    def _actor(self) -> list[nn.Parameter]:
        network = self.policy.network
        assert isinstance(network, Remembering)
        return [parameter for part in network.parts for parameter in part.parameters()]

    def _prepared(self) -> Rollout:
        runs = self._runs()
        begins = [run[0].begin for run in runs]
        self._padded = data = pad_runs_to_multiple(self.rollout, begins, self.chunk)
        rows = np.flatnonzero(data.valid[:, 0])  # where the rows of the rollout are now
        before = [self._memory_before(run[0]) for run in runs]
        empty = self.algorithm.initial_carry(1)
        carries = [empty if memory is None else memory.carry for memory in before]
        data.runs.carry = tree_map(lambda *parts: np.concatenate(parts), *carries)
        params, after, _ = self._walk(data)
        if data.finals is not None:
            data.finals.carry = after
        for run, memory in zip(runs, before, strict=True):
            self._judge(data, rows, run, memory)
        self._neutralise(data, lambda: params)
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

    def _memory_before(self, piece: Piece) -> Memory | None:
        """Return what is remembered before a piece, or None where an episode begins or is new."""
        memory = self._memories.pop(piece.client, None)
        return memory if memory is not None and memory.place == piece.first else None

    def _judge(self, data: Rollout, rows: Array, run: list[Piece], before: Memory | None) -> None:
        """Leave steps out of the policy gradient whose memory is unknown; keep what goes on.

        Args:
            data: With gaps.
            rows: [T] where the rows of the rollout are in it.
            run: Consecutive pieces of one client.
            before: What was remembered before them.
        """
        known = before is not None or run[0].first[-1] == 0
        version = None if before is None else before.version
        weight = data.policy_weight
        place = run[0].begin
        for piece in run:
            for acted, ends in zip(piece.version.tolist(), piece.ends.tolist(), strict=True):
                version = acted if version is None else version
                known = known and acted == version
                if not known:
                    weight[rows[place], 0] = 0.0
                if ends:
                    known, version = True, None
                place += 1
        if known and version is not None:
            finals = data.finals
            assert finals is not None  # the rollout cut the episode here
            [k] = np.flatnonzero(finals.step == rows[place - 1])
            carry = tree_map(lambda x: x[k : k + 1].copy(), finals.carry)
            remember(self._memories, run[-1].client, Memory(run[-1].after, version, carry))

    def _walk(self, data: Rollout) -> tuple[Tensor, Tree, Tree]:
        """Let the policy see the steps one by one, as it does while acting.

        Returns:
            Its parameters [T, P], the carries after truncated steps in the order of the rollout's
            finals, and those before every chunk.
        """
        over = (data.terminated | data.truncated)[:, 0]
        finals, initial = data.finals, self.algorithm.initial_carry
        empty, carry = initial(1), initial(1)
        after_finals: Tree = initial(0 if finals is None else len(finals.step))
        final_of = {} if finals is None else {int(t): k for k, t in enumerate(finals.step)}
        params: Array | None = None
        starts = []
        for t in range(data.length):
            if t % self.chunk == 0:
                if (begun := data.runs.beginning_at(t)) is not None:
                    carry = begun[1]  # there is one column
                starts.append(carry)
            if not data.valid[t, 0]:
                continue
            given, carry = self.policy.advance(tree_map(lambda x, t=t: x[t], data.obs), carry)
            if params is None:
                params = np.zeros((data.length, given.shape[1]), given.dtype)
            params[t] = given[0]
            if t in final_of:
                for name, kept in after_finals.items():
                    kept[final_of[t]] = carry[name][0]
            if over[t]:
                carry = empty
        before = tree_map(lambda *parts: np.concatenate(parts), *starts)
        return torch.from_numpy(params).to(self.algorithm.device), after_finals, before

    def _clone(self, imitation: Imitation, heuristic: Array) -> None:
        data, net, device = self._padded, self.network, self.algorithm.device
        assert data is not None
        acted = np.zeros(data.valid.shape, np.float32)
        acted[data.valid] = heuristic
        carries = self.algorithm.tensors(self._walk(data)[2])
        rows = {"first": data.restarts(), "acted": acted, "action": data.action}
        cut = {k: chunks_of(torch.from_numpy(v).to(device), self.chunk) for k, v in rows.items()}
        seen = tree_map(lambda x: chunks_of(x, self.chunk), self.algorithm.inputs(data.obs))
        examples = torch.nonzero(cut["acted"].any(1)).squeeze(1)

        def loss(index: Tensor) -> Tensor:
            these = examples[index]
            obs = tree_map(lambda x: by_step(x[these]), seen)
            carry = tree_map(lambda x: x[these], carries)
            y, _ = net.remember(obs, carry, cut["first"][these].transpose(0, 1))
            action, weight = (by_step(cut[name][these]) for name in ("action", "acted"))
            log_prob = self.distribution.log_prob(
                net.head(y.flatten(0, 1)), action, action_mask(obs)
            )
            return -losses.weighted_mean(log_prob, weight)

        size = max(1, MINIBATCH // self.chunk)
        imitation.update(loss, len(examples), share=float(heuristic.mean()), size=size)

    def _learn(self) -> None:
        super()._learn()
        self._padded = None

    def state(self) -> State:
        """Return everything that later updates depend on, what is remembered included."""
        memories = [
            {
                "client": client, "place": list(memory.place), "version": memory.version,
                "carry": memory.carry,
            }
            for client, memory in self._memories.items()
        ]  # fmt: skip
        return super().state() | {"memories": memories}

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        self._memories = {
            one["client"]: Memory(tuple(one["place"]), int(one["version"]), one["carry"])
            for one in state["memories"]
        }


def pad_runs_to_multiple(rollout: Rollout, begins: Sequence[int], multiple: int) -> Rollout:
    """Return a copy of a rollout of one column in which every run begins at a multiple.

    Rows in between are not valid. What lies before them must end an episode, or be truncated.

    Args:
        rollout: What is copied.
        begins: The first row of every run, ascending from 0.
        multiple: Where runs may begin; the length of the result is a multiple as well.
    """
    counts = np.diff([*begins, rollout.length])
    rounded = -(-counts // multiple) * multiple
    # A row moves by all the padding before it.
    padding = np.cumsum(rounded - counts) - (rounded - counts)
    moved = np.arange(rollout.length) + np.repeat(padding, counts)
    extras = {k: Spec(array.shape[2:], array.dtype) for k, array in rollout.extras.items()}
    wide = Rollout(rollout.spaces, int(rounded.sum()), 1, extras)

    def put(to: Array, array: Array) -> None:
        to[moved] = array

    tree_map(put, wide.columns, rollout.columns)
    wide.runs = Runs(moved[list(begins)], np.zeros_like(counts), counts)
    finals = rollout.finals
    if finals is not None:
        obs, carry = (tree_map(np.copy, tree) for tree in (finals.obs, finals.carry))
        wide.finals = Finals(moved[finals.step], finals.env.copy(), obs, carry)
    wide.last_obs = tree_map(np.copy, rollout.last_obs)
    return wide
