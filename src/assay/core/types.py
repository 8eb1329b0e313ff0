"""The few containers that every layer passes around.

Arrays are NumPy arrays or torch tensors; this module imports neither torch nor gymnasium at run
time. An observation is one array or a flat `dict[str, array]` (nested Dict and Tuple spaces are
flattened by `assay.envs`), always with a leading batch axis. Where an environment offers action
masks, they are the entry `ACTION_MASK` of the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Array = Any  # np.ndarray or torch.Tensor
Tree = Any  # an Array, or a (nested) dict of Arrays; None where there is nothing
Metrics = dict[str, float]
State = dict[str, Any]  # nested dict of np.ndarray and JSON-able values: what a checkpoint holds

# Whether states end an episode: observations [B, ...] as NumPy arrays -> bools [B].
Termination = Callable[[Any], Any]

Unit = Literal["env_steps", "updates"]  # what the budget of a run is counted in

ACTION_MASK = "action_mask"

# Entries of the joint observation of several agents; `ACTION_MASK` is there as well if needed.
AGENT_OBS = "obs"  # [A, ...] what each agent sees, padded with zeros to a common width
ALIVE = "alive"  # [A] 1 where an agent acts on this observation
STATE = "state"  # [S] the state of the whole, where the environment tells it

# What a step did to each agent, [N, A]: extras of everything that is collected from a team.
AGENT_REWARD = "agent_reward"
AGENT_TERMINATED = "agent_terminated"
AGENT_TRUNCATED = "agent_truncated"

# What an agent that acts by options says of its steps, as extras.
OPTION = "option"  # [N, K] 1 at the option that acted
ARRIVED = "arrived"  # [N, K] the one that had acted before; zeros where an episode begins
DRAWN = "drawn"  # [N] 1 where an option was chosen, 0 where one went on


@dataclass(frozen=True, slots=True)
class Team:
    """The agents of an environment that has several, in a fixed order.

    Attributes:
        agents: Their names.
        types: The type of each: agents of one type are alike.
        observations: What each sees, by itself: a Box of one axis, or an image.
        actions: What each can do, by itself: Discrete, or a Box of one axis.
        state: Whether observations have an entry `STATE`.
        masks: Whether actions that an agent has may be forbidden. `ACTION_MASK` is also there where
            agents have unequal numbers of actions.
    """

    agents: tuple[str, ...]
    types: tuple[str, ...]
    observations: tuple[Any, ...]
    actions: tuple[Any, ...]
    state: bool = False
    masks: bool = False

    @property
    def size(self) -> int:
        """Return A, the number of agents."""
        return len(self.agents)


@dataclass(frozen=True, slots=True)
class Spaces:
    """The observation and action space of one agent, without the batch axis.

    Of several agents they are the joint ones: a Dict of `AGENT_OBS`, `ALIVE`, `ACTION_MASK` and
    `STATE`, and a MultiDiscrete [A] or a Box [A * d]. `team` then says who they are.
    """

    observation: Any
    action: Any
    team: Team | None = None


class Sight(NamedTuple):
    """What a look at an environment tells.

    Attributes:
        spaces: What the agent sees and does.
        episode_steps: The time limit of episodes, if it is known.
    """

    spaces: Spaces
    episode_steps: int | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is known of a task before its first step: what defaults are chosen by.

    Attributes:
        spaces: What the agent sees and does.
        env_steps: The budget.
        episode_steps: The time limit of episodes, if it is known.
    """

    spaces: Spaces
    env_steps: int
    episode_steps: int | None = None


@dataclass(slots=True)
class Action:
    """What `Algorithm.act` returns for a batch of N observations.

    Attributes:
        action: [N, ...] in the environment's own units.
        carry: Recurrent or latent state after this step (leading axis N), or None.
        extras: What the update will need again: `log_prob` [N], `value` [N], ...
    """

    action: Array
    carry: Tree = None
    extras: dict[str, Array] = field(default_factory=dict)


class Collected(NamedTuple):
    """What environments gave: [N, ...] of one step, [T, N, ...] of a rollout.

    Attributes:
        obs: What was acted on.
        reward: What followed.
        done: Whether the episode was over, terminated or truncated.
        valid: False for rows that are not transitions; None if all of them are.
        env_steps: How many transitions these are.
    """

    obs: Tree
    reward: Array
    done: Array
    valid: Array | None
    env_steps: int


@dataclass(slots=True)
class Transition:
    """One step of each of N environments, as a replay records it.

    Attributes:
        obs: [N, ...] or a flat dict of such.
        action: [N, ...], as executed.
        reward: [N].
        next_obs: What followed, with the true final observation at an episode's end.
        terminated: [N] the episode ended in a terminal state.
        truncated: [N] the episode was cut short.
        valid: [N] False for rows that are not a transition, such as the one after an episode's end
            under next-step autoreset; they are not recorded. None: all of them are.
        extras: Further [N, ...] arrays, the same names in every step; batches have them again.
        carry: [N, ...] the carry that `obs` was acted on with. Sequences keep it.
    """

    obs: Tree
    action: Array
    reward: Array
    next_obs: Tree
    terminated: Array
    truncated: Array
    valid: Array | None = None
    extras: dict[str, Array] | None = None
    carry: Tree = None


