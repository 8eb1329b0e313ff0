"""Rules of the section `action`."""

from __future__ import annotations

import math

from assay.design.problem import Action, Problem
from assay.design.rules import Hits, Rules
from assay.design.sizes import assumed_gamma, in_order, limits
from assay.design.units import unknown

RULES = Rules("action")
MANY = 1000  # choices from which most are never tried
SHORTEST = 1.0  # seconds that a discount should look ahead
# Which fields say how large a space of each kind is.
_SIZES = {
    "discrete": ("n",),
    "multi_discrete": ("sizes",),
    "multi_binary": ("n",),
    "box": ("shape",),
    "hybrid": ("parts",),
}
_OF_KINDS = {
    "n": ("discrete", "multi_binary"),
    "sizes": ("multi_discrete",),
    "shape": ("box",),
    "low": ("box",),
    "high": ("box",),
    "squash": ("box", "hybrid"),
    "scaled": ("box", "hybrid"),
    "parts": ("hybrid",),
    "mask": ("discrete", "multi_discrete", "multi_binary", "hybrid"),
}


@RULES.add("error", "Everything else depends on it.", "Write discrete, box, or one of the others.")
def kind_missing(action: Action, problem: Problem) -> Hits:
    """The kind of actions is not decided."""
    if action.kind is None:
        yield "action.kind", "it is missing"


@RULES.add("error", "Without it no head can be built.", "Write n, sizes, shape or parts.")
def size_missing(action: Action, problem: Problem) -> Hits:
    """Nothing says how many choices or components there are."""
    for name in _SIZES.get(action.kind or "", ()):
        if not getattr(action, name):
            yield f"action.{name}", f"a {action.kind} action needs it"
    for index, part in enumerate(action.parts):
        for name in _SIZES.get(part.kind or "", ("kind",)):
            if not getattr(part, name):
                yield f"action.parts[{index}].{name}", "it is missing"


@RULES.add(
    "error",
    "It has no meaning there, so that one of the two is a mistake.",
    "Remove the field, or change the kind.",
    contradiction=True,
)
def foreign_field(action: Action, problem: Problem) -> Hits:
    """A field belongs to another kind of actions."""
    for name, kinds in _OF_KINDS.items():
        given = getattr(action, name) not in (None, (), False)
        if given and action.kind is not None and action.kind not in kinds:
            yield f"action.{name}", f"it is given for a {action.kind} action"


@RULES.add(
    "error",
    "Squashed policies and noise are scaled to bounds.",
    "Give finite low and high, one number or one for each component.",
)
def bounds_missing(action: Action, problem: Problem) -> Hits:
    """A box has no finite bounds."""
    if action.kind == "box" and not (limits(action.low) and limits(action.high)):
        yield "action.low", "a box needs low and high"


@RULES.add("error", "No action lies between them.", "Correct one of them.", contradiction=True)
def bounds_order(action: Action, problem: Problem) -> Hits:
    """A lower bound is not below its upper bound, or their number is wrong."""
    parts = math.prod(action.shape) if action.shape else 0
    for key in ("low", "high"):
        values = limits(getattr(action, key))
        if len(values) > 1 and len(values) != parts:
            yield f"action.{key}", f"{len(values)} bounds for {parts} components"
            return
    if not in_order(action.low, action.high):
        yield "action.low", f"low={action.low} and high={action.high}"


@RULES.add(
    "warning",
    "Networks begin near 0 with a spread of 1: other bounds are explored badly.",
    "Set scaled: true and let the environment map -1..1 to its bounds.",
)
def scaling(action: Action, problem: Problem) -> Hits:
    """Bounds are not -1 to 1, and the agent acts in them directly."""
    odd = any(v != -1 for v in limits(action.low)) or any(v != 1 for v in limits(action.high))
    if action.kind == "box" and odd and not action.scaled:
        yield "action.scaled", f"bounds are {action.low} to {action.high}"


@RULES.add(
    "warning",
    "Actions beyond the bounds are cut by the environment, and the policy does not learn of it.",
    "Set squash: tanh (sac and others) or clip (ppo).",
)
def squash(action: Action, problem: Problem) -> Hits:
    """Nothing keeps a bounded action inside of its bounds."""
    if action.kind == "box" and action.squash == "none" and limits(action.low):
        yield "action.squash", "it is none, and there are bounds"


@RULES.add(
    "warning",
    "Most choices are never tried.",
    "Forbid what is impossible with a mask, or split the action into several smaller ones.",
)
def many(action: Action, problem: Problem) -> Hits:
    """There are very many choices and no mask."""
    if action.kind == "discrete" and (action.n or 0) > MANY and not action.mask:
        yield "action.n", f"{action.n:,} choices without a mask"


@RULES.add(
    "warning",
    "No algorithm here has a head for both at once.",
    "Cut the box into choices (multi_discrete), or give every choice its own parameters in a box.",
)
def hybrid(action: Action, problem: Problem) -> Hits:
    """Choices and continuous numbers are in one action."""
    if action.kind == "hybrid":
        yield "action.kind", f"a hybrid of {len(action.parts)} parts"


@RULES.add(
    "warning",
    "What follows an action then depends on earlier ones that are not seen.",
    "Add the last actions to the state (a history of them), or choose an algorithm with a memory.",
)
def delay(action: Action, problem: Problem) -> Hits:
    """Actions take effect later, and the state does not hold them."""
    partial = problem.mdp is not None and problem.mdp.observability == "partial"
    entries = problem.state.entries if problem.state is not None else ()
    held = any("action" in e.name.lower() and e.history >= action.delay for e in entries)
    if action.delay and not held and not partial:
        yield "action.delay", f"{action.delay} steps, and no entry of the state holds past actions"


@RULES.add(
    "warning",
    "The discount then looks ahead for less than a second of real time.",
    "Decide less often (frame_skip), or raise mdp.gamma.",
)
def rate(action: Action, problem: Problem) -> Hits:
    """Decisions come so fast that the discount forgets within a second."""
    gamma = assumed_gamma(problem)
    if action.rate is not None and gamma < 1:
        ahead = 1 / (1 - gamma) / action.rate
        if ahead < SHORTEST:
            yield "action.rate", f"at {action.rate:g} Hz gamma={gamma:g} looks {ahead:.2g} s ahead"


@RULES.add("warning", "It cannot be compared with others.", "Write SI units, such as N*m.")
def unit_unknown(action: Action, problem: Problem) -> Hits:
    """A unit is not known."""
    yield from (("action.unit", text) for text in unknown(action.unit))
