"""This machine: starts the run and all that join it as processes, and ends with the run."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_actors.core.devices import VISIBLE, CudaDevices, visibility
from areal_actors.core.errors import SetupError
from areal_actors.core.settings import JOIN_TOKEN
from areal_actors.core.values import Value
from areal_actors.hosts.plan import PROGRAM, LaunchPlan
from bus.server import LOOPBACK

LEAVING_SECONDS = 60.0
"""Time for workers to leave after the run has ended; they have left before, unless it failed at its start."""

SIGNALLED = 128
"""Exit status of a process that a signal ended, without the number of the signal."""


class LocalCommand(Value):
    """A command of this machine."""

    name: str
    words: tuple[str, ...]
    gpus: tuple[int, ...] = ()

    def shown(self) -> str:
        """Returns it as a line for a shell, without the password."""
        variables = f"{VISIBLE}={visibility(self.gpus)} " if self.gpus else ""
        return f"{variables}areal {shlex.join(self.words)}"


def local_commands(plan: LaunchPlan, cuda: CudaDevices) -> list[LocalCommand]:
    """Returns the commands, the run's first. GPUs are given out in the order of the commands.

    Raises:
        SetupError: this machine has fewer GPUs.
    """
    port = plan.recipe.bus.port or _free_port()
    address = f"nats://{LOOPBACK}:{port}/{plan.recipe.run}"
    needed = sum(place.count * place.gpus for place in (plan.run, *plan.joined))
    if needed > cuda.count:
        raise SetupError(
            f"[hosts] asks for {needed} GPUs, and this machine has {cuda.count} ({cuda.reason}); lower `gpus`, or launch elsewhere"
        )
    numbers = iter(range(needed))

    def take(count: int) -> tuple[int, ...]:
        return tuple(next(numbers) for _ in range(count))

    joined = [(place, number) for place in plan.joined for number in range(place.count)]
    return [
        LocalCommand(name="run", words=(*plan.run.words, f"bus.host={LOOPBACK}", f"bus.port={port}"), gpus=take(plan.run.gpus)),
        *(
            LocalCommand(name=f"{place.name}-{number}", words=("join", address, *place.words), gpus=take(place.gpus))
            for place, number in joined
        ),
    ]


def launch_here(commands: Sequence[LocalCommand], outputs: Path) -> int:
    """Run the commands until the first of them, the run, has ended; returns its exit status.

    Ctrl-C and SIGTERM are for the run, which saves a checkpoint. Workers write their output to files of the folder `outputs`, and have
    process groups of their own, so that Ctrl-C in the terminal leaves them to the run.
    """
    token = secrets.token_hex(16)
    run, *joined = commands
    outputs.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen((*PROGRAM, *run.words), env=_environment(run, token))
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run gets it from the terminal, too
    workers = {command.name: _started(command, token, outputs / f"{command.name}.log") for command in joined}
    status = process.wait()
    for name, worker in workers.items():
        if status:
            worker.terminate()
        try:
            code = worker.wait(LEAVING_SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            code = worker.wait()
        if code and not status:
            sys.stderr.write(f"{name} ended with status {code}: {outputs / name}.log\n")
    return status if status >= 0 else SIGNALLED - status


def _started(command: LocalCommand, token: str, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return subprocess.Popen(
            (*PROGRAM, *command.words),
            env=_environment(command, token),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _environment(command: LocalCommand, token: str) -> dict[str, str]:
    devices = {VISIBLE: visibility(command.gpus)} if command.gpus else {}
    return {**os.environ, JOIN_TOKEN: token, **devices}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
