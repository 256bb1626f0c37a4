"""A later call of a session sends its worker only the new tokens, and what the engine gets is what is recorded."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import SECRET, GatewayHarness, client, opened, work
from support.samples import published

from areal_actors.core.gateways import GatewayShare
from areal_actors.core.token_digest import TokenDigest
from areal_actors.core.values import SamplingParams, pack_ids
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.held_prompts import HeldPrompts
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import Generate, Generated, OpenSession, SessionOpened
from areal_actors.replay.tape import replay
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus.base import Envelope, Stamp
from areal_bus.recorded import Tape, read_tape

LONG = "once upon a time " * 30
WORKER = "inference_worker-0"


class SuffixHarness(GatewayHarness):
    """A gateway for long prompts, whose requests to workers are noted as they are sent."""

    def __init__(self, **options):
        super().__init__(max_model_len=20_000, **options)
        self.sent: list[Generate] = []
        self.workers: dict[str, InferenceWorker] = {}
        send = self.bus.request_stream

        def note(message, *arguments, **options):
            if isinstance(message, Generate):
                self.sent.append(message)
            return send(message, *arguments, **options)

        self.bus.request_stream = note

    async def engine(self, name, engine):
        serve = self.serve

        async def note(name, actor):
            self.workers[name] = actor
            await serve(name, actor)

        self.serve = note
        try:
            return await super().engine(name, engine)
        finally:
            self.serve = serve

    def whole(self):
        """True for each request that had all tokens of its prompt."""
        return [not request.prefix for request in self.sent]


@pytest.fixture
async def harness():
    async with opened(SuffixHarness()) as made:
        made.parrot = await made.engine(WORKER, FixedTextEngine())
        yield made


class Talk:
    """A conversation of one session, whose client sends all messages again."""

    def __init__(self, session, first=LONG):
        self.session, self.first, self.messages = session, first, []

    async def ask(self, text="", **options):
        self.messages.append({"role": "user", "content": text or self.first})
        async with client(self.session, timeout=60) as agent:
            answer = await agent.chat.completions.create(model="m", messages=self.messages, **options)
            if options.get("stream"):
                content = "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
            else:
                content = answer.choices[0].message.content
        self.messages.append({"role": "assistant", "content": content})
        return content


async def trained_prompts(harness, session, run=None):
    """The prompts of a trajectory's calls, as the trainer joins them."""
    calls, paths = (await harness.trajectory(session, run=run)).interactions, {"": b""}
    prompts = []
    for call in calls:
        prompt = paths[call.prefix] + call.prompt_suffix
        paths[call.id] = prompt + call.completion.token_ids
        prompts.append(prompt)
    return prompts


def prompts_of(engine):
    return [pack_ids(ids) for ids in engine.prompts]


async def test_later_turns_send_only_what_is_new(harness):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    await talk.ask("and then?")
    await talk.ask("go on", stream=True)
    assert harness.whole() == [True, False, False]
    _, second, third = harness.sent
    assert len(second.prompt_ids) < 100 < second.prefix_tokens
    assert third.prefix_tokens == second.prompt_tokens() + len("hi there\n")
    assert prompts_of(harness.parrot) == await trained_prompts(harness, session)
    assert not harness.manager.calls.pool.held.problems
    assert harness.workers[WORKER].status()["prompt tokens not sent"] == second.prefix_tokens + third.prefix_tokens


async def test_a_turn_costs_the_same_bytes_at_any_length(harness):
    talk = Talk(await harness.open())
    for _ in range(12):
        await talk.ask("and then?" * 3 if talk.messages else "")
    sizes = [len(request.prompt_ids) for request in harness.sent[1:]]
    assert max(sizes) == min(sizes)


async def test_a_short_prompt_is_sent_whole_and_held_nowhere(harness):
    talk = Talk(await harness.open(), "hello")
    await talk.ask()
    await talk.ask("again")
    assert harness.whole() == [True, True]
    assert harness.workers[WORKER].held.size == 0


async def test_siblings_name_the_prompt_that_the_first_of_them_has_sent(harness):
    sessions = [await harness.open(work(f"1.{number}")) for number in range(3)]
    talks = [Talk(session) for session in sessions]
    await asyncio.gather(*(talk.ask() for talk in talks))
    await asyncio.gather(*(talk.ask(f"{number}?") for number, talk in enumerate(talks)))
    assert harness.whole() == [True, *[False] * 5]
    assert [request.prompt_ids for request in harness.sent[1:3]] == [b"", b""]
    prompts = [
        prompt
        for number, session in enumerate(sessions)
        for prompt in await trained_prompts(harness, session, work(f"1.{number}"))
    ]
    assert sorted(prompts_of(harness.parrot)) == sorted(prompts)


