"""What a client registers: the spaces, bounds and algorithm of one policy.

A spec is plain JSON, so that a client in any language can write one. Its hash is that of its
canonical form, in which the order of keys, `1` against `1.0` and left-out defaults make no
difference. Registering the same spec again changes nothing; another spec under the same name is
refused with the first difference.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from numpy.typing import NDArray

from assay.core.config import Model, parse
from assay.core.errors import ConfigError, SpaceError
from assay.core.wording import counted
from assay.server.errors import Reason, RejectionError

SCHEMA = 1
MAX_SPEC_BYTES = 1 << 20
MAX_STEP_BYTES = 4 << 20  # of one observation or action; a step must fit a frame
MAX_LEAVES = 64
MAX_DEPTH = 8
# What a step may hold is limited too: beyond, a learner's own numbers would not be finite.
MOST_VALUE = 1e12  # of rewards, and of floats in observations and actions
MOST_LOG_PROB = 1e6
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

FloatType = Literal["float16", "float32", "float64"]
IntegerType = Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
_Bound = float | tuple[float | None, ...] | None  # one for all; one each; None: unbounded
_Size = Annotated[int, pydantic.Field(ge=1, le=1 << 31)]
_Shape = Annotated[tuple[_Size, ...], pydantic.Field(max_length=8)]
_Key = Annotated[str, pydantic.Field(pattern=r"^[^/\x00-\x1f]{1,64}$")]


class Box(Model):
    """Numbers in an interval each."""

    kind: Literal["box"] = "box"
    shape: _Shape
    dtype: FloatType | IntegerType = "float32"
    low: _Bound = None
    high: _Bound = None

    @pydantic.model_validator(mode="after")
    def _bounds_fit(self) -> Box:
        _refuse_large(self.shape, self.dtype)
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, tuple) and len(bound) != math.prod(self.shape):
                raise ValueError(
                    f"{name} has {counted(len(bound), 'number')}; expected "
                    f"{math.prod(self.shape)}, one for each entry of the shape {list(self.shape)}"
                )
        low, high = self.limits()
        if not (low <= high).all():
            raise ValueError("low is above high; expected low <= high everywhere")
        return self

    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the lower and upper bounds, each of the shape; infinite where there is none."""
        return _filled(self.low, self.shape, -math.inf), _filled(self.high, self.shape, math.inf)


class Discrete(Model):
    """One of n integers."""

    kind: Literal["discrete"] = "discrete"
    n: _Size
    start: Annotated[int, pydantic.Field(ge=-(1 << 53), le=1 << 53)] = 0


class MultiDiscrete(Model):
    """Several integers, each in a range of its own."""

    kind: Literal["multi_discrete"] = "multi_discrete"
    nvec: Annotated[tuple[_Size, ...], pydantic.Field(min_length=1, max_length=1 << 16)]


