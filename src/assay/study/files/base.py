"""What every file of a study shares: its version, and the words that several files use."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from assay.core.config import Model

VERSION = 1
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
# The group of a pattern for a printed number. What stands for none belongs to it: a run that ends
# with nan has not scored what it printed before.
PRINTED = r"([-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|(?:nan|NaN|inf)\b))"
_HIDDEN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069]"
)


def _visible(text: str) -> str:
    """Refuse what a terminal does not show, or shows as something else."""
    odd = _HIDDEN.search(text)
    if odd:
        raise ValueError(f"it holds the control character {odd[0]!r}; write it without")
    return text


Text = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_visible)
]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Direction = Literal["maximize", "minimize"]
Kind = Literal[
    "baseline", "hyperparameter", "reward-tuning", "reward-engineering", "curriculum-sampling",
    "curriculum-schedule", "environment-generation", "dr-probe", "dr-tuning",
]  # fmt: skip
Status = Literal[
    "draft", "validated", "launched", "completed", "accepted", "rejected", "inconclusive",
    "no-effect", "debug", "reverted",
]  # fmt: skip
Phase = Literal["smoke", "short", "promotion", "validation"]
MINIMUM_SEEDS = 5  # per arm, below which nothing is decided
POOLS: dict[Phase, str] = {  # of training seeds
    "smoke": "development",
    "short": "development",
    "promotion": "promotion",
    "validation": "validation",
}


class Part(Model):
    """A part of a file; its schema is built when it is first used, which few commands do."""

    model_config = ConfigDict(defer_build=True)


class Grown(Part):
    """A part that got more fields since it was first written.

    At their defaults they are left out, so that what was hashed without them keeps its hash.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_later(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = handler(self)
        # Of every class that it inherits from: each names the fields that it got itself.
        later = [name for kind in type(self).__mro__ for name in vars(kind).get("later", ())]
        for name in later:
            if getattr(self, name) == type(self).model_fields[name].default:
                values.pop(name, None)
        return values


class Document(Part):
    """A file of a study."""

    schema_version: Literal[1] = Field(1, description="Version of this file's schema.")