async def test_several_choices_of_a_call_send_their_prompt_once(harness):
    session = await harness.open()
    async with client(session) as agent:
        answer = await agent.chat.completions.create(
            model="m", messages=[{"role": "user", "content": LONG}], n=3, temperature=1.0
        )
    assert [choice.message.content for choice in answer.choices] == ["hi there"] * 3
    assert harness.whole() == [True, False, False]
    assert len(set(prompts_of(harness.parrot))) == 1


async def test_a_worker_that_has_lost_the_prefix_asks_for_the_whole(harness):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    harness.workers[WORKER].held = HeldPrompts()
    assert await talk.ask("and then?") == "hi there"
    assert await talk.ask("and then?") == "hi there"
    assert harness.whole() == [True, False, True, False]
    assert harness.manager.status()["prefixes, missing"] == 1
    assert harness.workers[WORKER].status()["prefixes, missing"] == 1
    assert prompts_of(harness.parrot) == await trained_prompts(harness, session)


async def test_a_worker_that_holds_other_tokens_asks_for_the_whole(harness):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    held = harness.workers[WORKER].held
    for conversation in held._recent:
        for name, (length, _) in conversation.ends.items():
            conversation.ends[name] = length, TokenDigest(b"other tokens")
    assert await talk.ask("and then?") == "hi there"
    assert harness.manager.status()["prefixes, mismatch"] == 1
    assert prompts_of(harness.parrot) == await trained_prompts(harness, session)


async def test_a_restarted_worker_is_sent_the_whole_at_once(harness):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    await harness.kill(WORKER)
    again = await harness.engine(WORKER, FixedTextEngine("back"))
    assert await talk.ask("and then?") == "back"
    assert harness.whole() == [True, True]
    assert not harness.manager.calls.pool.held.problems
    assert prompts_of(harness.parrot) + prompts_of(again) == await trained_prompts(harness, session)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_killed_in_mid_call_is_continued_by_another_with_all_tokens(harness, stream):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    harness.parrot.hold_at = 4
    asking = asyncio.create_task(talk.ask("and then?", stream=stream))
    await harness.parrot.held.wait()
    await harness.publish(published(1))
    other = await harness.engine("inference_worker-1", FixedTextEngine())
    await harness.kill(WORKER)
    assert await asking == "hi there"
    assert await talk.ask("the end?") == "hi there"
    assert harness.whole() == [True, False, True, False]
    assert harness.sent[2].resumed_tokens == (4 if stream else 0)
    assert harness.sent[3].prompt_tokens() > harness.sent[2].prompt_tokens()
    calls = (await harness.trajectory(session)).interactions
    assert [len(call.completion) for call in calls] == [9, 9, 9]
    path = b"".join(call.prompt_suffix + call.completion.token_ids for call in calls[:2]) + calls[2].prompt_suffix
    assert prompts_of(other)[-1] == path


