"""The environment of a remote worker: files over HTTP in place of the run's folders, and an orderly end."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from signal import SIGUSR1

import msgspec

from areal_actors.core.durable_files import PRIVATE_MODE, atomic_write
from areal_actors.core.objects import RemoteObjects
from areal_actors.core.snapshots import Snapshots, SnapshotStore
from areal_actors.core.values import Value
from areal_actors.folder.run_folder import RunFolder
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import ActorStarted, ActorStopped
from areal_actors.processes.remote_gateway import ChatModelPuller, GatewaySnapshots
from areal_actors.recipe.supervision import joined_kind
from areal_actors.runtime.runtime import Runtime
from areal_actors.vision.files import ImageFolder
from areal_actors.vision.pulled import ImagePuller, SentImages
from areal_actors.weights.pulled import WeightsPuller
from areal_bus.base import Stamp
from areal_bus.claims import Blobs
from areal_bus.nats import NatsBus

HURRY = SIGUSR1
"""Signal to end at once, where SIGTERM lets work in progress be finished. A launcher may send SIGTERM to all processes
of a host."""
MODEL_SECONDS = 600.0
"""Time in which a gateway asks for the model of a run whose trainer is still making or restoring it."""
BODY_RETRY_SECONDS = 5.0
"""Time in which a large body is asked for again; meanwhile the process handles nothing else."""


class JoinedWorker(Value):
    """Everything that a worker's process needs besides recipe and bus.

    It is in a file of the host's folder, readable by its user only.
    """

    objects: str
    """URL of the run's files."""
    token: str
    share: str
    """Identity of the trainer's folders."""
    weights: str
    """Folder of the weight versions that this host has pulled."""
    drain_seconds: float
    """Time for the work in progress after SIGTERM."""
    actor: str = ""
    """Name of its actor, if that is not the worker's."""

    def keep(self, folder: RunFolder, worker: str) -> None:
        """Write it for the process of a worker."""
        atomic_write(_file(folder, worker), msgspec.json.encode(self), mode=PRIVATE_MODE)


def joined_worker(folder: RunFolder, process: str) -> JoinedWorker | None:
    """Returns the environment of a remote worker; None for a process of the run's own host."""
    return msgspec.json.decode(_file(folder, process).read_bytes(), type=JoinedWorker) if joined_kind(process) else None


def blobs_of(folder: RunFolder, process: str) -> Blobs:
    """Returns where a process finds large bodies of messages."""
    joined = joined_worker(folder, process)
    return (
        folder.blobs
        if joined is None
        else RemoteObjects(joined.objects, joined.token, retry_for_seconds=BODY_RETRY_SECONDS)
    )


def snapshots_of(folder: RunFolder, process: str) -> Snapshots:
    """Returns where a process keeps the snapshots of its folds."""
    joined = joined_worker(folder, process)
    if joined is None or not joined.actor:
        return SnapshotStore(folder.snapshots)
    return GatewaySnapshots(RemoteObjects(joined.objects, joined.token))


def gateway_files(folder: RunFolder, process: str) -> tuple[Callable[[str], Path] | None, ImageFolder]:
    """Returns how a gateway finds its model, None if that is in the run's folder, and the folder of images."""
    if (joined := joined_worker(folder, process)) is None:
        return None, ImageFolder.of_run(folder.path)
    objects = RemoteObjects(joined.objects, joined.token)
    model = RemoteObjects(joined.objects, joined.token, retry_for_seconds=MODEL_SECONDS)
    return ChatModelPuller(model, folder.path), SentImages(ImageFolder.of_run(folder.path).path, objects)


def pullers_of(folder: RunFolder, process: str) -> tuple[WeightsPuller | None, ImagePuller | None]:
    """Returns how an inference worker finds published weights and the images of prompts.

    None if it shares the run's folders.
    """
    if (joined := joined_worker(folder, process)) is None:
        return None, None
    objects = RemoteObjects(joined.objects, joined.token)
    return WeightsPuller(objects, Path(joined.weights), folder.model, joined.share), ImagePuller(objects)


async def report_reconnections(bus: NatsBus, process: str, runtimes: Sequence[Runtime]) -> None:
    """After an outage between this host and the bus, leave and return.

    Requests to this process, and its answers, may be lost.
    The gateway continues the calls in flight on any worker, from the tokens that have arrived.
    """
    reconnected = asyncio.Event()
    with bus.on_reconnect(reconnected.set):
        while joined_kind(process):
            await reconnected.wait()
            reconnected.clear()
            for runtime in runtimes:
                runtime.actor.reconnected()
                if isinstance(worker := runtime.actor, InferenceWorker):
                    stopped = ActorStopped(actor=process, process=process)
                    started = ActorStarted(actor=process, process=process, pid=os.getpid())
                    for event in (stopped, started, *worker.loaded_weights()):
                        await bus.publish(event, Stamp(id=uuid.uuid4().hex, sender=process, time=time.time()))


async def finish_work(folder: RunFolder, process: str, runtimes: Sequence[Runtime], hurried: asyncio.Event) -> None:
    """Take no more work, and wait for what is in progress, until the drain's time has passed or `HURRY` arrives."""
    if (joined := joined_worker(folder, process)) is None:
        return

    async def finish() -> None:
        await asyncio.gather(
            *(work for runtime in runtimes for work in (runtime.work.finish(), runtime.actor.finish()))
        )

    waits = {asyncio.create_task(finish()), asyncio.create_task(_until_set(hurried))}
    await asyncio.wait(waits, timeout=joined.drain_seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def _until_set(event: asyncio.Event) -> None:
    await event.wait()


def _file(folder: RunFolder, worker: str) -> Path:
    return folder.path / f"{worker}.joined.json"
