"""Rules of the section `architecture`: the four layers, and where they are."""

from __future__ import annotations

from assay.core import registry
from assay.core.errors import ConfigError
from assay.core.registry import AlgorithmSpec
from assay.design.fit import facts_of, unfit
from assay.design.problem import Architecture, Buffer, Hardware, Learner, Problem, Rollout
from assay.design.rules import Hits, Rules
from assay.design.sizes import transition_bytes

RULES = Rules("architecture")
FILL = 0.8  # share of a memory that a buffer may take
FEW_ENVS = 32  # copies below which a GPU acts more slowly than a CPU
SEEDS, EPISODES = 5, 10  # below which an evaluation says little
_KINDS = {"on_policy": ("rollout",), "off_policy": ("replay", "sequence"), "offline": ("dataset",)}


def _on_gpu(device: str | None) -> bool:
    return (device or "").startswith("cuda")


def _layers(architecture: Architecture) -> tuple[Rollout, Buffer, Learner, Hardware]:
    """Return what is known of the layers: of one that is not described, nothing."""
    return (
        architecture.rollout or Rollout(), architecture.buffer or Buffer(),
        architecture.learner or Learner(), architecture.hardware or Hardware(),
    )  # fmt: skip


def _spec(architecture: Architecture) -> AlgorithmSpec | None:
    """Return the algorithm that learns, if one is named that exists."""
    name = _layers(architecture)[2].algorithm
    try:
        return registry.spec_of(name) if name else None
    except ConfigError:
        return None


@RULES.add(
    "error",
    "Every step would wait for a copy from the device to the host and back.",
    "Keep environment, inference, buffer and learner on one device.",
)
def host_copy(architecture: Architecture, problem: Problem) -> Hits:
    """The environment is on a GPU, and another part of the loop is not."""
    there, *others = _devices(architecture).items()
    for name, device in others:
        if _on_gpu(there[1]) and device is not None and device != there[1]:
            yield f"architecture.{name}", f"{device}, and the environment is on {there[1]}"


def _devices(architecture: Architecture) -> dict[str, str | None]:
    """Return where the parts of the loop are, the environment first."""
    rollout, buffer, learner, _ = _layers(architecture)
    return {
        "rollout.env_device": rollout.env_device,
        "rollout.inference_device": rollout.inference_device,
        "buffer.device": buffer.device,
        "learner.device": learner.device,
    }


@RULES.add(
    "error",
    "Processes and GPUs share nothing by themselves.",
    "Name it: shared_memory, pipe, grpc or ray for workers; nccl or gloo for GPUs.",
)
def communication(architecture: Architecture, problem: Problem) -> Hits:
    """Several processes or GPUs work on one run, and nothing says how they talk."""
    rollout, _, learner, _ = _layers(architecture)
    if rollout.workers and rollout.communication in (None, "none"):
        yield "architecture.rollout.communication", f"{rollout.workers} workers without it"
    if (learner.gpus or 0) > 1 and learner.communication in (None, "none"):
        yield "architecture.learner.communication", f"{learner.gpus} GPUs without it"


@RULES.add(
    "error",
    "The run would be killed when the buffer has grown.",
    "Lower the capacity, store images as uint8, or move it to where there is room.",
)
def buffer_memory(architecture: Architecture, problem: Problem) -> Hits:
    """The buffer does not fit into the memory that it is in."""
    _, buffer, _, hardware = _layers(architecture)
    where, room = "host", hardware.memory_gb
    if _on_gpu(buffer.device):
        where, room = "GPU", hardware.gpu_memory_gb
    size = transition_bytes(problem, both=buffer.kind == "replay")
    needed = (buffer.capacity or 0) * size / 1e9
    if room is not None and needed > FILL * room:
        message = f"{needed:.1f} GB, and the {where} has {room:g} GB"
        yield "architecture.buffer.capacity", message


@RULES.add(
    "warning",
    "For few copies the way to the GPU and back takes longer than a small network.",
    "Act on the CPU, or run more copies.",
)
def inference_device(architecture: Architecture, problem: Problem) -> Hits:
    """Actions for a few copies on the host are computed on a GPU."""
    rollout, envs = _layers(architecture)[0], _layers(architecture)[0].envs or 1
    there = _on_gpu(rollout.inference_device) and not _on_gpu(rollout.env_device)
    if there and envs < FEW_ENVS and not facts_of(problem).image:
        place = "architecture.rollout.inference_device"
        yield place, f"{rollout.inference_device} for {envs} copies"


@RULES.add(
    "error",
    "Batches are drawn from what is there.",
    "Let the batch size divide envs * horizon, and stay below the capacity.",
)
def batch(architecture: Architecture, problem: Problem) -> Hits:
    """A batch is larger than what it is drawn from, or does not divide a rollout."""
    rollout, buffer, learner, _ = _layers(architecture)
    size = learner.batch_size
    if size is None:
        return
    place = "architecture.learner.batch_size"
    if buffer.kind == "rollout" and rollout.envs and rollout.horizon:
        whole = rollout.envs * rollout.horizon
        if size > whole or whole % size:
            yield place, f"{size} of a rollout of {rollout.envs} x {rollout.horizon} = {whole}"
    elif buffer.capacity is not None and size > buffer.capacity:
        yield place, f"{size} of a buffer of {buffer.capacity}"


@RULES.add(
    "error",
    "The algorithm gets its data from another kind of buffer.",
    "rollout: on-policy; replay or sequence: off-policy; dataset: offline.",
)
def buffer_kind(architecture: Architecture, problem: Problem) -> Hits:
    """The buffer is not of the kind that the algorithm learns from."""
    spec, kind = _spec(architecture), _layers(architecture)[1].kind
    if spec is not None and kind is not None and kind not in _KINDS.get(spec.loop, (kind,)):
        yield "architecture.buffer.kind", f"{kind}, and {spec.name} is {spec.loop}"


