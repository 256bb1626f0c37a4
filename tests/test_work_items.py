"""Items of work: leases (renewed while it is worked on, not given to the same worker twice, a setting of the recipe),
and sending."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from support.live_run import RECIPE
from support.runtime_harness import Do, Happened, Noted, RuntimeHarness

from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.checks import problems
from areal_actors.recipe.load import load
from areal_actors.recovery.resume import MAY_CHANGE
from areal_actors.runtime.actor import Actor, Emits, on
from areal_actors.runtime.work_items import SENT_TOGETHER, SentWork, WorkTasks
from areal_bus.errors import LogUnavailable, ServerUnavailable
from areal_bus.message import Work


class Lost:
    """A delivery whose server is away for the first renewals."""

    def __init__(self, failures):
        self.failures = failures
        self.renewals = 0
        self.envelope = type("Envelope", (), {"id": "work-1"})

    async def extend(self, seconds):
        self.renewals += 1
        self.seconds = seconds
        if self.renewals <= self.failures:
            raise ServerUnavailable("the server is away")


async def test_a_lease_is_renewed_again_after_a_renewal_that_failed():
    delivery = Lost(failures=2)
    async with asyncio.timeout(300):
        with WorkTasks().keep_lease(delivery, 0.03):
            while delivery.renewals < 5:  # noqa: ASYNC110 - counted by the renewal itself
                await asyncio.sleep(0.001)
    stopped = delivery.renewals
    await asyncio.sleep(0.05)
    assert delivery.renewals == stopped


async def test_the_leases_of_all_items_are_renewed_together_while_each_is_in_progress():
    tasks, first, second = WorkTasks(), Lost(failures=0), Lost(failures=1)
    before = len(asyncio.all_tasks())
    async with asyncio.timeout(300):
        with tasks.keep_lease(first, 0.03):
            with tasks.keep_lease(second, 0.03):
                assert len(asyncio.all_tasks()) == before + 1
                while second.renewals < 3:  # noqa: ASYNC110 - counted by the renewal itself
                    await asyncio.sleep(0.001)
                assert abs(first.renewals - second.renewals) <= 1
            stopped, continues = second.renewals, first.renewals
            while first.renewals < continues + 3:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)
        assert second.renewals == stopped
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before
    with tasks.keep_lease(second, 0.03):
        await asyncio.sleep(0.05)
    assert second.renewals > stopped


async def test_a_lease_grows_with_the_time_that_its_item_takes_and_has_a_limit(monkeypatch):
    loop, now = asyncio.get_running_loop(), 1000.0
    tasks, old = WorkTasks(), Lost(failures=0)
    pauses = []

    async def sleep(seconds):
        nonlocal now
        now += seconds
        pauses.append((now, old.renewals, getattr(old, "seconds", 0.0)))
        if len(pauses) > 300:
            await asyncio.Event().wait()

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr("areal_actors.runtime.work_items.asyncio.sleep", sleep)
    with tasks.keep_lease(old, 3.0):
        renewing = tasks._renewing
        while len(pauses) <= 300:
            await asyncio.wait({renewing}, timeout=0.001)
    leases = [(at - 1000.0, seconds) for at, _, seconds in pauses[1:]]
    assert all(seconds == 3.0 for age, seconds in leases if age < 12.0)
    assert all(seconds <= max(0.25 * age, 3.0) for age, seconds in leases)
    assert leases[-1][1] == 18.0
    renewed = [at for (at, count, _), (_, before, _) in zip(pauses[1:], pauses, strict=False) if count > before]
    assert max(later - earlier for earlier, later in pairwise(renewed)) <= 18.0 / 2
    assert old.renewals < 80, "300 with leases of the same duration"


class Blocking(Actor):
    """Stops the whole event loop beyond its lease, then takes its time."""

    concurrency = 4

    def __init__(self, seconds):
        self.seconds = seconds
        self.begun = 0

    @on
    async def do(self, work: Do) -> Emits[Noted]:
        self.begun += 1
        await asyncio.sleep(0.01)
        time.sleep(self.seconds)  # noqa: ASYNC251 - this is what is tested
        await asyncio.sleep(0.3)
        yield Noted(n=work.n)


async def test_a_worker_whose_loop_was_blocked_beyond_its_leases_does_nothing_twice():
    harness = RuntimeHarness()
    actor = Blocking(0.5)
    await harness.serve(actor)
    for n in range(3):
        await harness.publish(Do(n=n))
    await harness.until(lambda: len(harness.log()) == 3)
    await asyncio.sleep(0.5)
    assert actor.begun == 3
    assert len(harness.log()) == 3
    await harness.kill("blocking-0")


class Slow:
    """A bus whose work items become durable only when it is allowed."""

    def __init__(self, bus, allowed):
        self.bus = bus
        self.allowed = allowed
        self.sent = []

    def __getattr__(self, name):
        return getattr(self.bus, name)

    async def publish(self, message, stamp):
        self.sent.append(message)
        if isinstance(message, Work):
            await self.allowed.wait()
        return await self.bus.publish(message, stamp)


class Granting(Actor):
    """Emits more items than are sent together, and an event."""

    @on
    def happened(self, event: Happened) -> Iterator[Do | Noted]:
        yield from [Do(n=n) for n in range(event.n)]
        yield Noted(n=event.n)


async def test_items_of_a_handling_are_sent_together_and_are_durable_before_what_follows_them():
    harness, allowed = RuntimeHarness(), asyncio.Event()
    harness.bus = slow = Slow(harness.bus, allowed)
    await harness.serve(Granting())
    granted = asyncio.create_task(harness.publish(Happened(n=SENT_TOGETHER + 1)))
    together = [Do(n=n) for n in range(SENT_TOGETHER)]
    await harness.until(lambda: [item for item in slow.sent if isinstance(item, Do)] == together)
    await granted
    assert not harness.log()
    allowed.set()
    await harness.until(lambda: harness.log() == [Noted(n=SENT_TOGETHER + 1)])
    assert [item for item in slow.sent if isinstance(item, Do | Noted)] == [
        *together,
        Do(n=SENT_TOGETHER),
        Noted(n=SENT_TOGETHER + 1),
    ]
    await harness.kill("granting-0")


async def test_an_item_that_cannot_be_sent_is_an_error_and_the_others_are_not_waited_for():
    async def refused():
        raise LogUnavailable("the queue is full")

    sent, endless = SentWork(), asyncio.Event()
    await sent.add(endless.wait())
    await sent.add(refused())
    with pytest.raises(LogUnavailable, match="the queue is full"):
        await sent.confirm()
    sent.cancel()


def _problems(**bus):
    recipe = load([RECIPE], [], CudaDevices(count=0, reason="none")).recipe
    leased = msgspec.structs.replace(recipe, bus=BusSettings(**bus))
    return [problem.sentence("") for problem in problems(leased) if problem.key[0] == "bus"]


@pytest.mark.parametrize(
    ("lease", "complaint"),
    [
        (0.5, "`bus.lease_seconds`: found 0.5, but a busy worker may renew its leases a second late"),
        (500.0, "an attempt takes at most task.timeout_seconds = 120; write at most 120"),
    ],
)
def test_a_lease_that_makes_no_sense_is_refused(lease, complaint):
    (found,) = _problems(lease_seconds=lease)
    assert complaint in found


def test_a_sensible_lease_is_taken_and_may_change_when_a_run_continues():
    assert not _problems()
    assert not _problems(lease_seconds=30.0)
    assert ("bus", "lease_seconds") in MAY_CHANGE
