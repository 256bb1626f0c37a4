"""Requests to the process that sends weights to an inference server (`sender`), and its answers; without torch."""

from __future__ import annotations

import msgspec

from areal_actors.core.values import WeightsLocation


class Prepare(msgspec.Struct, tag=True, frozen=True):
    """Map a version, which has been verified, and divide it; answered by `PreparedVersion`."""

    location: WeightsLocation
    keep: bool = False
    """The server keeps a copy, to which later deltas are applied."""
    base: str = ""
    """Checksum of the copy that the server has, to send a delta; empty for the whole version."""
    bucket_bytes: int = 2**28
    """Bytes of a bucket; a larger tensor is a bucket of its own."""


class Join(msgspec.Struct, tag=True, frozen=True):
    """Open a process group at this address and wait for the processes of the server."""

    address: str
    port: int
    name: str
    ranks: int
    """Processes of the group, this one included."""
    backend: str
    """`gloo` or `nccl`."""
    seconds: float


class Send(msgspec.Struct, tag=True, frozen=True):
    """Broadcast a bucket to the group."""

    bucket: int
    seconds: float


class Share(msgspec.Struct, tag=True, frozen=True):
    """Put a bucket into shared memory; answered by `Shared`."""

    bucket: int
    ranks: int
    """Processes of the server: each takes a handle of its own."""


class Held(msgspec.Struct, tag=True, frozen=True):
    """Note that the server holds a copy of the prepared version."""


Request = Prepare | Join | Send | Share | Held


class Bucket(msgspec.Struct, frozen=True):
    """Tensors of a bucket, in their order."""

    names: list[str]
    dtypes: list[str]
    """As torch names them, without `torch.`."""
    shapes: list[list[int]]


class PreparedVersion(msgspec.Struct, tag=True, frozen=True):
    """A version that can be sent."""

    buckets: list[Bucket]
    kind: str
    """`whole` or `delta`."""
    sent_bytes: int
    """Bytes of the buckets."""
    whole_bytes: int
    """Bytes of all tensors of the version."""


class Shared(msgspec.Struct, tag=True, frozen=True):
    """Handles of a bucket in shared memory: pickled, in base64, one for each process of the server."""

    handles: list[str]


class SenderDone(msgspec.Struct, tag=True, frozen=True):
    """A request was fulfilled."""


class SenderFailed(msgspec.Struct, tag=True, frozen=True):
    """A request failed."""

    reason: str


Answer = PreparedVersion | Shared | SenderDone | SenderFailed
