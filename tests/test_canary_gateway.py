"""A gateway with a candidate over HTTP: assigned sessions, the decision by their rewards, and restarts."""

from __future__ import annotations

import pytest
from support.sessions_harness import ADMIN, SECRET, sessions_harness

from areal_actors.canary.assignment import is_in_share
from areal_actors.canary.candidate_session_manager import CandidateSessionManager
from areal_actors.core.candidate_settings import CandidateSettings
from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.core.values import WeightsLocation
from areal_actors.feedback.feedback_routes import FeedbackRoutes
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.messages import CandidateDecided, CandidatePublished, SessionStarted, WeightsPublished
from areal_bus import Stamp

FEEDBACK = feedback_key(SECRET)
SHARE = 0.5


def location(name):
    return WeightsLocation(folder=name, checksum=name, model="")


@pytest.fixture
async def harness():
    """A served model, and a candidate that answers half of the sessions."""
    routes = FeedbackRoutes(FeedbackSettings(), admin_key=ADMIN, feedback_key=FEEDBACK)
    options = {
        "make": CandidateSessionManager,
        "candidate": CandidateSettings(model="b", share=SHARE),
        "add_routes": routes.add_routes,
        "conversations": ConversationSettings(),
        "slots": 500,
        "seed": 5,
    }
    async with sessions_harness(**options) as harness:
        yield harness


async def publish(harness, event):
    harness.count += 1
    await harness.bus.publish(event, Stamp(id=f"weights-{harness.count}", sender="supervisor", time=harness.now))


async def publish_weights(harness):
    await publish(harness, WeightsPublished(weight_version=0, location=location("a")))
    compared = {"share": SHARE, "least_difference": -0.01, "least_sessions": 5}
    await publish(harness, CandidatePublished(weight_version=1, location=location("b"), serving_version=0, **compared))
    await harness.until(lambda: harness.manager.trial.published is not None)


async def judged(harness, reward):
    """A session that has ended and has a reward by its version."""
    given = await harness.started()
    version = int(is_in_share(5, 1, given["session_id"], SHARE))
    assert (await harness.post("/rl/end_session", {}, given["api_key"]))[0] == 200
    body = {"session_id": given["session_id"], "reward": reward[version]}
    assert (await harness.post("/rl/feedback", body, FEEDBACK))[0] == 200


async def restart(harness):
    await harness.stop()
    harness.now += 1
    await harness.start()


def versions(harness):
    return {start.session: start.weight_version for start in harness.log(SessionStarted)}


async def test_no_session_starts_before_its_weights_are_known(harness):
    status, answer = await harness.post("/rl/start_session", {"task_id": "sum"})
    assert (status, "not published yet" in str(answer)) == (503, True)


async def test_sessions_have_the_weights_that_seed_and_name_draw_also_after_a_restart(harness):
    await publish_weights(harness)
    first = [(await harness.started())["session_id"] for _ in range(20)]
    await restart(harness)
    later = [(await harness.started())["session_id"] for _ in range(20)]
    assert versions(harness) == {name: int(is_in_share(5, 1, name, SHARE)) for name in [*first, *later]}
    assert set(versions(harness).values()) == {0, 1}


async def test_a_better_candidate_is_promoted_and_loaded_once_the_last_earlier_session_has_ended(harness):
    await publish_weights(harness)
    opened = [await harness.started() for _ in range(6)]
    while not harness.log(CandidateDecided):
        await judged(harness, {0: 0.0, 1: 1.0})
        assert len(versions(harness)) < 300
    (decided,) = harness.log(CandidateDecided)
    assert (decided.decision, decided.by) == ("promoted", "test")
    await harness.until(lambda: harness.manager.trial.decided is not None)
    later = [(await harness.started())["session_id"] for _ in range(10)]
    assert {versions(harness)[name] for name in later} == {1}
    assert {versions(harness)[given["session_id"]] for given in opened} == {0, 1}, "open sessions keep theirs"
    assert [event.weight_version for event in harness.log(WeightsPublished)] == [0]
    for given in opened:
        await harness.post("/rl/end_session", {}, given["api_key"])
    await harness.until(lambda: len(harness.log(WeightsPublished)) == 2)
    assert harness.log(WeightsPublished)[1] == WeightsPublished(weight_version=1, location=location("b"))


async def test_a_worse_candidate_is_rolled_back_and_its_open_sessions_keep_its_weights(harness):
    await publish_weights(harness)
    opened = [(await harness.started())["session_id"] for _ in range(6)]
    while not harness.log(CandidateDecided):
        await judged(harness, {0: 1.0, 1: 0.0})
    await harness.until(lambda: harness.manager.trial.decided is not None)
    assert harness.log(CandidateDecided)[0].decision == "rolled back"
    kept = {name: harness.manager.calls.pool.version_of(name) for name in opened}
    assert kept == {name: versions(harness)[name] for name in opened}
    assert set(kept.values()) == {0, 1}
    await restart(harness)
    await harness.until(lambda: harness.manager.trial.decided is not None)
    later = [(await harness.started())["session_id"] for _ in range(10)]
    assert {versions(harness)[name] for name in later} == {0}
    assert len(harness.log(CandidateDecided)) == 1
