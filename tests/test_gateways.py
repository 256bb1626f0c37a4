"""Several gateways: each has its share of the groups and sessions, and the others send clients there."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
from support.samples import work
from support.sessions_harness import SessionsHarness

from areal_actors.core.gateways import ONLY, GatewayShare, gateway_of_group, gateway_of_session, without_mark
from areal_actors.messages import (
    ActorFailed,
    EpisodeAbandoned,
    EpisodeScored,
    OpenSession,
    SessionOpened,
    SessionStarted,
    TrajectoryExported,
)
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_bus import MemoryBus, Stamp

COUNT = 3


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize("group", ["0", "17", "held-out 3.1", "", "größe"])
def test_every_group_has_one_gateway(group):
    shares = [GatewayShare(number=number, count=COUNT) for number in range(COUNT)]
    (owner,) = [share for share in shares if share.owns_group(group)]
    assert gateway_of_group(group, COUNT) == owner.name
    assert ONLY.owns_group(group)
    assert gateway_of_group(group, 1) == ""


def test_numbered_groups_take_turns():
    assert [gateway_of_group(str(number), 2) for number in range(3)] == [
        "session_manager-0",
        "session_manager-1",
        "session_manager-0",
    ]


def test_a_session_names_its_gateway():
    name = GatewayShare(number=1, count=COUNT).mark("4.0-1-abcdef01")
    assert (name, gateway_of_session(name), without_mark(name)) == (
        "4.0-1-abcdef01-g1",
        "session_manager-1",
        "4.0-1-abcdef01",
    )
    owners = [number for number in range(COUNT) if GatewayShare(number=number, count=COUNT).owns_session(name)]
    assert owners == [1]
    assert ONLY.mark("4.0-1-abcdef01") == "4.0-1-abcdef01"


@pytest.mark.parametrize("name", ["sum-0", "sum-0-g7"])
def test_sessions_of_a_gateway_that_is_no_more_belong_to_gateway_0(name):
    assert [number for number in range(2) if GatewayShare(number=number, count=2).owns_session(name)] == [0]


# ---------------------------------------------------------------- episodes of rollout workers


class Gateways(list):
    """Several gateways on one bus."""

    def __init__(self, count, **options):
        bus = MemoryBus()
        super().__init__(
            SessionsHarness(bus=bus, share=GatewayShare(number=number, count=count), **options)
            for number in range(count)
        )
        self.bus, self.sent = bus, 0

    def stamp(self):
        self.sent += 1
        return Stamp(id=f"test-of-several-{self.sent}", sender="test", time=0.0)

    async def open(self, episode, gateway):
        question = OpenSession(work=work(episode), lease_seconds=60.0)
        return await self.bus.request(question, self.stamp(), timeout=300, to=f"session_manager-{gateway}")

    async def score(self, episode, session, reward=1.0):
        await self.bus.publish(EpisodeScored(work=work(episode), session=session, reward=reward), self.stamp())

    async def restart(self, number):
        await self[number].stop()
        self[number].now += 1.0  # ids of messages depend on the time
        await self[number].start()

    async def until(self, condition):
        await self[0].until(condition)

    def log(self, kind):
        return self[0].log(kind)

    def senders(self, kind):
        return [envelope.sender for envelope in self.bus._log if envelope.subject == kind.subject]


@asynccontextmanager
async def several(count=2, **options):
    gateways = Gateways(count, **options)
    for gateway in gateways:
        await gateway.start()
    try:
        yield gateways
    finally:
        for gateway in gateways:
            await gateway.stop()


async def test_only_the_gateway_of_the_group_opens_a_session_and_exports_it():
    async with several() as gateways:
        opened = await gateways.open("1.0", gateway=1)
        assert opened.session.endswith("-g1")
        assert opened.base_url == f"{gateways[1].root}/{opened.session}/v1"
        assert await gateways.open("1.1", gateway=0) == SessionOpened(gateways=2)
        gateways[1].record(opened.session, ("a", "xy", ""))
        await gateways.score("1.0", opened.session)
        await gateways.until(lambda: gateways.log(TrajectoryExported))
        await gateways.score("1.2", "1.2-1-gone-g1")
        await gateways.until(lambda: gateways.log(EpisodeAbandoned))
        assert gateways.senders(TrajectoryExported) == gateways.senders(EpisodeAbandoned) == ["session_manager-1"]
        assert all(gateway.manager.registry.is_finished("1.0") for gateway in gateways)


async def test_a_killed_gateway_loses_its_own_sessions_only():
    async with several() as gateways:
        kept, lost = await gateways.open("0.0", gateway=0), await gateways.open("1.0", gateway=1)
        gateways[0].record(kept.session, ("a", "xy", ""))
        await gateways.restart(1)
        await gateways.score("1.0", lost.session)
        await gateways.score("0.0", kept.session)
        await gateways.until(lambda: gateways.log(TrajectoryExported) and gateways.log(EpisodeAbandoned))
        (abandoned,), (exported,) = gateways.log(EpisodeAbandoned), gateways.log(TrajectoryExported)
        assert (abandoned.work.episode, exported.trajectory.episode) == ("1.0", "0.0")
        assert "the gateway lost the session" in abandoned.detail


async def test_a_call_at_the_wrong_gateway_is_misdirected():
    async with several() as gateways:
        opened = await gateways.open("1.0", gateway=1)
        ways = [
            (f"/{opened.session}/v1/models", opened.api_key),
            ("/v1/models", opened.api_key),
            (f"/{opened.api_key}/v1/models", ""),
        ]
        for path, key in ways:
            assert (await gateways[1].call("GET", path, key=key))[0] == 200
            status, answer, _ = await gateways[0].call("GET", path, key=key)
            assert status == 421
            assert (
                "is at another gateway, session_manager-1: send its requests to the base_url"
                in answer["error"]["message"]
            )
        status, answer, _ = await gateways[0].call("GET", "/v1/models", key="sk-wrong")
        assert status == 401


class Asked:
    """Gateways that answer a rollout worker: only that of the group opens a session."""

    def __init__(self, count):
        self.count = count
        self.asked = []

    async def ask(self, question, *, timeout, to="", retry_for_seconds=0.0):
        self.asked.append(to)
        if (to or "session_manager-0") != gateway_of_group(question.work.group, self.count):
            return SessionOpened(gateways=self.count)
        return SessionOpened(session="s", gateways=self.count)


async def test_a_rollout_worker_learns_which_gateway_has_a_group():
    worker, gateways = RolloutWorker(None, concurrency=1, timeout_seconds=1.0), Asked(2)
    for group in ("1.0", "3.0", "2.0"):
        assert (await worker._open_session(work(group), gateways)).session == "s"
    assert gateways.asked == ["", "session_manager-1", "session_manager-1", "session_manager-0"]


# ---------------------------------------------------------------- sessions of external agents


async def finished(gateway, given):
    assert (await gateway.post("/rl/set_reward", {"reward": 1.0}, given["api_key"]))[0] == 200
    return await gateway.post("/rl/end_session", key=given["api_key"])


async def test_an_external_session_stays_where_it_was_started():
    async with several(group_size=2) as gateways:
        first, second = gateways
        await first.grant(1)
        await second.until(lambda: second.manager.external.slots.capacity.granted == 1)
        given = [await second.started("sum"), await first.started("sum")]
        assert [one["session_id"] for one in given] == ["sum-0-g1", "sum-1-g0"]
        assert [one["base_url"] for one in given] == [f"{second.root}/sum-0-g1/v1", f"{first.root}/sum-1-g0/v1"]
        assert [event.work.episode for event in first.log(SessionStarted)] == [
            "0.0",
            "0.1",
        ], "one group, although at two gateways"
        assert (await second.post("/rl/start_session", {"task_id": "sum"}))[0] == 429
        for gateway, one in zip((second, first), given, strict=True):
            gateway.record(one["session_id"], (f"a-{one['session_id']}", "xy", ""))
            assert (await finished(gateway, one))[0] == 200
        assert gateways.senders(TrajectoryExported) == ["session_manager-1", "session_manager-0"]
        asked = {"session_id": "sum-0-g1"}
        assert (await second.post("/export_trajectories", asked))[0] == 200
        status, answer = await first.post("/export_trajectories", asked)
        assert (status, "session_manager-1" in answer["error"]["message"]) == (421, True)


async def test_every_gateway_reserves_from_the_same_slots():
    async with several(group_size=1) as gateways:
        await gateways[0].grant(2)
        statuses = [(await gateways[number].post("/grant_capacity"))[0] for number in (1, 0, 1)]
        assert statuses == [200, 200, 429]


async def test_slots_are_counted_once_over_all_gateways():
    async with several(group_size=1) as gateways:
        await gateways[0].grant(5)
        await gateways[1].until(lambda: gateways[1].manager.external.slots.capacity.granted == 5)
        texts = [(await gateway.call("GET", "/metrics"))[1].decode() for gateway in gateways]
        free = [line for text in texts for line in text.splitlines() if line.startswith("areal_session_slots_free")]
        assert free == ["areal_session_slots_free 5", "areal_session_slots_free 0"]


async def test_without_gateway_0_no_session_starts_and_started_ones_go_on():
    async with several(group_size=2) as gateways:
        await gateways[0].grant(1)
        given = await gateways[1].started("sum")
        await gateways[0].stop()
        status, answer, headers = await gateways[1].call("POST", "/rl/start_session", {"task_id": "sum"})
        assert (status, headers["Retry-After"]) == (503, "1")
        assert "session_manager-0, which hands out slots, does not answer" in answer["error"]["message"]
        gateways[1].record("sum-0-g1", ("a", "xy", ""))
        assert (await finished(gateways[1], given))[1]["state"] == "exported"
        await gateways.restart(0)
        assert (await gateways[1].started("sum"))["session_id"] == "sum-1-g1"


async def test_a_restarted_gateway_abandons_the_external_sessions_that_it_lost():
    async with several(group_size=2) as gateways:
        await gateways[0].grant(1)
        for gateway in gateways:
            await gateway.started("sum")
        await gateways.restart(1)
        await gateways.until(lambda: gateways.log(EpisodeAbandoned))
        (abandoned,) = gateways.log(EpisodeAbandoned)
        assert (abandoned.work.episode, gateways.senders(EpisodeAbandoned)) == ("0.1", ["session_manager-1"])
        assert gateways[0].manager.registry.find("sum-0-g0") is not None


async def test_the_next_session_of_a_task_takes_the_place_of_a_lost_one_in_its_group():
    async with several(group_size=2) as gateways:
        await gateways[0].grant(2)
        for gateway in gateways:
            await gateway.started("sum")
        await gateways.restart(1)
        await gateways.until(lambda: gateways[0].manager.external.slots.attempts)
        given = await gateways[0].started("sum")
        await gateways.until(lambda: len(gateways.log(SessionStarted)) == 3)
        again = gateways.log(SessionStarted)[-1]
        assert (again.work.episode, again.work.attempt, again.session) == ("0.1", 2, "sum-2-g0")
        for session in ("sum-0-g0", "sum-2-g0"):
            gateways[0].record(session, (f"a-{session}", "xy", ""))
        assert (await finished(gateways[0], given))[1]["state"] == "exported"
        assert [event.trajectory.episode for event in gateways.log(TrajectoryExported)] == ["0.1"]
        assert (
            gateways[0].manager.external.slots.describe_waits()
            == "session sum-0-g0 (member 0 of group 0) has not ended"
        )


async def test_gateway_0_gives_up_the_sessions_of_another_one_as_soon_as_it_has_failed():
    async with several(group_size=2) as gateways:
        await gateways[0].grant(2)
        for gateway in gateways:
            await gateway.started("sum")
        await gateways[1].stop()
        await gateways.bus.publish(
            ActorFailed(actor="session_manager-1", process="gateway-1", reason="killed"), gateways.stamp()
        )
        await gateways.until(lambda: gateways.log(EpisodeAbandoned))
        (lost,) = gateways.log(EpisodeAbandoned)
        assert (lost.work.episode, lost.work.attempts_left, lost.reason) == ("0.1", 1, "session")
        waits = gateways[0].manager.external.slots.describe_waits()
        assert waits.startswith("group 0 of task 'sum' lacks a session for member 1; session sum-0-g0")
        assert (await gateways[0].started("sum"))["session_id"] == "sum-2-g0"
        assert gateways.log(SessionStarted)[-1].work.episode == "0.1"
        gateways[1].now += 1.0
        await gateways[1].start()
        assert len(gateways.log(EpisodeAbandoned)) == 1


async def test_groups_of_a_task_that_lost_a_session_close_when_no_other_comes():
    """The replacement came before the loss was known: neither its group nor the old one is filled any more."""
    async with several(group_size=2) as gateways:
        await gateways[0].grant(2)
        given = [await gateway.started("sum") for gateway in gateways]
        await gateways[1].stop()
        replacement = await gateways[0].started("sum")
        assert gateways.log(SessionStarted)[-1].work.episode == "1.0"
        gateways[1].now += 1.0
        await gateways[1].start()
        await gateways.until(lambda: gateways[0].manager.external.slots.rejoining)
        for one in (given[0], replacement):
            gateways[0].record(one["session_id"], (f"a-{one['session_id']}", "xy", ""))
            assert (await finished(gateways[0], one))[0] == 200
        assert set(gateways[0].manager.external.slots.capacity.open) == {0, 1}
        gateways[0].now += gateways[0].config.reservation_ttl_seconds + 1.0
        await gateways.until(lambda: not gateways[0].manager.external.slots.capacity.open)
        ended = {
            event.work.episode: (event.reason, event.work.attempts_left) for event in gateways.log(EpisodeAbandoned)[1:]
        }
        assert ended == {"0.1": ("lost", 0), "1.1": ("lost", 0)}
        assert "no other session of task 'sum' was started for 60 s" in gateways.log(EpisodeAbandoned)[-1].detail


async def test_a_key_opens_one_session_of_all_gateways():
    async with several(group_size=1) as gateways:
        await gateways[0].grant(3)
        await gateways[1].started("sum", api_key="one-of-its-own")
        status, answer = await gateways[0].post(
            "/rl/start_session", {"task_id": "sum", "api_key": "another-one", "replace": True}
        )
        assert status == 200, answer
        status, answer = await gateways[1].post("/rl/start_session", {"task_id": "sum", "api_key": "another-one"})
        assert status == 409
        status, answer = await gateways[0].post("/rl/start_session", {"task_id": "sum", "api_key": "one-of-its-own"})
        assert (status, "opens session sum-0-g1 of session_manager-1" in answer["error"]["message"]) == (409, True)


# ---------------------------------------------------------------- recipes


# ---------------------------------------------------------------- a run
