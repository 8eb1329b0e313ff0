"""Rules of the section `architecture`: the four layers, and where they are."""

from __future__ import annotations

from assay.core import registry
from assay.core.errors import ConfigError
from assay.core.registry import AlgorithmSpec
from assay.design.fit import facts_of, unfit
from assay.design.problem import Architecture, Problem
from assay.design.rules import Hits, Rules
from assay.design.sizes import transition_bytes

RULES = Rules("architecture")
FILL = 0.8  # share of a memory that a buffer may take
FEW_ENVS = 32  # copies below which a GPU acts more slowly than a CPU
SEEDS, EPISODES = 5, 10  # below which an evaluation says little
_KINDS = {"on_policy": ("rollout",), "off_policy": ("replay", "sequence"), "offline": ("dataset",)}


def _on_gpu(device: str | None) -> bool:
    return (device or "").startswith("cuda")


def _spec(architecture: Architecture) -> AlgorithmSpec | None:
    """Return the algorithm that learns, if one is named that exists."""
    name = architecture.learner.algorithm if architecture.learner is not None else None
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
    rollout, buffer, learner = architecture.rollout, architecture.buffer, architecture.learner
    if rollout is None or not _on_gpu(rollout.env_device):
        return
    parts = {
        "rollout.inference_device": rollout.inference_device,
        "buffer.device": buffer.device if buffer is not None else None,
        "learner.device": learner.device if learner is not None else None,
    }
    for name, device in parts.items():
        if device is not None and device != rollout.env_device:
            place = f"architecture.{name}"
            yield place, f"{device}, and the environment is on {rollout.env_device}"


@RULES.add(
    "error",
    "Processes and GPUs share nothing by themselves.",
    "Name it: shared_memory, pipe, grpc or ray for workers; nccl or gloo for GPUs.",
)
def communication(architecture: Architecture, problem: Problem) -> Hits:
    """Several processes or GPUs work on one run, and nothing says how they talk."""
    rollout, learner = architecture.rollout, architecture.learner
    if rollout is not None and rollout.workers and rollout.communication in (None, "none"):
        yield "architecture.rollout.communication", f"{rollout.workers} workers without it"
    if learner is not None and (learner.gpus or 0) > 1 and learner.communication in (None, "none"):
        yield "architecture.learner.communication", f"{learner.gpus} GPUs without it"


@RULES.add(
    "error",
    "The run would be killed when the buffer has grown.",
    "Lower the capacity, store images as uint8, or move it to where there is room.",
)
def buffer_memory(architecture: Architecture, problem: Problem) -> Hits:
    """The buffer does not fit into the memory that it is in."""
    buffer, hardware = architecture.buffer, architecture.hardware
    if buffer is None or buffer.capacity is None or hardware is None:
        return
    on_gpu = _on_gpu(buffer.device)
    room = hardware.gpu_memory_gb if on_gpu else hardware.memory_gb
    needed = buffer.capacity * transition_bytes(problem, both=buffer.kind == "replay") / 1e9
    if room is not None and needed > FILL * room:
        where = "GPU" if on_gpu else "host"
        message = f"{needed:.1f} GB, and the {where} has {room:g} GB"
        yield "architecture.buffer.capacity", message


@RULES.add(
    "warning",
    "For few copies the way to the GPU and back takes longer than a small network.",
    "Act on the CPU, or run more copies.",
)
def inference_device(architecture: Architecture, problem: Problem) -> Hits:
    """Actions for a few copies on the host are computed on a GPU."""
    rollout = architecture.rollout
    if rollout is None or _on_gpu(rollout.env_device):
        return
    image = facts_of(problem).image
    if _on_gpu(rollout.inference_device) and (rollout.envs or 1) < FEW_ENVS and not image:
        place = "architecture.rollout.inference_device"
        yield place, f"{rollout.inference_device} for {rollout.envs or 1} copies"


@RULES.add(
    "error",
    "Batches are drawn from what is there.",
    "Let the batch size divide envs * horizon, and stay below the capacity.",
)
def batch(architecture: Architecture, problem: Problem) -> Hits:
    """A batch is larger than what it is drawn from, or does not divide a rollout."""
    rollout, buffer, learner = architecture.rollout, architecture.buffer, architecture.learner
    size = learner.batch_size if learner is not None else None
    if size is None or buffer is None:
        return
    place = "architecture.learner.batch_size"
    if buffer.kind == "rollout" and rollout is not None and rollout.envs and rollout.horizon:
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
    spec, buffer = _spec(architecture), architecture.buffer
    if spec is None or buffer is None or buffer.kind is None or spec.loop not in _KINDS:
        return
    if buffer.kind not in _KINDS[spec.loop]:
        yield "architecture.buffer.kind", f"{buffer.kind}, and {spec.name} is {spec.loop}"


