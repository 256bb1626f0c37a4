"""`staleness_gate.max_concurrent = "auto"`: the limit follows the load of the engines."""

from __future__ import annotations

import random

import msgspec
import pytest
from support.samples import exported, published

from areal_actors.generation.engine import EngineCounters
from areal_actors.generation.engine_load import LoadReporter, load_level
from areal_actors.messages import ActorFailed, CapacityGranted, ConcurrencyChanged, EngineLoad
from areal_actors.staleness.concurrency_limit import ConcurrencyLimit, initial_limit
from areal_actors.staleness.ledger import StalenessGateConfig
from areal_actors.staleness.staleness_gate import GateState, StalenessGate

WORKER = "inference_worker-0"


def load(level, worker=WORKER):
    return EngineLoad(worker=worker, level=level, running=9, waiting=3, kv_cache_usage=0.5)


def gate(batch_size=4, max_staleness=3):
    config = StalenessGateConfig(max_staleness=max_staleness, max_concurrent="auto")
    return StalenessGate(config, group_size=1, batch_size=batch_size, steps=1000)


def after(limit, groups, *, limited=True):
    for _ in range(groups):
        limit = limit.group_ended(limited=limited)
    return limit


def test_it_begins_with_a_batch_and_doubles_with_every_generation_until_its_maximum():
    limit = initial_limit(4, 64)
    found = [limit.groups]
    for _ in range(5):
        limit = after(limit, limit.groups)
        found.append(limit.groups)
    assert found == [4, 8, 16, 32, 64, 64]


def test_it_stays_while_it_is_not_reached_and_while_an_engine_is_busy():
    limit = initial_limit(4, 64)
    assert after(limit, 20, limited=False).groups == 4
    assert after(limit.level_changed(WORKER, "busy"), 20).groups == 4


def test_a_full_engine_lowers_it_and_from_then_on_it_grows_by_one_for_each_generation():
    limit = after(initial_limit(4, 64), 12).level_changed(WORKER, "full")
    assert (limit.groups, limit.threshold) == (12, 12)
    limit = limit.level_changed(WORKER, "free")
    assert after(limit, 11).groups == 12
    assert after(limit, 12).groups == 13
    assert after(limit, 12 + 13).groups == 14


def test_what_runs_may_end_before_it_falls_again():
    limit = after(initial_limit(16, 64), 0).level_changed(WORKER, "full")
    assert limit.groups == 12
    assert after(limit, 11).groups == 12
    assert after(limit, 12).groups == 9
    again = limit.level_changed(WORKER, "free").level_changed(WORKER, "full")
    assert again.groups == 12, "less than a generation after it fell"
    assert limit.level_changed("inference_worker-1", "full").groups == 12, "one of them is full already"


def test_it_never_falls_below_one_and_a_worker_that_is_gone_no_longer_counts():
    limit = after(initial_limit(4, 64).level_changed(WORKER, "full"), 100)
    assert limit.groups == 1
    assert after(limit.worker_gone(WORKER), 5).groups > 1


@pytest.mark.parametrize("room", [3, 20, 47, 200])
def test_it_finds_the_number_of_groups_for_which_the_engines_have_room(room):
    """Groups end one by one in random order; the engine is full while more run than it has room for."""
    dice, limit, running, found = random.Random(room), initial_limit(16, 96), 16, []
    for turn in range(6000):
        level = "full" if running > room else "free"
        if limit.levels.get(WORKER) != level and dice.random() < 0.5:
            limit = limit.level_changed(WORKER, level)
        limit = limit.group_ended(limited=running >= limit.groups)
        running = max(running - 1, limit.groups)
        if turn > 2000:
            found.append(limit.groups)
    best = min(room, 96)
    assert max(found) <= best + 5
    assert sum(found) / len(found) >= 0.6 * best


async def test_the_gate_grants_by_the_limit_and_publishes_every_change(send):
    actor = gate()
    (first,) = await send(actor, published(0))
    assert isinstance(first, CapacityGranted)
    assert first.groups == 4
    emitted = await send(actor, exported("0.0"))
    assert emitted == [
        ConcurrencyChanged(groups=5, before=4, reason="a group has ended and the engines have room"),
        CapacityGranted(first_group=4, groups=2, weight_version=0),
    ]
    (changed,) = await send(actor, load("full"))
    assert (changed.groups, changed.before) == (3, 5)
    assert changed.reason == "inference_worker-0 is full: 9 running, 3 waiting, 50% of the KV cache used"
    assert await send(actor, exported("1.0"), exported("2.0")) == []
    assert actor.status()["max_concurrent"] == 3
    restored = gate()
    restored.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(actor.snapshot()), type=GateState))
    assert restored.limit == actor.limit
    await send(actor, ActorFailed(actor=WORKER, process="p", reason="killed"))
    assert actor.limit is not None
    assert not actor.limit.is_full()


async def test_a_fixed_limit_does_not_follow_the_load(send):
    config = StalenessGateConfig(max_staleness=3, max_concurrent=4)
    actor = StalenessGate(config, group_size=1, batch_size=4, steps=1000)
    assert [grant.groups for grant in await send(actor, published(0), load("full"), exported("0.0"))] == [4, 1]


def test_the_level_of_an_engine():
    assert load_level(EngineCounters(running=500)) == "free"
    assert load_level(EngineCounters(kv_cache_usage=0.9)) == "busy"
    assert load_level(EngineCounters(kv_cache_usage=0.96)) == "full"
    assert load_level(EngineCounters(waiting=1)) == "full"


def test_a_level_is_reported_once_it_has_lasted():
    reporter = LoadReporter(WORKER)
    free, full = EngineCounters(running=3), EngineCounters(running=8, waiting=2)
    levels = [
        (0.0, free),
        (1.0, free),
        (2.0, free),
        (9.0, free),
        (10.0, full),
        (11.0, free),
        (12.0, full),
        (13.5, full),
        (14.0, full),
    ]
    found = [(now, event.level) for now, counters in levels if (event := reporter.take_change(counters, now))]
    assert found == [(2.0, "free"), (14.0, "full")]


def test_it_is_a_value():
    limit = initial_limit(16, 64)
    limit.level_changed(WORKER, "full")
    assert limit == ConcurrencyLimit(groups=16, most=64, threshold=64)
