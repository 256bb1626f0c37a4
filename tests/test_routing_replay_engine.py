"""Generation engines report the experts that each layer of a mixture of experts chose for each position."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from support.tiny_engine import CONTEXT, SETTINGS, prompt_of, random_qwen, save
from support.tiny_mixture import ROUTES, plain_routes, random_mixture, save_mixture

from areal_actors.core.errors import SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.embedded.prefix_cache import MIN_PREFIX
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.abilities import ROUTES as ABILITY
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.engine_reports import split_routes
from areal_actors.generation.named import engine_factory
from areal_actors.generation.servers.dialect import SegmentPart
from areal_actors.generation.servers.server_completion import ServerCompletion
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights

SIZE = ROUTES.position_bytes


@pytest.fixture(scope="module")
def models():
    return [random_mixture(seed) for seed in (0, 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_mixture(tmp_path_factory.mktemp("mixture"))


@pytest.fixture
def published(models, folder, tmp_path):
    return write_weights(models[1].state_dict(), tmp_path / "v1", folder)


@asynccontextmanager
async def running(folder, settings=SETTINGS):
    engine = TransformersEngine(folder, settings, place=EnginePlace(routes="auto"))
    try:
        yield engine
    finally:
        await engine.close()


async def completed(engine, prompt, sampling, **more):
    """Token ids and routes of a completion, by chunk."""
    chunks = [chunk async for chunk in engine.generate("request", prompt, sampling, **more)]
    return [
        prompt + [token for chunk in chunks for token in chunk.columns.ids_array().tolist()],
        *(chunk.routes for chunk in chunks),
    ]


@pytest.mark.parametrize("batch_invariant", ["off", "on"])
async def test_a_completion_reports_what_a_plain_forward_chooses(folder, models, batch_invariant):
    async with running(folder, msgspec.structs.replace(SETTINGS, batch_invariant=batch_invariant)) as engine:
        prompts = [prompt_of(length) for length in (3, 9, 9, 20)]
        sampling = SamplingParams(max_tokens=8)
        answers = await asyncio.gather(*(completed(engine, prompt, sampling, routes_from=0) for prompt in prompts))
        for ids, routes in answers:
            assert routes == plain_routes(models[0], ids)
            assert len(routes) == SIZE * (len(ids) - 1)


async def test_parts_of_a_stream_report_the_positions_since_the_last_one(folder, models):
    async with running(folder) as engine:
        prompt = prompt_of(7)
        ids, *parts = await completed(engine, prompt, SamplingParams(max_tokens=6, seed=2), stream=True, routes_from=2)
        assert b"".join(parts) == plain_routes(models[0], ids)[2 * SIZE :]
        assert [len(part) // SIZE for part in parts] == [5] + [1] * (len(parts) - 1)
        rest, routes = await completed(
            engine, ids[:-2], SamplingParams(max_tokens=2, seed=2), resumed_tokens=2, routes_from=len(ids) - 4
        )
        assert routes == plain_routes(models[0], rest)[(len(ids) - 4) * SIZE :]


async def test_a_prompt_that_continues_a_kept_prefix_reports_its_experts(folder, models):
    async with running(folder) as engine:
        first, _ = await completed(engine, prompt_of(MIN_PREFIX + 8), SamplingParams(max_tokens=6), routes_from=0)
        engine.take_counters()
        second, routes = await completed(
            engine, first + prompt_of(5, seed=1), SamplingParams(max_tokens=6), routes_from=0
        )
        assert engine.take_counters().cached_tokens >= MIN_PREFIX
        assert routes == plain_routes(models[0], second)


async def test_new_weights_change_the_experts_of_later_positions_only(folder, models, published):
    """Positions have the experts of their first computation, although the KV cache is computed again."""
    async with running(folder) as engine:
        prompt = prompt_of(MIN_PREFIX + 3)
        stream = engine.generate(
            "request", prompt, SamplingParams(max_tokens=CONTEXT - len(prompt), seed=3), stream=True, routes_from=0
        )
        parts = [await anext(stream) for _ in range(3)]
        await engine.load_weights(published, 1)
        other = [
            chunk
            async for chunk in engine.generate("other", prompt, SamplingParams(max_tokens=3, seed=4), routes_from=0)
        ]
        parts += [chunk async for chunk in stream]
    ids = prompt + [token for chunk in parts for token in chunk.columns.ids_array().tolist()]
    versions = [version for chunk in parts for version in chunk.columns.versions_array().tolist()]
    before = len(prompt) - 1 + versions.count(0)
    assert 3 <= versions.count(0) < len(versions)
    routes, under = b"".join(chunk.routes for chunk in parts), [plain_routes(model, ids) for model in models]
    assert routes == under[0][: before * SIZE] + under[1][before * SIZE :]
    assert under[0] != under[1]
    (chunk,) = other
    assert chunk.routes == plain_routes(models[1], prompt + chunk.columns.ids_array().tolist())


async def test_nothing_is_reported_unless_it_is_asked_for(folder, tmp_path):
    async with running(folder) as engine:
        assert ABILITY in engine.abilities
        _, routes = await completed(engine, prompt_of(4), SamplingParams(max_tokens=3))
        assert routes == b""
    async with running(save(random_qwen(0), tmp_path)) as engine:
        assert engine.routes is None
        _, routes = await completed(engine, prompt_of(4), SamplingParams(max_tokens=3), routes_from=0)
        assert routes == b""


def test_an_engine_that_reports_no_experts_is_refused_if_they_are_required(folder, tmp_path):
    (tmp_path / "mine.py").write_text(
        "class Engine:\n    abilities, weight_version = frozenset(), 0\n    def __init__(self, folder, settings):"
        " pass\n    async def generate(self): pass\n    async def load_weights(self): pass\n    def"
        " take_counters(self): pass\n    async def close(self): pass\n"
    )
    settings = GenerationSettings(engine="mine.py:Engine")
    engine_factory(settings, tmp_path, EnginePlace(routes="auto"))(folder)
    with pytest.raises(
        SetupError,
        match=r'routing_replay = "on": the engine mine.py:Engine reports no experts; set generation.engine to',
    ):
        engine_factory(settings, tmp_path, EnginePlace(routes="on"))(folder)


def test_routes_of_a_long_prompt_are_sent_in_several_parts():
    assert split_routes(b"") == [b""]
    assert split_routes(b"12345", limit=2) == [b"12", b"34", b"5"]


async def test_a_servers_routes_are_those_of_blocks_with_experts_and_of_kept_tokens(folder, models):
    """A server reports all blocks, for the tokens that it sampled; those after a stop token are dropped."""
    async with running(folder) as engine:
        tokenizer = engine.tokenizer
    completion = ServerCompletion([5, 6, 7], SamplingParams(max_tokens=9), tokenizer, 0, routes=ROUTES, routes_from=1)
    completion.add(SegmentPart([8, 9], [-1.0, -1.0]), 0)
    assert completion.lacks_routes(since=3)
    reported = [[[1, 2], [99, 99], [3, 4]], [[5, 6], [99, 99], [7, 0]], [[2, 1], [99, 99], [4, 3]]]
    completion.add_routes(
        b"".join(number.to_bytes(4, "little") for row in reported for block in row for number in block)
    )
    assert completion.routed == 4
    assert not completion.lacks_routes(since=3)
    assert completion.chunk().routes == bytes([1, 2, 3, 4, 5, 6, 7, 0, 2, 1, 4, 3])
    completion.add(SegmentPart([tokenizer.stop_ids[0], 11, 12], [-1.0] * 3, finish_reason="abort"), 1)
    completion.add_routes(
        b"".join(number.to_bytes(4, "little") for row in reported for block in row for number in block)
    )
    assert completion.chunk().routes == bytes([1, 2, 3, 4])
