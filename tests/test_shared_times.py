"""Periodic work at common times: the times, and the heartbeats that tell nothing new."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from support.runtime_harness import RuntimeHarness

from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.generation.engine import EngineCounters
from areal_actors.messages import Heartbeat, Wait
from areal_actors.runtime.actor import Actor, Tick, on
from areal_actors.runtime.heartbeats import HeartbeatPace
from areal_bus.shared_times import seconds_to_next


@pytest.fixture
async def harness() -> AsyncIterator[RuntimeHarness]:
    running = RuntimeHarness()
    yield running
    for name in list(running.tasks):
        await running.kill(name)


def test_all_processes_of_a_machine_are_due_together() -> None:
    assert seconds_to_next(3.0, 1000.0) == pytest.approx(2.0)
    for now in (1000.1, 1000.9, 1001.7, 1002.0):
        assert (now + seconds_to_next(3.0, now)) % 3.0 == pytest.approx(0.0, abs=1e-6)


def test_a_timer_that_ends_early_is_not_due_twice_and_a_time_is_never_far() -> None:
    assert seconds_to_next(3.0, 1001.999) == pytest.approx(3.001)
    assert all(0.75 <= seconds_to_next(3.0, 1000.0 + n / 100) <= 3.75 for n in range(1000))
    assert 0.0 < seconds_to_next(0.5) <= 0.625


def sent(pace: HeartbeatPace, seconds: int, handling: dict[str, int], waits: tuple[Wait, ...] = ()) -> list[int]:
    """Seconds at which a heartbeat of an actor that does nothing else is sent, of those from 0 to `seconds`."""
    return [second for second in range(seconds) if pace.is_due((handling, waits, {"held": 3.0}), float(second))]


def test_a_quiet_actor_beats_at_the_times_of_all_and_one_with_news_every_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = 0.0
    monkeypatch.setattr(time, "process_time", lambda: used)
    pace = HeartbeatPace(1.0, 3.0)
    assert sent(pace, 10, {}) == [0, 3, 6, 9]
    wait = Wait(name="Generate from inference_worker-0", since=1.0, deadline=61.0)
    assert pace.is_due(({"RunEpisode": 1}, (), {"held": 3.0}), 10.0)
    assert pace.is_due(({"RunEpisode": 1}, (wait,), {"held": 3.0}), 11.0)
    assert pace.is_due(({"RunEpisode": 1}, (wait,), {"held": 4.0}), 12.0)
    assert not pace.is_due(({"RunEpisode": 1}, (wait,), {"held": 4.0}), 13.0)
    used = 0.4
    assert pace.is_due(({"RunEpisode": 1}, (wait,), {"held": 4.0}), 14.0), "its process computes"


def test_an_actor_without_a_longer_interval_beats_at_each_look() -> None:
    assert sent(HeartbeatPace(1.0, 1.0), 4, {}) == [0, 1, 2, 3]
    assert sent(HeartbeatPace(0.01, 0.01), 4, {}) == [0, 1, 2, 3]


@pytest.mark.parametrize(("limit", "quiet"), [(20.0, 3.0), (10.0, 2.0), (6.0, 1.0), (4.0, 1.0), (0.5, 1.0)])
def test_several_heartbeats_fit_into_the_time_after_which_a_process_is_late(limit: float, quiet: float) -> None:
    assert WatchdogSettings(heartbeat_seconds=limit).quiet_seconds() == quiet


class Resting(Actor):
    """Ticks often, then rarely."""

    tick_seconds = 0.01

    def __init__(self) -> None:
        self.ticks = 0

    def next_tick_seconds(self) -> float:
        return self.tick_seconds if self.ticks < 5 else 60.0

    @on
    def tick(self, _: Tick) -> None:
        self.ticks += 1


async def test_an_actor_that_has_nothing_to_watch_is_not_woken(harness: RuntimeHarness) -> None:
    runtime = await harness.serve(Resting())
    await harness.until(lambda: runtime.actor.ticks == 5)
    await asyncio.sleep(0.2)
    assert runtime.actor.ticks == 5


def test_an_engine_rests_only_without_tokens_work_and_requests() -> None:
    assert EngineCounters().is_idle()
    for busy in ({"tokens": 1}, {"busy_seconds": 0.1}, {"running": 1}, {"waiting": 1}):
        assert not EngineCounters(**busy).is_idle()


async def test_a_quiet_actor_of_a_bus_is_still_seen(harness: RuntimeHarness) -> None:
    class Quiet(Actor):
        pass

    async with harness.bus.telemetry(Heartbeat) as inbox, asyncio.timeout(300):
        await harness.serve(Quiet(), heartbeat_seconds=0.05, quiet_seconds=0.15)
        beats = [(await anext(inbox)).message for _ in range(4)]
    assert {beat.actor for beat in beats} == {"quiet-0"}
