"""This machine: starts the run and all that join it as processes, and ends with the run."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from areal_actors.core.devices import VISIBLE, CudaDevices, visibility
from areal_actors.core.errors import SetupError
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.core.private_folders import make_private
from areal_actors.hosts.launchers.local_command import LocalCommand
from areal_actors.hosts.launchers.local_workers import LocalWorkers, holder
from areal_actors.hosts.launchers.plan import PROGRAM, LaunchPlan
from areal_actors.hosts.launchers.scaled_hosts import ScaledHosts
from areal_bus.server_config import LOOPBACK

LEAVING_SECONDS = 60.0
"""Time for workers to leave after the run has ended; they have left before, unless it failed at its start."""

SIGNALLED = 128
"""Exit status of a process that a signal ended, without the number of the signal."""


def local_commands(plan: LaunchPlan, cuda: CudaDevices) -> list[LocalCommand]:
    """Returns the commands, the run's first. GPUs are given out in the order of the commands.

    Raises:
        SetupError: this machine has fewer GPUs.
    """
    port = plan.recipe.bus.port or find_free_ports()
    address = plan.address(LOOPBACK, port)
    needed = sum(place.count * place.gpus for place in (plan.run, *plan.joined))
    if needed > cuda.count:
        raise SetupError(
            f"[hosts] asks for {needed} GPUs, and this machine has {cuda.count} ({cuda.reason}); lower `gpus`, or"
            " launch elsewhere"
        )
    numbers = iter(range(needed))

    def take(count: int) -> tuple[int, ...]:
        return tuple(next(numbers) for _ in range(count))

    joined = [(place, number) for place in plan.joined for number in range(place.count)]
    return [
        LocalCommand(
            name="run",
            words=(*plan.run.words, f"bus.host={LOOPBACK}", f"bus.port={port}"),
            gpus=take(plan.run.gpus),
            address=address,
        ),
        *(
            LocalCommand(
                name=f"{place.name}-{number}",
                words=("join", address, *place.words),
                gpus=take(place.gpus),
                role=place.name,
            )
            for place, number in joined
        ),
    ]


def launch_here(plan: LaunchPlan, commands: Sequence[LocalCommand], cuda: CudaDevices) -> int:
    """Run the commands until the first of them, the run, has ended; returns its exit status.

    With `[autoscale]` there may be more workers.
    Ctrl-C and SIGTERM are for the run, which saves a checkpoint. Workers write their output to files beside the run's
    folder, and have process groups of their own, so that Ctrl-C in the terminal leaves them to the run.
    """
    token = secrets.token_hex(16)
    run, *joined = commands
    outputs = Path(plan.recipe.folder) / f"{plan.recipe.run}.hosts"
    make_private(outputs)
    process = subprocess.Popen((*PROGRAM, *run.words), env=_environment(run, token))
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run gets it from the terminal, too

    def start(command: LocalCommand) -> subprocess.Popen[bytes]:
        return _start_worker(command, token, outputs / f"{command.name}.log")

    workers = {command.name: start(command) for command in joined}
    with _follow_decisions(plan, commands, cuda, start) as added:
        status = process.wait()
    workers |= added
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


@contextmanager
def _follow_decisions(
    plan: LaunchPlan,
    commands: Sequence[LocalCommand],
    cuda: CudaDevices,
    start: Callable[[LocalCommand], subprocess.Popen[bytes]],
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Follow the decisions of the run; yields the workers that are started for them."""
    if not plan.added:
        yield {}
        return
    taken = {number for command in commands for number in command.gpus}
    workers = LocalWorkers(
        plan, commands[0].address, [number for number in range(cuda.count) if number not in taken], start
    )
    stopped = threading.Event()
    hosts = ScaledHosts(plan, workers, killed=workers.killed)
    following = threading.Thread(target=hosts.follow, args=(stopped,), name="autoscale", daemon=True)
    following.start()
    try:
        yield workers.processes
    finally:
        stopped.set()
        following.join(LEAVING_SECONDS)


def _start_worker(command: LocalCommand, token: str, output: Path) -> subprocess.Popen[bytes]:
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
    return {**os.environ, JOIN_TOKEN: token, **devices, **holder(command)}
