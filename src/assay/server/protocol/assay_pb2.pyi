from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASON_UNSPECIFIED: _ClassVar[Reason]
    FRAME_TOO_LARGE: _ClassVar[Reason]
    TRAJECTORY_TOO_LARGE: _ClassVar[Reason]
    DECOMPRESSED_TOO_LARGE: _ClassVar[Reason]
    UNSUPPORTED_CODEC: _ClassVar[Reason]
    CHECKSUM_MISMATCH: _ClassVar[Reason]
    MALFORMED: _ClassVar[Reason]
    PART_OUT_OF_ORDER: _ClassVar[Reason]
    MISSING_TENSOR: _ClassVar[Reason]
    UNKNOWN_TENSOR: _ClassVar[Reason]
    WRONG_DTYPE: _ClassVar[Reason]
    WRONG_SHAPE: _ClassVar[Reason]
    NOT_FINITE: _ClassVar[Reason]
    ACTION_OUT_OF_BOUNDS: _ClassVar[Reason]
    OBSERVATION_OUT_OF_BOUNDS: _ClassVar[Reason]
    BAD_FLAG: _ClassVar[Reason]
    BAD_VERSION: _ClassVar[Reason]
    REWARD_OUT_OF_BOUNDS: _ClassVar[Reason]
    BAD_LOG_PROB: _ClassVar[Reason]
    UNKNOWN_POLICY: _ClassVar[Reason]
    UNKNOWN_SESSION: _ClassVar[Reason]
    FENCED: _ClassVar[Reason]
    SEQUENCE_GAP: _ClassVar[Reason]
    SPEC_CONFLICT: _ClassVar[Reason]
    BAD_SPEC: _ClassVar[Reason]
    POLICY_PAUSED: _ClassVar[Reason]
    POLICY_DELETED: _ClassVar[Reason]
    RESOURCE_EXHAUSTED: _ClassVar[Reason]
    QUOTA_EXCEEDED: _ClassVar[Reason]
    DRAINING: _ClassVar[Reason]
    UNAUTHENTICATED: _ClassVar[Reason]
    PERMISSION_DENIED: _ClassVar[Reason]
    UNSUPPORTED_PROTOCOL: _ClassVar[Reason]
    UNKNOWN_VERSION: _ClassVar[Reason]
    HASH_MISMATCH: _ClassVar[Reason]
    BAD_WEIGHTS: _ClassVar[Reason]
    UNKNOWN_CHANNEL: _ClassVar[Reason]
    CHANNEL_PINNED: _ClassVar[Reason]
    NO_EARLIER_VERSION: _ClassVar[Reason]

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    BOOL: _ClassVar[DType]
    UINT8: _ClassVar[DType]
    INT8: _ClassVar[DType]
    UINT16: _ClassVar[DType]
    INT16: _ClassVar[DType]
    UINT32: _ClassVar[DType]
    INT32: _ClassVar[DType]
    UINT64: _ClassVar[DType]
    INT64: _ClassVar[DType]
    FLOAT16: _ClassVar[DType]
    FLOAT32: _ClassVar[DType]
    FLOAT64: _ClassVar[DType]

