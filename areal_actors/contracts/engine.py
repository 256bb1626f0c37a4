"""Contract of every generation engine, as cases to run over any of them: see `GenerationEngine`.

A case takes an `EngineHarness`: factory of the engine, prompts that it understands, and weights that it can load.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import Constraint, SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.abilities import ABILITIES, ADVISORY_ABILITIES, SAMPLING_ABILITIES
from areal_actors.generation.engine import GenerationEngine, TokenChunk, refuse_unable


class EngineHarness(NamedTuple):
    make: Callable[[], GenerationEngine]
    vocabulary: int
    """Ids up to this are understood."""
    context: int
    location: WeightsLocation

    def prompt(self, length: int = 6) -> list[int]:
        return [int(number) for number in np.random.default_rng(length).integers(3, min(self.vocabulary, 250), length)]


@asynccontextmanager
async def running(harness: EngineHarness) -> AsyncIterator[GenerationEngine]:
    engine = await asyncio.to_thread(harness.make)
    try:
        yield engine
    finally:
        await engine.close()


async def chunks_of(
    engine: GenerationEngine,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    stream: bool = False,
    resumed_tokens: int = 0,
) -> list[TokenChunk]:
    return [
        chunk
        async for chunk in engine.generate("request", prompt, sampling, stream=stream, resumed_tokens=resumed_tokens)
    ]


def joined(chunks: Sequence[TokenChunk]) -> TokenColumns:
    whole = TokenColumns()
    for chunk in chunks:
        whole = whole.append(chunk.columns)
    return whole


async def a_completion_is_one_chunk_of_whole_columns(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        for most in (1, 5, 20):
            (chunk,) = await chunks_of(engine, harness.prompt(), SamplingParams(max_tokens=most, seed=most))
            columns = chunk.columns
            assert 1 <= len(columns) <= most
            assert chunk.finish_reason == "stop" or (chunk.finish_reason, len(columns)) == ("length", most)
            assert len(columns.logprobs_array()) == len(columns) == columns.versions[-1].end
            assert columns.versions_array().tolist() == [engine.weight_version] * len(columns)
            assert np.isfinite(columns.logprobs_array()).all()
            assert columns.logprobs_array().max() <= 0
            assert columns.ids_array().max() < harness.vocabulary


async def a_seed_gives_the_same_tokens_streamed_or_whole(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        sampling = SamplingParams(max_tokens=16, seed=5)
        (whole,) = await chunks_of(engine, harness.prompt(), sampling)
        assert (await chunks_of(engine, harness.prompt(), sampling))[0] == whole
        parts = await chunks_of(engine, harness.prompt(), sampling, stream=True)
        assert joined(parts) == whole.columns
        assert [part.finish_reason for part in parts] == [""] * (len(parts) - 1) + [whole.finish_reason]
        assert len(parts) > 1 or len(whole.columns) == 1


async def a_completion_cut_anywhere_continues_as_if_it_had_not_been(harness: EngineHarness) -> None:
    prompt, sampling = harness.prompt(), SamplingParams(max_tokens=12, seed=9)
    async with running(harness) as engine:
        (whole,) = await chunks_of(engine, prompt, sampling)
        ids = whole.columns.ids_array().tolist()
        for cut in range(1, len(ids)):
            rest = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - cut)
            (later,) = await chunks_of(engine, prompt + ids[:cut], rest, resumed_tokens=cut)
            assert later.columns.ids_array().tolist() == ids[cut:]
            assert later.finish_reason == whole.finish_reason


async def new_weights_make_the_next_tokens(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        stream = engine.generate("request", harness.prompt(), SamplingParams(max_tokens=40, seed=1), stream=True)
        parts = [await anext(stream)]
        await engine.load_weights(harness.location, 3)
        assert engine.weight_version == 3
        parts += [part async for part in stream]
        versions = joined(parts).versions_array().tolist()
        assert versions == sorted(versions)
        assert set(versions) <= {0, 3}
        (after,) = await chunks_of(engine, harness.prompt(), SamplingParams(max_tokens=4))
        assert [span.weight_version for span in after.columns.versions] == [3]


async def what_cannot_be_sampled_is_refused_by_field(harness: EngineHarness) -> None:
    wrong: list[tuple[list[int], SamplingParams, int, str]] = [
        ([], SamplingParams(), 0, "prompt_ids"),
        ([3, 10**6], SamplingParams(max_tokens=1), 0, "prompt_ids"),
        (harness.prompt(4), SamplingParams(max_tokens=harness.context), 0, "max_tokens"),
        (harness.prompt(4), SamplingParams(max_tokens=1), 4, "resumed_tokens"),
        (harness.prompt(4), SamplingParams(max_tokens=1, logit_bias={10**6: 1.0}), 0, "logit_bias"),
    ]
    async with running(harness) as engine:
        for prompt, sampling, resumed_tokens, field in wrong:
            with pytest.raises(RequestError) as refused:
                await chunks_of(engine, prompt, sampling, resumed_tokens=resumed_tokens)
            assert refused.value.field == field
        assert await chunks_of(engine, harness.prompt(4), SamplingParams(max_tokens=1))


async def what_is_counted_is_what_was_sampled(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        engine.take_counters()
        wholes = await asyncio.gather(
            *(chunks_of(engine, harness.prompt(3 + n), SamplingParams(max_tokens=5 + n)) for n in range(6))
        )
        counters = engine.take_counters()
        assert counters.tokens == sum(len(joined(chunks)) for chunks in wholes)
        assert (counters.running, counters.waiting) == (0, 0)
        assert engine.take_counters().tokens == 0


async def closing_the_iterator_ends_a_completion(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        stream = engine.generate("request", harness.prompt(), SamplingParams(max_tokens=60, seed=2), stream=True)
        await anext(stream)
        await stream.aclose()
        assert await chunks_of(engine, harness.prompt(), SamplingParams(max_tokens=3))
        assert engine.take_counters().running == 0


async def closing_the_engine_fails_what_runs(harness: EngineHarness) -> None:
    async with running(harness) as engine:
        stream = engine.generate("request", harness.prompt(), SamplingParams(max_tokens=60, seed=2), stream=True)
        await anext(stream)
        await engine.close()
        with pytest.raises(EngineError, match="request"):
            [part async for part in stream]


async def what_it_cannot_do_is_refused_before_it_is_asked(harness: EngineHarness) -> None:
    stated = {
        "constraint:grammar": (SamplingParams(constraint=Constraint(kind="lark", text='start: "a"')), "tool_choice"),
        "constraint:json_schema": (
            SamplingParams(constraint=Constraint(kind="json_schema", text="{}")),
            "response_format",
        ),
        "constraint:regex": (SamplingParams(constraint=Constraint(kind="regex", text="a")), "response_format"),
        "frequency_penalty": (SamplingParams(frequency_penalty=1), "frequency_penalty"),
        "logit_bias": (SamplingParams(logit_bias={3: 1.0}), "logit_bias"),
        "min_p": (SamplingParams(min_p=0.1), "min_p"),
        "presence_penalty": (SamplingParams(presence_penalty=1), "presence_penalty"),
        "seed": (SamplingParams(seed=1), "seed"),
        "stop": (SamplingParams(stop=("a",)), "stop"),
        "top_k": (SamplingParams(top_k=1), "top_k"),
        "top_logprobs": (SamplingParams(top_logprobs=1), "top_logprobs"),
        "top_p": (SamplingParams(top_p=0.5), "top_p"),
    }
    assert stated.keys() == SAMPLING_ABILITIES
    async with running(harness) as engine:
        assert engine.abilities <= ABILITIES
        for ability, (sampling, field) in stated.items():
            if ability in engine.abilities | ADVISORY_ABILITIES:
                refuse_unable(engine, sampling)
                continue
            kind = f"a constraint of kind {ability.partition(':')[2]} is " if ":" in ability else ""
            refusal = (
                f"'{field}': {kind}not supported by {getattr(engine, 'title', type(engine).__name__)}, .*set"
                " generation.engine to"
            )
            with pytest.raises(RequestError, match=refusal) as refused:
                refuse_unable(engine, sampling)
            assert refused.value.field == field
        refuse_unable(engine, SamplingParams(temperature=0.3, max_tokens=7, seed=1))


Case = Callable[[EngineHarness], Awaitable[None]]
CASES: tuple[Case, ...] = (
    a_completion_is_one_chunk_of_whole_columns,
    a_seed_gives_the_same_tokens_streamed_or_whole,
    a_completion_cut_anywhere_continues_as_if_it_had_not_been,
    new_weights_make_the_next_tokens,
    what_cannot_be_sampled_is_refused_by_field,
    what_is_counted_is_what_was_sampled,
    closing_the_iterator_ends_a_completion,
    closing_the_engine_fails_what_runs,
    what_it_cannot_do_is_refused_before_it_is_asked,
)
