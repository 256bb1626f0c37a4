"""A genuine SGLang server reports the experts of each position, and a trainer that replays them has its
log-probabilities."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, asynccontextmanager

import numpy as np
import pytest
from support.genuine_servers import EXACT, Genuine, settings_of, started, until_it_runs
from support.tiny_engine import prompt_of
from support.tiny_mixture import BLOCKS, EXPERTS, TOP_K, plain_routes, random_mixture, save_mixture
from support.tiny_trainer import make_trainer

from areal_actors.contracts.engine import chunks_of
from areal_actors.core.routes import RouteShape
from areal_actors.core.values import SamplingParams, TrainingSequence
from areal_actors.generation.engine import EnginePlace
from areal_actors.weights.source_tensors import checkpoint_tensors
from areal_actors.weights.transfer import write_weights

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SERVED = {"mlp_only_layers": [], "tie_word_embeddings": False}
"""SGLang 0.5.20 serves mixtures of this type as if no block were dense and no embedding tied."""
ROUTES = RouteShape(layers=tuple(range(BLOCKS)), experts=EXPERTS, top_k=TOP_K, blocks=BLOCKS)
SIZE, PLACE = ROUTES.position_bytes, EnginePlace(routes="on")


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    models = {version: random_mixture(version, **SERVED) for version in (0, 1)}
    folder, weights = save_mixture(tmp_path_factory.mktemp("mixture"), **SERVED), tmp_path_factory.mktemp("weights")
    versions = {
        number: write_weights(checkpoint_tensors(model, model.state_dict()), weights / f"v{number}", folder)
        for number, model in models.items()
    }
    with ExitStack() as stack:
        process, url = started(stack, "sglang", folder, tmp_path_factory.mktemp("logs"), PLACE)
        yield Genuine("sglang", settings_of("sglang", urls=(url,)), folder, versions, models, process, PLACE)


@asynccontextmanager
async def serving(genuine):
    engine = genuine.make()
    try:
        await engine.load_weights(genuine.versions[0], 0)
        yield engine
    finally:
        await engine.close()


async def completed(engine, prompt, sampling, *, stream=False, routes_from=0):
    """Token ids, columns and routes of a completion."""
    chunks = [
        chunk async for chunk in engine.generate("request", prompt, sampling, stream=stream, routes_from=routes_from)
    ]
    ids = prompt + [token for chunk in chunks for token in chunk.columns.ids_array().tolist()]
    return ids, chunks, b"".join(chunk.routes for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_reports_what_a_plain_forward_chooses(genuine, stream):
    async with serving(genuine) as engine:
        wanted = [
            completed(engine, prompt_of(length), SamplingParams(max_tokens=8), stream=stream) for length in (3, 9, 20)
        ]
        for ids, _, routes in await asyncio.gather(*wanted):
            assert routes == plain_routes(genuine.models[0], ids, ROUTES)
        ids, _, routes = await completed(
            engine, prompt_of(9), SamplingParams(max_tokens=4), stream=stream, routes_from=5
        )
        assert routes == plain_routes(genuine.models[0], ids, ROUTES)[5 * SIZE :]
        (plain,) = await chunks_of(engine, prompt_of(5), SamplingParams(max_tokens=2))
        assert plain.routes == b""


async def test_completions_that_end_before_the_server_ends_them_have_their_experts(genuine):
    """Stop strings are found in the tokens here, and completions with a bias are scored again."""
    async with serving(genuine) as engine:
        stop = engine.tokenizer.decode([70])
        for sampling in (
            SamplingParams(max_tokens=30, stop=(stop,), logit_bias={70: 4.0}),
            SamplingParams(max_tokens=5, logit_bias={9: 3.0}),
        ):
            ids, chunks, routes = await completed(engine, prompt_of(6), sampling)
            assert routes == plain_routes(genuine.models[0], ids, ROUTES)
            assert chunks[-1].finish_reason


async def test_new_weights_change_the_experts_of_later_positions_only(genuine):
    async with serving(genuine) as engine:
        prompt = prompt_of(6)
        sampling = SamplingParams(max_tokens=80, logit_bias={})
        running = asyncio.create_task(completed(engine, prompt, sampling))
        await until_it_runs(engine, running)
        await asyncio.sleep(0.5)
        await engine.load_weights(genuine.versions[1], 1)
        ids, chunks, routes = await running
        versions = [version for chunk in chunks for version in chunk.columns.versions_array().tolist()]
        before = max(len(prompt) - 1 + versions.count(0), 0) if versions.count(0) else 0
        under = [plain_routes(genuine.models[version], ids, ROUTES) for version in (0, 1)]
        assert routes == under[0][: before * SIZE] + under[1][before * SIZE :]


async def test_a_trainer_that_replays_has_the_servers_log_probabilities(genuine):
    async with serving(genuine) as engine:
        answers = await asyncio.gather(
            *(completed(engine, prompt_of(8, seed), SamplingParams(max_tokens=12)) for seed in range(6))
        )
    rows = []
    for group, (ids, chunks, routes) in enumerate(answers):
        sampled = np.arange(len(ids)) >= 8
        logprobs = np.concatenate([np.zeros(8), *(chunk.columns.logprobs_array() for chunk in chunks)]).astype(
            np.float32
        )
        versions = np.where(sampled, 0, -1).astype(np.int32)
        rows.append(
            TrainingSequence(
                np.array(ids), sampled, logprobs, versions, group, float(group % 2), truncated=False, routes=routes
            )
        )
    metrics = make_trainer(genuine.folder).step(rows)
    assert metrics["train_infer_logprob_diff_max"] < EXACT
    assert metrics["routing_replayed"] == 1.0
    assert metrics["routing_mismatch"] < 0.01
