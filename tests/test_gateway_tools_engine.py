"""Tools, schemas and seeds over real HTTP, with a real engine behind the gateway."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.framework_harness import chat_tokenizer, clients, opened_chat_gateway
from test_gateway_tools import RUN, USER, streamed

from areal_actors.core.values import WeightsLocation
from areal_actors.embedded.embedded_model import initial_model, write_tokenizer
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.settings import GenerationSettings

SMALL = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "which": {"enum": ["a", "b"]}},
    "required": ["ok", "which"],
    "additionalProperties": False,
}


CHECK = {"type": "function", "function": {"name": "check", "description": "Check.", "parameters": SMALL}}


GIVE = {"type": "function", "function": {"name": "give", "description": "Give.", "parameters": SMALL}}


FORMAT = {"type": "json_schema", "json_schema": {"name": "small", "schema": SMALL}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The embedded model before it has learnt anything: what obeys, obeys by constraint."""
    folder = Path(tmp_path_factory.mktemp("model"))
    chat = chat_tokenizer()
    write_tokenizer(chat.tokenizer, folder)
    initial_model(chat.tokenizer, seed=0, conversational=True).save_pretrained(folder)
    return folder


class Loaded(TransformersEngine):
    """Has its weights already."""

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Nothing to do."""


@asynccontextmanager
async def real(folder, template=None):
    """A gateway before a real engine; `template` may be another than its own."""
    chat = (
        chat_tokenizer()
        if template is None
        else type(chat_tokenizer())(chat_tokenizer().tokenizer, template, {}, chat_tokenizer().stop_ids)
    )
    async with opened_chat_gateway(chat=chat) as harness:
        await harness.kill("inference_worker-0")
        await harness.engine(
            "inference_worker-1",
            Loaded(str(folder), GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=2000)),
        )
        yield harness


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_real_engine_calls_what_it_must_call(folder, stream):
    async with real(folder) as harness:
        opened = await harness.open(RUN)
        async with clients(opened) as (client, _):
            for choice, names in (
                ("required", {"check", "give"}),
                ({"type": "function", "function": {"name": "give"}}, {"give"}),
            ):
                request = {
                    "model": "m",
                    "messages": [USER],
                    "tools": [CHECK, GIVE],
                    "tool_choice": choice,
                    "parallel_tool_calls": False,
                }
                completions = client.chat.completions
                answer = await (streamed(completions.stream(**request)) if stream else completions.create(**request))
                (one,) = answer.choices[0].message.tool_calls
                assert one.function.name in names
                assert set(json.loads(one.function.arguments)) == {"ok", "which"}
                result = {"role": "tool", "tool_call_id": one.id, "content": "ok"}
                await client.chat.completions.create(
                    **{**request, "messages": [USER, answer.choices[0].message, result]}
                )
        turns = (await harness.trajectory(opened, run=RUN)).interactions
        assert [turn.parent for turn in turns] == ["", turns[0].id, "", turns[2].id]


@pytest.mark.slow
async def test_a_real_engine_answers_with_json_of_the_schema_or_with_a_call(folder):
    async with real(folder) as harness, clients(await harness.open(RUN)) as (client, _):
        for tools in ({}, {"tools": [CHECK]}):
            answer = await client.chat.completions.create(
                model="m", messages=[USER], response_format=FORMAT, n=4, seed=1, **tools
            )
            for choice in answer.choices:
                calls = [one.function.arguments for one in choice.message.tool_calls or ()]
                for text in calls or [choice.message.content]:
                    assert set(json.loads(text)) == {"ok", "which"}
            assert tools or not calls


@pytest.mark.slow
async def test_a_real_engine_ends_its_reasoning_before_it_answers_as_it_must(folder):
    """The prompt opens the reasoning; a bias makes thoughts end before the length is reached."""
    template = chat_tokenizer().template.source.replace(
        "assistant\\n' }}{%- endif %}\n", "assistant\\n<think>\\n' }}{%- endif %}\n</think>"
    )
    template = template.replace("</think>", "{#- </think> #}")
    assert "<think>" in template
    ends = {str(number): 100 for number in chat_tokenizer().encode("</think>")}
    async with real(folder, template) as harness:
        async with clients(await harness.open(RUN)) as (client, _):
            answer = await client.chat.completions.create(
                model="m", messages=[USER], response_format=FORMAT, logit_bias=ends, max_tokens=300, seed=2, n=6
            )
        whole = [choice for choice in answer.choices if choice.finish_reason == "stop"]
        assert any(getattr(choice.message, "reasoning_content", "") for choice in whole), "some thought ends"
        for choice in whole:
            assert set(json.loads(choice.message.content)) == {"ok", "which"}
            assert "</think>" not in choice.message.content


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, None])
async def test_a_seed_gives_the_same_choices_again_and_each_choice_its_own(folder, seed):
    async with real(folder) as harness:
        async with clients(await harness.open(msgspec.structs.replace(RUN, purpose="evaluate"))) as (client, _):
            request = {"model": "m", "messages": [USER], "n": 3, "max_tokens": 12, "seed": seed}
            one, two = [
                [choice.message.content for choice in (await client.chat.completions.create(**request)).choices]
                for _ in range(2)
            ]
        assert len(set(one)) == 3
        assert (one == two) is (seed is not None)
