"""Semantics of a call, over real HTTP with the unmodified SDKs: choices, stops, names, numbers, and workers that
die."""

from __future__ import annotations

import asyncio
import json

import msgspec
import openai
import pytest
from support.fake_engine import logprob_at
from support.framework_harness import call, clients, opened_chat_gateway
from support.gateway_harness import post, text_of
from support.samples import published, work

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import SamplingParams, unpack_ids
from areal_actors.generation.inference_worker import MAX_FAILURES

WRONG = RequestError("'top_k' is wrong", "top_k")
"""Error of an engine that does not support a field."""

HELLO = [{"role": "user", "content": "9 times 2?"}]
MARK = "<|im_start|>"


@pytest.fixture
async def harness():
    async with opened_chat_gateway() as harness:
        yield harness


async def whole_or_streamed(client, *, stream, **request):
    answer = await client.chat.completions.create(model="m", messages=HELLO, stream=stream, **request)
    return await text_of(answer) if stream else answer


def completion_ids(turn):
    return turn.completion.ids_array().tolist()


# ---------------------------------------------------------------- several choices


@pytest.mark.parametrize("stream", [False, True])
async def test_three_choices_are_three_interactions_of_one_parent_all_exported(harness, stream):
    harness.script.lines = ["first", "a", "bb", "ccc"]
    opened = await harness.open()
    async with clients(opened) as (client, _):
        first = await client.chat.completions.create(model="m", messages=HELLO)
        messages = [*HELLO, first.choices[0].message, {"role": "user", "content": "again"}]
        answer = await client.chat.completions.create(model="m", messages=messages, n=3, seed=5, stream=stream)
        if stream:
            texts, names = await text_of(answer)
        else:
            texts = {choice.index: choice.message.content for choice in answer.choices}
            names = {choice.index: choice.interaction_id for choice in answer.choices}
            lengths = [len(harness.chat.encode(text)) + 1 for text in texts.values()]
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (
                len(harness.script.prompts[1]),
                sum(lengths),
            )
    assert sorted(texts.values()) == ["a", "bb", "ccc"]
    seeds = sorted(sampling.seed for sampling in harness.script.sampling[1:])
    assert seeds == [seeds[0], seeds[0] + 1, seeds[0] + 2]
    trajectory = await harness.trajectory(opened)
    one, *choices = trajectory.interactions
    assert [turn.id for turn in choices] == [names[0], names[1], names[2]]
    assert {turn.parent for turn in choices} == {one.id}
    assert [harness.chat.decode(completion_ids(turn)) for turn in choices] == [texts[0], texts[1], texts[2]]


@pytest.mark.parametrize("stream", [False, True])
async def test_of_three_choices_one_fails_and_nothing_is_recorded_until_all_three_are_whole(harness, stream):
    opened = await harness.open()
    harness.script.lines = ["a", WRONG, "c", "a", "b", "c"]
    async with clients(opened) as (client, _):
        with pytest.raises(openai.APIError, match="'top_k' is wrong"):
            await whole_or_streamed(client, stream=stream, n=3, seed=1)
        assert not harness.recorded()
        harness.script.lines, harness.script.begun = ["a", "b", "c"], {}
        whole = await client.chat.completions.create(model="m", messages=HELLO, n=3)
    assert sorted(choice.message.content for choice in whole.choices) == ["a", "b", "c"]
    assert len((await harness.trajectory(opened)).interactions) == 3


async def test_each_choice_may_be_gone_on_from(harness):
    harness.script.lines = ["a", "b", "c", "d"]
    opened = await harness.open()
    async with clients(opened) as (client, _):
        answer = await client.chat.completions.create(model="m", messages=HELLO, n=2)
        for choice in answer.choices:
            await client.chat.completions.create(
                model="m", messages=[*HELLO, choice.message, {"role": "user", "content": "on"}]
            )
    turns = (await harness.trajectory(opened)).interactions
    assert [turn.parent for turn in turns[2:]] == [turns[0].id, turns[1].id]


