"""Conversations of held-out and abandoned episodes: in the log within their bounds, read by `show` and the page, and
never trained."""

from __future__ import annotations

import msgspec
import pytest
from support.audit_logs import RECIPE, STARTED, audited, given_up, sound_log
from support.manager_harness import Manager
from support.samples import abandoned, columns, interaction, work
from test_reader import exported_log, printed

from areal_actors.cli import main
from areal_actors.core.conversation_settings import ConversationSettings
from areal_actors.export.selection import select_best
from areal_actors.gateway.gateway_state import GatewayState
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.kept_conversations import CALL_BYTES
from areal_actors.messages import (
    ConversationKept,
    ConversationsLimited,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EpisodeScored,
    Generated,
    InteractionRecorded,
    InteractionsRecorded,
    OpenSession,
    TrajectoryExported,
)
from areal_actors.reader import open_run
from areal_actors.reader.episode_page import show
from areal_actors.runtime.actor import Tick
from areal_actors.supervision.nats_server import ACTORS
from areal_bus.base import Envelope, Stamp
from areal_bus.errors import CorruptMessage

DEFAULT = ConversationSettings()
HELD_OUT = work("evaluation-0.3", purpose="evaluate")


@pytest.fixture
def manager(send):
    async def ready(settings=DEFAULT):
        return await Manager(send, context=80_000, conversations=settings).ready()

    return ready


def kept_of(messages):
    return [message for message in messages if isinstance(message, ConversationKept)]


async def test_a_held_out_episode_brings_its_conversation_after_its_end(manager):
    gateway = await manager()
    opened = await gateway.open(HELD_OUT)
    await gateway.chat(opened.session, "why?")
    *_, ended, kept = await gateway(EpisodeScored(work=HELD_OUT, session=opened.session, reward=0.5, output="hi"))
    assert isinstance(ended, EpisodeEvaluated)
    assert (kept.episode, kept.attempt, kept.purpose, kept.omitted_calls) == ("evaluation-0.3", 1, "evaluate", 0)
    (call,) = kept.interactions
    assert (call.completion, call.reward) == (columns("hi\n", 3), 0.5)
    assert kept.size == CALL_BYTES + len(call.prompt_suffix) + 3 * 8
    sent = Envelope.seal(kept, Stamp(id="m", sender="test", time=0.0), "run")
    assert sent.open(ConversationKept) == kept


@pytest.mark.parametrize("reason", ["agent", "timeout", "reward"])
async def test_an_abandoned_attempt_brings_its_conversation_once(manager, reason):
    gateway = await manager()
    opened = await gateway.open(work(attempts_left=1))
    await gateway.chat(opened.session, "why?")
    failure = abandoned("0.0", attempts_left=1, reason=reason)
    (kept,) = await gateway(failure)
    assert (kept.session, kept.episode, len(kept.interactions)) == (opened.session, "0.0", 1)
    assert await gateway(failure) == []


async def test_every_end_without_a_trajectory_brings_a_conversation(manager):
    gateway = await manager()
    unrewarded = await gateway.open(work("1.0"))
    await gateway.chat(unrewarded.session, "why?")
    ends = await gateway(EpisodeScored(work=work("1.0"), session=unrewarded.session))
    assert [type(end) for end in ends][-2:] == [EpisodeAbandoned, ConversationKept]
    expired = await gateway.open(work("2.0"), lease=1.0)
    await gateway.chat(expired.session, "why?")
    ends = await gateway(Tick(), now=100.0)
    assert [type(end) for end in ends][-2:] == [EpisodeAbandoned, ConversationKept]
    earlier = await gateway.open(work("3.0"))
    await gateway.chat(earlier.session, "why?")
    _, kept = await gateway(OpenSession(work=work("3.0", attempt=2), lease_seconds=10.0))
    assert (kept.session, kept.attempt) == (earlier.session, 1)


async def test_an_attempt_delivered_again_and_a_session_without_a_call_bring_none(manager):
    gateway = await manager()
    first = await gateway.open()
    await gateway.chat(first.session, "why?")
    assert kept_of(await gateway(OpenSession(work=work(), lease_seconds=10.0))) == []  # the attempt goes on
    assert await gateway(abandoned("0.0")) == []


