"""Messages between the trainer's process and its ranks, and their framing; without torch or pickle."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from areal_actors.core.values import Row, RowCall

LENGTH = struct.Struct("<Q")
MAX_HELLO_BYTES = 1 << 16
"""Maximum length of a frame from an unauthenticated client, in bytes."""
CHALLENGE_BYTES = 32


class RankCommand(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A command that every rank executes at the same time."""


class Start(RankCommand, frozen=True, kw_only=True):
    """Load the model, join the device mesh, and make a trainer."""

    model_folder: str
    algorithm: bytes
    """The recipe's table as JSON."""
    settings: bytes
    """The recipe's `[trainer]` as JSON."""
    arguments: dict[str, Any]
    """Further keyword arguments of the trainer."""


class EncodedRows(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a step: each column of all rows concatenated, little-endian."""

    lengths: bytes
    """u32 `[rows]`: number of tokens of each row."""
    token_ids: bytes
    """u32 `[tokens]`."""
    loss_mask: bytes
    """bool `[tokens]`."""
    logprobs: bytes
    """f32 `[tokens]`."""
    versions: bytes
    """i32 `[tokens]`."""
    groups: list[int]
    rewards: list[float]
    truncated: list[bool]
    episodes: list[str]
    calls: list[tuple[RowCall, ...]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> EncodedRows:
        """Encodes rows."""

        def column(name: str, dtype: str) -> bytes:
            return b"".join(np.asarray(getattr(row, name), dtype=dtype).tobytes() for row in rows)

        return cls(
            lengths=np.asarray([len(row.token_ids) for row in rows], dtype="<u4").tobytes(),
            token_ids=column("token_ids", "<u4"),
            loss_mask=column("loss_mask", "?"),
            logprobs=column("logprobs", "<f4"),
            versions=column("versions", "<i4"),
            groups=[row.group for row in rows],
            rewards=[row.reward for row in rows],
            truncated=[row.truncated for row in rows],
            episodes=[row.episode for row in rows],
            calls=[row.calls for row in rows],
        )

    def decode(self) -> list[Row]:
        """Decodes the rows."""
        if not self.groups:
            return []
        ends = np.cumsum(np.frombuffer(self.lengths, dtype="<u4"), dtype=np.int64)[:-1]
        ids = np.split(np.frombuffer(self.token_ids, dtype="<u4").astype(np.int64), ends)
        masks = np.split(np.frombuffer(self.loss_mask, dtype="?"), ends)
        logprobs = np.split(np.frombuffer(self.logprobs, dtype="<f4"), ends)
        versions = np.split(np.frombuffer(self.versions, dtype="<i4"), ends)
        others = (self.groups, self.rewards, self.truncated, self.episodes, self.calls)
        return [Row(*fields) for fields in zip(ids, masks, logprobs, versions, *others, strict=True)]


class CallWithRows(RankCommand, frozen=True, kw_only=True):
    """Call a method of the trainer with rows: `step`, `evaluate`, `logp` or `values`."""

    method: str
    rows: EncodedRows


class CallWithFolder(RankCommand, frozen=True, kw_only=True):
    """Call a method of the trainer with a folder: `publish`, `save`, `save_model` or `load`."""

    method: str
    folder: str


class CallMethod(RankCommand, frozen=True, kw_only=True):
    """Call a method of the trainer without arguments: `checksum`."""

    method: str


class Done(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Successful reply of a rank."""

    weight_version: int
    value: Any = None
    """Return value of the method on the first rank, None on others."""


class Failed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Error reply of a rank."""

    kind: str
    """Name of the error's class."""
    text: str
    trace: str
    """The end of the traceback."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """First message of a rank: its identity, and proof that it has the key."""

    rank: int
    ranks: int
    host: str
    pid: int
    rendezvous: str
    """Run id and restart count of torchrun: only ranks with the same value form a group."""
    proof: bytes
    """HMAC-SHA256 of the challenge under the group's key."""


Reply = Done | Failed
_encoder = msgspec.msgpack.Encoder()


class Frames:
    """Length-prefixed messages over a socket. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: msgspec.Struct | bytes) -> None:
        """Send one message; bytes are sent as they are."""
        body = message if isinstance(message, bytes) else _encoder.encode(message)
        self.connection.sendall(LENGTH.pack(len(body)) + body if len(body) < MAX_HELLO_BYTES else LENGTH.pack(len(body)))
        if len(body) >= MAX_HELLO_BYTES:
            self.connection.sendall(body)

    def receive(self, longest: int | None = None) -> bytes:
        """Receive the next message.

        Raises:
            EOFError: the peer closed the connection or is gone, or the message is longer than `longest` bytes.
        """
        (length,) = LENGTH.unpack(self._receive_exactly(LENGTH.size))
        if longest is not None and length > longest:
            raise EOFError(f"a frame of {length} bytes from an unauthenticated client exceeds {longest} bytes")
        return self._receive_exactly(length)

    def _receive_exactly(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        while view:
            try:
                received = self.connection.recv_into(view)
            except ConnectionError:
                received = 0
            if not received:
                raise EOFError("the connection was closed")
            view = view[received:]
        return bytes(buffer)

    def close(self) -> None:
        """Close the connection, which also unblocks the peer."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def send_hello(connection: socket.socket, key: str, rank: int, ranks: int, pid: int, rendezvous: str = "") -> Frames:
    """Authenticate to the group: the rank's side of the handshake."""
    frames = Frames(connection)
    challenge = frames.receive(MAX_HELLO_BYTES)
    proof = _proof(key, challenge)
    frames.send(Hello(rank=rank, ranks=ranks, host=socket.gethostname(), pid=pid, rendezvous=rendezvous, proof=proof))
    return frames


def accept_hello(connection: socket.socket, key: str) -> tuple[Frames, Hello] | None:
    """The group's side of the handshake; None if the client does not have the key or uses another protocol."""
    frames = Frames(connection)
    challenge = secrets.token_bytes(CHALLENGE_BYTES)
    try:
        frames.send(challenge)
        hello = msgspec.msgpack.decode(frames.receive(MAX_HELLO_BYTES), type=Hello)
    except (EOFError, OSError, msgspec.DecodeError):
        hello = None
    if hello is None or not hmac.compare_digest(hello.proof, _proof(key, challenge)):
        connection.close()
        return None
    return frames, hello


def _proof(key: str, challenge: bytes) -> bytes:
    return hmac.digest(key.encode(), challenge, "sha256")
