"""Feedback on sessions of external agents: at any time, once, by those who may give it; erasures and consent."""

from __future__ import annotations

import base64

import pytest
from support.sessions_harness import ADMIN, SECRET, SessionsHarness, sessions_harness

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.core.values import WeightsLocation
from areal_actors.feedback.feedback_routes import FeedbackRoutes
from areal_actors.feedback.feedback_session_manager import FeedbackSessionManager
from areal_actors.feedback.ledger import FeedbackLedger
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.messages import (
    ConversationKept,
    EpisodeAbandoned,
    FeedbackGiven,
    SessionsErased,
    SessionStarted,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.messages.episode_ends import is_failure
from areal_bus import Stamp

FEEDBACK = feedback_key(SECRET)
DAY = 86_400.0
SETTINGS = FeedbackSettings(max_days=2.0, labels={"meh": 0.25})


def options(**others):
    routes = FeedbackRoutes(SETTINGS, admin_key=ADMIN, feedback_key=FEEDBACK)
    return {
        "make": FeedbackSessionManager,
        "add_routes": routes.add_routes,
        "conversations": ConversationSettings(),
        "slots": 4,
        "group_size": 2,
        **others,
    }


@pytest.fixture
async def harness():
    """A served model with four slots."""
    async with sessions_harness(**options()) as harness:
        yield harness


async def begun(harness, task="sum", **body):
    """A session with two calls, the second after the first."""
    given = await harness.started(task, **body)
    session = given["session_id"]
    harness.record(session, (f"{session}-1", "xy", ""), (f"{session}-2", "z", f"{session}-1"))
    return session, given["api_key"]


async def give(harness, key=FEEDBACK, **body):
    return await harness.post("/rl/feedback", body, key)


def rewards(harness, session):
    feedback = harness.manager.ledger.sessions[session]
    return feedback.reward(), feedback.rewards_by_call()


# ---------------------------------------------------------------- who may judge what, and when


async def test_feedback_after_the_end_is_in_the_log_before_it_is_acknowledged(harness):
    session, key = await begun(harness)
    _, ended = await harness.post("/rl/end_session", key=key)
    assert (ended["state"], ended["interaction_count"]) == ("abandoned", 2)
    assert "POST /rl/feedback" in ended["reason"]
    status, answer = await give(harness, session_id=session, reward=0.5, user="ann", comment="nice")
    assert (status, answer["status"]) == (200, "recorded")
    (event,) = harness.log(FeedbackGiven)
    assert (event.session, event.reward, event.user, event.comment, event.is_late) == (
        session,
        0.5,
        "ann",
        "nice",
        True,
    )
    (abandoned,) = harness.log(EpisodeAbandoned)
    assert (abandoned.reason, is_failure(abandoned)) == ("unrewarded", False)
    (kept,) = harness.log(ConversationKept)
    assert [call.id for call in kept.interactions] == [f"{session}-1", f"{session}-2"]


async def test_the_last_judgement_of_a_user_counts_and_users_are_averaged(harness):
    session, _ = await begun(harness)
    call = f"{session}-1"
    assert (await give(harness, session_id=session, label="good"))[1]["status"] == "recorded"
    assert (await give(harness, session_id=session, label="Meh"))[1]["status"] == "replaced"
    assert rewards(harness, session) == (0.25, {})
    for user, reward in (("ann", 1), ("bob", 0), ("bob", 0.5)):
        assert (await give(harness, interaction_id=call, reward=reward, user=user))[0] == 200
    assert rewards(harness, session) == (0.25, {call: 0.75})
    assert harness.manager.ledger.counts()["contradicted"] == 1
    assert (await give(harness, session_id=session, reward=True, name="polite"))[0] == 200
    assert rewards(harness, session) == (0.25, {call: 0.75})
    assert harness.manager.ledger.sessions[session].metrics() == {"polite": 1.0}


async def test_a_user_who_thinks_better_of_it_twice_is_where_the_first_judgement_was(harness):
    session, _ = await begun(harness)
    states = [
        (await give(harness, session_id=session, label=label))[1]["status"] for label in ("up", "up", "down", "up")
    ]
    assert states == ["recorded", "repeated", "replaced", "replaced"]
    assert rewards(harness, session) == (1.0, {})
    assert len({event.id for event in harness.log(FeedbackGiven)}) == 3


async def test_a_reward_after_the_end_of_a_served_session_is_feedback(harness):
    session, key = await begun(harness)
    await harness.post("/rl/end_session", key=key)
    assert await harness.post("/rl/set_reward", {"reward": 0.5}, key) == (200, {"status": "ok"})
    assert rewards(harness, session) == (0.5, {})
    await harness.post("/rl/erase", {"session_id": session})
    assert (await harness.post("/rl/set_reward", {"reward": 1}, key))[0] == 410


async def test_a_reward_after_the_end_of_a_session_that_is_trained_is_refused():
    async with sessions_harness(**options(slots=0)) as harness:
        await harness.grant(1)
        session, key = await begun(harness)
        await harness.post("/rl/set_reward", {"reward": 1}, key)
        await harness.post("/rl/end_session", key=key)
        assert (await harness.post("/rl/set_reward", {"reward": 0}, key))[0] == 410
        assert (await give(harness, session_id=session, reward=0))[0] == 200
        assert [exported.trajectory.reward for exported in harness.log(TrajectoryExported)] == [1.0]


async def test_feedback_that_is_sent_again_counts_once(harness):
    session, _ = await begun(harness)
    first = await give(harness, session_id=session, reward=1, id="click-1")
    assert first == (200, {"status": "recorded", "id": "click-1"})
    assert await give(harness, session_id=session, reward=0) == (200, {"status": "replaced", "id": rewards_id(harness)})
    assert (await give(harness, session_id=session, reward=1, id="click-1"))[1]["status"] == "repeated"
    assert rewards(harness, session) == (0.0, {})
    status, answer = await give(harness, session_id=session, reward=0.5, id="click-1")
    assert (status, answer["error"]["param"]) == (409, "id")
    assert len(harness.log(FeedbackGiven)) == 2


def rewards_id(harness):
    return harness.log(FeedbackGiven)[-1].id


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"session_id": "other-0", "reward": 1}, 404, "session_id"),
        ({"interaction_id": "other-0-1", "reward": 1}, 404, "session_id"),
        ({"session_id": "sum-0", "interaction_id": "sum-1-1", "reward": 1}, 404, "interaction_id"),
        ({"session_id": "sum-0"}, 400, "reward"),
        ({"session_id": "sum-0", "reward": 1, "label": "good"}, 400, "label"),
        ({"session_id": "sum-0", "label": "splendid"}, 400, "label"),
        ({"session_id": "sum-0", "edit": "5"}, 400, "interaction_id"),
        ({"session_id": "sum-0", "reward": 1e300}, 400, "reward"),
        ({"session_id": "sum-0", "colour": "red", "reward": 1}, 400, "colour"),
        ({"reward": 1}, 400, "session_id"),
    ],
)
async def test_feedback_that_cannot_count_is_refused_by_field(harness, body, status, field):
    await begun(harness)
    found, answer = await give(harness, **body)
    assert (found, answer["error"]["param"]) == (status, field), answer
    assert harness.log(FeedbackGiven) == []


