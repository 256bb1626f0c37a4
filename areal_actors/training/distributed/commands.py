"""Messages between the trainer's process and its ranks, and their framing; without torch or pickle."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from areal_actors.core.values import TrainingSequence

LENGTH = struct.Struct("<Q")
MAX_HELLO_BYTES = 1 << 16
"""Maximum length of a frame from an unauthenticated client, in bytes."""
CHALLENGE_BYTES = 32


class Start(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Load the model, join the device mesh, and make a trainer."""

    model_folder: str
    algorithm: bytes
    """The recipe's table as JSON."""
    settings: bytes
    """The recipe's `[trainer]` as JSON."""
    arguments: dict[str, Any]
    """Further keyword arguments of the trainer."""


class MethodCall(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Call a method of the trainer, with sequences, with a folder, or without arguments."""

    method: str
    sequences: list[TrainingSequence] | None = None
    folder: str | None = None


class BroadcastCall(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A `MethodCall` with sequences, which the first rank broadcasts to the others.

    So the trainer's process sends them once.
    """

    length: int
    """Bytes of the encoded call."""


Command = Start | MethodCall | BroadcastCall
"""Every rank executes a command at the same time."""


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


def encode(message: object) -> bytes:
    """Encodes a message; a numpy array becomes its dtype and its bytes."""
    return msgspec.msgpack.encode(message, enc_hook=lambda array: (array.dtype.str, array.tobytes()))


def decode(body: bytes, kind: Any) -> Any:
    """Decodes a message of `encode`.

    Raises:
        msgspec.DecodeError: it is not of this kind.
    """
    return msgspec.msgpack.decode(body, type=kind, dec_hook=lambda _, array: np.frombuffer(array[1], array[0]))


class Frames:
    """Length-prefixed messages over a socket. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def send(self, message: msgspec.Struct | bytes) -> None:
        """Send one message; bytes are sent as they are."""
        body = message if isinstance(message, bytes) else encode(message)
        self.connection.sendall(
            LENGTH.pack(len(body)) + body if len(body) < MAX_HELLO_BYTES else LENGTH.pack(len(body))
        )
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