@dataclass(slots=True)
class Batch:
    """B transitions of a replay.

    `terminated` and `truncated` are never merged. With n-step returns, `reward` is the discounted
    sum and `discount` is gamma^k of the steps really taken, so that a target is
    `reward + discount * (1 - terminated) * V(next_obs)` in every case.

    Attributes:
        obs: [B, ...] or a flat dict of such.
        action: [B, ...].
        reward: [B].
        next_obs: [B, ...], where the return ends.
        terminated: [B] float32, 0 or 1.
        truncated: [B] float32, 0 or 1.
        discount: [B].
        extras: [B, ...] what the transitions were recorded with.
        weight: [B] the importance weights of prioritised replay; None where draws are uniform.
        index: [B] names of the transitions for `Replay.update`; None where nothing can be updated.
    """

    obs: Tree
    action: Array
    reward: Array
    next_obs: Tree
    terminated: Array
    truncated: Array
    discount: Array
    extras: dict[str, Array] = field(default_factory=dict)
    weight: Array | None = None
    index: Array | None = None


@dataclass(slots=True)
class SequenceBatch:
    """B sequences of L consecutive rows of a replay.

    Row t is the step from `obs[:, t]` to `obs[:, t + 1]`, also where it ends an episode: the row
    after an end holds the final observation. That row is not a transition, nor is padding.

    Attributes:
        obs: [B, L + 1, ...] or a flat dict of such.
        action: [B, L, ...].
        reward: [B, L].
        terminated: [B, L] float32, 0 or 1.
        truncated: [B, L] float32, 0 or 1.
        is_first: [B, L] float32, 1 where an episode begins.
        valid: [B, L] float32, 0 for rows that are not a transition.
        carry: [B, ...] the carry before row 0, or None.
        extras: [B, L, ...] what the steps were recorded with.
        weight: [B] the importance weights of prioritised replay; None where draws are uniform.
        index: [B] names of the sequences for `Replay.update`.
    """

    obs: Tree
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    is_first: Array
    valid: Array
    carry: Tree = None
    extras: dict[str, Array] = field(default_factory=dict)
    weight: Array | None = None
    index: Array | None = None


@dataclass(slots=True)
class Clock:
    """How far a run is: counts, never wall time.

    Attributes:
        total: The run's budget, in `unit`.
        env_steps: Real environment transitions so far.
        updates: Optimizer steps so far.
        episodes: Finished episodes so far.
        unit: What the budget is counted in, and with it schedules, intervals and names.
        collected: Environment steps of a rollout that is not whole yet, for who watches. They
            count when it was learned from.
        stopping: Whether the run is to be saved after this step, because of a Ctrl-C.
    """

    total: int
    env_steps: int = 0
    updates: int = 0
    episodes: int = 0
    unit: Unit = "env_steps"
    collected: int = 0
    stopping: bool = False

    @property
    def count(self) -> int:
        """Return how far the run is, in its unit."""
        return self.env_steps if self.unit == "env_steps" else self.updates

    @property
    def is_over(self) -> bool:
        """Return whether the budget is used up."""
        return self.count >= self.total

    @property
    def progress(self) -> float:
        """Return the finished share of the budget, in [0, 1]; an iteration counts once over."""
        return min(1.0, self.count / self.total)


def tree_map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to every array of a tree (and to its counterparts in `rest`)."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {k: tree_map(fn, v, *(r[k] for r in rest)) for k, v in tree.items()}
    return fn(tree, *rest)


def tree_leaves(tree: Tree) -> list[Array]:
    """Return the arrays of a tree in a fixed order."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for key in sorted(tree) for leaf in tree_leaves(tree[key])]
    return [tree]


def pack(prefix: str, tree: Tree) -> dict[str, Array]:
    """Name the arrays of an observation for a flat batch, `prefix` or `prefix/key`."""
    if isinstance(tree, Mapping):
        return {f"{prefix}/{k}": v for k, v in tree.items()}
    return {prefix: tree}


def unpack(prefix: str, batch: Mapping[str, Array]) -> Tree:
    """Return the observation that `pack` put into a batch."""
    if prefix in batch:
        return batch[prefix]
    start = prefix + "/"
    return {k.removeprefix(start): v for k, v in batch.items() if k.startswith(start)}


def action_mask(obs: Tree) -> Array | None:
    """Return the action mask that comes with an observation, if any."""
    return obs.get(ACTION_MASK) if isinstance(obs, Mapping) else None