class Codec(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RAW: _ClassVar[Codec]
    ZSTD: _ClassVar[Codec]

class PolicyState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POLICY_STATE_UNSPECIFIED: _ClassVar[PolicyState]
    ACTIVE: _ClassVar[PolicyState]
    PAUSED: _ClassVar[PolicyState]
    DELETED: _ClassVar[PolicyState]
REASON_UNSPECIFIED: Reason
FRAME_TOO_LARGE: Reason
TRAJECTORY_TOO_LARGE: Reason
DECOMPRESSED_TOO_LARGE: Reason
UNSUPPORTED_CODEC: Reason
CHECKSUM_MISMATCH: Reason
MALFORMED: Reason
PART_OUT_OF_ORDER: Reason
MISSING_TENSOR: Reason
UNKNOWN_TENSOR: Reason
WRONG_DTYPE: Reason
WRONG_SHAPE: Reason
NOT_FINITE: Reason
ACTION_OUT_OF_BOUNDS: Reason
OBSERVATION_OUT_OF_BOUNDS: Reason
BAD_FLAG: Reason
BAD_VERSION: Reason
REWARD_OUT_OF_BOUNDS: Reason
BAD_LOG_PROB: Reason
UNKNOWN_POLICY: Reason
UNKNOWN_SESSION: Reason
FENCED: Reason
SEQUENCE_GAP: Reason
SPEC_CONFLICT: Reason
BAD_SPEC: Reason
POLICY_PAUSED: Reason
POLICY_DELETED: Reason
RESOURCE_EXHAUSTED: Reason
QUOTA_EXCEEDED: Reason
DRAINING: Reason
UNAUTHENTICATED: Reason
PERMISSION_DENIED: Reason
UNSUPPORTED_PROTOCOL: Reason
UNKNOWN_VERSION: Reason
HASH_MISMATCH: Reason
BAD_WEIGHTS: Reason
UNKNOWN_CHANNEL: Reason
CHANNEL_PINNED: Reason
NO_EARLIER_VERSION: Reason
DTYPE_UNSPECIFIED: DType
BOOL: DType
UINT8: DType
INT8: DType
UINT16: DType
INT16: DType
UINT32: DType
INT32: DType
UINT64: DType
INT64: DType
FLOAT16: DType
FLOAT32: DType
FLOAT64: DType
RAW: Codec
ZSTD: Codec
POLICY_STATE_UNSPECIFIED: PolicyState
ACTIVE: PolicyState
PAUSED: PolicyState
DELETED: PolicyState

class Rejection(_message.Message):
    __slots__ = ("epoch", "seq", "reason", "message", "fix")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    reason: Reason
    message: str
    fix: str
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., reason: _Optional[_Union[Reason, str]] = ..., message: _Optional[str] = ..., fix: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class NamedTensor(_message.Message):
    __slots__ = ("name", "tensor")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    tensor: Tensor
    def __init__(self, name: _Optional[str] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class TensorMap(_message.Message):
    __slots__ = ("tensors",)
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[NamedTensor]
    def __init__(self, tensors: _Optional[_Iterable[_Union[NamedTensor, _Mapping]]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("epoch", "seq", "dropped", "episode", "start_step", "version", "steps", "codec", "crc32c", "size", "raw_size", "tensors", "part", "parts", "patch")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    EPISODE_FIELD_NUMBER: _ClassVar[int]
    START_STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RAW_SIZE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    seq: int
    dropped: int
    episode: int
    start_step: int
    version: int
    steps: int
    codec: Codec
    crc32c: int
    size: int
    raw_size: int
    tensors: bytes
    part: int
    parts: int
    patch: RewardPatch
    def __init__(self, epoch: _Optional[int] = ..., seq: _Optional[int] = ..., dropped: _Optional[int] = ..., episode: _Optional[int] = ..., start_step: _Optional[int] = ..., version: _Optional[int] = ..., steps: _Optional[int] = ..., codec: _Optional[_Union[Codec, str]] = ..., crc32c: _Optional[int] = ..., size: _Optional[int] = ..., raw_size: _Optional[int] = ..., tensors: _Optional[bytes] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., patch: _Optional[_Union[RewardPatch, _Mapping]] = ...) -> None: ...

class RewardPatch(_message.Message):
    __slots__ = ("event_id", "reward")
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    event_id: _containers.RepeatedScalarFieldContainer[int]
    reward: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, event_id: _Optional[_Iterable[int]] = ..., reward: _Optional[_Iterable[float]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("epoch", "committed", "credit_bytes", "credit_batches", "newest_version", "duplicates", "rejections")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    committed: int
    credit_bytes: int
    credit_batches: int
    newest_version: int
    duplicates: int
    rejections: _containers.RepeatedCompositeFieldContainer[Rejection]
    def __init__(self, epoch: _Optional[int] = ..., committed: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., credit_batches: _Optional[int] = ..., newest_version: _Optional[int] = ..., duplicates: _Optional[int] = ..., rejections: _Optional[_Iterable[_Union[Rejection, _Mapping]]] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("protocol", "spec_json")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    spec_json: str
    def __init__(self, protocol: _Optional[int] = ..., spec_json: _Optional[str] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("policy", "spec_hash", "created")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    spec_hash: str
    created: bool
    def __init__(self, policy: _Optional[str] = ..., spec_hash: _Optional[str] = ..., created: _Optional[bool] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("protocol", "policy", "spec_hash", "resume_epoch", "client_version")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    RESUME_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    policy: str
    spec_hash: str
    resume_epoch: int
    client_version: str
    def __init__(self, protocol: _Optional[int] = ..., policy: _Optional[str] = ..., spec_hash: _Optional[str] = ..., resume_epoch: _Optional[int] = ..., client_version: _Optional[str] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("frame_bytes", "trajectory_bytes", "codecs")
    FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAJECTORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CODECS_FIELD_NUMBER: _ClassVar[int]
    frame_bytes: int
    trajectory_bytes: int
    codecs: _containers.RepeatedScalarFieldContainer[Codec]
    def __init__(self, frame_bytes: _Optional[int] = ..., trajectory_bytes: _Optional[int] = ..., codecs: _Optional[_Iterable[_Union[Codec, str]]] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("epoch", "resumed_committed", "limits", "credit_bytes", "credit_batches", "newest_version", "server_version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RESUMED_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    resumed_committed: int
    limits: Limits
    credit_bytes: int
    credit_batches: int
    newest_version: int
    server_version: str
    def __init__(self, epoch: _Optional[int] = ..., resumed_committed: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., credit_bytes: _Optional[int] = ..., credit_batches: _Optional[int] = ..., newest_version: _Optional[int] = ..., server_version: _Optional[str] = ...) -> None: ...

class IngestRequest(_message.Message):
    __slots__ = ("policy", "batch")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    policy: str
    batch: Batch
    def __init__(self, policy: _Optional[str] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("policy", "version", "epoch", "sha256", "size", "architecture", "channel", "parent", "metrics", "pinned", "created")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    policy: str
    version: int
    epoch: int
    sha256: str
    size: int
    architecture: str
    channel: str
    parent: int
    metrics: _containers.ScalarMap[str, float]
    pinned: bool
    created: float
    def __init__(self, policy: _Optional[str] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ..., sha256: _Optional[str] = ..., size: _Optional[int] = ..., architecture: _Optional[str] = ..., channel: _Optional[str] = ..., parent: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., pinned: _Optional[bool] = ..., created: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("policy", "channel")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    policy: str
    channel: str
    def __init__(self, policy: _Optional[str] = ..., channel: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("policy", "version", "sha256", "base_sha256")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    policy: str
    version: int
    sha256: str
    base_sha256: str
    def __init__(self, policy: _Optional[str] = ..., version: _Optional[int] = ..., sha256: _Optional[str] = ..., base_sha256: _Optional[str] = ...) -> None: ...

class ModelChunk(_message.Message):
    __slots__ = ("info", "base_sha256", "offset", "data")
    INFO_FIELD_NUMBER: _ClassVar[int]
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    info: ModelInfo
    base_sha256: str
    offset: int
    data: bytes
    def __init__(self, info: _Optional[_Union[ModelInfo, _Mapping]] = ..., base_sha256: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("policy", "channel", "version")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    policy: str
    channel: str
    version: int
    def __init__(self, policy: _Optional[str] = ..., channel: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("policy", "from_channel", "to_channel")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FROM_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TO_CHANNEL_FIELD_NUMBER: _ClassVar[int]
    policy: str
    from_channel: str
    to_channel: str
    def __init__(self, policy: _Optional[str] = ..., from_channel: _Optional[str] = ..., to_channel: _Optional[str] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("policy", "channel", "reason")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    policy: str
    channel: str
    reason: str
    def __init__(self, policy: _Optional[str] = ..., channel: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ActRequest(_message.Message):
    __slots__ = ("policy", "observation", "carry", "deterministic")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    CARRY_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    policy: str
    observation: TensorMap
    carry: TensorMap
    deterministic: bool
    def __init__(self, policy: _Optional[str] = ..., observation: _Optional[_Union[TensorMap, _Mapping]] = ..., carry: _Optional[_Union[TensorMap, _Mapping]] = ..., deterministic: _Optional[bool] = ...) -> None: ...

class ActReply(_message.Message):
    __slots__ = ("action", "log_prob", "version", "carry")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOG_PROB_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CARRY_FIELD_NUMBER: _ClassVar[int]
    action: Tensor
    log_prob: float
    version: int
    carry: TensorMap
    def __init__(self, action: _Optional[_Union[Tensor, _Mapping]] = ..., log_prob: _Optional[float] = ..., version: _Optional[int] = ..., carry: _Optional[_Union[TensorMap, _Mapping]] = ...) -> None: ...

class PolicyInfo(_message.Message):
    __slots__ = ("policy", "spec_hash", "spec_json", "state", "batches", "steps", "bytes", "position", "cursor", "newest_version", "channels", "pinned", "learner", "traffic", "notes")
    class ChannelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    SPEC_HASH_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    LEARNER_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    policy: str
    spec_hash: str
    spec_json: str
    state: PolicyState
    batches: int
    steps: int
    bytes: int
    position: int
    cursor: int
    newest_version: int
    channels: _containers.ScalarMap[str, int]
    pinned: _containers.RepeatedScalarFieldContainer[str]
    learner: LearnerInfo
    traffic: Traffic
    notes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy: _Optional[str] = ..., spec_hash: _Optional[str] = ..., spec_json: _Optional[str] = ..., state: _Optional[_Union[PolicyState, str]] = ..., batches: _Optional[int] = ..., steps: _Optional[int] = ..., bytes: _Optional[int] = ..., position: _Optional[int] = ..., cursor: _Optional[int] = ..., newest_version: _Optional[int] = ..., channels: _Optional[_Mapping[str, int]] = ..., pinned: _Optional[_Iterable[str]] = ..., learner: _Optional[_Union[LearnerInfo, _Mapping]] = ..., traffic: _Optional[_Union[Traffic, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class LearnerInfo(_message.Message):
    __slots__ = ("state", "behind_batches", "behind_steps", "restarts", "memory_bytes", "pid", "where", "last_error", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTARTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    state: str
    behind_batches: int
    behind_steps: int
    restarts: int
    memory_bytes: int
    pid: int
    where: str
    last_error: str
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, state: _Optional[str] = ..., behind_batches: _Optional[int] = ..., behind_steps: _Optional[int] = ..., restarts: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., pid: _Optional[int] = ..., where: _Optional[str] = ..., last_error: _Optional[str] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Traffic(_message.Message):
    __slots__ = ("steps_per_second", "batches_per_second", "sessions", "watchers", "ack_p50_seconds", "ack_p99_seconds", "duplicates", "rejections", "clients", "version_lag")
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    BATCHES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    WATCHERS_FIELD_NUMBER: _ClassVar[int]
    ACK_P50_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACK_P99_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    REJECTIONS_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_LAG_FIELD_NUMBER: _ClassVar[int]
    steps_per_second: float
    batches_per_second: float
    sessions: int
    watchers: int
    ack_p50_seconds: float
    ack_p99_seconds: float
    duplicates: int
    rejections: int
    clients: _containers.RepeatedScalarFieldContainer[str]
    version_lag: float
    def __init__(self, steps_per_second: _Optional[float] = ..., batches_per_second: _Optional[float] = ..., sessions: _Optional[int] = ..., watchers: _Optional[int] = ..., ack_p50_seconds: _Optional[float] = ..., ack_p99_seconds: _Optional[float] = ..., duplicates: _Optional[int] = ..., rejections: _Optional[int] = ..., clients: _Optional[_Iterable[str]] = ..., version_lag: _Optional[float] = ...) -> None: ...

class PolicyDetails(_message.Message):
    __slots__ = ("info", "models")
    INFO_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    info: PolicyInfo
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, info: _Optional[_Union[PolicyInfo, _Mapping]] = ..., models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...

class ListPoliciesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPoliciesReply(_message.Message):
    __slots__ = ("policies",)
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[PolicyInfo]
    def __init__(self, policies: _Optional[_Iterable[_Union[PolicyInfo, _Mapping]]] = ...) -> None: ...

class PolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_seconds",)
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    timeout_seconds: float
    def __init__(self, timeout_seconds: _Optional[float] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ("complete",)
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    def __init__(self, complete: _Optional[bool] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("policy", "dataset_id", "after_position")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DATASET_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_POSITION_FIELD_NUMBER: _ClassVar[int]
    policy: str
    dataset_id: str
    after_position: int
    def __init__(self, policy: _Optional[str] = ..., dataset_id: _Optional[str] = ..., after_position: _Optional[int] = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ("path", "episodes", "steps", "damaged")
    PATH_FIELD_NUMBER: _ClassVar[int]
    EPISODES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    path: str
    episodes: int
    steps: int
    damaged: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, path: _Optional[str] = ..., episodes: _Optional[int] = ..., steps: _Optional[int] = ..., damaged: _Optional[_Iterable[str]] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("policy", "verbs")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERBS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    verbs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, policy: _Optional[str] = ..., verbs: _Optional[_Iterable[str]] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("id", "principal", "grants", "expires")
    ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    id: str
    principal: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    expires: float
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., expires: _Optional[float] = ...) -> None: ...

class AddTokenRequest(_message.Message):
    __slots__ = ("principal", "grants", "expires")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    principal: str
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    expires: float
    def __init__(self, principal: _Optional[str] = ..., grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., expires: _Optional[float] = ...) -> None: ...

class AddTokenReply(_message.Message):
    __slots__ = ("token", "info")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    token: str
    info: TokenInfo
    def __init__(self, token: _Optional[str] = ..., info: _Optional[_Union[TokenInfo, _Mapping]] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ("revoked",)
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    revoked: bool
    def __init__(self, revoked: _Optional[bool] = ...) -> None: ...