@RULES.add("error", "Nothing can be trained with it.", "`assay algorithms` lists all.")
def algorithm_unknown(architecture: Architecture, problem: Problem) -> Hits:
    """The algorithm does not exist."""
    name = architecture.learner.algorithm if architecture.learner is not None else None
    if not name or _spec(architecture) is not None:
        return
    try:
        registry.spec_of(name)
    except ConfigError as error:
        yield "architecture.learner.algorithm", error.message


@RULES.add("error", "It would refuse to start.", "`assay design choose` says which ones can.")
def algorithm_unfit(architecture: Architecture, problem: Problem) -> Hits:
    """The algorithm cannot learn this problem."""
    spec = _spec(architecture)
    reason = unfit(spec, facts_of(problem), problem) if spec is not None else None
    if spec is not None and reason is not None:
        yield "architecture.learner.algorithm", f"{spec.name}: {reason}"


@RULES.add("error", "The device does not exist.", "Use the cpu, or name a GPU that is there.")
def gpu_missing(architecture: Architecture, problem: Problem) -> Hits:
    """A layer is on a GPU that the hardware does not have."""
    hardware = architecture.hardware
    if hardware is None or hardware.gpus is None:
        return
    rollout, buffer, learner = architecture.rollout, architecture.buffer, architecture.learner
    devices = {
        "rollout.env_device": rollout.env_device if rollout is not None else None,
        "rollout.inference_device": rollout.inference_device if rollout is not None else None,
        "buffer.device": buffer.device if buffer is not None else None,
        "learner.device": learner.device if learner is not None else None,
    }
    for name, device in devices.items():
        if device is not None and _on_gpu(device):
            number = int(device.partition(":")[2] or 0)
            if number >= hardware.gpus:
                yield f"architecture.{name}", f"{device}, and there are {hardware.gpus} GPUs"
    if learner is not None and (learner.gpus or 0) > hardware.gpus:
        yield "architecture.learner.gpus", f"{learner.gpus}, and there are {hardware.gpus}"


@RULES.add("warning", "They would wait for each other.", "At most one worker per core.")
def workers(architecture: Architecture, problem: Problem) -> Hits:
    """There are more workers than cores."""
    rollout, hardware = architecture.rollout, architecture.hardware
    if rollout is None or hardware is None or hardware.cores is None:
        return
    if (rollout.workers or 0) > hardware.cores:
        place = "architecture.rollout.workers"
        yield place, f"{rollout.workers} workers on {hardware.cores} cores"


@RULES.add("error", "Every worker steps as many copies as the others.", "Make envs a multiple.")
def envs_per_worker(architecture: Architecture, problem: Problem) -> Hits:
    """Copies cannot be dealt evenly to the workers."""
    rollout = architecture.rollout
    if rollout is not None and rollout.envs and rollout.workers and rollout.envs % rollout.workers:
        yield "architecture.rollout.envs", f"{rollout.envs} copies for {rollout.workers} workers"


@RULES.add(
    "warning",
    "With fewer, luck decides: no claim can rest on it.",
    f"At least {SEEDS} training seeds, and {EPISODES} episodes of each.",
)
def evaluation_size(architecture: Architecture, problem: Problem) -> Hits:
    """An evaluation rests on few seeds or few episodes."""
    evaluation = architecture.evaluation
    if evaluation is None:
        return
    for name, least in (("seeds", SEEDS), ("episodes", EPISODES)):
        value = getattr(evaluation, name)
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
    spec, rollout = _spec(architecture), architecture.rollout
    if spec is None or rollout is None or not rollout.lag or spec.loop != "on_policy":
        return
    if "lag" not in spec.traits:
        yield "architecture.rollout.lag", f"{rollout.lag} updates, and {spec.name} is on-policy"


@RULES.add("error", "It cannot be sampled.", "Give a length below capacity and episode.")
def sequence(architecture: Architecture, problem: Problem) -> Hits:
    """Sequences are sampled without a length, or are longer than what is kept."""
    buffer = architecture.buffer
    if buffer is None or buffer.kind != "sequence":
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
    copies = (architecture.rollout.envs if architecture.rollout is not None else None) or 1
    hours = budget.env_steps / (speed * copies) / 3600
    if hours > budget.hours:
        place = "architecture.budget.hours"
        yield place, f"steps alone take {hours:.1f} hours, and there are {budget.hours:g}"


@RULES.add("note", "Nobody can check what is not written.", "Describe the layer.")
def layer_missing(architecture: Architecture, problem: Problem) -> Hits:
    """A layer is not described."""
    for name in ("rollout", "buffer", "learner", "evaluation"):
        if getattr(architecture, name) is None:
            yield f"architecture.{name}", "it is missing"