@RULES.add("error", "Nothing can be trained with it.", "`assay algorithms` lists all.")
def algorithm_unknown(architecture: Architecture, problem: Problem) -> Hits:
    """The algorithm does not exist."""
    name = _layers(architecture)[2].algorithm
    try:
        if name:
            registry.spec_of(name)
    except ConfigError as error:
        yield "architecture.learner.algorithm", error.message


@RULES.add("error", "It would refuse to start.", "`assay design choose` says which ones can.")
def algorithm_unfit(architecture: Architecture, problem: Problem) -> Hits:
    """The algorithm cannot learn this problem."""
    spec = _spec(architecture)
    if spec is not None and (reason := unfit(spec, facts_of(problem), problem)) is not None:
        yield "architecture.learner.algorithm", f"{spec.name}: {reason}"


@RULES.add("error", "The device does not exist.", "Use the cpu, or name a GPU that is there.")
def gpu_missing(architecture: Architecture, problem: Problem) -> Hits:
    """A layer is on a GPU that the hardware does not have."""
    _, _, learner, hardware = _layers(architecture)
    if hardware.gpus is None:
        return
    for name, device in _devices(architecture).items():
        if _on_gpu(device) and int(str(device).partition(":")[2] or 0) >= hardware.gpus:
            yield f"architecture.{name}", f"{device}, and there are {hardware.gpus} GPUs"
    if (learner.gpus or 0) > hardware.gpus:
        yield "architecture.learner.gpus", f"{learner.gpus}, and there are {hardware.gpus}"


@RULES.add("warning", "They would wait for each other.", "At most one worker per core.")
def workers(architecture: Architecture, problem: Problem) -> Hits:
    """There are more workers than cores."""
    rollout, _, _, hardware = _layers(architecture)
    if hardware.cores is not None and (rollout.workers or 0) > hardware.cores:
        place = "architecture.rollout.workers"
        yield place, f"{rollout.workers} workers on {hardware.cores} cores"


@RULES.add("error", "Every worker steps as many copies as the others.", "Make envs a multiple.")
def envs_per_worker(architecture: Architecture, problem: Problem) -> Hits:
    """Copies cannot be dealt evenly to the workers."""
    envs, workers = _layers(architecture)[0].envs, _layers(architecture)[0].workers
    if envs and workers and envs % workers:
        yield "architecture.rollout.envs", f"{envs} copies for {workers} workers"


@RULES.add(
    "warning",
    "With fewer, luck decides: no claim can rest on it.",
    f"At least {SEEDS} training seeds, and {EPISODES} episodes of each.",
)
def evaluation_size(architecture: Architecture, problem: Problem) -> Hits:
    """An evaluation rests on few seeds or few episodes."""
    for name, least in (("seeds", SEEDS), ("episodes", EPISODES)):
        value = getattr(architecture.evaluation, name, None)
        if value is not None and value < least:
            yield f"architecture.evaluation.{name}", f"{value} {name}"


@RULES.add(
    "warning",
    "Returns of training include exploration, and stop in the middle of episodes.",
    "Evaluate in environments of its own, with exploration off.",
)
def evaluation_separate(architecture: Architecture, problem: Problem) -> Hits:
    """The agent is judged by the episodes that it trains on."""
    evaluation = architecture.evaluation
    if evaluation is not None and evaluation.separate is False:
        yield "architecture.evaluation.separate", "it is false"


@RULES.add(
    "error",
    "Data of an old policy biases an on-policy gradient.",
    "Choose impala (V-trace), an off-policy algorithm, or wait for the actors.",
)
def lag(architecture: Architecture, problem: Problem) -> Hits:
    """Actors lag behind an on-policy learner that does not correct for it."""
    spec, lag = _spec(architecture), _layers(architecture)[0].lag
    if spec is not None and lag and spec.loop == "on_policy" and "lag" not in spec.traits:
        yield "architecture.rollout.lag", f"{lag} updates, and {spec.name} is on-policy"


@RULES.add("error", "It cannot be sampled.", "Give a length below capacity and episode.")
def sequence(architecture: Architecture, problem: Problem) -> Hits:
    """Sequences are sampled without a length, or are longer than what is kept."""
    buffer = _layers(architecture)[1]
    if buffer.kind != "sequence":
        return
    place = "architecture.buffer.sequence"
    if buffer.sequence is None:
        yield place, "it is missing"
    elif buffer.capacity is not None and buffer.sequence > buffer.capacity:
        yield place, f"{buffer.sequence} steps of {buffer.capacity}"


@RULES.add(
    "warning",
    "The budget ends before the run does.",
    "Run more copies, lower env_steps, or give it more hours.",
)
def too_slow(architecture: Architecture, problem: Problem) -> Hits:
    """The environment cannot take that many steps in that time."""
    budget = architecture.budget
    simulator = problem.mdp.simulator if problem.mdp is not None else None
    speed = simulator.steps_per_second if simulator is not None else None
    if budget is None or not budget.env_steps or not budget.hours or not speed:
        return
    hours = budget.env_steps / (speed * (_layers(architecture)[0].envs or 1)) / 3600
    if hours > budget.hours:
        place = "architecture.budget.hours"
        yield place, f"steps alone take {hours:.1f} hours, and there are {budget.hours:g}"


@RULES.add("note", "Nobody can check what is not written.", "Describe the layer.")
def layer_missing(architecture: Architecture, problem: Problem) -> Hits:
    """A layer is not described."""
    for name in ("rollout", "buffer", "learner", "evaluation"):
        if getattr(architecture, name) is None:
            yield f"architecture.{name}", "it is missing"
