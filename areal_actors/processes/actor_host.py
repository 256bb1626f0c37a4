"""Actors served in the event loop of the calling process, on a bus that it opened."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from areal_actors.core.errors import RolloutError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import ActorStopped
from areal_actors.recipe.recipe import Recipe
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus.base import Bus, Stamp
from areal_bus.message import Event, Work

PROCESS = "controller"
STOP_SECONDS = 5.0


class ActorHost:
    """A bus, the folder of the run, and the actors served in this event loop."""

    def __init__(
        self, bus: Bus, recipe: Recipe, folder: RunFolder, *, prefix: str = "", inference_workers: Sequence[str] = ()
    ) -> None:
        self.bus = bus
        self.recipe = recipe
        self.folder = folder
        self.prefix = prefix
        """Prefix of the names of groups."""
        self.inference_workers = inference_workers
        """Expected inference workers; empty for a joined server, where they announce themselves."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Resolved with the reason when the actors cannot go on."""
        self._serving: list[tuple[str, Actor, asyncio.Task[None]]] = []

    async def publish(self, message: Event | Work, sender: str = PROCESS) -> None:
        """Publish an event or a work item as the controller."""
        await self.bus.publish(message, Stamp(id=uuid.uuid4().hex, sender=sender, time=time.time()))

    async def serve(self, instance: str, actor: Actor) -> None:
        """Start an actor in this event loop; returns once it receives messages.

        Raises:
            ArealError: the actor's own error at start.
        """
        runtime = Runtime(actor, self.bus, Identity(instance=instance, process=PROCESS, seed=self.recipe.seed))
        serving = asyncio.create_task(runtime.serve())
        ready = asyncio.create_task(runtime.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if serving.done():
            raise _leaf(serving.exception())
        self._serving.append((instance, actor, serving))
        serving.add_done_callback(lambda ended: self._over(instance, ended))

    def _over(self, instance: str, ended: asyncio.Task[None]) -> None:
        if ended.cancelled() or self.failed.done():
            return
        error = _leaf(ended.exception())
        self.failed.set_result(f"{instance} failed: {type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Stop the actors served here, in reverse order of their start."""
        for instance, actor, serving in reversed(self._serving):
            await actor.drain()
            serving.cancel()
            await asyncio.wait({serving}, timeout=STOP_SECONDS)
            await self.publish(ActorStopped(actor=instance, process=PROCESS), instance)
        self._serving.clear()


def _leaf(error: BaseException | None) -> BaseException:
    """Returns the first error of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error or RolloutError("the actor ended without an error")
