"""Messages and actors for the tests of the runtime, and a bus in memory to serve them on."""

from __future__ import annotations

import asyncio
import contextlib
from typing import ClassVar

from areal_actors.runtime.actor import Actor, Context, Emits, on
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import Event, MemoryBus, MonitorEvent, Reply, Request, Stamp, Work


class Happened(Event):
    subject: ClassVar[str] = "thing.happened"
    n: int


class Noted(Event):
    subject: ClassVar[str] = "thing.noted"
    n: int


class Reported(MonitorEvent):
    subject: ClassVar[str] = "thing.reported"
    n: int


class Do(Work):
    subject: ClassVar[str] = "thing.do"
    n: int


class DoOther(Work):
    subject: ClassVar[str] = "other.do"
    n: int


class Sum(Reply):
    subject: ClassVar[str] = "sum.told"
    n: int
    last: bool = True

    def is_last(self):
        return self.last


class WhatSum(Request[Sum]):
    subject: ClassVar[str] = "sum.ask"
    reply: ClassVar[type[Reply]] = Sum
    parts: int = 1


class WhatElse(Request[Sum]):
    subject: ClassVar[str] = "else.ask"
    reply: ClassVar[type[Reply]] = Sum


class RuntimeHarness:
    """A bus in memory and the runtimes on it."""

    def __init__(self, **options):
        self.bus = MemoryBus(lease_seconds=0.2, **options)
        self.tasks = {}
        self.count = 0

    async def serve(self, actor, name="", **options):
        name = name or f"{actor.kind()}-0"
        runtime = Runtime(actor, self.bus, Identity(instance=name, process="here"), **options)
        self.tasks[name] = asyncio.create_task(runtime.serve())
        await runtime.ready.wait()
        return runtime

    async def publish(self, message):
        self.count += 1
        return await self.bus.publish(message, Stamp(id=f"test-{self.count}", sender="test", time=0.0))

    async def ask(self, question, **options):
        self.count += 1
        return await self.bus.request(
            question, Stamp(id=f"test-{self.count}", sender="test", time=0.0), timeout=300, **options
        )

    async def kill(self, name):
        self.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.tasks.pop(name)

    def log(self, kind=Noted):
        return [envelope.open(kind) for envelope in self.bus._log if envelope.subject == kind.subject]

    async def until(self, condition):
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110 - of anything
                await asyncio.sleep(0.001)


class Summer(Actor):
    """State is a fold: the sum of the events; emits each sum."""

    def __init__(self):
        self.sum = 0
        self.received = []

    @on
    async def happened(self, event: Happened, context: Context) -> Emits[Noted]:
        self.sum += event.n
        self.received.append((event.n, context.replayed, context.sequence))
        yield Noted(n=self.sum)

    @on
    async def what_sum(self, question: WhatSum) -> Emits[Sum]:
        for part in range(question.parts - 1):
            yield Sum(n=part, last=False)
        yield Sum(n=self.sum)