async def test_the_setting_names_the_kinds_that_are_kept(manager):
    gateway = await manager()
    cases = (
        ((), "agent", "train", 0),
        (("held_out",), "agent", "train", 0),
        (("abandoned",), "surplus", "train", 0),
        (("surplus",), "surplus", "train", 1),
        (("abandoned",), "rejected", "train", 0),
        (("rejected",), "rejected", "train", 1),
        (("held_out",), "agent", "evaluate", 1),
        (("abandoned",), "agent", "evaluate", 1),
    )
    for number, (keep, reason, purpose, count) in enumerate(cases):
        gateway.actor.ends.conversations.settings = ConversationSettings(keep=keep)
        opened = await gateway.open(work(f"{number}.0", purpose=purpose))
        await gateway.chat(opened.session, "why?")
        failure = abandoned(f"{number}.0", purpose=purpose, reason=reason)
        assert len(kept_of(await gateway(failure))) == count, (keep, reason, purpose)


async def test_the_earliest_calls_of_a_long_conversation_are_left_out(manager):
    gateway = await manager(ConversationSettings(max_episode_kb=1))
    opened = await gateway.open()
    for number in range(5):
        await gateway.chat(opened.session, f"{number}?")
    (kept,) = await gateway(abandoned("0.0"))
    assert (len(kept.interactions), kept.omitted_calls) == (3, 2)
    assert kept.size <= 1024


async def test_the_bound_of_the_run_is_named_once_and_outlives_the_gateway(manager):
    gateway = await manager(ConversationSettings(max_mb=1, max_episode_kb=600))
    gateway.generate = lambda question: [Generated(columns=columns("x" * 65_000, 3), finish_reason="length")]
    emitted = []
    for episode in ("0.0", "1.0", "2.0", "3.0"):
        opened = await gateway.open(work(episode))
        await gateway.chat(opened.session, "why?", max_tokens=65_000)
        messages = await gateway(abandoned(episode))
        emitted += messages
        await gateway(*messages)  # the log brings them
    assert [type(message) for message in emitted] == [ConversationKept, ConversationKept, ConversationsLimited]
    assert (emitted[-1].episode, emitted[-1].conversations, emitted[-1].max_mb) == ("2.0", 2, 1)
    assert "log.conversations.max_mb = 1 is reached after 2 conversations" in emitted[-1].sentence()
    assert gateway.actor.status()["conversations kept, bytes"] == emitted[0].size + emitted[1].size
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(gateway.actor.snapshot()), type=GatewayState)
    for max_mb, types in ((1, []), (2, [ConversationKept])):
        successor = await manager(ConversationSettings(max_mb=max_mb, max_episode_kb=600))
        successor.actor.restore(state)
        opened = await successor.open(work("4.0"))
        await successor.chat(opened.session, "why?")
        assert [type(message) for message in await successor(abandoned("4.0"))] == types


async def test_without_the_settings_a_gateway_keeps_none(send):
    gateway = await Manager(send).ready()
    opened = await gateway.open()
    await gateway.chat(opened.session, "why?")
    assert await gateway(abandoned("0.0")) == []


# ---------------------------------------------------------------- never trained


def conversation(episode, *calls, purpose="train", **fields):
    return ConversationKept(
        session=f"{episode}-1-x",
        episode=episode,
        group=episode.rpartition(".")[0],
        attempt=1,
        purpose=purpose,
        interactions=calls or (interaction(f"{episode}-1-1", "hey", 1),),
        **fields,
    )


def test_no_actor_but_the_gateway_receives_a_conversation():
    receivers = {kind for kind, actor in ACTORS.items() if ConversationKept in actor.handlers}
    assert receivers == {SessionManager.kind()}


def test_a_conversation_is_no_trajectory_whatever_position_a_batch_names():
    sent = Envelope.seal(conversation("0.0"), Stamp(id="m", sender="test", time=0.0), "run")
    with pytest.raises(CorruptMessage):
        sent.open(TrajectoryExported)


