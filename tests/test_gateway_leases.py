"""Slots and leases of external sessions: what is not used is released, what is used lasts."""

from __future__ import annotations

import asyncio

import pytest
from support.sessions_harness import sessions_harness
from test_gateway_sessions import ended

from areal_actors.gateway.settings import GatewaySettings
from areal_actors.messages import EpisodeAbandoned, SessionStarted
from areal_actors.runtime.pauses import OwnPauses


@pytest.fixture
async def harness():
    """Two groups of two."""
    async with sessions_harness(group_size=2) as harness:
        await harness.grant(2)
        yield harness


async def test_an_unused_reserved_slot_is_released(harness):
    for _ in range(4):
        assert await harness.post("/grant_capacity") == (200, {"status": "ok", "seconds": 60.0})
    status, answer, headers = await harness.call("POST", "/grant_capacity")
    assert (status, headers["Retry-After"], "no slot is free" in answer["error"]["message"]) == (429, "5", True)
    await harness.started("a")
    assert (await harness.post("/grant_capacity"))[0] == 429
    harness.now += 61
    assert (await harness.post("/grant_capacity"))[0] == 200


async def test_an_unused_session_is_abandoned_when_its_lease_ends():
    async with sessions_harness(GatewaySettings(idle_timeout_seconds=10), group_size=1) as harness:
        await harness.grant(1)
        given = await harness.started()
        harness.now += 9
        assert (await harness.call("GET", "/rl/session", key=given["api_key"]))[1]["lease"] == {
            "seconds": 10.0,
            "expires_in": 10.0,
        }
        harness.now += 9
        assert not harness.log(EpisodeAbandoned)
        harness.now += 2
        await harness.until(lambda: harness.log(EpisodeAbandoned))
        (gone,) = harness.log(EpisodeAbandoned)
        assert (gone.reason, gone.detail) == ("lost", "session sum-0 was not used for 10 s")
        _, state, _ = await harness.call("GET", "/rl/session", key=given["api_key"])
        assert (state["state"], state["reason"]) == ("abandoned", gone.detail)


async def test_a_pause_of_the_gateway_ends_no_session_and_no_group():
    """Its clients could not call it meanwhile: after SIGSTOP or a suspended machine they have the whole time again."""
    async with sessions_harness(
        GatewaySettings(idle_timeout_seconds=10, reservation_ttl_seconds=10), group_size=2
    ) as harness:
        await harness.grant(1)
        given = await harness.started()
        boot = [0.0]
        harness.runtime.pauses = OwnPauses(lambda: boot[0])

        async def pass_seconds(seconds, *, paused):
            harness.now += seconds
            boot[0] += seconds if paused else 1.0
            await asyncio.sleep(0.1)

        await pass_seconds(90, paused=True)
        assert not harness.log(EpisodeAbandoned)
        _, state, _ = await harness.call("GET", "/rl/session", key=given["api_key"])
        assert (state["state"], state["lease"]) == ("opened", {"seconds": 10.0, "expires_in": 10.0})
        harness.now += 11
        for _ in range(12):
            await pass_seconds(0, paused=False)
        await harness.until(lambda: len(harness.log(EpisodeAbandoned)) == 2)


async def test_a_session_with_a_call_in_flight_does_not_expire():
    async with sessions_harness(GatewaySettings(idle_timeout_seconds=10), group_size=1) as harness:
        await harness.grant(1)
        given = await harness.started()
        registry = harness.manager.registry
        registry.update(registry.get(given["session_id"]).begin_call(harness.now))
        harness.now += 1000
        await asyncio.sleep(0.06)
        assert not harness.log(EpisodeAbandoned)


async def test_members_that_no_client_starts_do_not_block_their_group_for_ever():
    async with sessions_harness(GatewaySettings(idle_timeout_seconds=10), group_size=3) as harness:
        await harness.grant(2)
        given = await harness.started("a")
        harness.record(given["session_id"], ("a", "x", ""))
        await ended(harness, given["session_id"], given["api_key"])
        harness.now += 11
        await harness.until(lambda: len(harness.log(EpisodeAbandoned)) >= 2)
        await asyncio.sleep(0.06)
        assert [event.work.episode for event in harness.log(EpisodeAbandoned)] == ["0.1", "0.2"]
        assert [event.work.episode for event in harness.log(SessionStarted)] == ["0.0"]
        await harness.started("a")
        assert harness.log(SessionStarted)[-1].work.episode == "1.0"


async def test_without_a_gate_the_slots_bound_concurrent_sessions():
    async with sessions_harness(slots=2) as harness:
        first = await harness.started("a", group_size=8)
        await harness.started("b")
        assert (await harness.post("/rl/start_session", {"task_id": "c"}))[0] == 429
        await harness.post("/rl/end_session", key=first["api_key"])
        assert (await harness.started("c"))["session_id"] == "c-0"