async def test_a_key_judges_what_it_may(harness):
    session, key = await begun(harness)
    other, _ = await begun(harness, "other")
    assert (await give(harness, "sk-guessed", session_id=session, reward=1))[0] == 401
    assert (await give(harness, "", session_id=session, reward=1))[0] == 401
    status, answer = await give(harness, key, session_id=other, reward=1)
    assert (status, answer["error"]["param"]) == (403, "session_id")
    await harness.post("/rl/end_session", key=key)
    assert (await give(harness, key, reward=1))[0] == 200
    assert (await give(harness, ADMIN, session_id=other, reward=0))[0] == 200
    for path, body in (("/rl/start_session", {"task_id": "t"}), ("/rl/erase", {"session_id": session})):
        assert (await harness.post(path, body, FEEDBACK))[0] == 403
    assert (await harness.post("/rl/end_session", {}, FEEDBACK))[0] == 401
    assert [(event.session, event.reward) for event in harness.log(FeedbackGiven)] == [(session, 1.0), (other, 0.0)]


async def test_a_session_is_closed_for_feedback_after_its_days():
    async with sessions_harness(**options()) as harness:
        session, _ = await begun(harness)
        days = harness.manager.config.feedback.max_days
        harness.now += (days - 0.1) * DAY
        assert (await give(harness, session_id=session, reward=1))[0] == 200
        harness.now += 0.2 * DAY
        status, answer = await give(harness, session_id=session, reward=0)
        assert status == 410
        assert "gateway.feedback.max_days" in answer["error"]["message"]


