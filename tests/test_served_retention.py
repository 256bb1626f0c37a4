"""`[log.retention]`: old sessions are deleted whole, and what a later start needs stays."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from support.samples import published
from support.sessions_harness import ADMIN, SECRET, SessionsHarness

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.feedback.feedback_routes import FeedbackRoutes
from areal_actors.feedback.feedback_session_manager import FeedbackSessionManager
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.messages import (
    CandidatePublished,
    ConversationKept,
    FeedbackGiven,
    LogTrimmed,
    RunStarted,
    SessionsErased,
    SessionStarted,
    WeightsPublished,
)
from areal_actors.privacy.settings import RetentionSettings
from areal_actors.run.served_retention import ServedRetention
from areal_bus import Stamp

FEEDBACK = feedback_key(SECRET)
DAY = 86_400.0


class Served(SessionsHarness):
    """A served model whose folds store snapshots in a folder, and the deletion of its old sessions."""

    def __init__(self, folder, **limits):
        routes = FeedbackRoutes(FeedbackSettings(), admin_key=ADMIN, feedback_key=FEEDBACK)
        self.folder, self.limits = RunFolder(folder), RetentionSettings(**limits)
        super().__init__(
            make=FeedbackSessionManager,
            slots=8,
            snapshots=SnapshotStore(self.folder.snapshots),
            conversations=ConversationSettings(),
            add_routes=routes.add_routes,
        )

    async def start(self):
        await super().start()
        actors = [(self.share.name, "session_manager")]
        now = {"now": lambda: self.now}
        self.retention = ServedRetention(
            self.limits, self.bus, self.folder, instances=actors, publish=self.publish, **now
        )
        self.following = asyncio.create_task(self.retention.follow())

    async def stop(self):
        self.following.cancel()
        await super().stop()

    async def publish(self, event):
        self.count += 1
        await self.bus.publish(event, Stamp(id=f"event-{self.count}", sender="test", time=self.now))

    async def talk(self, **body):
        given = await self.started(**body)
        self.record(given["session_id"], (f"{given['session_id']}-1", "xy", ""))
        assert (await self.post("/rl/end_session", {}, given["api_key"]))[0] == 200
        return given["session_id"]

    async def judge(self, session, reward):
        return (await self.post("/rl/feedback", {"session_id": session, "reward": reward}, FEEDBACK))[0]

    async def delete(self):
        last = (await self.bus.span()).last
        await self.until(lambda: self.retention.read_to >= last)
        return await self.retention.delete_old()


@asynccontextmanager
async def served(folder, **limits):
    harness = Served(folder, **limits)
    await harness.publish(RunStarted(recipe={"run": "served"}, profile="", reason="", folder=""))
    await harness.publish(published(0))
    await harness.start()
    try:
        yield harness
    finally:
        await harness.stop()


def sessions(harness):
    return [event.session for event in harness.log(SessionStarted)]


async def test_sessions_are_deleted_whole_once_they_are_old_and_open_ones_stay(tmp_path):
    async with served(tmp_path, days=1.0) as harness:
        first = await harness.talk(user="ann")
        open_session = await harness.started()
        second = await harness.talk()
        assert await harness.judge(first, 1.0) == 200
        assert await harness.delete() is None
        harness.now += 1.5 * DAY
        harness.manager.registry.update(
            harness.manager.registry.get(open_session["session_id"]).renew_lease(harness.now)
        )
        third = await harness.talk()
        trimmed = await harness.delete()
        assert (trimmed.sessions, trimmed.first) == (1, (await harness.bus.span()).first)
        assert sessions(harness) == [open_session["session_id"], second, third]
        assert [event.session for event in harness.log(ConversationKept)] == [second, third]
        assert "deleted 1 sessions until 1970-01-01" in trimmed.occasion()
        assert await harness.delete() is None


async def test_a_deleted_session_takes_no_feedback_and_can_still_be_erased(tmp_path):
    async with served(tmp_path, days=1.0) as harness:
        old = await harness.talk(user="ann")
        assert await harness.judge(old, 1.0) == 200
        harness.now += 2 * DAY
        new = await harness.talk(user="bob")
        await harness.delete()
        assert harness.log(FeedbackGiven) == []
        for _ in range(2):
            await harness.until(lambda: harness.manager.ledger.sessions[old].is_deleted)
            assert (await harness.judge(old, 0.0), await harness.judge(new, 0.0)) == (410, 200)
            assert harness.manager.ledger.sessions[old].given == ()
            await harness.stop()
            harness.now += 1
            await harness.start()
        assert (await harness.post("/rl/erase", {"user": "ann"}))[1]["sessions"] == [old]
        harness.now += 2 * DAY
        await harness.talk()
        await harness.delete()
        erased = harness.log(SessionsErased)
        assert [event.sessions for event in erased] == [(old,)], "an erasure outlives the events that had it"


async def test_a_start_goes_on_after_the_deletion_with_the_weights_and_names_of_before(tmp_path):
    async with served(tmp_path, days=1.0) as harness:
        names = [await harness.talk() for _ in range(3)]
        harness.now += 2 * DAY
        names += [await harness.talk()]
        await harness.delete()
        assert [event.weight_version for event in harness.log(WeightsPublished)] == [0]
        await harness.stop()
        harness.now += 1
        await harness.start()
        await harness.until(harness.retention.caught_up.is_set)
        assert harness.retention.readers._readers["run_state"].started.recipe == {"run": "served"}
        names += [await harness.talk()]
        assert len(set(names)) == 5


async def test_the_oldest_sessions_go_when_the_log_is_too_large(tmp_path):
    async with served(tmp_path, gigabytes=1.0) as harness:
        names = []
        for _ in range(20):
            harness.now += 1
            names += [await harness.talk()]
        size = (await harness.bus.span()).bytes
        harness.retention.settings = RetentionSettings(gigabytes=size / 2 / 1e9)
        trimmed = await harness.delete()
        assert 8 <= trimmed.sessions <= 14
        assert sessions(harness) == names[trimmed.sessions :]


async def test_sessions_that_an_undecided_candidate_is_compared_by_stay(tmp_path):
    async with served(tmp_path, days=1.0) as harness:
        before = await harness.talk()
        candidate = CandidatePublished(weight_version=1, location=published(1).location, serving_version=0)
        await harness.publish(candidate)
        compared = await harness.talk()
        harness.now += 2 * DAY
        await harness.talk()
        trimmed = await harness.delete()
        assert trimmed.sessions == 1
        assert before not in sessions(harness)
        assert compared in sessions(harness)
        assert len(harness.log(LogTrimmed)) == 1