def test_the_audit_counts_the_same_with_conversations_in_the_log():
    plain = sound_log()
    *events, end = plain
    found, expected = audited([*events, conversation("3.0"), conversation("6.0"), end]), audited(plain)
    assert found.all_faults() == []
    assert (found.counts, found.groups, found.steps) == (expected.counts, expected.groups, expected.steps)
    assert found.sequences_checked == expected.sequences_checked


# ---------------------------------------------------------------- read


def reported(episode, *calls, attempt=1):
    common = {"session": "s", "episode": episode, "prompt_tokens": 1, "finish_reason": "stop", "weight_version": 1}
    recorded = [InteractionRecorded(interaction=name, completion_tokens=3, attempt=attempt, **common) for name in calls]
    return InteractionsRecorded(recorded=tuple(recorded))


def started(**conversations):
    settings = {"keep": ["held_out", "abandoned"], "max_episode_kb": 1024, "max_mb": 512} | conversations
    return msgspec.structs.replace(STARTED, recipe=RECIPE | {"log": {"conversations": settings}})


def test_an_abandoned_attempt_is_shown_with_its_reason_and_the_tokens_that_the_log_has(tmp_path):
    failure = given_up("4.0", 1)
    calls = interaction("i2", "hey", 1, parent="i1")
    kept = conversation("4.0", calls, omitted_calls=1, unanswered_calls=1, size=300)
    log = exported_log(tmp_path / "a.log", [started(), reported("4.0", "i1", "i2"), failure, kept])
    text = printed(show, str(log), "4.0", folder=tmp_path, width=400, tokens=True)
    assert "abandoned: agent: ValueError" in text
    assert "mean log p -0.625" in text
    assert "-0.7500" in text
    assert "1 earlier call without texts: the conversation is larger than log.conversations.max_episode_kb." in text
    assert "At the end 1 call had no answer" in text
    run = open_run(log)
    assert run.history.query("SELECT conversation, conversation_size, attempt FROM attempt WHERE outcome <> ''") == [
        (4, 300, 1)
    ]
    assert [row["mean_logprob"] for row in run.interactions] == [None, pytest.approx(-0.625)]
    assert (len(run.tokens("4.0")), len(run.tokens())) == (3, 0)
    assert run.episodes["outcome"] == ["abandoned"]
    assert select_best(run.records.ended.values(), best=9, least_reward=-9.0).chosen == []


@pytest.mark.parametrize(
    ("recipe", "events", "sentence"),
    [
        (started(), [], "another session, or a new process of the gateway"),
        (started(keep=["held_out"]), [], 'log.conversations.keep does not have "abandoned"'),
        (STARTED, [], "The release that wrote this log kept texts of exported episodes only"),
        (
            started(max_mb=1),
            [ConversationsLimited(conversations=9, max_mb=1, episode="4.0")],
            "log.conversations.max_mb = 1 is reached after 9 conversations",
        ),
    ],
)
def test_an_episode_without_texts_names_the_reason(tmp_path, recipe, events, sentence):
    log = exported_log(tmp_path / "a.log", [recipe, reported("4.0", "i1"), given_up("4.0"), *events])
    assert sentence in " ".join(printed(show, str(log), "4.0", folder=tmp_path, width=400).split())


def test_the_texts_of_a_session_lost_with_its_gateway_are_named_as_lost(tmp_path):
    lost = msgspec.structs.replace(given_up("4.0"), reason="session")
    log = exported_log(tmp_path / "a.log", [started(), reported("4.0", "i1"), lost])
    assert "lost with the process of their gateway" in " ".join(printed(show, str(log), "4.0", folder=tmp_path).split())


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ('log.conversations.keep=["heldout"]', "log.conversations.keep"),
        ("log.conversations.max_mb=-1", "log.conversations.max_mb"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting, named, capsys):
    assert main(["check", "recipes/gsm8k_grpo.toml", "profile=embedded", setting]) != 0
    assert named in "".join(capsys.readouterr())