# ---------------------------------------------------------------- erasures, consent, ends of served sessions


async def test_erased_sessions_take_no_feedback_and_lose_what_they_had(harness):
    first, key = await begun(harness, user="ann")
    second, _ = await begun(harness, user="ann")
    third, _ = await begun(harness, user="bob")
    await harness.post("/rl/end_session", key=key)
    await give(harness, session_id=first, reward=1)
    assert await harness.post("/rl/erase", {"user": "ann"}) == (200, {"status": "erased", "sessions": [first, second]})
    assert await harness.post("/rl/erase", {"user": "ann"}) == (200, {"status": "erased", "sessions": [first, second]})
    (event,) = harness.log(SessionsErased)
    assert (event.sessions, event.user) == ((first, second), "ann")
    assert rewards(harness, first) == (None, {})
    assert (await give(harness, session_id=first, reward=1))[0] == 410
    assert (await give(harness, session_id=third, reward=1))[0] == 200
    assert (await harness.post("/rl/erase", {"user": "nobody"}))[0] == 404
    assert (await harness.post("/rl/erase", {}))[0] == 400
    await harness.post(f"/{second}/rl/set_reward", {"reward": 1}, ADMIN)
    session = harness.manager.registry.get(second)
    assert not session.is_kept


async def test_a_session_without_consent_leaves_no_conversation_and_no_trajectory(harness):
    session, key = await begun(harness, consent=False)
    assert (await harness.post("/rl/set_reward", {"reward": 1}, key))[0] == 200
    _, ended = await harness.post("/rl/end_session", key=key)
    assert (ended["state"], ended["interaction_count"]) == ("abandoned", 2)
    assert harness.log(ConversationKept) == []
    assert harness.log(TrajectoryExported) == []
    (event,) = harness.log(SessionStarted)
    assert (event.session, event.consent) == (session, False)


async def test_an_idle_session_of_a_served_model_ends_as_if_it_had_been_ended(harness):
    session, key = await begun(harness)
    rewarded, other = await begun(harness, "other")
    assert (await harness.post("/rl/set_reward", {"reward": 1}, other))[0] == 200
    harness.now += harness.config.idle_timeout_seconds + 1
    await harness.until(lambda: not len(harness.manager.registry))
    await harness.until(lambda: harness.log(ConversationKept) and harness.log(TrajectoryExported))
    assert [kept.session for kept in harness.log(ConversationKept)] == [session]
    assert harness.log(TrajectoryExported)[0].trajectory.interactions[0].id == f"{rewarded}-1"
    assert (await give(harness, key, reward=1))[0] == 200