async def test_a_call_whose_client_has_left_is_no_prefix_that_a_worker_holds(harness):
    session = await harness.open()
    talk = Talk(session)
    await talk.ask()
    harness.parrot.hold_at = 4
    async with client(session, timeout=60) as agent:
        messages = [*talk.messages, {"role": "user", "content": "and then?"}]
        stream = await agent.chat.completions.create(model="m", messages=messages, stream=True)
        await anext(aiter(stream))
        await harness.parrot.held.wait()
        await stream.close()
    harness.parrot.hold_at = -1
    async with asyncio.timeout(60):
        while not any(call.finish_reason == "cancelled" for call in harness.recorded()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    talk.messages += [{"role": "user", "content": "and then?"}, {"role": "assistant", "content": "hi t"}]
    assert await talk.ask("well?") == "hi there"
    prompts = await trained_prompts(harness, session)
    assert prompts_of(harness.parrot)[-1] == prompts[-1]
    assert prompts[-1].endswith(harness.sent[-1].prompt_ids)


async def test_two_gateways_share_the_prompts_that_a_worker_holds():
    """Neither knows what the other has sent; equal tokens are held once."""
    async with opened(SuffixHarness(share=GatewayShare(number=0, count=2))) as harness:
        share = GatewayShare(number=1, count=2)
        options = {"secret": SECRET, "max_model_len": 20_000, "share": share}
        await harness.serve(share.name, SessionManager(GatewaySettings(), lambda folder: harness.chat, **options))
        engine = await harness.engine(WORKER, FixedTextEngine())
        talks = []
        for number in range(2):
            request = OpenSession(work=work(f"{number}.0"), lease_seconds=60.0)
            to = f"session_manager-{number}"
            talks.append(Talk(await harness.bus.request(request, harness.stamp(), timeout=60, to=to)))
        for text in ("", "and then?", "go on"):
            for talk in talks:
                await talk.ask(text)
        held = harness.workers[WORKER].held
        assert harness.whole() == [True, True, *[False] * 4]
        assert len(set(prompts_of(engine))) == 3
        assert len(held._recent) == 1
        assert not held.problems


async def test_a_worker_answers_a_suffix_that_does_not_fit_with_the_problem_alone(harness):
    request = Generate(
        prompt_ids=pack_ids([7]), sampling=SamplingParams(), prefix=b"x" * 16, prefix_tokens=3, digest=b"y" * 16
    )
    parts = harness.bus.request_stream(request, harness.stamp(), timeout=30, to=WORKER)
    assert [part async for part in parts] == [Generated(prefix_problem="missing")]
    assert not harness.parrot.prompts


class TapedHarness(SuffixHarness):
    """A gateway whose messages are recorded."""

    def __init__(self, path):
        super().__init__()
        self.tape = Tape.record(path)

    async def serve(self, name, actor):
        if name != "session_manager-0":
            await super().serve(name, actor)
            return
        runtime = Runtime(actor, self.bus, Identity(instance=name, process=name), tape=self.tape)
        self.tasks[name] = asyncio.create_task(runtime.serve())
        await runtime.ready.wait()

    async def end(self):
        await super().end()
        self.tape.close()


async def differences(harness, tape):
    """Differences of a replay, but for the address at which the gateway listened."""
    actor = SessionManager(
        GatewaySettings(), lambda folder: harness.chat, secret=SECRET, max_model_len=20_000, serve_http=False
    )
    found = await replay(actor, tape, instance="session_manager-0", seed=0)
    return [difference for difference in found if not difference.taped.startswith(SessionOpened.subject)]


def with_whole_prompts(tape):
    """The tape as a gateway of an earlier release would have recorded it, which sends whole prompts."""
    paths: dict[bytes, bytes] = {}
    for entry in tape:
        subject = entry.envelope.subject if entry.envelope is not None else ""
        if subject == Generate.subject:
            asked = entry.envelope.open(Generate)
            paths[asked.digest] = paths.get(asked.prefix, b"") + asked.prompt_ids
            whole = msgspec.structs.replace(
                asked, prompt_ids=paths[asked.digest], prefix=b"", prefix_tokens=0, digest=b""
            )
            entry = with_message(entry, whole)  # noqa: PLW2901
        elif subject == Generated.subject:
            completed = paths[asked.digest] + entry.envelope.open(Generated).columns.token_ids
            paths[TokenDigest(completed).value()] = completed
        yield entry


def with_message(entry, message):
    stamp = Stamp(id=entry.envelope.id, sender=entry.envelope.sender, time=entry.envelope.time)
    return msgspec.structs.replace(entry, envelope=Envelope.seal(message, stamp, entry.envelope.run))


def requests_in(tape):
    return [entry for entry in tape if entry.envelope is not None and entry.envelope.subject == Generate.subject]


async def test_a_recording_replays_and_so_does_one_with_whole_prompts(tmp_path):
    harness = TapedHarness(tmp_path / "gateway.tape")
    async with opened(harness):
        engine = await harness.engine(WORKER, FixedTextEngine())
        talk = Talk(await harness.open())
        for text in ("", "and then?", "go on"):
            await talk.ask(text)
    assert harness.whole() == [True, False, False]
    tape = list(read_tape(tmp_path / "gateway.tape"))
    assert await differences(harness, tape) == []
    earlier = list(with_whole_prompts(tape))
    assert [entry.envelope.open(Generate).prompt_ids for entry in requests_in(earlier)] == prompts_of(engine)
    assert await differences(harness, earlier) == []
    last = requests_in(earlier)[-1]
    request = last.envelope.open(Generate)
    other = with_message(last, msgspec.structs.replace(request, prompt_ids=pack_ids([1]) + request.prompt_ids[4:]))
    (difference,) = await differences(harness, [other if entry is last else entry for entry in earlier])
    assert difference.entry == earlier.index(last) + 1, "another first token is another request"


async def test_a_recording_of_a_worker_that_asked_for_the_whole_replays(tmp_path):
    harness = TapedHarness(tmp_path / "gateway.tape")
    async with opened(harness):
        await harness.engine(WORKER, FixedTextEngine())
        talk = Talk(await harness.open())
        await talk.ask()
        harness.workers[WORKER].held = HeldPrompts()
        await talk.ask("and then?")
    assert harness.whole() == [True, False, True]
    assert await differences(harness, list(read_tape(tmp_path / "gateway.tape"))) == []