class MultiBinary(Model):
    """Zeros and ones."""

    kind: Literal["multi_binary"] = "multi_binary"
    shape: Annotated[_Shape, pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _is_small(self) -> MultiBinary:
        _refuse_large(self.shape, "int8")
        return self


class Dict(Model):
    """Named spaces."""

    kind: Literal["dict"] = "dict"
    spaces: Annotated[dict[_Key, Space], pydantic.Field(min_length=1, max_length=MAX_LEAVES)]


class Tuple(Model):
    """Spaces in an order."""

    kind: Literal["tuple"] = "tuple"
    spaces: Annotated[tuple[Space, ...], pydantic.Field(min_length=1, max_length=MAX_LEAVES)]


Leaf = Box | Discrete | MultiDiscrete | MultiBinary
Space = Annotated[Leaf | Dict | Tuple, pydantic.Field(discriminator="kind")]
ActionSpace = Annotated[Leaf, pydantic.Field(discriminator="kind")]


class Bounds(Model):
    """Limits of a Box action within its space: what the controlled system can bear."""

    low: _Bound = None
    high: _Bound = None


class PolicySpec(Model):
    """Everything that a server needs to know to train a policy.

    Example:
        >>> spec = PolicySpec(
        ...     name="lander",
        ...     observation=Box(shape=(8,)),
        ...     action=Discrete(n=4),
        ...     algorithm="ppo",
        ...     settings={"gamma": 0.99},
        ... )
        >>> spec.hash() == read_spec(spec.canonical()).hash()
        True
    """

    name: Annotated[str, pydantic.Field(pattern=NAME)]
    observation: Space
    action: ActionSpace
    bounds: Bounds | None = None
    algorithm: Annotated[str, pydantic.Field(pattern=NAME)]
    settings: dict[str, pydantic.JsonValue] = pydantic.Field(default_factory=dict)
    group: Annotated[str, pydantic.Field(pattern=NAME)] | None = None

    @pydantic.model_validator(mode="after")
    def _fits_together(self) -> PolicySpec:
        leaves = list(leaves_of(self.observation))
        if len(leaves) > MAX_LEAVES:
            raise ValueError(
                f"the observation has {len(leaves)} parts; expected {MAX_LEAVES} or fewer"
            )
        size = sum(leaf_bytes(leaf) for _, leaf in leaves)
        if size > MAX_STEP_BYTES:
            raise ValueError(
                f"an observation takes {size} bytes; expected {MAX_STEP_BYTES} or fewer"
            )
        try:
            canonical(self.settings)
        except ValueError as error:
            raise ValueError(f"settings are not plain JSON: {error}") from None
        if self.bounds is not None:
            self._check_bounds(self.bounds)
        return self

    def _check_bounds(self, bounds: Bounds) -> None:
        if not isinstance(self.action, Box):
            raise ValueError(
                f"bounds are for a box of actions; this action is {self.action.kind}: leave it out"
            )
        inner = Box(
            shape=self.action.shape, dtype=self.action.dtype, low=bounds.low, high=bounds.high
        )
        low, high = self.action.limits()
        tight_low, tight_high = inner.limits()
        if ((tight_low < low) & np.isfinite(tight_low)).any() or (
            (tight_high > high) & np.isfinite(tight_high)
        ).any():
            raise ValueError("bounds reach beyond the action space; expected them inside it")
        if (np.maximum(low, tight_low) > np.minimum(high, tight_high)).any():
            raise ValueError("bounds leave no action; expected some room inside the action space")

    def action_limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the lowest and highest Box actions allowed, or None for another space."""
        if not isinstance(self.action, Box):
            return None
        low, high = self.action.limits()
        if self.bounds is not None:
            low = np.maximum(low, _filled(self.bounds.low, self.action.shape, -math.inf))
            high = np.minimum(high, _filled(self.bounds.high, self.action.shape, math.inf))
        return low, high

    def canonical(self) -> bytes:
        """Return the one JSON text that stands for this spec."""
        return canonical({"schema": SCHEMA, **self.model_dump(mode="json")})

    def hash(self) -> str:
        """Return the SHA-256 of the canonical text."""
        return hashlib.sha256(self.canonical()).hexdigest()


def _refuse_large(shape: tuple[int, ...], dtype: str) -> None:
    # In Python's own integers, so that no product wraps around.
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size > MAX_STEP_BYTES:
        raise ValueError(
            f"the shape {list(shape)} of {dtype} takes {size} bytes a step; "
            f"expected {MAX_STEP_BYTES} or fewer"
        )


def _filled(bound: _Bound, shape: tuple[int, ...], unbounded: float) -> NDArray[np.float64]:
    if isinstance(bound, tuple):
        values = [unbounded if value is None else value for value in bound]
        return np.array(values, np.float64).reshape(shape)
    return np.full(shape, unbounded if bound is None else bound, np.float64)


def leaves_of(space: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Leaf]]:
    """Yield the leaves of a space with their names, such as `arm/joints`; "" where it is one.

    Dict entries come in the order of their names, which is also Gymnasium's.
    """
    if len(path) > MAX_DEPTH:
        raise ValueError(f"the observation is nested deeper than {MAX_DEPTH} levels")
    if isinstance(space, Dict):
        for key in sorted(space.spaces):
            yield from leaves_of(space.spaces[key], (*path, key))
    elif isinstance(space, Tuple):
        for number, one in enumerate(space.spaces):
            yield from leaves_of(one, (*path, str(number)))
    else:
        yield "/".join(path), space


def leaf_layout(leaf: Leaf) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of one value of a leaf."""
    if isinstance(leaf, Box):
        return np.dtype(leaf.dtype), leaf.shape
    if isinstance(leaf, Discrete):
        return np.dtype(np.int64), ()
    if isinstance(leaf, MultiDiscrete):
        return np.dtype(np.int64), (len(leaf.nvec),)
    return np.dtype(np.int8), leaf.shape


def leaf_bytes(leaf: Leaf) -> int:
    """Return how many bytes one value of a leaf takes."""
    dtype, shape = leaf_layout(leaf)
    return dtype.itemsize * math.prod(shape)


def canonical(value: Any) -> bytes:
    """Render a plain value as the one JSON text that stands for it.

    Raises:
        ValueError: It holds a NaN, an infinity, or something that JSON cannot say.

    Example:
        >>> canonical({"b": 1.0, "a": [True, None, 0.5]})
        b'{"a":[true,null,0.5],"b":1}'
    """
    text = json.dumps(
        _whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return text.encode()


def _whole(value: Any) -> Any:
    """Write whole floats as integers: languages differ in whether they print `1` or `1.0`."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(item) for item in value]
    return value


def read_spec(text: bytes | str) -> PolicySpec:
    """Read a spec from JSON.

    Raises:
        RejectionError: BAD_SPEC, with the key, its value and what was expected.
    """
    if len(text) > MAX_SPEC_BYTES:
        raise _bad_spec(f"has {len(text)} bytes; expected {MAX_SPEC_BYTES} or fewer")
    try:
        values = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _bad_spec(f"is not readable JSON: {error}") from None
    if not isinstance(values, dict):
        raise _bad_spec(f"is a JSON {type(values).__name__}; expected an object")
    schema = values.pop("schema", SCHEMA)
    if schema != SCHEMA:
        raise RejectionError(
            Reason.UNSUPPORTED_PROTOCOL,
            f"The policy spec has schema {schema!r}; this server knows {SCHEMA}.",
            "Use a client and a server of the same version of Assay.",
        )
    try:
        return parse(PolicySpec, values, what="the policy spec")
    except ConfigError as error:
        # Shortened, since it travels in the metadata of a status, which has little room.
        raise RejectionError(Reason.BAD_SPEC, error.message[:1000]) from None
    except (RecursionError, OverflowError, TypeError):
        raise _bad_spec("is nested too deeply or holds a number too large") from None


def _bad_spec(what: str) -> RejectionError:
    return RejectionError(Reason.BAD_SPEC, f"The policy spec {what}.")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def first_difference(registered: PolicySpec, given: PolicySpec) -> str | None:
    """Name the first place where two specs differ, or None where they are the same.

    Example:
        >>> one = PolicySpec(
        ...     name="a", observation=Box(shape=(8,)), action=Discrete(n=4), algorithm="ppo"
        ... )
        >>> first_difference(one, one.model_copy(update={"action": Discrete(n=5)}))
        'action.n is 4 as registered, 5 as given'
    """
    # In the model's own order, which puts the spaces before the settings.
    old, new = (_whole(one.model_dump(mode="json")) for one in (registered, given))
    found = _difference(old, new, ())
    if found is None:
        return None
    path, old, new = found
    return f"{'.'.join(path)} is {_shown(old)} as registered, {_shown(new)} as given"


_MISSING = object()
_Difference = tuple[tuple[str, ...], Any, Any]


def _difference(old: Any, new: Any, path: tuple[str, ...]) -> _Difference | None:
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = ({str(number): value for number, value in enumerate(one)} for one in (old, new))
    if not (isinstance(old, dict) and isinstance(new, dict)):
        same = type(old) is type(new) and old == new
        return None if same else (path, old, new)
    for key in {**old, **new}:
        found = _difference(old.get(key, _MISSING), new.get(key, _MISSING), (*path, key))
        if found is not None:
            return found
    return None


def _shown(value: Any) -> str:
    if value is _MISSING:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def space_of(space: Any) -> Space:
    """Describe a Gymnasium space.

    Raises:
        SpaceError: It has no counterpart here.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return Box.model_validate(
            {
                "shape": space.shape,
                "dtype": str(space.dtype),
                "low": _bound(space.low),
                "high": _bound(space.high),
            }
        )
    if isinstance(space, spaces.Discrete):
        return Discrete(n=int(space.n), start=int(space.start))
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 and not space.start.any():
        return MultiDiscrete(nvec=tuple(int(n) for n in space.nvec))
    if isinstance(space, spaces.MultiBinary):
        return MultiBinary(shape=tuple(int(n) for n in space.shape))
    if isinstance(space, spaces.Dict):
        return Dict(spaces={str(key): space_of(one) for key, one in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return Tuple(spaces=tuple(space_of(one) for one in space.spaces))
    raise SpaceError(
        f"The space {space} cannot be sent to a server; expected Box, Discrete, MultiDiscrete "
        "(flat, from 0), MultiBinary, or Dict or Tuple of those.",
        "Wrap the environment so that it uses these.",
    )


def _bound(values: NDArray[Any]) -> _Bound:
    """Shorten bounds: one number where all are equal, None where there is none."""
    plain = [float(value) if math.isfinite(value) else None for value in values.ravel().tolist()]
    if plain and all(value == plain[0] for value in plain):
        return plain[0]
    return tuple(plain)


def gym_space(space: Any) -> Any:
    """Return the Gymnasium space that a space describes.

    Example:
        >>> gym_space(Dict(spaces={"a": Discrete(n=3), "b": MultiBinary(shape=(2,))}))
        Dict('a': Discrete(3), 'b': MultiBinary(2))
    """
    from gymnasium import spaces

    if isinstance(space, Box):
        dtype = np.dtype(space.dtype)
        low, high = space.limits()
        if dtype.kind != "f":
            info = np.iinfo(dtype)
            low, high = (np.clip(limit, info.min, info.max) for limit in (low, high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), space.shape, dtype.type)
    if isinstance(space, Discrete):
        return spaces.Discrete(space.n, start=space.start)
    if isinstance(space, MultiDiscrete):
        return spaces.MultiDiscrete(np.array(space.nvec))
    if isinstance(space, MultiBinary):
        return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
    if isinstance(space, Dict):
        return spaces.Dict({key: gym_space(one) for key, one in sorted(space.spaces.items())})
    return spaces.Tuple([gym_space(one) for one in space.spaces])