async def test_a_restarted_gateway_has_the_feedback_of_its_log():
    async with sessions_harness(**options()) as harness:
        session, key = await begun(harness)
        await harness.post("/rl/end_session", key=key)
        await give(harness, session_id=session, reward=0.5, id="one")
        await give(harness, interaction_id=f"{session}-1", reward=1, user="ann")
        before = harness.manager.ledger.snapshot()
        await harness.stop()
        restarted = SessionsHarness(**options(bus=harness.bus))
        restarted.now = harness.now + 1
        await restarted.start()
        try:
            assert restarted.manager.ledger.snapshot() == before
            assert FeedbackLedger(before).snapshot() == before
            assert (await give(restarted, session_id=session, reward=0.5, id="one"))[1]["status"] == "repeated"
            assert (await give(restarted, session_id=session, reward=1, user="bob"))[1]["status"] == "recorded"
            assert rewards(restarted, session) == (0.75, {f"{session}-1": 1.0})
        finally:
            await restarted.stop()


async def test_a_gateway_of_a_served_model_loads_the_newest_alone(tmp_path):
    async with sessions_harness(**options()) as harness:
        await publish(harness, 0, tmp_path / "gone")
        await harness.stop()
        await publish(harness, 1, tmp_path)
        restarted = SessionsHarness(**options(bus=harness.bus))
        restarted.now = harness.now + 1
        await restarted.start()
        try:
            await restarted.until(lambda: restarted.manager.calls.served is not None)
            assert restarted.manager.model == str(tmp_path)
            assert restarted.manager.published.newest == 1
        finally:
            await restarted.stop()


async def publish(harness, version, folder):
    location = WeightsLocation(folder=str(folder), checksum="", model=str(folder))
    stamp = Stamp(id=f"weights-{version}", sender="test", time=harness.now)
    await harness.bus.publish(WeightsPublished(weight_version=version, location=location), stamp)


# ---------------------------------------------------------------- clients of Langfuse


def basic(key):
    return {"Authorization": f"Basic {base64.b64encode(f'pk:{key}'.encode()).decode()}"}


async def test_scores_of_langfuse_are_feedback(harness):
    session, _ = await begun(harness)
    call = f"{session}-2"
    body = {"name": "feedback", "value": "down", "traceId": session, "observationId": call, "id": "s1"}
    assert await harness.post("/api/public/scores", body, "", headers=basic(FEEDBACK)) == (200, {"id": "s1"})
    assert (await harness.post("/api/public/scores", body, "", headers=basic("sk-guessed")))[0] == 401
    several = [{**body, "id": f"s{number}"} for number in (2, 3)]
    assert await harness.post("/api/public/scores", several, "", headers=basic(FEEDBACK)) == (
        202,
        {"message": "Accepted"},
    )
    status, answer = await harness.post(
        "/api/public/scores", [*several, {**body, "id": "s4", "value": "?"}], "", headers=basic(FEEDBACK)
    )
    assert (status, answer["accepted"], answer["rejected"]) == (207, 2, 1)
    assert "gateway.feedback.labels" in answer["errors"][0]["message"]
    batch = [
        {
            "id": "e1",
            "type": "score-create",
            "timestamp": "now",
            "body": {"name": "feedback", "value": 1, "traceId": session},
        },
        {"id": "e2", "type": "trace-create", "timestamp": "now", "body": {"name": "anything"}},
        {
            "id": "e3",
            "type": "score-create",
            "timestamp": "now",
            "body": {"name": "clear", "value": 0.5, "traceId": "other-0"},
        },
        {"id": "e4", "type": "score-create", "timestamp": "now", "body": {"name": "clear"}},
    ]
    status, answer = await harness.post("/api/public/ingestion", {"batch": batch}, "", headers=basic(FEEDBACK))
    assert status == 207
    assert [(entry["id"], entry["status"]) for entry in answer["successes"]] == [("e1", 201), ("e2", 201)]
    assert [(entry["id"], entry["status"]) for entry in answer["errors"]] == [("e3", 404), ("e4", 400)]
    assert rewards(harness, session) == (1.0, {call: 0.0})


async def test_the_endpoints_are_described(harness):
    _, answer, _ = await harness.call("GET", "/openapi.json")
    assert {"/rl/feedback", "/rl/erase"} <= set(answer["paths"])
