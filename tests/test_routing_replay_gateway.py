"""The gateway records the experts of each position that a call added, and training sequences join them along a
conversation."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest
from support.fake_engine import FixedTextEngine
from support.gateway_harness import HELLO, GatewayHarness, client
from support.gateway_harness import opened as begun
from support.samples import letters, trajectory, work

from areal_actors.core.routes import RouteShape
from areal_actors.core.values import Interaction, SamplingParams, TokenColumns, pack_ids
from areal_actors.gateway.choice import Choice
from areal_actors.gateway.completion_check import CompletionFault, PublishedVersions
from areal_actors.gateway.conversations.turns import Prompt
from areal_actors.generation.abilities import ABILITIES
from areal_actors.messages import Generated
from areal_actors.sequences.build import sequences_of
from areal_actors.sequences.sequence_check import SequenceLimits, sequence_fault

ROUTES = RouteShape(layers=(0, 2), experts=8, top_k=2, blocks=3)
SIZE = ROUTES.position_bytes
EVERY = bytes(number % ROUTES.experts for number in range(100 * SIZE))
"""Experts of 100 positions."""


def routes(start: int, end: int) -> bytes:
    return EVERY[start * SIZE : end * SIZE]


def choice(prompt_ids, prefix: int = 0, **more) -> Choice:
    prompt = Prompt(suffix_ids=pack_ids(prompt_ids[prefix:]), prefix="s-0" if prefix else "", cached_tokens=prefix)
    options = {"routes": ROUTES, "logprobs": False, "published": PublishedVersions(1), **more}
    return Choice("s-1", 0, prompt, SamplingParams(max_tokens=9), letters(), (), stream=True, **options)


def part(ids, reported: bytes = b"", reason: str = "") -> Generated:
    columns = TokenColumns.of(ids, [-1.0] * len(ids), [0] * len(ids))
    return Generated(columns=columns, routes=reported, finish_reason=reason)


def recorded(sampled: Choice) -> Interaction:
    return sampled.finish(last=True)[1].interaction


def test_a_call_asks_for_the_positions_that_it_adds():
    assert choice([65, 66, 67]).routes_from() == 0
    # The last token of the prefix was sampled and not fed: this call is the first to compute it.
    assert choice([65, 66, 67, 68, 69], prefix=3).routes_from() == 2
    assert choice([65, 66], routes=None).routes_from() is None


def test_parts_are_joined_and_may_have_routes_only():
    sampled = choice([65, 66, 67])
    sampled.add_tokens(part([], routes(0, 2)))
    sampled.add_tokens(part([68, 69], routes(2, 4)))
    assert sampled.routes_from() == 4
    sampled.add_tokens(part([70], routes(4, 5), "length"))
    assert recorded(sampled).routes == routes(0, 5)


def test_another_worker_reports_what_the_one_that_died_did_not():
    sampled = choice([65, 66, 67])
    sampled.add_tokens(part([68, 69]))
    assert sampled.routes_from() == 0
    sampled.add_tokens(part([70], routes(0, 5), "length"))
    assert recorded(sampled).routes == routes(0, 5)


@pytest.mark.parametrize("reported", [b"", routes(0, 3)])
def test_a_call_whose_experts_are_incomplete_has_none(reported):
    sampled = choice([65, 66, 67])
    sampled.add_tokens(part([68, 69], reported, "length"))
    assert recorded(sampled).routes == b""


@pytest.mark.parametrize(
    ("reported", "cause"),
    [
        (bytes(SIZE + 1), "5 bytes; a multiple of 4 was expected, for 2 layers with 2 experts each"),
        (bytes([8, 0, 0, 0]), "expert 8 at position 0; the model's experts are 0 to 7"),
    ],
)
def test_experts_that_the_model_does_not_have_are_a_fault_of_the_worker(reported, cause):
    with pytest.raises(CompletionFault) as refused:
        choice([65, 66]).add_tokens(part([68], reported, "length"))
    assert str(refused.value) == f"routes: {cause}"


def conversation():
    """A call, one that continues it, and one that continues that without experts."""
    first = Interaction(
        id="a",
        prompt_suffix=pack_ids([1, 2, 3]),
        completion=TokenColumns.of([4, 5], [-1, -1], [0, 0]),
        finish_reason="stop",
        routes=routes(0, 4),
    )
    second = Interaction(
        id="b",
        parent="a",
        prefix="a",
        prompt_suffix=pack_ids([6]),
        completion=TokenColumns.of([7, 8], [-1, -1], [0, 0]),
        finish_reason="stop",
        routes=routes(4, 7),
    )
    third = msgspec.structs.replace(second, id="c", parent="b", prefix="b", routes=b"")
    return first, second, third


def test_a_sequence_has_the_experts_of_all_its_calls_but_the_last_token():
    first, second, third = conversation()
    (two,) = sequences_of(msgspec.structs.replace(trajectory("0.0"), interactions=(first, second)), 0, 0)
    assert two.routes == routes(0, len(two.token_ids) - 1)
    (three,) = sequences_of(msgspec.structs.replace(trajectory("0.0"), interactions=(first, second, third)), 0, 0)
    assert len(three.token_ids) == 11
    assert three.routes == two.routes


def test_a_sequence_with_more_experts_than_positions_is_not_trained():
    (row,) = sequences_of(msgspec.structs.replace(trajectory("0.0"), interactions=conversation()[:2]), 0, 0)
    limits = SequenceLimits(routes=ROUTES)
    assert sequence_fault(row, limits, 0) is None
    long = msgspec.structs.replace(row, routes=routes(0, 8))
    assert str(sequence_fault(long, limits, 0)) == "routes: 8 positions; at most 7 were expected"


class ReportingEngine(FixedTextEngine):
    """Reports the experts of all positions with the last chunk, as SGLang does."""

    abilities = ABILITIES

    def __init__(self, hold_at=-1):
        super().__init__(hold_at=hold_at)
        self.asked_from = []

    async def generate(self, request_id, prompt_ids, sampling, *, routes_from=None, **more):
        self.asked_from.append(routes_from)
        tokens = len(prompt_ids)
        async for chunk in super().generate(request_id, prompt_ids, sampling, **more):
            tokens += len(chunk.columns)
            reported = routes(routes_from, tokens - 1) if chunk.finish_reason and routes_from is not None else b""
            yield msgspec.structs.replace(chunk, routes=reported)


def of_a_mixture(folder):
    """A gateway before a mixture of experts."""
    (folder / "toy").mkdir()
    config = {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 3,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [1],
    }
    (folder / "toy" / "config.json").write_text(json.dumps(config))
    return begun(GatewayHarness(run_folder=folder, records_routes=True))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_is_recorded_with_the_experts_that_the_engine_reports(tmp_path, stream):
    async with of_a_mixture(tmp_path) as harness:
        engine = await harness.engine("inference_worker-0", ReportingEngine())
        opened, messages = await harness.open(), list(HELLO)
        async with client(opened) as agent:
            for _ in range(2):
                answer = await agent.chat.completions.create(model="m", messages=messages, stream=stream)
                text = (
                    "".join([chunk.choices[0].delta.content or "" async for chunk in answer])
                    if stream
                    else answer.choices[0].message.content
                )
                messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "and"}]
        exported = await harness.trajectory(opened)
    (row,) = sequences_of(exported, 0, 0)
    first, second = exported.interactions
    assert second.prefix == first.id
    assert engine.asked_from == [0, len(first.prompt_suffix) // 4 + len(first.completion) - 1]
    assert row.routes == routes(0, len(row.token_ids) - 1)
    assert sequence_fault(row, SequenceLimits(routes=ROUTES), 0) is None


async def test_a_completion_that_two_workers_sampled_has_the_experts_of_all_its_positions(tmp_path):
    async with of_a_mixture(tmp_path) as harness:
        first = await harness.engine("inference_worker-0", ReportingEngine(hold_at=3))
        opened = await harness.open()
        async with client(opened) as agent:
            answer = asyncio.create_task(agent.chat.completions.create(model="m", messages=HELLO, stream=True))
            await first.held.wait()
            second = await harness.engine("inference_worker-1", ReportingEngine())
            await harness.kill("inference_worker-0")
            assert [chunk async for chunk in await answer]
        exported = await harness.trajectory(opened)
    (call,) = exported.interactions
    assert (first.asked_from, second.asked_from) == ([0], [0])
    assert call.routes == routes(0, (len(call.prompt_suffix) // 4 + len(call.completion)) - 1)


async def test_evaluations_record_no_experts(tmp_path):
    async with of_a_mixture(tmp_path) as harness:
        engine = await harness.engine("inference_worker-0", ReportingEngine())
        opened = await harness.open(work(purpose="evaluate"))
        async with client(opened) as agent:
            await agent.chat.completions.create(model="m", messages=HELLO)
    assert engine.asked_from == [None]
