"""How segments of many clients become rollouts, for on-policy algorithms.

Steps are laid one below the other into a rollout of one column, each client's together, so that a
return runs on from batch to batch. Where a client's steps end and its episode goes on, the row is
marked as truncated, with what followed as its final observation. So there is no padding, and no
row's return reaches into another client's steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, RolloutNeeds
from assay.buffers.allocation import Spec, space_spec
from assay.buffers.rollout import Finals, Rollout
from assay.core.types import State, Tree, action_mask, tree_leaves, tree_map
from assay.functional.distributions import policy_distribution
from assay.networks.state_dict import to_array
from assay.server.client.shield import Flag
from assay.server.learner.feed import Feed
from assay.server.learner.segments import Steps, runs_of

Array = np.ndarray[Any, Any]

# Of the cloning of a heuristic.
LEARNING_RATE = 1e-3
EPOCHS = 10
MINIBATCH = 64
# The columns of a rollout that a checkpoint has.
_COLUMNS = ("obs", "action", "reward", "terminated", "truncated", "policy_weight", "extras")


@dataclass(slots=True)
class Piece:
    """Rows of the rollout that came from one client in one batch."""

    client: str
    begin: int
    end: int
    first: tuple[int, int, int]  # session and episode of the first row, and its step within it
    after: tuple[int, int, int]  # the same of the step that follows the last row
    ends: Array  # [rows] whether an episode ended there, not only its segment
    version: Array  # [rows] of the model that chose; 0 where none did
    event: Array | None


class RolloutFeed(Feed):
    """Steps for an on-policy algorithm: one update for every full rollout."""

    def __init__(self, algorithm: Algorithm, max_lag: int | None, *, imitate: bool) -> None:
        super().__init__(algorithm, max_lag)
        needs = algorithm.needs
        assert isinstance(needs, RolloutNeeds)
        self.policy = algorithm.policy
        self.distribution = policy_distribution(algorithm.spaces.action)
        self.imitation = Imitation(algorithm, self._actor()) if imitate else None
        self.length = needs.horizon
        self._boxed = isinstance(algorithm.spaces.action, gym.spaces.Box)
        extras = {"log_prob": Spec((), np.dtype(np.float32))}
        if self._boxed:
            action: Spec = space_spec(algorithm.spaces.action)
            extras["raw_action"] = Spec(action.shape, np.dtype(np.float32))
        self.rollout = Rollout(algorithm.spaces, self.length, 1, extras)
        self.flags = np.zeros(self.length, np.uint8)
        self.filled = 0
        self.pieces: list[Piece] = []

    def _actor(self) -> list[nn.Parameter]:
        """Return what the heuristic is cloned into: the policy without the critic's head."""
        return list(self.policy.network.parameters())

    def take(self, position: int, steps: Steps) -> None:
        """Lay steps into the rollout; learn whenever it is full."""
        self._notice_restart(steps)
        for begin, end in runs_of(self._fresh(steps, self.version)):
            while begin < end:
                rows = min(end - begin, self.length - self.filled)
                self._lay(steps, begin, begin + rows)
                begin += rows
                if self.filled == self.length:
                    self._learn()

    @property
    def due(self) -> bool:
        """Return whether something was learned."""
        return self.updates > 0

    def replay_from(self, position: int) -> int:
        """Return the position itself: what waits is in the checkpoint."""
        return position

    def refill(self, position: int, steps: Steps) -> None:
        """Do nothing: no data is used twice."""

    def _lay(self, steps: Steps, begin: int, end: int) -> None:
        rollout, t = self.rollout, self.filled
        rows, cut = slice(t, t + end - begin), slice(begin, end)
        taken = (slice(begin, end), None)  # [L, 1, ...]
        tree_map(lambda to, array: np.copyto(to[rows], array[taken]), rollout.obs, steps.obs)
        rollout.action[rows] = steps.action[taken]
        rollout.reward[rows] = steps.reward[taken]
        rollout.terminated[rows] = steps.terminated[taken]
        truncated = steps.truncated[cut].copy()
        ends = steps.terminated[cut] | truncated
        if not ends[-1]:  # the segment, the rollout or what is fresh ends here
            truncated[-1] = True
        rollout.truncated[rows, 0] = truncated
        rollout.valid[rows] = True
        for row in np.flatnonzero(truncated).tolist():
            rollout.add_final(t + row, 0, steps.next_obs(begin + row))
        sampled = (steps.flags[cut] == 0) & (steps.version[cut] > 0)
        if self._boxed:
            # A client that never explores (explore: false) states 0, which is not a density.
            sampled &= steps.log_prob[cut] != 0.0
        extras = rollout.extras
        extras["log_prob"][rows] = steps.log_prob[taken]
        rollout.policy_weight[rows, 0] = sampled
        if self._boxed:
            # What was not sampled has no action before clipping, only the one that was done.
            executed = sampled.reshape(-1, *[1] * (steps.action.ndim - 1))
            extras["raw_action"][rows, 0] = np.where(executed, steps.raw[cut], steps.action[cut])
        self.flags[rows] = steps.flags[cut]
        event = None if steps.event is None else steps.event[cut]
        first, after = steps.place(begin), steps.place(end)
        self.pieces.append(
            Piece(steps.client, t, rows.stop, first, after, ends, steps.version[cut], event)
        )
        self.filled = rows.stop

    def _join(self) -> None:
        """Lay each client's pieces together, and take back the cuts between them."""
        by_client: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            by_client.setdefault(piece.client, []).append(piece)
        self.pieces = [piece for pieces in by_client.values() for piece in pieces]
        order = np.concatenate([np.arange(piece.begin, piece.end) for piece in self.pieces])
        begin = 0
        for piece in self.pieces:
            piece.begin, piece.end, begin = begin, begin + len(piece.ends), begin + len(piece.ends)
        joined = [
            one.end - 1
            for one, other in itertools.pairwise(self.pieces)
            if one.client == other.client and one.after == other.first and not one.ends[-1]
        ]
        self.flags = self.flags[order]
        reorder(self.rollout, order, uncut=np.array(joined, np.int64))

    def _learn(self) -> None:
        rollout, algorithm = self.rollout, self.algorithm
        self._join()
        finals = rollout.finals
        last_row = tree_map(lambda array: array[-1], rollout.obs)
        if finals is not None and finals.step[-1] == self.length - 1:
            last_row = tree_map(lambda array: array[-1:], finals.obs)
        rollout.last_obs = last_row
        for piece in self.pieces:
            rows = slice(piece.begin, piece.end)
            begins = piece.first[-1] == 0
            self._observe_rewards(piece.client, begins, rollout.reward[rows, 0], piece.ends)
        self._update(self._prepared())
        algorithm.update_obs_stats(rollout.obs, rollout.valid)
        self.clock.env_steps += self.length  # last, as in the local loops
        heuristic = self.flags & Flag.HEURISTIC != 0
        if self.imitation is not None and heuristic.any():
            self._clone(self.imitation, heuristic)
        rollout.reset()
        self.filled = 0
        self.pieces.clear()
        self.updates += 1

    def _prepared(self) -> Rollout:
        """Return the full rollout as the algorithm wants it."""
        self._neutralise(self.rollout, self._params)
        return self.rollout

    def _params(self) -> Tensor:
        """Return the parameters [T, ...] that the policy gives as it is now."""
        obs: Tree = tree_map(lambda array: array[:, 0], self.rollout.obs)
        found: Tensor = self.policy.network(self.algorithm.inputs(obs))
        return found

    def _clone(self, imitation: Imitation, heuristic: Array) -> None:
        """Learn to do what the heuristic did, at the steps [T] where it acted."""
        obs = tree_map(lambda array: array[heuristic, 0], self.rollout.obs)
        tensors = self.algorithm.inputs(obs)
        action = torch.from_numpy(self.rollout.action[heuristic, 0]).to(self.algorithm.device)

        def loss(index: Tensor) -> Tensor:
            some = tree_map(lambda x: x[index], tensors)
            params = self.policy.network(some)
            log_prob: Tensor = self.distribution.log_prob(params, action[index], action_mask(some))
            return -log_prob.mean()

        imitation.update(loss, len(action), share=float(heuristic.mean()))

    def _neutralise(self, data: Rollout, params: Callable[[], Tensor]) -> None:
        """Give steps that the policy did not sample the ratio 1; their weight is 0 already.

        Args:
            data: Steps [T, N].
            params: Returns the policy's parameters [T * N, ...], step by step.
        """
        outside = data.policy_weight == 0
        if not outside.any():
            return
        action = data.extras.get("raw_action", data.action)
        with torch.no_grad():
            found = params()
            values = torch.from_numpy(action.reshape(-1, *action.shape[2:])).to(found.device)
            allowed, mask = action_mask(data.obs), None
            if allowed is not None:
                mask = torch.from_numpy(allowed.reshape(-1, *allowed.shape[2:])).to(found.device)
            log_prob = self.distribution.log_prob(found, values, mask).cpu().numpy()
        data.extras["log_prob"][outside] = log_prob.reshape(outside.shape)[outside]

    def _received(self) -> list[Piece]:
        return self.pieces

    def _add_reward(self, batch: Piece, row: int, reward: float) -> bool:
        self.rollout.reward[batch.begin + row, 0] += reward
        return True

    def state(self) -> State:
        """Return everything that later updates depend on, the steps that wait included."""
        rollout, filled = self.rollout, self.filled

        def waiting(array: Array) -> Array:
            return array[:filled].copy()

        finals = rollout.finals
        state = super().state() | {
            **{name: tree_map(waiting, rollout.columns[name]) for name in _COLUMNS},
            "flags": waiting(self.flags),
            "finals": None if finals is None else {"step": finals.step, "obs": finals.obs},
            "pieces": [
                asdict(piece) | {"first": list(piece.first), "after": list(piece.after)}
                for piece in self.pieces
            ],
        }
        if self.imitation is not None:
            state["imitation"] = self.imitation.state()
        return state

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        super().load_state(state)
        rollout = self.rollout
        rollout.reset()
        self.filled = filled = len(state["flags"])

        def put(to: Array, array: Array) -> None:
            to[:filled] = array

        for name in _COLUMNS:
            tree_map(put, rollout.columns[name], state[name])
        put(self.flags, state["flags"])
        rollout.valid[:filled] = True
        if state["finals"] is not None:
            obs = state["finals"]["obs"]
            for k, step in enumerate(state["finals"]["step"].tolist()):
                rollout.add_final(step, 0, tree_map(lambda array, k=k: array[k], obs))
        self.pieces = [
            Piece(**piece | {key: tuple(piece[key]) for key in ("first", "after")})
            for piece in state["pieces"]
        ]
        if self.imitation is not None and "imitation" in state:
            self.imitation.load_state(state["imitation"])


