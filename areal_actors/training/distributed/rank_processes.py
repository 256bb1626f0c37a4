"""Control of the processes of a rank group by the trainer's process: started, called, and ended together."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from areal_actors.core import errors
from areal_actors.core.errors import ArealError, EngineError, RankFailed, SetupError
from areal_actors.core.module_command import module_command
from areal_actors.training.distributed.commands import (
    BroadcastCall,
    Command,
    Done,
    Failed,
    Frames,
    Hello,
    MethodCall,
    Reply,
    accept_hello,
    decode,
    encode,
)

KEY = "AREAL_RANKS_KEY"
ADDRESS = "AREAL_RANKS_ADDRESS"
LOCAL = "127.0.0.1"
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""Timeout for the other replies after one rank failed, to see if all ranks report the same error."""
OUTPUT_CHARACTERS = 2000
"""Characters of a dead rank's output in the error."""


class RankProcesses:
    """Connected rank processes."""

    def __init__(self, ranks: int, address: str, seconds: float) -> None:
        """Start the ranks, or wait for ranks started elsewhere, until all are connected.

        Args:
            ranks: number of ranks.
            address: `host:port` to listen at for ranks of `torchrun`; empty starts them here.
            seconds: timeout until all are connected.

        Raises:
            SetupError: the address cannot be bound, or another number of ranks was started.
            EngineError: a rank exited before it connected, or some did not connect in time.
        """
        self.ended = False
        """True after all of them were ended."""
        self._ranks = ranks
        self._children: list[subprocess.Popen[bytes]] = []
        self._frames: dict[int, Frames] = {}
        self._hellos: dict[int, Hello] = {}
        self._replies: queue.SimpleQueue[tuple[int, Reply | None]] = queue.SimpleQueue()
        self._outputs: list[IO[bytes]] = []
        """Output of the ranks, in unnamed temporary files."""
        self._store: TCPStore | None = None
        key = os.environ.get(KEY, "") if address else secrets.token_hex()
        if address and not key:
            raise SetupError(
                f"trainer.ranks_address = {address!r}: set {KEY} to a long random text, here and for torchrun"
            )
        with _listener(address) as listener:
            try:
                if not address:
                    self._start(f"{LOCAL}:{listener.getsockname()[1]}", key)
                self._wait_for_ranks(listener, key, seconds)
            except BaseException:
                self.end()
                raise
        for rank, frames in self._frames.items():
            threading.Thread(target=self._listen, args=(rank, frames), daemon=True, name=f"rank {rank}").start()

    @property
    def pids(self) -> list[int]:
        """Process ids by rank."""
        return [self._hellos[rank].pid for rank in range(self._ranks)]

    def call(self, command: Command, what: str, seconds: float) -> Done:
        """Send a command to every rank and wait for all; returns the reply of the first.

        Sequences are sent to the first only.

        Raises:
            ArealError: all ranks raised the same error; or a rank failed, died or timed out, and all are `ended`.
        """
        body = encode(command)
        has_sequences = isinstance(command, MethodCall) and command.sequences is not None
        for_others = encode(BroadcastCall(length=len(body))) if has_sequences else body
        for rank, frames in self._frames.items():
            with suppress(OSError):  # a closed connection is detected below
                frames.send(for_others if rank else body)
        replies: dict[int, Reply | None] = {}
        until = time.monotonic() + seconds
        while len(replies) < self._ranks:
            try:
                rank, reply = self._replies.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            replies[rank] = reply
            if reply is None:
                break
            if isinstance(reply, Failed):
                until = min(until, time.monotonic() + GRACE_SECONDS)
        done = {rank: reply for rank, reply in replies.items() if isinstance(reply, Done)}
        if len(done) == self._ranks:
            return done[0]
        raise self._error(replies, what, seconds)

    def end(self) -> None:
        """Close every connection, which ends ranks anywhere, and kill those started here."""
        self.ended = True
        self._disconnect()
        for child in self._children:
            child.kill()
            child.wait()
        self._store = None
        for output in self._outputs:
            output.close()

    def _start(self, address: str, key: str) -> None:
        """Start ranks like torchrun's agent, with a TCPStore for their rendezvous."""
        self._store = TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False)
        rendezvous = {
            "MASTER_ADDR": LOCAL,
            "MASTER_PORT": str(self._store.port),
            "WORLD_SIZE": str(self._ranks),
            "LOCAL_WORLD_SIZE": str(self._ranks),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            ADDRESS: address,
            KEY: key,
        }
        for rank in range(self._ranks):
            self._outputs.append(tempfile.TemporaryFile())  # noqa: SIM115 - it is read after its rank exited
            self._children.append(
                subprocess.Popen(
                    module_command("areal_actors.training.distributed.rank_process"),
                    env={**os.environ, **rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=self._outputs[rank],
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C goes to the run, which ends them in order
                )
            )

    def _wait_for_ranks(self, listener: socket.socket, key: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        listener.settimeout(POLL_SECONDS)
        while len(self._frames) < self._ranks:
            for rank, child in enumerate(self._children):
                if child.poll() is not None:
                    raise EngineError(
                        f"rank {rank} of {self._ranks} {self._exit_description(rank)} before it connected"
                    )
            if time.monotonic() > until:
                missing = ", ".join(str(rank) for rank in range(self._ranks) if rank not in self._frames)
                raise EngineError(
                    f"ranks {missing} of {self._ranks} did not connect within trainer.rank_timeout_seconds ="
                    f" {seconds:g} s"
                )
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(seconds)
            admitted = accept_hello(connection, key)
            if admitted is None:
                continue
            connection.settimeout(None)
            frames, hello = admitted
            if hello.ranks != self._ranks:
                raise SetupError(
                    f"{hello.ranks} ranks were started, but trainer.ranks = {self._ranks}; use the same number"
                )
            if any(rank_hello.rendezvous != hello.rendezvous for rank_hello in self._hellos.values()):
                self._disconnect()  # ranks of an earlier attempt of the torchrun agent
            self._frames[hello.rank], self._hellos[hello.rank] = frames, hello

    def _disconnect(self) -> None:
        for frames in self._frames.values():
            frames.close()
        self._frames.clear()
        self._hellos.clear()

    def _listen(self, rank: int, frames: Frames) -> None:
        try:
            while True:
                self._replies.put((rank, decode(frames.receive(), Reply)))
        except (EOFError, OSError, msgspec.DecodeError):
            self._replies.put((rank, None))

    def _error(self, replies: Mapping[int, Reply | None], what: str, seconds: float) -> ArealError:
        """Makes the error for replies, in order of arrival; ends the group unless all ranks report the same error."""
        failed = {rank: reply for rank, reply in replies.items() if isinstance(reply, Failed)}
        distinct = {(reply.kind, reply.text) for reply in failed.values()}
        if len(failed) == self._ranks and len(distinct) == 1:
            ((kind, text),) = distinct
            error_kind = getattr(errors, kind, EngineError)
            return (error_kind if isinstance(error_kind, type) and issubclass(error_kind, ArealError) else EngineError)(
                text
            )
        dead = [rank for rank, reply in replies.items() if reply is None]
        if dead:
            message = f"rank {dead[0]} of {self._ranks} {self._exit_description(dead[0])} in {what}"
        elif failed:
            rank, first = next(iter(failed.items()))
            self.end()
            return RankFailed(
                f"rank {rank} of {self._ranks} failed in {what}: {first.kind}: {first.text}\n{first.trace}"
            )
        else:
            silent = ", ".join(str(rank) for rank in range(self._ranks) if rank not in replies)
            message = (
                f"ranks {silent} of {self._ranks} did not complete {what} within trainer.rank_timeout_seconds ="
                f" {seconds:g} s"
            )
        self.end()
        return EngineError(message)

    def _exit_description(self, rank: int) -> str:
        """Describes how a rank exited, with the end of its output."""
        if rank >= len(self._children):
            hello = self._hellos[rank]
            return f"(process {hello.pid} on {hello.host}) was lost"
        child = self._children[rank]
        try:
            status = child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        output = self._outputs[rank].fileno()
        text = (
            os.pread(output, OUTPUT_CHARACTERS, max(0, os.fstat(output).st_size - OUTPUT_CHARACTERS))
            .decode(errors="replace")
            .strip()
        )
        return f"{how} (output: {text or 'none'})"


def _listener(address: str) -> socket.socket:
    host, _, port = address.rpartition(":") if address else (LOCAL, "", "0")
    try:
        return socket.create_server((host, int(port)))
    except (OSError, ValueError) as error:
        raise SetupError(
            f"cannot listen at trainer.ranks_address = {address!r}: {error}; write another `host:port`"
        ) from error
