"""The service `Infer`: actions from the server, for those who cannot hold a model themselves."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np

from assay.core.types import action_mask, unpack
from assay.policies.model_file import parse_snapshot
from assay.policies.parts import ModelError
from assay.server.client.policy import Policy, PolicyError
from assay.server.errors import Reason, RejectionError
from assay.server.gateway.hosted import Hosted
from assay.server.gateway.hub import Hub, answers
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol.assay_pb2_grpc import InferServicer
from assay.server.store.registry import Verb
from assay.server.tensors import OBS, Array, Field, bad_value

_MODELS = 32  # policies in memory
_MEMORIES, _RANK = 128, 4  # arrays that a policy may remember, and their axes
_CARRY = np.dtype("<f4")
_CODES = {np.dtype(name): pb.DType.Value(name.upper()) for name in ("int64", "float32", "int8")}


class Infer(InferServicer):
    """Acts for clients, one observation at a time."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._policies: dict[tuple[str, str], Policy] = {}
        self._lock = asyncio.Lock()
        self._rng = np.random.default_rng()

    @answers
    async def Act(self, request: pb.ActRequest, context: Any) -> pb.ActReply:
        """Choose an action with the model of the client's channel."""
        hub = self.hub
        principal = await hub.enter(context, request.policy, Verb.ACT)
        hosted = hub.hosted(request.policy)
        info = hosted.info_for(principal.name)
        if info is None:
            raise RejectionError(
                Reason.UNKNOWN_VERSION,
                f"'{hosted.name}' has no model yet.",
                "Ask again when its learner has published one.",
            )
        observation = unpack(OBS, read_row(request.observation, hosted))
        carry = read_carry(request.carry)
        policy = await self._policy(hosted, info.sha256)
        # Nothing is awaited from here on, so that the policy is ours alone.
        try:
            policy.remember(carry)
            rng = None if request.deterministic else self._rng
            action, log_prob = policy.act(observation, _mask(observation, policy), rng)
        except PolicyError as error:
            raise RejectionError(Reason.MALFORMED, str(error)) from None
        hub.meters.actions.add(1, hosted.name)
        return pb.ActReply(
            action=_tensor(np.asarray(action)),
            log_prob=log_prob,
            version=info.version,
            carry=pb.TensorMap(
                tensors=[
                    pb.NamedTensor(name=name, tensor=_tensor(array))
                    for name, array in policy.memory().items()
                ]
            ),
        )

    async def _policy(self, hosted: Hosted, digest: str) -> Policy:
        key = hosted.name, digest
        if key not in self._policies:
            async with self._lock:
                if key not in self._policies:
                    data = await self.hub.snapshot(hosted, digest)
                    try:
                        made = await self.hub.work(lambda: Policy(parse_snapshot(data, digest)))
                    except ModelError as error:
                        raise RejectionError(Reason.BAD_WEIGHTS, error.message) from None
                    self._policies[key] = made
                    while len(self._policies) > _MODELS:
                        self._policies.pop(next(iter(self._policies)))
        return self._policies[key]


def read_row(sent: pb.TensorMap, hosted: Hosted) -> dict[str, Array]:
    """Return one observation, if it is what the spec says.

    Raises:
        RejectionError: A part is missing, unknown, of another dtype or shape, or not finite.
    """
    fields = {one.name: one for one in hosted.layout.steps if one.name.split("/")[0] == OBS}
    rows: dict[str, Array] = {}
    if len(sent.tensors) > len(fields):
        raise RejectionError(
            Reason.MALFORMED,
            f"The observation has {len(sent.tensors)} parts; expected {len(fields)}.",
        )
    for named in sent.tensors:
        if named.name not in fields:
            raise RejectionError(
                Reason.UNKNOWN_TENSOR,
                f"The observation has a part '{named.name[:60]}'; expected {', '.join(fields)}.",
            )
        rows[named.name] = _row(named.tensor, fields[named.name])
    for name in fields:
        if name not in rows:
            raise RejectionError(Reason.MISSING_TENSOR, f"The tensor '{name}' is missing.")
    return rows


def _row(tensor: pb.Tensor, one: Field) -> Array:
    if tensor.dtype != one.code:
        raise RejectionError(
            Reason.WRONG_DTYPE,
            f"The tensor '{one.name}' is of dtype {tensor.dtype}; expected {one.dtype.name}.",
        )
    shape = tuple(tensor.shape)
    if shape not in (one.shape, (1, *one.shape)) or len(tensor.data) != one.step_bytes:
        raise RejectionError(
            Reason.WRONG_SHAPE,
            f"The tensor '{one.name}' has the shape {list(shape)} and {len(tensor.data)} bytes; "
            f"expected {list(one.shape)} and {one.step_bytes}.",
        )
    row = np.frombuffer(tensor.data, one.dtype).reshape(one.shape)
    bad = one.check(row) if one.check is not None else None
    if bad is not None:
        raise bad_value(one, row, bad)
    return row


def read_carry(sent: pb.TensorMap) -> dict[str, Array]:
    """Return what a policy remembered, as the last reply gave it.

    Raises:
        RejectionError: MALFORMED.
    """
    if len(sent.tensors) > _MEMORIES:
        raise RejectionError(Reason.MALFORMED, f"The carry has {len(sent.tensors)} parts.")
    return {one.name: _memory(one) for one in sent.tensors}


def _memory(named: pb.NamedTensor) -> Array:
    tensor = named.tensor
    size = _CARRY.itemsize * math.prod(tensor.shape[:_RANK])
    if tensor.dtype != pb.FLOAT32 or len(tensor.shape) > _RANK or len(tensor.data) != size:
        raise RejectionError(
            Reason.MALFORMED,
            f"The carry '{named.name[:60]}' is not an array of float32 of its shape.",
            "Send back what the last reply gave.",
        )
    return np.frombuffer(tensor.data, _CARRY).reshape(tuple(tensor.shape))


def _mask(observation: Any, policy: Policy) -> Array | None:
    mask = action_mask(observation) if policy.mask_size else None
    return None if mask is None else np.asarray(mask).reshape(-1)


def _tensor(array: Array) -> pb.Tensor:
    if array.dtype not in _CODES:
        array = array.astype(np.int64 if array.dtype.kind in "iub" else np.float32)
    code = _CODES[array.dtype]
    return pb.Tensor(
        dtype=code,
        shape=array.shape,
        data=array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(),
    )
