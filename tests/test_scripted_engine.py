"""The engine without a model keeps the contract of one that has a model."""

from __future__ import annotations

import asyncio

import pytest

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.scripted.engine import ScriptedEngine


async def test_the_scripted_engine_is_deterministic_and_stamps_versions_at_token_boundaries() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    engine = ScriptedEngine(
        lambda prompt, seed: [(prompt[0] + seed + index, -0.5) for index in range(6)], token_seconds=0.01, sleep=sleep
    )
    stream = engine.generate("a", [10], SamplingParams(max_tokens=4, seed=2), stream=True)
    chunks = [await anext(stream)]
    await engine.load_weights(WeightsLocation(folder="", checksum="", model=""), 1)
    chunks += [chunk async for chunk in stream]
    assert (
        b"".join(chunk.columns.token_ids for chunk in chunks)
        == TokenColumns.of([12, 13, 14, 15], [0] * 4, [0] * 4).token_ids
    )
    assert [span.weight_version for chunk in chunks for span in chunk.columns.versions] == [0, 1, 1, 1]
    assert [chunk.finish_reason for chunk in chunks] == ["", "", "", "length"]
    assert slept == [0.01] * 4
    assert (engine.take_counters().tokens, engine.take_counters().tokens) == (4, 0)

    hashed = ScriptedEngine()
    first, again, other = [
        [chunk async for chunk in hashed.generate("b", [1, 2], SamplingParams(seed=seed))] for seed in (0, 0, 1)
    ]
    assert first == again != other
    assert first[0].finish_reason == "stop"
    with pytest.raises(RequestError, match="1000"):
        [chunk async for chunk in hashed.generate("c", [1000], SamplingParams())]


async def test_closing_the_scripted_engine_fails_what_still_runs() -> None:
    engine = ScriptedEngine()
    stream = engine.generate("a", [1], SamplingParams(), stream=True)
    await anext(stream)
    assert engine.take_counters().running == 1
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await anext(stream)
    assert engine.take_counters().running == 0
