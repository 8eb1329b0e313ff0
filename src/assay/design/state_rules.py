"""Rules of the section `state`."""

from __future__ import annotations

import re

from assay.design.problem import Problem, State, StateEntry
from assay.design.rules import Hits, Rules, repeated
from assay.design.sizes import in_order, limits, width
from assay.design.units import unknown

RULES = Rules("state")
EACH = RULES.each("entries")
WIDE = 1024  # numbers from which a flat vector wants an encoder of its own
LARGE, SMALL, APART = 10.0, 0.01, 100.0  # sizes of inputs that networks learn badly from
_STILL = re.compile(r"pos|angle|image|screen|camera|frame|view|joint", re.I)
_MOVES = re.compile(r"vel|speed|rate|momentum|deriv|gyro|delta|body|history", re.I)


@RULES.add("error", "An agent that sees nothing cannot react to anything.", "List its entries.")
def empty(state: State, problem: Problem) -> Hits:
    """The state has no entries."""
    if not state.entries:
        yield "state.entries", "there are none"


@RULES.add("error", "One hides the other in every file and plot.", "Rename one of them.")
def duplicate_name(state: State, problem: Problem) -> Hits:
    """Two entries have the same name."""
    return repeated("state.entries", state.entries)


@EACH("error", "Without it no network can be built.", "Write its axes: shape: [3].")
def shape_missing(entry: StateEntry, problem: Problem) -> Hits:
    """A vector, an image or bits have no shape, or one with a 0 in it."""
    if entry.kind in ("vector", "image", "binary") and not entry.shape:
        yield ".shape", f"'{entry.name}' is of kind {entry.kind} and has no shape"
    elif entry.shape and min(entry.shape) < 1:
        yield ".shape", f"'{entry.name}' has the shape {list(entry.shape)}"


@EACH("error", "Encoders of images want height, width, channels.", "Write shape: [84, 84, 3].")
def image_shape(entry: StateEntry, problem: Problem) -> Hits:
    """An image does not have the axes H, W, C."""
    if entry.kind == "image" and entry.shape and len(entry.shape) != 3:
        yield ".shape", f"'{entry.name}' has {len(entry.shape)} axes; expected 3"
    elif entry.kind == "image" and entry.shape and entry.shape[0] <= 4 < entry.shape[2]:
        yield ".shape", f"{list(entry.shape)} has its channels in front"


@EACH(
    "warning",
    "Floats take four times the memory of bytes, in the replay above all.",
    "Keep images as uint8; the encoder scales them.",
)
def image_dtype(entry: StateEntry, problem: Problem) -> Hits:
    """An image is not stored as bytes."""
    if entry.kind == "image" and entry.dtype not in (None, "uint8"):
        yield ".dtype", f"'{entry.name}' is {entry.dtype}"


@EACH("error", "It decides how wide the one-hot input is.", "Write how many values it has.")
def category_size(entry: StateEntry, problem: Problem) -> Hits:
    """A category has no size."""
    if entry.kind == "category" and entry.size is None:
        yield ".size", f"'{entry.name}' does not say how many values it has"


@EACH("error", "No value lies between them.", "Exchange them, or correct one.")
def bounds_order(entry: StateEntry, problem: Problem) -> Hits:
    """A lower bound is not below its upper bound."""
    if not in_order(entry.low, entry.high):
        yield ".low", f"'{entry.name}' has low={entry.low} and high={entry.high}"


@EACH("error", "Bounds are per component.", "Give one number, or one for each component.")
def bounds_shape(entry: StateEntry, problem: Problem) -> Hits:
    """There are more or fewer bounds than components."""
    parts = width(entry) // entry.history
    for key in ("low", "high"):
        count = len(limits(getattr(entry, key)))
        if count > 1 and count != parts:
            yield f".{key}", f"{count} bounds for {parts} components"


@EACH("error", "Values beyond it wrap around without a word.", "Change the dtype or the bound")
def dtype_bounds(entry: StateEntry, problem: Problem) -> Hits:
    """A bound lies outside of what the dtype can hold."""
    top = {"uint8": (0, 255), "bool": (0, 1), "int32": (-(2**31), 2**31 - 1)}
    least, most = top.get(entry.dtype or "", (-float("inf"), float("inf")))
    for key in ("low", "high"):
        if any(not least <= value <= most for value in limits(getattr(entry, key))):
            yield f".{key}", f"{getattr(entry, key)} does not fit into {entry.dtype}"


@EACH(
    "warning",
    "One large value saturates the network, and nothing scales it.",
    "Give bounds, or normalise: running.",
)
def unbounded(entry: StateEntry, problem: Problem) -> Hits:
    """A vector has no bounds and is not normalised by statistics."""
    open_ended = not limits(entry.low) or not limits(entry.high)
    seen = entry.kind == "vector" and not entry.privileged
    if seen and open_ended and entry.normalise != "running":
        yield "", f"'{entry.name}' has no bounds, nor statistics to normalise it by"


def _size(entry: StateEntry) -> float:
    return max((abs(v) for v in (*limits(entry.low), *limits(entry.high))), default=0.0)


