"""One process of a run: builds the actors that the recipe places in it and serves them until asked to stop.

Started by the supervisor with the run's folder and its own name. It ends with its parent: the pipe on its
standard input closes when the parent dies.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec
import structlog
import uvloop

from areal_actors.chaos.tcp_proxy import link_of
from areal_actors.core.actor_settings import processes_of
from areal_actors.core.durable_files import atomic_write, explain_os_error
from areal_actors.core.errors import ArealError, CheckpointError, RecipeError, SetupError, StepMismatch
from areal_actors.folder.connections import retry_seconds
from areal_actors.folder.process_logs import log_to_file, redact_log
from areal_actors.folder.run_folder import RunFolder, ServerAddress
from areal_actors.generation.engines import describe_engine
from areal_actors.messages import ActorStopped
from areal_actors.privacy.redaction import load_redaction
from areal_actors.processes.cpu_actors import CPU_ACTORS
from areal_actors.processes.fold_actors import BuildContext, Builder
from areal_actors.processes.remote_environment import (
    HURRY,
    blobs_of,
    finish_work,
    joined_worker,
    report_reconnections,
    snapshots_of,
)
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.supervision import joined_kind
from areal_actors.rewards import MODEL
from areal_actors.rewards.judge_host import SpawnFailed
from areal_actors.runtime.message_ids import message_id
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus.base import Stamp
from areal_bus.errors import BusError, PermissionDenied, ServerUnavailable
from areal_bus.nats import NatsBus
from areal_bus.recorded import Tape

EXIT_FAILED = 3
"""Exit status of a process after an actor failed; the failure file has the reason."""
EXIT_FATAL = 4
"""Exit status when the machine or the recipe lacks something: a restart would fail the same way."""
EXIT_START_FAILED = 5
"""Exit status when an actor failed before its first message, for a reason that the next start would meet again."""
FAILED_WITH = "the process failed: "
"""Before the error in the output of a process, if its failure file cannot be written."""
SCARCE = (errno.EMFILE, errno.ENFILE, errno.EAGAIN)
"""Errors for want of file descriptors or processes."""
STOP_SHARE = 0.6
"""Share of `watchdog.stop_seconds` in which actors must end."""
GARBAGE_THRESHOLDS = (2_000, 200, 20)
"""For `gc.set_threshold`: with Python's defaults, cycle collection takes a seventh of the gateway's time and frees
almost nothing. With the first at 20,000 it takes as long in all, but pauses ten times as long: 27 to 43 ms beside calls
of 500 agents."""


logger = structlog.get_logger(__name__)


Served = tuple[Runtime, asyncio.Task[None]]


def actors_of_process(recipe: Recipe, process: str) -> dict[str, str]:
    """Returns the actors of a process: instance name to kind.

    The episode log, if enabled, is placed with the metrics.
    """
    if kind := joined_kind(process):
        return {process: kind}
    instances: dict[str, str] = {}
    for kind, placement in msgspec.structs.asdict(recipe.actors).items():
        for index, name in enumerate(processes_of(placement)):
            if name == process:
                instances[f"{kind}-{index}"] = kind
    if recipe.task.dump_to_file and process == recipe.actors.metrics.process:
        instances["episode_log-0"] = "episode_log"
    return instances


def actors_of(recipe: Recipe, folder: RunFolder, process: str) -> dict[str, str]:
    """Returns the actors that a process serves: name to kind. That of a remote worker may have another name."""
    joined = joined_worker(folder, process)
    return actors_of_process(recipe, process) if joined is None else {joined.actor or process: joined_kind(process)}


def has_tensors(recipe: Recipe, process: str) -> bool:
    """Returns True if an actor of this process loads torch."""
    kinds = set(actors_of_process(recipe, process).values())
    rewards = [source.task.reward for source in source_recipes(recipe).values()]
    scores = "reward_worker" in kinds and any(reward.startswith(MODEL) for reward in rewards)
    return (
        scores
        or "trainer" in kinds
        or ("inference_worker" in kinds and describe_engine(recipe.generation.engine).loads_torch)
    )


def serve_actors(builders: Mapping[str, Builder], arguments: list[str]) -> None:
    """Serve the actors of one process; exits with 0 when stopped, with an `EXIT_` status when an actor failed."""
    folder, process = RunFolder(Path(arguments[0])), arguments[1]
    folder.join()
    server = read_address()
    log_to_file(folder.log_of(process), process)
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    served: list[Served] = []
    redact: Callable[[str], str] = str
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            redact = _redact_log(folder)
            runner.run(_serve(folder, process, builders, server, served))
        except BaseException as error:  # every error is reported to the supervisor by file and exit status
            logger.exception("failed")
            _end_failed(folder, process, error, redact, at_start=not served or any(map(_has_failed, served)))


def _redact_log(folder: RunFolder) -> Callable[[str], str]:
    """Have the log of this process redacted by the recipe's rules; returns how a text of an error is."""
    redaction = load_redaction(folder.recipe().log.redaction, Path.cwd())
    if redaction is None:
        return str
    redact_log(redaction.redact)
    return redaction.redact


