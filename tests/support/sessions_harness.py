"""The session protocol over real HTTP: a session manager with its gateway on a bus in memory; model calls are recorded
by hand."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager

import aiohttp
from support.samples import SAMPLING, interaction, letters

from areal_actors.core.gateways import ONLY
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.sessions.keys import admin_key
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import CapacityGranted
from areal_actors.runtime.pauses import OwnPauses
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import MemoryBus, Stamp

SECRET = b"a secret of the run"
ADMIN = admin_key(SECRET)


class SessionsHarness:
    """One gateway after the other on one bus, as a run has it."""

    def __init__(
        self,
        config=None,
        *,
        group_size=1,
        slots=0,
        bus=None,
        share=ONLY,
        make=SessionManager,
        snapshots=None,
        **manager_options,
    ):
        self.config = config or GatewaySettings()
        self.group_size, self.slots = group_size, slots
        self.bus = bus or MemoryBus()
        self.share = share
        self.snapshots = snapshots
        self.make, self.manager_options = make, manager_options
        self.now = 1000.0
        self.count = 0
        self.task = None

    async def start(self):
        capacity = ExternalCapacity(self.group_size, slots=self.slots)
        self.manager = self.make(
            self.config,
            lambda folder: letters(),
            secret=SECRET,
            max_model_len=300,
            capacity=capacity,
            sampling=SAMPLING,
            share=self.share,
            **self.manager_options,
        )
        self.manager.tick_seconds = 0.02
        runtime = self.runtime = Runtime(
            self.manager,
            self.bus,
            Identity(instance=self.share.name, process="p"),
            now=lambda: self.now,
            snapshots=self.snapshots,
        )
        # A pause ends no leases: one of the machine would hold up what the test's own clock has made due.
        runtime.pauses = OwnPauses(lambda: 0.0)
        self.task = asyncio.create_task(runtime.serve())
        await runtime.ready.wait()
        await self.until(lambda: self.manager.external.caught_up)
        self.root = self.manager.gateway.root

    async def stop(self):
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    async def grant(self, groups, first_group=0):
        self.count += 1
        await self.bus.publish(
            CapacityGranted(first_group=first_group, groups=groups, weight_version=0),
            Stamp(id=f"test-{self.count}-{id(self)}", sender="test", time=self.now),
        )
        await self.until(lambda: self.manager.external.slots.capacity.granted >= first_group + groups)

    async def until(self, condition):
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110 - of anything
                await asyncio.sleep(0.002)

    async def call(self, method, path, body=None, key=ADMIN, headers=None, *, raw=None):
        """Status, answer, headers."""
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        data = {"data": raw} if raw is not None else {"json": body} if body is not None else {}
        url = aiohttp.client.URL(self.root + path, encoded=True)
        async with aiohttp.ClientSession() as http, http.request(method, url, headers=headers, **data) as response:
            is_json = response.content_type == "application/json"
            return response.status, await response.json() if is_json else await response.read(), response.headers

    async def post(self, path, body=None, key=ADMIN, **options):
        status, answer, _ = await self.call("POST", path, body, key, **options)
        return status, answer

    async def started(self, task="sum", **body):
        status, answer = await self.post("/rl/start_session", {"task_id": task, **body})
        assert status == 200, answer
        return answer

    def record(self, session, *calls):
        """Completed model calls: (id, text, parent)."""
        registry = self.manager.registry
        for identifier, text, parent in calls:
            made = interaction(identifier, text, parent=parent)
            turn = ConversationTurn(interaction=made, answer={}, prompt=Prompt(suffix_ids=made.prompt_suffix))
            registry.update(registry.get(session).begin_call(self.now).record(turn, self.now).end_call(self.now))

    def log(self, kind):
        return [envelope.open(kind) for envelope in self.bus._log if envelope.subject == kind.subject]


@asynccontextmanager
async def sessions_harness(config=None, **options):
    harness = SessionsHarness(config, **options)
    await harness.start()
    try:
        yield harness
    finally:
        await harness.stop()