def reorder(rollout: Rollout, order: Array, uncut: Array) -> None:
    """Put the steps of a rollout of one column into another order.

    Args:
        rollout: What is changed in place.
        order: [T] the row that comes first, second, ...
        uncut: [K] rows, in the new order, that are no longer truncated: the next row follows.
    """
    for array in tree_leaves(rollout.columns):
        array[:] = array[order]
    rollout.truncated[uncut, 0] = False
    finals = rollout.finals
    if finals is None:
        return
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    step = place[finals.step]
    kept = np.argsort(step)
    kept = kept[~np.isin(step[kept], uncut)]
    rollout.finals = None
    if len(kept):
        obs, carry = (
            tree_map(lambda array: array[kept], tree) for tree in (finals.obs, finals.carry)
        )
        rollout.finals = Finals(step[kept], finals.env[kept], obs, carry)


class Imitation:
    """Clones a heuristic: while it acts for a client, the policy learns to do what it does.

    The policy gradient leaves these steps out, since the policy did not choose them. Behaviour
    cloning with an optimizer of its own takes their place, the less the smaller the heuristic's
    share is, and is silent once the policy acts alone.

    Args:
        algorithm: Whose policy learns.
        parameters: Of the policy. What a critic shares with it moves along.
    """

    def __init__(self, algorithm: Algorithm, parameters: list[nn.Parameter]) -> None:
        self.algorithm = algorithm
        self.parameters = parameters
        self.optimizer = torch.optim.Adam(parameters, LEARNING_RATE)

    def update(
        self, loss_of: Callable[[Tensor], Tensor], count: int, share: float, size: int = MINIBATCH
    ) -> None:
        """Take some epochs over what the heuristic did.

        Args:
            loss_of: Returns -E[log pi(a|s)] over examples [K], a of the heuristic.
            count: Of the examples; at least one.
            share: Of the heuristic in all steps of the rollout; scales the learning rate.
            size: Examples per minibatch.
        """
        self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * share
        loss = torch.zeros(())
        for _ in range(EPOCHS):
            order = torch.from_numpy(self.algorithm.rng.permutation(count))
            for index in torch.split(order.to(self.algorithm.device), size):
                loss = loss_of(index)
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
        self.optimizer.zero_grad()
        self.algorithm.note(imitation_loss=float(loss.detach()), imitation_share=share)

    def state(self) -> State:
        """Return the optimizer's moments."""
        return {
            str(i): {name: to_array(value) for name, value in self.optimizer.state[p].items()}
            for i, p in enumerate(self.parameters)
            if p in self.optimizer.state
        }

    def load_state(self, state: State) -> None:
        """Restore what `state` returned."""
        for i, parameter in enumerate(self.parameters):
            for name, value in state.get(str(i), {}).items():
                self.optimizer.state[parameter][name] = torch.as_tensor(np.array(value)).to(
                    "cpu" if name == "step" else parameter.device
                )
