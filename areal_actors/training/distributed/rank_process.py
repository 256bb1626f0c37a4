"""A rank: `python -m areal_actors.training.distributed.rank_process`, of the trainer's process or of `torchrun`.

torch's variables RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT configure the process group;
AREAL_RANKS_ADDRESS (`host:port`) and AREAL_RANKS_KEY configure the connection to the trainer's process. A rank executes
commands and exits when the connection closes, so that no rank outlives its trainer.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
import traceback
from typing import Any

import msgspec

from areal_actors.training.algorithms import AnyAlgorithm
from areal_actors.training.distributed.commands import (
    BroadcastCall,
    Command,
    Done,
    Failed,
    Frames,
    MethodCall,
    Reply,
    Start,
    decode,
    send_hello,
)
from areal_actors.training.distributed.mesh import broadcast_bytes
from areal_actors.training.distributed.sharded import ShardedRanks
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

REPORT_SECONDS = 600.0
"""Timeout for the connection to the trainer, which listens only while it waits for ranks."""
RETRY_SECONDS = 0.2
TRACE_CHARACTERS = 4000
LOST = 70
"""Exit status of a rank whose connection was closed: EX_SOFTWARE."""


def main(_: list[str]) -> None:
    """Execute commands until the connection closes.

    Everything that it needs is in the environment, as with torchrun.
    """
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rendezvous = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
    connection = _connect(os.environ["AREAL_RANKS_ADDRESS"])
    frames = send_hello(connection, os.environ["AREAL_RANKS_KEY"], rank, ranks, os.getpid(), rendezvous)
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(frames, commands), daemon=True, name="commands").start()
    trainer: TorchTrainer | None = None
    while True:
        body = commands.get()
        try:
            command = _decode_command(body, ranks)
            if isinstance(command, Start):
                trainer = _start(command)
                reply: Reply = Done(weight_version=trainer.weight_version)
            else:
                assert trainer is not None
                reply = _run(trainer, command, first=rank == 0)
        except Exception as error:  # noqa: BLE001 - the trainer's process raises it
            reply = Failed(kind=type(error).__name__, text=str(error), trace=traceback.format_exc()[-TRACE_CHARACTERS:])
        frames.send(reply)


def _connect(address: str) -> socket.socket:
    """Connect to the trainer as soon as it listens."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + REPORT_SECONDS
    while True:
        try:
            connection = socket.create_connection((host, int(port)), timeout=until - time.monotonic())
        except ConnectionRefusedError:
            if time.monotonic() + RETRY_SECONDS > until:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            connection.settimeout(None)
            return connection


def _listen(frames: Frames, commands: queue.SimpleQueue[bytes]) -> None:
    """Receive commands even while a collective blocks; exit when the connection closes."""
    try:
        while True:
            commands.put(frames.receive())
    except EOFError:
        os._exit(LOST)


def _decode_command(body: bytes, ranks: int) -> Start | MethodCall:
    """Decode a command; sequences reach the other ranks through the first."""
    command: Command = decode(body, Command)
    if isinstance(command, BroadcastCall):
        call: MethodCall = decode(broadcast_bytes(None, command.length), MethodCall)
        return call
    if isinstance(command, MethodCall) and command.sequences is not None and ranks > 1:
        broadcast_bytes(body, len(body))
    return command


def _start(command: Start) -> TorchTrainer:
    settings = msgspec.json.decode(command.settings, type=TrainerSettings)
    algorithm = msgspec.json.decode(command.algorithm, type=AnyAlgorithm)
    return TorchTrainer(
        command.model_folder, algorithm, settings, ranks=ShardedRanks.meet(settings), **command.arguments
    )


def _run(trainer: TorchTrainer, call: MethodCall, *, first: bool) -> Done:
    """Call the method; only the first rank returns the value."""
    value = getattr(trainer, call.method)(
        *(argument for argument in (call.sequences, call.folder) if argument is not None)
    )
    return Done(weight_version=trainer.weight_version, value=_plain(value) if first else None)


def _plain(value: Any) -> Any:
    """Makes a value serializable by msgpack: a tensor becomes its float32 bytes."""
    return value.float().numpy().tobytes() if hasattr(value, "numpy") else value


if __name__ == "__main__":
    main([])