def _may_pass(error: BaseException) -> bool:
    """True for an error that the next start need not meet, though this one did.

    It is of the bus, or for want of descriptors or processes.
    """
    return isinstance(error, BusError | SpawnFailed) or (isinstance(error, OSError) and error.errno in SCARCE)


def _has_failed(served: Served) -> bool:
    runtime, task = served
    return task.done() and not task.cancelled() and task.exception() is not None and not runtime.handled


def _end_failed(
    folder: RunFolder, process: str, error: BaseException, redact: Callable[[str], str], *, at_start: bool
) -> NoReturn:
    """Exit at once: a hanging thread, as in loading a model, would keep the interpreter alive."""
    every = _leaves(error)
    # A group that is already failing refuses new tasks: that is no cause.
    leaves = [leaf for leaf in every if not (isinstance(leaf, RuntimeError) and "TaskGroup" in str(leaf))] or every
    text = redact("; ".join(dict.fromkeys(_error_text(leaf) for leaf in leaves)))
    try:
        atomic_write(folder.failure_of(process), text.encode())
    except OSError:
        with suppress(OSError):  # the supervisor reads its output, too, which is open; a full disk may take neither
            sys.stderr.write(f"{FAILED_WITH}{text}\n")
            sys.stderr.flush()
    if any(
        isinstance(leaf, SetupError | RecipeError | PermissionDenied | CheckpointError | StepMismatch)
        for leaf in leaves
    ):
        status = EXIT_FATAL
    else:
        status = EXIT_START_FAILED if at_start and not any(map(_may_pass, leaves)) else EXIT_FAILED
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


async def _serve(
    folder: RunFolder, process: str, builders: Mapping[str, Builder], server: ServerAddress, served: list[Served]
) -> None:
    # Only the end of the loop needs its list of all generators, and by then each has ended with its task. To keep the
    # list takes as long as to run a short one. Those that are left open are closed as before.
    sys.set_asyncgen_hooks(firstiter=None)
    recipe = folder.recipe()
    stopped, hurried = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)

    def hurry() -> None:
        stopped.set()
        hurried.set()

    asyncio.get_running_loop().add_signal_handler(HURRY, hurry)
    url = link_of(recipe.chaos, folder.path, process, server.url)
    blobs = blobs_of(folder, process)
    bus = await NatsBus.connect(
        url,
        recipe.run,
        name=process,
        token=server.token,
        blobs=blobs,
        lease_seconds=recipe.bus.lease_seconds,
        retry_for_seconds=retry_seconds(recipe),
        shares_log=len(actors_of_process(recipe, process)) > 1,
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            connection = tasks.create_task(_fail_when_lost(bus))
            for instance, kind in actors_of(recipe, folder, process).items():
                actor = builders[kind](BuildContext(recipe=recipe, folder=folder, instance=instance, process=process))
                tape = Tape.record(folder.tape_of(instance)) if recipe.record_actor_io else None
                identity = Identity(instance=instance, process=process, seed=recipe.seed)
                runtime = Runtime(
                    actor,
                    bus,
                    identity,
                    tape=tape,
                    quiet_seconds=recipe.watchdog.quiet_seconds(),
                    snapshots=snapshots_of(folder, process),
                )
                served.append((runtime, tasks.create_task(runtime.serve())))
            instances, running = [runtime.identity.instance for runtime, _ in served], [task for _, task in served]
            reporting = tasks.create_task(report_reconnections(bus, process, [runtime for runtime, _ in served]))
            logger.info("serving", actors=instances, pid=os.getpid())
            await stopped.wait()
            logger.info("stopping")
            await finish_work(folder, process, [runtime for runtime, _ in served], hurried)
            await asyncio.gather(*(runtime.actor.drain() for runtime, _ in served))
            for task in (connection, reporting, *running):
                task.cancel()
            await asyncio.wait(running, timeout=recipe.watchdog.stop_seconds * STOP_SHARE)
            for instance in instances:
                stamp = Stamp(id=message_id("stopped", instance, os.getpid()), sender=instance, time=time.time())
                await bus.publish(ActorStopped(actor=instance, process=process), stamp)
    finally:
        for runtime, _ in served:
            if runtime.tape is not None:
                runtime.tape.close()
        await bus.close()


async def _fail_when_lost(bus: NatsBus) -> None:
    """End the process when its connection is permanently closed; a restarted process reconnects."""
    raise ServerUnavailable(await bus.wait_lost())


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _error_text(error: BaseException) -> str:
    return (
        str(error)
        if isinstance(error, ArealError | BusError) or not isinstance(error, Exception)
        else explain_os_error(error)
    )


def read_address() -> ServerAddress:
    """Read the bus address and credentials from standard input: no file, argument or variable has them."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            return msgspec.json.decode(line, type=ServerAddress)
        line += byte
    os._exit(1)


def end_with_parent() -> None:
    """Exit when standard input closes: the parent holds the other end and has died."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main(arguments: list[str]) -> None:
    """Serve the actors of a process without tensors."""
    serve_actors(CPU_ACTORS, arguments)
