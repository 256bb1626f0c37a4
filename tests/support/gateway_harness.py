"""A gateway on loopback with real actors behind it, on a bus in memory; only the engine is a toy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from contextlib import asynccontextmanager

import aiohttp
import openai
from support.samples import TOOLS_TEMPLATE, letters, published, work

from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.keys import admin_key
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ActorFailed,
    EpisodeScored,
    InteractionsRecorded,
    OpenSession,
    TrajectoryExported,
    WeightsLoaded,
    recorded_calls,
)
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import MemoryBus, Stamp

SECRET = b"secret"
ADMIN = admin_key(SECRET)
AUTHORITIES = ssl.create_default_context()
"""Shared by clients: each would read all certificates of the system again."""
HELLO = [{"role": "user", "content": "hello"}]


class GatewayHarness:
    """A session manager with its gateway, and inference workers, each in a runtime of its own."""

    def __init__(self, config=None, *, chat=None, max_model_len=300, **options):
        """`options` are those of the session manager; letters are tokens without a `chat`."""
        self.bus = MemoryBus()
        self.chat = chat or letters(template=TOOLS_TEMPLATE)
        self.manager = SessionManager(
            config or GatewaySettings(), lambda folder: self.chat, secret=SECRET, max_model_len=max_model_len, **options
        )
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.count = 0

    def stamp(self):
        self.count += 1
        return Stamp(id=f"test-{self.count}", sender="test", time=0.0)

    async def publish(self, event):
        await self.bus.publish(event, self.stamp())

    async def serve(self, name, actor):
        runtime = Runtime(actor, self.bus, Identity(instance=name, process=name))
        self.tasks[name] = asyncio.create_task(runtime.serve())
        await asyncio.wait(
            {self.tasks[name], asyncio.create_task(runtime.ready.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        if self.tasks[name].done():
            await self.tasks[name]

    async def engine(self, name, engine):
        loaded = self.until(WeightsLoaded)
        await self.serve(name, InferenceWorker(lambda folder: engine, name=name, concurrency=8))
        await loaded
        await asyncio.sleep(0)
        return engine

    def until(self, kind):
        """The next event of this kind published from now on, as a task."""
        after = len(self.bus._log)

        async def wait():
            async for envelope in self.bus.log(after=after, follow=True):
                if envelope.subject == kind.subject:
                    return envelope.open(kind)
            return None

        return asyncio.create_task(wait())

    async def kill(self, name):
        self.tasks[name].cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.tasks[name]
        await self.publish(ActorFailed(actor=name, process=name, reason="killed"))

    async def open(self, run=None, lease=3600.0):
        opened = await self.bus.request(OpenSession(work=run or work(), lease_seconds=lease), self.stamp(), timeout=300)
        assert not opened.refused
        return opened

    async def trajectory(self, opened, reward=1.0, run=None):
        exported = self.until(TrajectoryExported)
        await self.publish(EpisodeScored(work=run or work(), session=opened.session, reward=reward))
        async with asyncio.timeout(300):
            return (await exported).trajectory

    def recorded(self):
        """Calls in the log, and those that will be."""
        kinds = {kind.subject: kind for kind in (InteractionsRecorded, TrajectoryExported)}
        logged = [envelope.open(kinds[envelope.subject]) for envelope in self.bus._log if envelope.subject in kinds]
        waiting = [call for calls in self.manager.calls.unreported._calls.values() for call in calls]
        return [call for event in logged for call in recorded_calls(event)] + waiting

    async def begin(self):
        await self.serve("session_manager-0", self.manager)
        await self.publish(published(0))

    async def end(self):
        for task in self.tasks.values():
            task.cancel()
        await asyncio.wait(self.tasks.values())


@asynccontextmanager
async def opened(harness):
    """A harness, from its beginning to its end."""
    try:
        await harness.begin()
        yield harness
    finally:
        await harness.end()


def opened_gateway(config=None):
    return opened(GatewayHarness(config))


@asynccontextmanager
async def client(opened, **options):
    http = openai.DefaultAsyncHttpxClient(verify=AUTHORITIES)
    given = {"max_retries": 0, "api_key": opened.api_key, "http_client": http, **options}
    async with openai.AsyncOpenAI(base_url=opened.base_url, **given) as made:
        yield made


async def post(opened, body, path="/chat/completions", headers=None, *, raw=False):
    """Status and body of a call that no well-meant client would make."""
    headers = {"Authorization": f"Bearer {opened.api_key}"} if headers is None else headers
    async with aiohttp.ClientSession() as http:
        data = body if raw else json.dumps(body)
        async with http.post(opened.base_url + path, data=data, headers=headers) as response:
            return response.status, await response.json(content_type=None)


def root(opened):
    return opened.base_url.partition(f"/{opened.session}")[0]


async def nothing_in_flight(harness):
    manager = harness.manager
    async with asyncio.timeout(300):
        while any(manager.calls.pool.in_flight.values()) or any(  # noqa: ASYNC110
            session.running for session in manager.registry._sessions.values()
        ):
            await asyncio.sleep(0.005)


async def text_of(stream):
    """Texts of a stream's choices, and ids of their interactions."""
    texts, names = {}, {}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            names[choice.index] = getattr(choice, "interaction_id", chunk.id)
    return texts, names