# ---------------------------------------------------------------- stops, limits, numbers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("line", "stop", "left"),
    [("one two Stop three", "Stop", "one two "), (f"one{MARK}two", MARK, "one"), ("one Sto", "Stop", "one Sto")],
)
async def test_a_stop_string_is_in_the_record_and_not_in_the_text_and_the_next_turn_extends(
    harness, stream, line, stop, left
):
    harness.script.lines = [line, "ok"]
    opened = await harness.open()
    async with clients(opened) as (client, _):
        answer = await client.chat.completions.create(model="m", messages=HELLO, stop=[stop], stream=stream)
        text = (await text_of(answer))[0][0] if stream else answer.choices[0].message.content
        assert text == left
        messages = [*HELLO, {"role": "assistant", "content": text}, {"role": "user", "content": "on"}]
        await client.chat.completions.create(model="m", messages=messages)
    one, two = (await harness.trajectory(opened)).interactions
    assert harness.text(completion_ids(one)) == (line + "<|im_end|>" if left == line else left + stop)
    assert two.parent == one.id
    ends = "" if left == line else "<|im_end|>"
    assert harness.text(harness.script.prompts[1]) == (
        harness.text([*harness.script.prompts[0], *completion_ids(one)])
        + f"{ends}\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_anthropic_s_client_gets_the_matched_stop_sequence(harness):
    harness.script.lines = [f"one {MARK}", "two Stop", "three"]
    async with clients(await harness.open()) as (_, client):
        answers = [
            await client.messages.create(model="m", max_tokens=9, messages=HELLO, stop_sequences=[MARK, "Stop"])
            for _ in range(3)
        ]
    assert [(answer.content[0].text, answer.stop_reason, answer.stop_sequence) for answer in answers] == [
        ("one ", "stop_sequence", MARK),
        ("two ", "stop_sequence", "Stop"),
        ("three", "end_turn", None),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_are_those_of_the_columns(harness, stream):
    harness.script.lines = ["one 🙂 two"]
    opened = await harness.open()
    async with clients(opened) as (client, _):
        answer = await client.chat.completions.create(
            model="m", messages=HELLO, logprobs=True, top_logprobs=2, stream=stream
        )
        if stream:
            tokens = [
                token
                async for chunk in answer
                if chunk.choices[0].logprobs
                for token in chunk.choices[0].logprobs.content
            ]
        else:
            tokens = answer.choices[0].logprobs.content
    (turn,) = (await harness.trajectory(opened)).interactions
    assert [token.logprob for token in tokens] == turn.completion.logprobs_array().tolist()[:-1]
    assert [token.logprob for token in tokens] == [logprob_at(place) for place in range(len(tokens))]
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == "one 🙂 two"
    assert [[top.logprob for top in token.top_logprobs] for token in tokens] == [
        [token.logprob] * 2 for token in tokens
    ]


async def test_what_a_request_states_of_sampling_reaches_the_engine(harness):
    harness.script.lines = ["one", "two"]
    async with clients(await harness.open(work(purpose="evaluate"))) as (client, other):
        await client.chat.completions.create(
            model="m",
            messages=HELLO,
            logit_bias={"17": -100, "3": 2},
            seed=-3,
            presence_penalty=1,
            extra_body={"top_k": 5, "min_p": 0.1},
        )
        await other.messages.create(model="m", max_tokens=7, messages=HELLO, extra_body={"top_k": 4})
    one, two = harness.script.sampling
    assert (one.logit_bias, one.seed, one.presence_penalty, one.top_k, one.min_p) == (
        {17: -100.0, 3: 2.0},
        -3,
        1.0,
        5,
        0.1,
    )
    assert (two.top_k, two.max_tokens) == (4, 7)


async def test_the_length_is_cut_to_the_context_and_what_leaves_no_room_is_refused_with_both_numbers(harness):
    harness.script.lines = ["one"]
    run = work(sampling=SamplingParams(max_tokens=400))
    async with clients(await harness.open(run)) as (client, other):
        await client.chat.completions.create(model="m", messages=HELLO, max_tokens=10**9)
        assert harness.script.sampling[0].max_tokens == harness.manager.max_model_len - len(harness.script.prompts[0])
        long = [{"role": "user", "content": "1 " * 30_000}]
        with pytest.raises(
            openai.BadRequestError, match=r"prompt is too long: \d{5,} tokens > 20000 maximum.*shorten 'messages'"
        ):
            await client.chat.completions.create(model="m", messages=long)
        with pytest.raises(openai.BadRequestError, match="shorten 'prompt'") as refused:
            await client.completions.create(model="m", prompt="1 " * 30_000)
        assert refused.value.param == "prompt"
        counted = await other.messages.count_tokens(model="m", messages=long)
    assert counted.input_tokens > harness.manager.max_model_len, "a count states by how much the prompt is too long"
    assert len(harness.recorded()) == 1


# ---------------------------------------------------------------- a client's own names


# ---------------------------------------------------------------- workers and weights


async def test_after_the_death_of_a_worker_under_a_constraint_another_continues_and_no_token_is_repeated():
    function = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    line = "\n".join(["Hm, Sto", call("f", '{"x": "🙂"}'), call("f", "{}")])
    for hold_at in (1, 3, 9, 14):
        async with opened_chat_gateway(hold_at=hold_at) as harness:
            harness.script.lines = [line]
            opened = await harness.open(run := work(sampling=SamplingParams(max_tokens=400)))
            async with clients(opened) as (client, _):
                request = {
                    "model": "m",
                    "messages": HELLO,
                    "tools": [function],
                    "stop": ["Stop"],
                    "logprobs": True,
                    "top_logprobs": 1,
                }
                schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}

                async def consume_stream(client=client, request=request, schema=schema):
                    async with client.chat.completions.stream(**request, response_format=schema) as stream:
                        logprobs = []
                        async for event in stream:
                            if (
                                event.type == "chunk"
                                and event.chunk.choices
                                and (more := event.chunk.choices[0].logprobs)
                            ):
                                logprobs += [token.logprob for token in more.content]
                        return (await stream.get_final_completion()).choices[0], logprobs

                consuming = asyncio.create_task(consume_stream())
                await harness.first.held.wait()
                await harness.publish(published(1))
                await harness.add_engine(1)
                await harness.kill("inference_worker-0")
                choice, logprobs = await consuming
            assert choice.message.content == "Hm, Sto"
            assert [call.function.arguments for call in choice.message.tool_calls] == ['{"x": "🙂"}', "{}"]
            (turn,) = (await harness.trajectory(opened, run=run)).interactions
            assert harness.script.taken_over == [0, hold_at]
            assert harness.script.prompts[1] == harness.script.prompts[0] + completion_ids(turn)[:hold_at]
            one, two = harness.script.sampling
            assert msgspec.structs.replace(two, max_tokens=one.max_tokens) == one
            assert (one.max_tokens - two.max_tokens, one.constraint.kind) == (hold_at, "lark")
            assert harness.text(completion_ids(turn)) == line + "<|im_end|>"
            assert turn.completion.logprobs_array().tolist() == [
                logprob_at(place) for place in range(len(turn.completion))
            ]
            assert logprobs == turn.completion.logprobs_array().tolist()[:-1]
            assert turn.completion.versions_array().tolist() == [0] * hold_at + [1] * (len(turn.completion) - hold_at)


async def test_weights_published_in_mid_conversation_change_versions_and_nothing_else():
    async with opened_chat_gateway(hold_at=2) as harness:
        harness.script.lines = ["one two three four", "five"]
        opened = await harness.open()
        async with clients(opened) as (client, _):
            asking = asyncio.create_task(client.chat.completions.create(model="m", messages=HELLO))
            await harness.first.held.wait()
            tokenizer, continuations = harness.manager.calls.served.chat, harness.manager.calls.served.continuations
            await harness.publish(published(1))
            async with asyncio.timeout(300):
                while harness.first.weight_version < 1:  # noqa: ASYNC110 - there is no event before the worker's
                    await asyncio.sleep(0.005)
            harness.first.go_on.set()
            first = await asking
            harness.first.hold_at = -1
            await client.chat.completions.create(model="m", messages=[*HELLO, first.choices[0].message, *HELLO])
        assert (harness.manager.calls.served.chat, harness.manager.calls.served.continuations) == (
            tokenizer,
            continuations,
        )
        one, two = (await harness.trajectory(opened)).interactions
        assert one.completion.versions_array().tolist() == [0, 0] + [1] * (len(one.completion) - 2)
        assert set(two.completion.versions_array()) == {1}
        assert two.parent == one.id


async def test_a_worker_whose_engine_fails_is_a_503_and_no_interaction(harness):
    harness.script.lines = [EngineError("out of memory"), "one"]
    async with clients(await harness.open()) as (client, _):
        with pytest.raises(openai.InternalServerError, match="out of memory") as failed:
            await client.chat.completions.create(model="m", messages=HELLO)
        assert failed.value.status_code == 503
        assert (await client.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content == "one"
    assert len(harness.recorded()) == 1


async def test_a_worker_whose_engine_fails_again_and_again_is_replaced(harness):
    harness.script.lines = [*([EngineError("out of memory")] * MAX_FAILURES), "one"]
    async with clients(await harness.open()) as (client, _):
        for _ in range(MAX_FAILURES):
            with pytest.raises(openai.InternalServerError, match="out of memory"):
                await client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(ExceptionGroup, match="unhandled errors in a TaskGroup"):
            await harness.tasks["inference_worker-0"]
        await harness.add_engine(1)
        assert (await client.chat.completions.create(model="m", messages=HELLO)).choices[0].message.content == "one"


# ---------------------------------------------------------------- completions of raw prompts


@pytest.mark.parametrize("as_ids", [False, True])
async def test_a_raw_completion_continues_where_it_was_cut_and_extends_to_the_token(harness, as_ids):
    chat = harness.chat
    harness.script.lines = [
        chat.encode("one two🙂")[:-1].copy(),
        chat.encode("three").copy(),
        chat.encode("four").copy(),
    ]
    opened = await harness.open()
    async with clients(opened) as (client, _):
        known = list(chat.encode("begin: "))
        text = "begin: "
        for line in (3, 2, 2):
            prompt = known if as_ids else text
            answer = await client.completions.create(model="m", prompt=prompt, max_tokens=50, seed=line)
            assert answer.choices[0].finish_reason == "length"
            text += answer.choices[0].text
            known = harness.script.prompts[-1] + unpack_ids(
                harness.manager.registry.get(opened.session).turns[-1].interaction.completion.token_ids
            )
    one, two, three = (await harness.trajectory(opened)).interactions
    assert [turn.parent for turn in (one, two, three)] == ["", one.id, two.id]
    assert (two.prompt_suffix, three.prompt_suffix) == (b"", b"")
    assert harness.script.prompts[2] == chat.encode("begin: ") + completion_ids(one) + completion_ids(two)


async def test_what_completions_cannot_do_is_refused(harness):
    opened = await harness.open()
    for fields in ({"echo": True}, {"suffix": "x"}, {"prompt": ["a", "b"]}, {"prompt": []}):
        status, answer = await post(opened, {"model": "m", "prompt": "x", **fields}, path="/completions")
        assert (status, next(iter(fields)) in json.dumps(answer)) == (400, True)
    assert not harness.recorded()