@RULES.add(
    "warning",
    "Inputs of size 1 learn; tiny ones are ignored and huge ones drown the others.",
    "Set normalise: bounds or running, or change the unit.",
)
def scale(state: State, problem: Problem) -> Hits:
    """An entry that is not normalised is large, tiny, or far from the size of another."""
    raw = [
        (f"state.entries[{index}]", entry, _size(entry))
        for index, entry in enumerate(state.entries)
        if entry.kind == "vector" and entry.normalise in (None, "none") and _size(entry)
    ]
    least = min((size for _, _, size in raw), default=1.0)
    for place, entry, size in raw:
        if not SMALL <= size <= LARGE:
            yield place, f"'{entry.name}' goes up to {size:g} and is not normalised"
        elif size > APART * least:
            yield place, f"'{entry.name}' is {size / least:.0f} times as large as another entry"


@EACH(
    "error",
    "There is nothing to scale by.",
    "Give low and high, or set normalise: running.",
    contradiction=True,
)
def normalise_bounds(entry: StateEntry, problem: Problem) -> Hits:
    """An entry is normalised by bounds that it does not have."""
    if entry.normalise == "bounds" and not (limits(entry.low) and limits(entry.high)):
        yield ".normalise", f"'{entry.name}' has no bounds"


@EACH(
    "warning", "It cannot be compared with others.", "Write SI units, such as m/s^2, or 1 for none."
)
def unit_unknown(entry: StateEntry, problem: Problem) -> Hits:
    """A unit is not known."""
    yield from ((".unit", text) for text in unknown(entry.unit))


@EACH(
    "error",
    "It is not there when the agent acts, so that training cheats and deployment fails.",
    "Remove it, or mark it as privileged and let only the critic or a teacher see it.",
)
def leakage(entry: StateEntry, problem: Problem) -> Hits:
    """An entry comes from the future or from the reward."""
    if entry.source in ("future", "reward") and not entry.privileged:
        yield ".source", f"'{entry.name}' comes from the {entry.source}"


@EACH(
    "warning",
    "The policy would depend on what it does not see when it is deployed.",
    "Train a teacher with it, and a student without it: assay train dagger expert=RUN.",
)
def privileged(entry: StateEntry, problem: Problem) -> Hits:
    """There are privileged entries, and no plan for acting without them."""
    taught = problem.demonstrations is not None and problem.demonstrations.teacher
    central = problem.agents is not None and problem.agents.training == "central"
    if entry.privileged and not taught and not central:
        yield ".privileged", f"'{entry.name}' is known in training only"


@RULES.add(
    "warning",
    "What follows then depends on more than what is seen: the problem is not Markov.",
    "Add velocities, stack a history, or set mdp.observability: partial.",
)
def markov(state: State, problem: Problem) -> Hits:
    """Positions or pictures are seen, and nothing says how they move."""
    if problem.mdp is not None and problem.mdp.observability is not None:
        return  # it was decided
    moves = any(_MOVES.search(entry.name) or entry.history > 1 for entry in state.entries)
    stacked = any(e.kind == "image" and e.shape and e.shape[-1] > 3 for e in state.entries)
    still = [_STILL.search(e.name) is not None or e.kind == "image" for e in state.entries]
    if any(still) and not moves and not stacked:
        first = still.index(True)
        name = state.entries[first].name
        yield f"state.entries[{first}]", f"'{name}' is one moment, without velocity or history"


@EACH(
    "error",
    "An old value hides what happens now.",
    "Set mdp.observability: partial, or stack a history longer than the delay.",
    contradiction=True,
)
def delayed(entry: StateEntry, problem: Problem) -> Hits:
    """An entry is late although the state is said to be fully observed."""
    full = problem.mdp is not None and problem.mdp.observability == "full"
    if full and entry.delay and entry.history <= entry.delay:
        yield ".delay", f"'{entry.name}' is {entry.delay} steps late"


@EACH("error", "It is padding for all of the episode.", "Shorten it, or use a memory.")
def history(entry: StateEntry, problem: Problem) -> Hits:
    """A history is longer than an episode."""
    steps = problem.mdp.horizon if problem.mdp is not None else None
    if steps is not None and entry.history > steps:
        yield ".history", f"{entry.history} steps in an episode of {steps}"


@RULES.add(
    "warning",
    "A first layer of this width is slow and learns from few of its inputs.",
    "Give parts of it as an image, or reduce it before the agent sees it.",
)
def wide(state: State, problem: Problem) -> Hits:
    """The flat part of the state is very wide."""
    flat = sum(width(entry) for entry in state.entries if entry.kind != "image")
    if flat > WIDE:
        yield "state.entries", f"{flat:,} numbers beside images; more than {WIDE:,} is wide"


@EACH(
    "warning",
    "Networks read numbers, and a text is left out by default.",
    "Set embed_text=N in the run, or encode it in the environment.",
)
def text(entry: StateEntry, problem: Problem) -> Hits:
    """There is a text in the state."""
    if entry.kind == "text":
        yield "", f"'{entry.name}' is a text"
