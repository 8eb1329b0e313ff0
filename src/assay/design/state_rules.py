"""Rules of the section `state`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from assay.core.errors import nearest
from assay.design.problem import Problem, State, StateEntry
from assay.design.rules import Hits, Rules
from assay.design.sizes import limits, width
from assay.design.units import known_units, parse_unit

RULES = Rules("state")
WIDE = 1024  # numbers from which a flat vector wants an encoder of its own
LARGE, SMALL, APART = 10.0, 0.01, 100.0  # sizes of inputs that networks learn badly from
_STILL = re.compile(r"pos|angle|image|screen|camera|frame|view|joint", re.I)
_MOVES = re.compile(r"vel|speed|rate|momentum|deriv|gyro|delta|body|history", re.I)


def _each(state: State) -> Iterator[tuple[str, StateEntry]]:
    for index, entry in enumerate(state.entries):
        yield f"state.entries[{index}]", entry


@RULES.add("error", "An agent that sees nothing cannot react to anything.", "List its entries.")
def empty(state: State, problem: Problem) -> Hits:
    """The state has no entries."""
    if not state.entries:
        yield "state.entries", "there are none"


@RULES.add("error", "One hides the other in every file and plot.", "Rename one of them.")
def duplicate_name(state: State, problem: Problem) -> Hits:
    """Two entries have the same name."""
    seen = set()
    for place, entry in _each(state):
        if entry.name in seen:
            yield f"{place}.name", f"'{entry.name}' is there twice"
        seen.add(entry.name)


@RULES.add("error", "Without it no network can be built.", "Write its axes: shape: [3].")
def shape_missing(state: State, problem: Problem) -> Hits:
    """A vector, an image or bits have no shape, or one with a 0 in it."""
    for place, entry in _each(state):
        if entry.kind in ("vector", "image", "binary") and not entry.shape:
            yield f"{place}.shape", f"'{entry.name}' is of kind {entry.kind} and has no shape"
        elif entry.shape and min(entry.shape) < 1:
            yield f"{place}.shape", f"'{entry.name}' has the shape {list(entry.shape)}"


@RULES.add("error", "Encoders of images want height, width, channels.", "Write shape: [84, 84, 3].")
def image_shape(state: State, problem: Problem) -> Hits:
    """An image does not have the axes H, W, C."""
    for place, entry in _each(state):
        if entry.kind == "image" and entry.shape and len(entry.shape) != 3:
            yield f"{place}.shape", f"'{entry.name}' has {len(entry.shape)} axes; expected 3"
        elif entry.kind == "image" and entry.shape and entry.shape[0] <= 4 < entry.shape[2]:
            yield f"{place}.shape", f"{list(entry.shape)} has its channels in front"


@RULES.add(
    "warning",
    "Floats take four times the memory of bytes, in the replay above all.",
    "Keep images as uint8; the encoder scales them.",
)
def image_dtype(state: State, problem: Problem) -> Hits:
    """An image is not stored as bytes."""
    for place, entry in _each(state):
        if entry.kind == "image" and entry.dtype not in (None, "uint8"):
            yield f"{place}.dtype", f"'{entry.name}' is {entry.dtype}"


@RULES.add("error", "It decides how wide the one-hot input is.", "Write how many values it has.")
def category_size(state: State, problem: Problem) -> Hits:
    """A category has no size."""
    for place, entry in _each(state):
        if entry.kind == "category" and entry.size is None:
            yield f"{place}.size", f"'{entry.name}' does not say how many values it has"


@RULES.add("error", "No value lies between them.", "Exchange them, or correct one.")
def bounds_order(state: State, problem: Problem) -> Hits:
    """A lower bound is not below its upper bound."""
    for place, entry in _each(state):
        low, high = limits(entry.low), limits(entry.high)
        if low and high and not all(a < b for a, b in zip(*_paired(low, high), strict=False)):
            yield f"{place}.low", f"'{entry.name}' has low={entry.low} and high={entry.high}"


def _paired(a: tuple[float, ...], b: tuple[float, ...]) -> tuple[tuple[float, ...], ...]:
    size = max(len(a), len(b))
    return (a * size if len(a) == 1 else a), (b * size if len(b) == 1 else b)


@RULES.add("error", "Bounds are per component.", "Give one number, or one for each component.")
def bounds_shape(state: State, problem: Problem) -> Hits:
    """There are more or fewer bounds than components."""
    for place, entry in _each(state):
        parts = width(entry) // entry.history
        for key in ("low", "high"):
            count = len(limits(getattr(entry, key)))
            if count > 1 and count != parts:
                yield f"{place}.{key}", f"{count} bounds for {parts} components"


@RULES.add("error", "Values beyond it wrap around without a word.", "Change the dtype or the bound")
def dtype_bounds(state: State, problem: Problem) -> Hits:
    """A bound lies outside of what the dtype can hold."""
    top = {"uint8": (0, 255), "bool": (0, 1), "int32": (-(2**31), 2**31 - 1)}
    for place, entry in _each(state):
        least, most = top.get(entry.dtype or "", (-float("inf"), float("inf")))
        for key in ("low", "high"):
            if any(not least <= value <= most for value in limits(getattr(entry, key))):
                yield f"{place}.{key}", f"{getattr(entry, key)} does not fit into {entry.dtype}"


@RULES.add(
    "warning",
    "One large value saturates the network, and nothing scales it.",
    "Give bounds, or normalise: running.",
)
def unbounded(state: State, problem: Problem) -> Hits:
    """A vector has no bounds and is not normalised by statistics."""
    for place, entry in _each(state):
        open_ended = not limits(entry.low) or not limits(entry.high)
        seen = entry.kind == "vector" and not entry.privileged
        if seen and open_ended and entry.normalise != "running":
            yield place, f"'{entry.name}' has no bounds, nor statistics to normalise it by"


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
        (place, entry, _size(entry))
        for place, entry in _each(state)
        if entry.kind == "vector" and entry.normalise in (None, "none") and _size(entry)
    ]
    least = min((size for _, _, size in raw), default=1.0)
    for place, entry, size in raw:
        if not SMALL <= size <= LARGE:
            yield place, f"'{entry.name}' goes up to {size:g} and is not normalised"
        elif size > APART * least:
            yield place, f"'{entry.name}' is {size / least:.0f} times as large as another entry"


@RULES.add(
    "error",
    "There is nothing to scale by.",
    "Give low and high, or set normalise: running.",
    contradiction=True,
)
def normalise_bounds(state: State, problem: Problem) -> Hits:
    """An entry is normalised by bounds that it does not have."""
    for place, entry in _each(state):
        if entry.normalise == "bounds" and not (limits(entry.low) and limits(entry.high)):
            yield f"{place}.normalise", f"'{entry.name}' has no bounds"


@RULES.add(
    "warning", "It cannot be compared with others.", "Write SI units, such as m/s^2, or 1 for none."
)
def unit_unknown(state: State, problem: Problem) -> Hits:
    """A unit is not known."""
    for place, entry in _each(state):
        if entry.unit is not None and parse_unit(entry.unit) is None:
            yield (
                f"{place}.unit",
                f"'{entry.unit}' is unknown. {nearest(entry.unit, known_units())}",
            )


@RULES.add(
    "error",
    "It is not there when the agent acts, so that training cheats and deployment fails.",
    "Remove it, or mark it as privileged and let only the critic or a teacher see it.",
)
def leakage(state: State, problem: Problem) -> Hits:
    """An entry comes from the future or from the reward."""
    for place, entry in _each(state):
        if entry.source in ("future", "reward") and not entry.privileged:
            yield f"{place}.source", f"'{entry.name}' comes from the {entry.source}"


@RULES.add(
    "warning",
    "The policy would depend on what it does not see when it is deployed.",
    "Train a teacher with it, and a student without it: assay train dagger expert=RUN.",
)
def privileged(state: State, problem: Problem) -> Hits:
    """There are privileged entries, and no plan for acting without them."""
    taught = problem.demonstrations is not None and problem.demonstrations.teacher
    central = problem.agents is not None and problem.agents.training == "central"
    for place, entry in _each(state):
        if entry.privileged and not taught and not central:
            yield f"{place}.privileged", f"'{entry.name}' is known in training only"


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
    still = [(p, e) for p, e in _each(state) if _STILL.search(e.name) or e.kind == "image"]
    if still and not moves and not stacked:
        yield still[0][0], f"'{still[0][1].name}' is one moment, without velocity or history"


@RULES.add(
    "error",
    "An old value hides what happens now.",
    "Set mdp.observability: partial, or stack a history longer than the delay.",
    contradiction=True,
)
def delayed(state: State, problem: Problem) -> Hits:
    """An entry is late although the state is said to be fully observed."""
    full = problem.mdp is not None and problem.mdp.observability == "full"
    for place, entry in _each(state):
        if full and entry.delay and entry.history <= entry.delay:
            yield f"{place}.delay", f"'{entry.name}' is {entry.delay} steps late"


@RULES.add("error", "It is padding for all of the episode.", "Shorten it, or use a memory.")
def history(state: State, problem: Problem) -> Hits:
    """A history is longer than an episode."""
    steps = problem.mdp.horizon if problem.mdp is not None else None
    for place, entry in _each(state):
        if steps is not None and entry.history > steps:
            yield f"{place}.history", f"{entry.history} steps in an episode of {steps}"


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


@RULES.add(
    "warning",
    "Networks read numbers, and a text is left out by default.",
    "Set embed_text=N in the run, or encode it in the environment.",
)
def text(state: State, problem: Problem) -> Hits:
    """There is a text in the state."""
    for place, entry in _each(state):
        if entry.kind == "text":
            yield place, f"'{entry.name}' is a text"
