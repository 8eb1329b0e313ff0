"""The file `problem.yaml`: what is to be learned, in eight sections, each of them optional.

A missing section or field means "not decided", never a default that counts as an answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from assay.core.config import Model

_NAME, _TITLE = r"^[A-Za-z][A-Za-z0-9_]{0,39}$", r"^[a-z][a-z0-9_]{1,39}$"
_DEVICE = r"^(cpu|cuda(:\d+)?)$"
PATTERNS = {  # in words, for messages
    _NAME: "letters, digits and '_' are expected, at most 40, and a letter first",
    _TITLE: "lower-case letters, digits and '_' are expected, 2 to 40, and a letter first",
    _DEVICE: "cpu, cuda or cuda:N is expected",
}
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Bound = float | tuple[float, ...] | None
Observability = Literal["full", "partial"]


class StateEntry(Model):
    """One thing that the agent sees."""

    name: Name = Field(description="Its name, unique in the state.")
    kind: Literal["vector", "image", "category", "binary", "text"] = Field(
        "vector", description="What it is; a category is one of `size` values."
    )
    shape: tuple[int, ...] | None = Field(None, description="Axes of one value; images: H, W, C.")
    size: int | None = Field(None, gt=0, description="Number of values of a category.")
    dtype: Literal["float32", "float64", "uint8", "int32", "int64", "bool"] | None = Field(
        None, description="Type of its numbers."
    )
    low: Bound = Field(None, description="Smallest value, or one for each component.")
    high: Bound = Field(None, description="Largest value, or one for each component.")
    unit: str | None = Field(None, description="Unit, such as m/s; 1 for a plain number.")
    source: Literal["sensor", "simulator", "computed", "history", "future", "reward"] | None = (
        Field(None, description="Where it comes from at the moment of acting.")
    )
    normalise: Literal["none", "bounds", "running"] | None = Field(
        None, description="How it is scaled before the network: not, by bounds, by statistics."
    )
    history: int = Field(1, gt=0, description="How many past values are stacked, this one included")
    delay: int = Field(0, ge=0, description="Steps by which it lags behind.")
    privileged: bool = Field(False, description="Known in training only, not when deployed.")


class State(Model):
    """What the agent sees."""

    entries: tuple[StateEntry, ...] = Field((), description="Everything that is in it.")


class _Space(Model):
    n: int | None = Field(None, gt=0, description="Choices of a discrete action, or bits.")
    sizes: tuple[int, ...] | None = Field(None, description="Choices of each of several.")
    shape: tuple[int, ...] | None = Field(None, description="Axes of a box.")
    low: Bound = Field(None, description="Smallest value of a box, or one per component.")
    high: Bound = Field(None, description="Largest value of a box, or one per component.")
    unit: str | None = Field(None, description="Unit of a box.")


class ActionPart(_Space):
    """A space of actions."""

    kind: Literal["discrete", "multi_discrete", "multi_binary", "box"] | None = Field(
        None, description="Kind of space."
    )


class Action(_Space):
    """What the agent does."""

    kind: Literal["discrete", "multi_discrete", "multi_binary", "box", "hybrid"] | None = Field(
        None, description="Kind of space; a hybrid has parts."
    )
    parts: tuple[ActionPart, ...] = Field((), description="Spaces of a hybrid.")
    scaled: bool | None = Field(None, description="Whether the agent acts in -1 to 1.")
    squash: Literal["none", "tanh", "clip"] | None = Field(
        None, description="How a box action is kept inside its bounds."
    )
    mask: bool | None = Field(None, description="Whether some choices can be forbidden.")
    delay: int = Field(0, ge=0, description="Steps before an action takes effect.")
    rate: float | None = Field(None, gt=0, description="Decisions per second (Hz).")


class RewardTerm(Model):
    """One term of the reward."""

    name: Name = Field(description="Its name, unique in the reward.")
    weight: float = Field(1.0, description="What it is multiplied by.")
    low: float | None = Field(None, description="Smallest value before the weight.")
    high: float | None = Field(None, description="Largest value before the weight.")
    kind: Literal["dense", "sparse", "terminal"] = Field(
        "dense", description="Given at every step, on events, or once at the end."
    )
    potential: bool = Field(False, description="Meant as shaping by a potential.")
    form: str | None = Field(
        None, description="For shaping: its formula, such as gamma * phi(s') - phi(s)."
    )
    unit: str | None = Field(None, description="Unit before the weight.")
    goal: bool = Field(False, description="Whether it is what the task is really about.")
    metric: str | None = Field(
        None, description="Under which name runs log it; reward/NAME if missing."
    )


class Reward(Model):
    """What the agent is rewarded for."""

    source: Literal["known", "none"] | None = Field(
        None, description="Whether there is a reward, or only somebody to imitate."
    )
    terms: tuple[RewardTerm, ...] = Field((), description="What is summed.")
    unit: str | None = Field(None, description="Unit of the sum; terms are compared with it.")
    risk: Literal["neutral", "averse"] | None = Field(
        None, description="Whether bad outcomes count more than the mean."
    )
    clip: float | None = Field(None, gt=0, description="Bound of the summed reward of a step.")


class Ending(Model):
    """A way in which an episode ends."""

    name: Name = Field(description="Its name.")
    kind: Literal["success", "failure", "time"] = Field(description="What it means.")
    flag: Literal["terminated", "truncated"] | None = Field(
        None, description="What the environment reports; time limits are truncated."
    )


class Table(Model):
    """A small problem, written out."""

    transitions: tuple[tuple[tuple[float, ...], ...], ...] = Field(
        description="P[action][state][next state]."
    )
    start: tuple[float, ...] | None = Field(None, description="Chance to begin in each state.")


class Simulator(Model):
    """What steps are taken in."""

    kind: Literal["simulator", "real", "none"] | None = Field(
        None, description="A program, the real system, or nothing to interact with."
    )
    steps_per_second: float | None = Field(None, gt=0, description="Of one copy.")
    parallel: int | None = Field(None, gt=0, description="Copies that can run at once.")
    rules_known: bool | None = Field(
        None, description="Whether a program can ask what each action leads to, without acting."
    )


class Mdp(Model):
    """How the problem unfolds."""

    gamma: float | None = Field(None, gt=0, le=1, description="Discount per step.")
    horizon: int | None = Field(None, gt=0, description="Steps of a typical episode.")
    limit: int | None = Field(None, gt=0, description="Steps after which episodes are cut.")
    endings: tuple[Ending, ...] = Field((), description="All ways to end.")
    observability: Observability | None = Field(
        None, description="Whether the state says all that matters for what follows."
    )
    memory: int | None = Field(
        None, ge=0, description="Steps that must be remembered where it does not."
    )
    start: Literal["fixed", "random"] | None = Field(
        None, description="Whether episodes begin in one state or in many."
    )
    goals: bool | None = Field(None, description="Whether a goal is part of what is observed.")
    simulator: Simulator | None = Field(None, description="What steps are taken in.")
    table: Table | None = Field(None, description="A small problem, written out.")


class AgentType(Model):
    """Agents that are alike."""

    name: Name = Field(description="Name of the type.")
    count: int = Field(1, gt=0, description="How many there are.")
    observation: tuple[int, ...] | None = Field(None, description="Shape of what one sees.")
    action: ActionPart | None = Field(None, description="What one does.")


class Communication(Model):
    """What agents tell each other."""

    channel: Literal["none", "broadcast", "neighbours"] = Field(description="Who hears whom.")
    width: int | None = Field(None, gt=0, description="Numbers in a message.")


class Agents(Model):
    """Several agents."""

    types: tuple[AgentType, ...] = Field((), description="All types of agents.")
    relation: Literal["cooperative", "competitive", "mixed"] | None = Field(
        None, description="One goal, opposed goals, or both."
    )
    turns: Literal["simultaneous", "alternating"] | None = Field(
        None, description="Whether agents act at once or one after the other."
    )
    information: Literal["perfect", "imperfect"] | None = Field(
        None, description="Whether each sees all that the others see."
    )
    global_state: bool | None = Field(
        None, description="Whether training can see the state of the whole."
    )
    sharing: dict[str, str] = Field({}, description="Type -> group that shares one network.")
    communication: Communication | None = Field(None, description="What they tell each other.")
    reward: Literal["team", "individual"] | None = Field(
        None, description="One reward for all, or one for each."
    )
    training: Literal["independent", "central", "self_play"] | None = Field(
        None, description="Each by itself, with a critic that sees the whole, or against itself."
    )


class Level(Model):
    """A level of a hierarchy, from the top down."""

    name: Name = Field(description="Its name.")
    kind: Literal["options", "goals", "primitive"] = Field(
        description="What it chooses: an option, a goal for the level below, an action."
    )
    interval: int | None = Field(None, gt=0, description="Steps between its decisions.")
    options: int | None = Field(None, gt=0, description="How many options it chooses from.")
    goal_space: tuple[Name, ...] = Field((), description="State entries that its goals are about.")
    termination: Literal["fixed", "learned", "reached"] | None = Field(
        None, description="When what it chose ends."
    )
    intrinsic: Literal["none", "distance", "success", "diversity"] | None = Field(
        None, description="What the level below is rewarded with for obeying."
    )
    reward: Literal["task", "intrinsic", "both"] | None = Field(
        None, description="What it learns from."
    )


class Hierarchy(Model):
    """Levels that decide at different intervals."""

    levels: tuple[Level, ...] = Field((), description="From the top down.")
    order: Literal["joint", "bottom_up", "top_down"] | None = Field(
        None, description="Which level is trained first."
    )


class Demonstrations(Model):
    """What somebody did before."""

    data: str | None = Field(None, description="A dataset, as `assay data` names it.")
    quality: Literal["expert", "mixed", "random"] | None = Field(
        None, description="How good what it shows is."
    )
    episodes: int | None = Field(None, gt=0, description="How many.")
    transitions: int | None = Field(None, gt=0, description="How many steps in all.")
    actions: bool = Field(True, description="Whether the actions were recorded.")
    rewards: bool = Field(True, description="Whether the rewards were recorded.")
    teacher: str | None = Field(
        None, description="Who says what it would do in any state: a run or a function."
    )
    reward_wanted: bool = Field(False, description="Whether the reward behind it is to be found.")
    interaction: bool | None = Field(
        None, description="Whether steps can be taken besides (see mdp.simulator)."
    )


Device = Annotated[str, StringConstraints(pattern=_DEVICE)]


class Rollout(Model):
    """Layer 1: who steps the environment."""

    envs: int | None = Field(None, gt=0, description="Copies of the environment.")
    workers: int | None = Field(None, ge=0, description="Processes that step them; 0: this one.")
    horizon: int | None = Field(None, gt=0, description="Steps of each copy between updates.")
    env_device: Device | None = Field(None, description="Where the environment computes.")
    inference_device: Device | None = Field(None, description="Where actions are computed.")
    communication: Literal["none", "shared_memory", "pipe", "grpc", "ray", "nccl"] | None = Field(
        None, description="How data reaches the learner."
    )
    lag: int | None = Field(None, ge=0, description="Updates by which actors are behind.")


class Buffer(Model):
    """Layer 2: what is kept."""

    kind: Literal["rollout", "replay", "sequence", "dataset"] | None = Field(
        None, description="What is kept, and how it is sampled."
    )
    capacity: int | None = Field(None, gt=0, description="Steps that are kept.")
    device: Device | None = Field(None, description="Where it is kept.")
    sequence: int | None = Field(None, gt=0, description="Length of sampled sequences.")


class Learner(Model):
    """Layer 3: what learns."""

    algorithm: str | None = Field(None, description="Its name (`assay algorithms`).")
    device: Device | None = Field(None, description="Where it learns.")
    batch_size: int | None = Field(None, gt=0, description="Transitions or sequences per update.")
    updates_per_step: float | None = Field(None, gt=0, description="Updates per collected step.")
    gpus: int | None = Field(None, ge=0, description="GPUs that one run learns on.")
    communication: Literal["none", "nccl", "gloo"] | None = Field(
        None, description="How several GPUs agree on a gradient."
    )


class Evaluation(Model):
    """Layer 4: how good it is."""

    every: int | None = Field(None, gt=0, description="Steps between evaluations.")
    episodes: int | None = Field(None, gt=0, description="Episodes of each.")
    seeds: int | None = Field(None, gt=0, description="Training runs that a claim rests on.")
    deterministic: bool | None = Field(None, description="Whether exploration is off.")
    separate: bool | None = Field(
        None, description="Whether it has environments of its own, beside those of training."
    )


class Hardware(Model):
    """What there is to compute on."""

    cores: int | None = Field(None, gt=0, description="CPU cores.")
    memory_gb: float | None = Field(None, gt=0, description="Memory of the host.")
    gpus: int | None = Field(None, ge=0, description="GPUs.")
    gpu_memory_gb: float | None = Field(None, gt=0, description="Memory of each GPU.")


class Budget(Model):
    """What may be spent on one run."""

    env_steps: int | None = Field(None, gt=0, description="Environment steps.")
    updates: int | None = Field(None, gt=0, description="Updates, where there is only data.")
    hours: float | None = Field(None, gt=0, description="Wall clock.")


class Architecture(Model):
    """The four layers of a training run, and what they run on."""

    rollout: Rollout | None = Field(None, description="Who steps the environment.")
    buffer: Buffer | None = Field(None, description="What is kept.")
    learner: Learner | None = Field(None, description="What learns.")
    evaluation: Evaluation | None = Field(None, description="How good it is.")
    hardware: Hardware | None = Field(None, description="What there is to compute on.")
    budget: Budget | None = Field(None, description="What may be spent on one run.")


class Problem(Model):
    """A problem to be learned."""

    schema_version: Literal[1] = Field(1, description="Version of this file's schema.")
    name: Annotated[str, StringConstraints(pattern=_TITLE)] = Field(
        "problem", description="Lower-case letters, digits and '_'."
    )
    description: str = Field("", description="What a solved problem looks like.")
    env: str | None = Field(None, description="Id of the environment, where there is one.")
    state: State | None = Field(None, description="What the agent sees.")
    action: Action | None = Field(None, description="What the agent does.")
    reward: Reward | None = Field(None, description="What it is rewarded for.")
    mdp: Mdp | None = Field(None, description="How the problem unfolds.")
    agents: Agents | None = Field(None, description="Several agents.")
    hierarchy: Hierarchy | None = Field(None, description="Levels of decisions.")
    demonstrations: Demonstrations | None = Field(None, description="What was done before.")
    architecture: Architecture | None = Field(None, description="Layers of a training run.")


SECTIONS = (
    "state", "action", "reward", "mdp", "agents", "hierarchy", "demonstrations", "architecture",
)  # fmt: skip


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `problem.yaml`."""
    schema = Problem.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
