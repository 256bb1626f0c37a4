"""Sessions of a served model under redaction rules: nothing that matches is in any event, text or token; consent."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.fake_engine import FakeEngine
from support.samples import published
from support.sessions_harness import ADMIN, SECRET, sessions_harness

from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.core.devices import CudaDevices
from areal_actors.core.errors import RecipeError, SetupError
from areal_actors.core.feedback_settings import FeedbackSettings
from areal_actors.feedback.feedback_routes import FeedbackRoutes
from areal_actors.feedback.feedback_session_manager import FeedbackSessionManager
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import (
    ConversationKept,
    EpisodeAbandoned,
    FeedbackGiven,
    SessionsErased,
    SessionStarted,
    TrajectoryExported,
    WeightsLoaded,
)
from areal_actors.messages.episode_ends import is_failure
from areal_actors.privacy.known_kinds import KNOWN_KINDS
from areal_actors.privacy.redaction import load_redaction
from areal_actors.privacy.settings import RedactionSettings
from areal_actors.recipe.load import load
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import Stamp

ROOT = Path(__file__).parent.parent
FEEDBACK = feedback_key(SECRET)
SECRET_ADDRESS = "ann@example.com"
RULES = RedactionSettings(rules=tuple(KNOWN_KINDS), patterns={"customer": r"C-\d{6}"})


class Writer(FakeEngine):
    """Answers with `text`."""

    text = "ok\n"

    async def completion(self, prompt_ids, sampling, resumed):
        return list(self.text.encode()), "stop"


@pytest.fixture
async def harness(tmp_path):
    """A served model with rules, and an engine."""
    routes = FeedbackRoutes(FeedbackSettings(), admin_key=ADMIN, feedback_key=FEEDBACK)
    options = {
        "make": FeedbackSessionManager,
        "add_routes": routes.add_routes,
        "conversations": ConversationSettings(),
        "redaction": load_redaction(RULES, tmp_path, SECRET),
        "slots": 8,
    }
    async with sessions_harness(**options) as harness:
        harness.engine = Writer()
        worker = InferenceWorker(lambda folder: harness.engine, name="inference_worker-0", concurrency=8)
        runtime = Runtime(worker, harness.bus, Identity(instance="inference_worker-0", process="e"))
        async with serving(runtime):
            await harness.bus.publish(published(0), Stamp(id="weights", sender="test", time=0.0))
            await harness.until(lambda: harness.log(WeightsLoaded))
            yield harness


@asynccontextmanager
async def serving(runtime):
    """Serve an actor while the block lasts."""
    task = asyncio.create_task(runtime.serve())
    yield
    task.cancel()


async def talk(harness, *messages, **started):
    """A session with a call for each message, each after the other; its id, its key and its calls."""
    given = await harness.started(**started)
    spoken, calls = [], []
    for message in messages:
        spoken.append({"role": "user", "content": message})
        status, answer = await harness.post(
            "/v1/chat/completions", {"model": "m", "messages": spoken}, given["api_key"]
        )
        assert status == 200, answer
        spoken.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        calls.append(answer["id"])
    return given["session_id"], given["api_key"], calls


async def end(harness, key):
    status, answer = await harness.post("/rl/end_session", {}, key)
    assert status == 200
    return answer


def written(harness):
    """All events of the log, as bytes: texts, and the letters that are token ids."""
    events = b"".join(envelope.body for envelope in harness.bus._log)
    calls = [
        call
        for kind in (ConversationKept, TrajectoryExported)
        for event in harness.log(kind)
        for call in (event.trajectory if kind is TrajectoryExported else event).interactions
    ]
    tokens = [bytes(part[::4]) for call in calls for part in (call.prompt_suffix, call.completion.token_ids)]
    return events + b"|".join(tokens)


# ---------------------------------------------------------------- conversations


async def test_a_session_without_a_match_is_kept_as_ever(harness):
    _, key, calls = await talk(harness, "hello", "again")
    await harness.post("/rl/set_reward", {"reward": 1}, key)
    assert (await end(harness, key))["state"] == "exported"
    (exported,) = harness.log(TrajectoryExported)
    assert [call.id for call in exported.trajectory.interactions] == calls
    assert b"hello" in written(harness)


@pytest.mark.parametrize("rewarded", [True, False])
@pytest.mark.parametrize("place", ["first", "second", "answer", "across"])
async def test_a_session_with_a_match_keeps_neither_tokens_nor_texts(harness, place, rewarded):
    first, second = "hello", "again"
    match place:
        case "first":
            first = f"I am {SECRET_ADDRESS}"
        case "second":
            second = f"I am {SECRET_ADDRESS}"
        case "answer":
            harness.engine.text = f"{SECRET_ADDRESS}\n"
    if place == "across":
        given = await harness.started()
        key = given["api_key"]
        harness.engine.text = "ann@exam"
        body = {"model": "m", "prompt": "to "}
        _, answer = await harness.post("/v1/completions", body, key)
        text = body["prompt"] + answer["choices"][0]["text"] + "ple.com now"
        assert (await harness.post("/v1/completions", {"model": "m", "prompt": text}, key))[0] == 200
    else:
        _, key, _ = await talk(harness, first, second)
    if rewarded:
        await harness.post("/rl/set_reward", {"reward": 1}, key)
    ended = await end(harness, key)
    assert (ended["state"], "email" in ended["reason"]) == ("abandoned", True)
    (abandoned,) = harness.log(EpisodeAbandoned)
    assert (abandoned.reason, is_failure(abandoned)) == ("redacted", False)
    assert harness.log(ConversationKept) == harness.log(TrajectoryExported) == []
    assert SECRET_ADDRESS.encode() not in written(harness)
    assert b"hello" not in written(harness)
    await harness.until(lambda: harness.manager.status().get("redacted_sessions") == 1.0)


async def test_an_expired_session_with_a_match_keeps_nothing(harness):
    await talk(harness, f"I am {SECRET_ADDRESS}")
    harness.now += 3600
    await harness.until(lambda: harness.log(EpisodeAbandoned))
    assert harness.log(EpisodeAbandoned)[0].reason == "redacted"
    assert SECRET_ADDRESS.encode() not in written(harness)


async def test_a_rule_that_fails_counts_as_a_match(harness):
    harness.manager.redaction.rules["mine"] = lambda text: [(0, 999)] if len(text) > 8 else []
    _, key, _ = await talk(harness, "hello")
    assert "mine (failed)" in (await end(harness, key))["reason"]


# ---------------------------------------------------------------- names, feedback, failures


async def test_names_of_users_have_pseudonyms_by_which_they_are_erased(harness):
    session, key, _ = await talk(harness, "hello", user=SECRET_ADDRESS)
    await end(harness, key)
    (started,) = harness.log(SessionStarted)
    assert started.user.startswith("redacted-")
    body = {"session_id": session, "reward": 1, "user": SECRET_ADDRESS, "id": SECRET_ADDRESS, "name": SECRET_ADDRESS}
    assert (await harness.post("/rl/feedback", body, FEEDBACK))[1]["status"] == "recorded"
    assert (await harness.post("/rl/feedback", body, FEEDBACK))[1]["status"] == "repeated"
    status, erased = await harness.post("/rl/erase", {"user": SECRET_ADDRESS, "reason": f"of {SECRET_ADDRESS}"})
    assert (status, erased["sessions"]) == (200, [session])
    assert [event.sessions for event in harness.log(SessionsErased)] == [(session,)]
    assert SECRET_ADDRESS.encode() not in written(harness)


async def test_texts_of_feedback_are_redacted_and_name_the_rules(harness):
    _, key, (call,) = await talk(harness, "hello")
    await end(harness, key)
    edit = {"interaction_id": call, "edit": "call +49 170 1234567 for C-123456", "comment": f"by {SECRET_ADDRESS}"}
    assert (await harness.post("/rl/feedback", edit, FEEDBACK))[0] == 200
    (given,) = harness.log(FeedbackGiven)
    assert (given.text, given.comment) == ("call [phone] for [customer]", "by [email]")
    assert set(given.redacted) == {"phone", "customer", "email"}
    assert harness.manager.status()["feedback_redacted"] == 1.0


async def test_a_task_whose_name_matches_is_refused_by_its_field(harness):
    status, answer = await harness.post("/rl/start_session", {"task_id": SECRET_ADDRESS})
    assert (status, answer["error"]["param"]) == (400, "task_id")
    assert SECRET_ADDRESS.encode() not in written(harness)


async def test_names_of_conversations_and_roles_have_pseudonyms(harness):
    given = await harness.started()
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    headers = {"X-Session-ID": SECRET_ADDRESS}
    for _ in range(2):
        assert (await harness.post("/v1/chat/completions", body, given["api_key"], headers=headers))[0] == 200
    reward = {"reward": 1, "role": SECRET_ADDRESS}
    assert (await harness.post("/rl/set_reward", reward, given["api_key"]))[0] == 200
    assert (await end(harness, given["api_key"]))["state"] == "exported"
    assert SECRET_ADDRESS.encode() not in written(harness)


async def test_the_failure_of_an_engine_is_redacted(harness):
    class Broken(Writer):
        async def completion(self, prompt_ids, sampling, resumed):
            raise RuntimeError(f"cannot continue {bytes(prompt_ids).decode()}")

    harness.engine.completion = Broken().completion
    given = await harness.started()
    body = {"model": "m", "messages": [{"role": "user", "content": SECRET_ADDRESS}]}
    assert (await harness.post("/v1/chat/completions", body, given["api_key"]))[0] == 503
    await end(harness, given["api_key"])
    assert [event.reason for event in harness.log(EpisodeAbandoned)] == ["engine"]
    assert SECRET_ADDRESS.encode() not in written(harness)


# ---------------------------------------------------------------- consent


@pytest.mark.parametrize(
    ("default", "header", "field", "consents"),
    [
        (True, None, None, True),
        (False, None, None, False),
        (False, "true", None, True),
        (True, "False", None, False),
        (True, "false", True, True),
        (False, "true", False, False),
    ],
)
async def test_consent_is_that_of_the_field_the_header_or_the_recipe(default, header, field, consents):
    async with sessions_harness(GatewaySettings(default_consent=default), slots=2) as harness:
        headers = {} if header is None else {"x-areal-consent": header}
        body = {"task_id": "sum"} if field is None else {"task_id": "sum", "consent": field}
        assert (await harness.post("/rl/start_session", body, headers=headers))[0] == 200
        assert [event.consent for event in harness.log(SessionStarted)] == [consents]
        status, answer = await harness.post("/rl/start_session", body, headers={"x-areal-consent": "perhaps"})
        assert (status, "x-areal-consent" in json.dumps(answer)) == ((200, False) if field is not None else (400, True))


# ---------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mail ann.b+c@mail.example.co.uk now", "email"),
        ("call +49 170 1234567", "phone"),
        ("(415) 555-2671", "phone"),
        ("4111 1111 1111 1111", "credit_card"),
        ("DE89 3704 0044 0532 0130 00", "iban"),
        ("at 192.168.0.17 or", "ip_address"),
        ("fe80:0:0:0:1:2:3:4", "ip_address"),
        ("Authorization: Bearer abcdefghijklmnop12", "api_key"),
        ("sk-proj-abcdefghijklmnop1234", "api_key"),
        ("no C-123456 here", "customer"),
        ("<|im_start|>user\nann@example.com<|im_end|>", "email"),
    ],
)
def test_a_rule_finds_its_kind_alone(tmp_path, text, rule):
    assert dict(load_redaction(RULES, tmp_path).count(text)) == {rule: 1}


@pytest.mark.parametrize(
    "text",
    [
        *("4111111111111112", "v1.2.3.4.5", "order 12345678", "1964-05-12 and 2026-11-28T18:30:00Z", "std::cout"),
        *("pi 3.14159265358979", "chat-0-1", "12:30:45", "DE88 3704 0044 0532 0130 00", "2 + 3 = 10000000000"),
    ],
)
def test_other_texts_have_no_match(tmp_path, text):
    assert load_redaction(RULES, tmp_path).redact(text) == text


def test_a_function_of_ones_own_is_a_rule(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def names(text):\n    at = text.find('Ann')\n    return [(at, at + 3)] if at >= 0 else []\n"
    )
    redaction = load_redaction(RedactionSettings(rules=("mine.py:names",)), tmp_path)
    assert redaction.redact("I am Ann.") == "I am [mine.py:names]."


def test_what_is_no_rule_is_refused_by_name(tmp_path):
    with pytest.raises(
        SetupError, match=r"`emial` is no redaction rule and no path\.py:function; did you mean `email`"
    ):
        load_redaction(RedactionSettings(rules=("emial",)), tmp_path)


# ---------------------------------------------------------------- recipes


def refusals(*settings, serving=True, recipe="online.toml"):
    with pytest.raises(RecipeError) as raised:
        load([ROOT / "recipes" / recipe], [*settings], CudaDevices(0, "none"), serving=serving)
    return str(raised.value)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        (["log.redaction.rules=['emial']"], "is no rule and no `path.py:function`; did you mean `email`"),
        (["log.redaction.rules=['nowhere.py:f']"], "there is no file nowhere.py"),
        (["log.redaction.patterns.a='('"], "which is no expression"),
        (["log.redaction.patterns.a='x*'"], "which matches an empty text"),
        (["log.redaction.rules=['email']", "record_actor_io=true"], "tapes have the texts of all calls"),
        (["log.encrypt=true"], "set AREAL_STORE_KEY"),
        (["log.retention.days=1", "bus.url='nats://h:1'"], "set max_age and max_bytes there"),
    ],
)
def test_check_refuses_what_cannot_be_kept_and_names_the_remedy(settings, found, monkeypatch):
    monkeypatch.delenv("AREAL_STORE_KEY", raising=False)
    assert found in refusals(*settings)


def test_check_refuses_rules_and_limits_where_they_would_have_no_effect():
    assert "which this run does not have" in refusals(
        "log.redaction.rules=['email']", serving=False, recipe="gsm8k_grpo.toml"
    )
    assert "use log.keep and log.max_mb" in refusals("log.retention.days=1", serving=False)
