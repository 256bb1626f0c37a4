"""New weights of the embedded engine, while completions run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_engine import (
    CONTEXT,
    complete,
    plain_logprobs,
    prompt_of,
    random_qwen,
    running,
    save,
)

from areal_actors.core.errors import EngineError
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def new_weights(tmp_path_factory: pytest.TempPathFactory, folder: str) -> WeightsLocation:
    return write_weights(random_qwen(1).state_dict(), tmp_path_factory.mktemp("weights") / "v1", folder)


async def test_new_weights_take_over_between_two_tokens_of_running_completions(
    folder: str, new_weights: WeightsLocation
) -> None:
    old, new = random_qwen(0), random_qwen(1)
    prompts = [prompt_of(4 + 6 * index) for index in range(6)]
    async with running(folder) as engine:
        streams = [
            engine.generate(str(index), prompt, SamplingParams(max_tokens=48, seed=index), stream=True)
            for index, prompt in enumerate(prompts)
        ]
        firsts = [await anext(stream) for stream in streams]
        await engine.load_weights(new_weights, 7)
        columns = []
        for first, stream in zip(firsts, streams, strict=True):
            whole = first.columns
            async for chunk in stream:
                whole = whole.append(chunk.columns)
            columns.append(whole)
        assert engine.weight_version == 7
    switched = [column for column in columns if len(column.versions) == 2]
    assert switched
    for prompt, column in zip(prompts, columns, strict=True):
        before = column.versions_array() == 0
        assert set(column.versions_array().tolist()) <= {0, 7}
        expected = np.where(before, plain_logprobs(old, prompt, column, 1.0), plain_logprobs(new, prompt, column, 1.0))
        assert np.abs(expected - column.logprobs_array()).max() < 1e-5


async def test_new_weights_compute_the_prompt_of_siblings_once(folder: str, new_weights: WeightsLocation) -> None:
    old, new = random_qwen(0), random_qwen(1)
    prompts = [prompt_of(48)] * 8 + [prompt_of(7), prompt_of(1), prompt_of(1)]
    async with running(folder) as engine:
        streams = [
            engine.generate(str(index), prompt, SamplingParams(max_tokens=40, seed=index), stream=True)
            for index, prompt in enumerate(prompts)
        ]
        firsts = [await anext(stream) for stream in streams]
        engine.take_counters()
        await engine.load_weights(new_weights, 1)
        prefilled = engine.take_counters().prefilled_tokens
        columns = []
        for first, stream in zip(firsts, streams, strict=True):
            whole = first.columns
            async for chunk in stream:
                whole = whole.append(chunk.columns)
            columns.append(whole)
    crossed = [column for column in columns if len(column.versions) == 2]
    before_the_change = sum(column.versions[0].end for column in crossed)
    assert len(crossed) > 2
    assert prefilled <= before_the_change + 48 + 7 + 1
    for prompt, column in zip(prompts, columns, strict=True):
        old_version = column.versions_array() == 0
        expected = np.where(
            old_version, plain_logprobs(old, prompt, column, 1.0), plain_logprobs(new, prompt, column, 1.0)
        )
        assert np.abs(expected - column.logprobs_array()).max() < 1e-5


async def test_aborts_queueing_and_changes_of_weights_at_once_leave_every_token_right(
    folder: str, tmp_path: Path
) -> None:
    makers = {0: random_qwen(0), 1: random_qwen(1), 2: random_qwen(0), 3: random_qwen(2)}
    locations = {
        version: write_weights(makers[version].state_dict(), tmp_path / f"v{version}", folder) for version in (1, 2, 3)
    }
    numbers = np.random.default_rng(0)
    finished: list[tuple[list[int], TokenColumns]] = []

    async def episode(index: int, length: int, tokens: int, patience: int) -> None:
        prompt, columns = prompt_of(length, index % 3), TokenColumns()
        stream = engine.generate(
            str(index), prompt, SamplingParams(max_tokens=tokens, seed=index), stream=index % 2 == 0
        )
        async for chunk in stream:
            columns = columns.append(chunk.columns)
            patience -= 1
            if not patience:
                break
        await stream.aclose()
        finished.append((prompt, columns))

    async with running(folder, GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=CONTEXT)) as engine:
        shapes = zip(numbers.integers(1, 40, 40), numbers.integers(1, 50, 40), numbers.integers(1, 60, 40), strict=True)
        episodes = [asyncio.create_task(episode(index, *map(int, shape))) for index, shape in enumerate(shapes)]
        for version in (1, 2, 3):
            await asyncio.wait(episodes, timeout=0.03)
            await engine.load_weights(locations[version], version)
        await asyncio.gather(*episodes)
        counters = engine.take_counters()
    assert {span.weight_version for _, columns in finished for span in columns.versions} == {0, 1, 2, 3}
    for prompt, columns in finished:
        expected = {version: plain_logprobs(model, prompt, columns, 1.0) for version, model in makers.items()}
        chosen = [expected[version][at] for at, version in enumerate(columns.versions_array().tolist())]
        assert np.abs(np.array(chosen) - columns.logprobs_array()).max() < 1e-5
    assert counters.waiting == 0


async def test_a_failing_load_leaves_the_old_weights_in_force(
    folder: str, new_weights: WeightsLocation, tmp_path: Path
) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=12)
    wrong_sum = WeightsLocation(folder=new_weights.folder, checksum="0" * 32, model=folder)
    nowhere = WeightsLocation(folder=str(tmp_path / "v9"), checksum=new_weights.checksum, model=folder)
    foreign = write_weights({"model.norm.weight": torch.ones(3), "stranger": torch.ones(2)}, tmp_path / "v2", folder)
    async with running(folder) as engine:
        before = await complete(engine, prompt_of(8), sampling)
        for location, message in ((wrong_sum, "checksum"), (nowhere, "v9"), (foreign, "stranger")):
            with pytest.raises(EngineError, match=message):
                await engine.load_weights(location, 3)
        after = await complete(engine, prompt_of(8), sampling)
        assert engine.weight_version == 0
        await engine.load_weights(new_weights, 4)
        assert (await complete(engine, prompt_of(8), sampling)).columns.versions[0].weight_version == 4
    assert before == after
