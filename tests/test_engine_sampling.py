"""The embedded engine honours every sampling field, beside rows that use none and through whatever interrupts it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_engine import CONTEXT, MARK, complete, prompt_of, random_qwen, running, save

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint, SamplingParams, TokenColumns, WeightsLocation, pack_ids
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.scripted.engine import ScriptedEngine
from areal_actors.messages import Generate, WeightsLoaded, WeightsPublished
from areal_actors.weights.transfer import write_weights

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "bc"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
JSON = Constraint(kind="json_schema", text=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def new_weights(tmp_path_factory: pytest.TempPathFactory, folder: str) -> WeightsLocation:
    return write_weights(random_qwen(1).state_dict(), tmp_path_factory.mktemp("weights") / "v1", folder)


@torch.no_grad()
def plain(model: torch.nn.Module, prompt: Sequence[int], columns: TokenColumns, temperature: float) -> torch.Tensor:
    """log_softmax(logits / temperature) [tokens, vocabulary] in the place of each token, by one ordinary forward."""
    ids = torch.tensor([[*prompt, *columns.ids_array().tolist()]])
    return torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature, -1)


def top_of(chunk: TokenChunk, asked: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(chunk.columns), asked)
    return np.frombuffer(chunk.top_ids, "<u4").reshape(shape), np.frombuffer(chunk.top_logprobs, "<f4").reshape(shape)


async def test_every_field_at_once_leaves_log_probabilities_those_of_the_model(folder: str) -> None:
    model = random_qwen(0)
    wishes = [
        SamplingParams(temperature=1.3, min_p=0.05, presence_penalty=1.0, frequency_penalty=0.5, logit_bias={9: 5.0}),
        SamplingParams(temperature=0.6, constraint=JSON, top_logprobs=3),
        SamplingParams(temperature=1.0, top_k=5, top_p=0.9, min_p=0.2, top_logprobs=20),
        SamplingParams(temperature=0.0001, constraint=Constraint(kind="regex", text="(never|seen){3}")),
        SamplingParams(),
    ]
    wishes = [msgspec.structs.replace(wish, max_tokens=30, seed=seed) for seed in range(3) for wish in wishes]
    async with running(folder) as engine:
        chunks = await asyncio.gather(
            *(complete(engine, prompt_of(5 + place), wish) for place, wish in enumerate(wishes))
        )
        alone = await complete(engine, prompt_of(5 + 4), wishes[4])
    assert alone.columns.token_ids == chunks[4].columns.token_ids
    for place, (wish, chunk) in enumerate(zip(wishes, chunks, strict=True)):
        expected = plain(model, prompt_of(5 + place), chunk.columns, wish.temperature)
        own = expected.gather(1, torch.from_numpy(chunk.columns.ids_array().astype(np.int64))[:, None])[:, 0].numpy()
        assert chunk.columns.logprobs_array() == pytest.approx(own, rel=1e-4, abs=1e-4)
        top_ids, top_logprobs = top_of(chunk, wish.top_logprobs)
        assert top_logprobs == pytest.approx(
            np.take_along_axis(expected.numpy(), top_ids.astype(np.int64), 1), abs=1e-4
        )
        assert top_logprobs == pytest.approx(expected.topk(wish.top_logprobs).values.numpy(), abs=1e-4)


async def test_constrained_completions_are_whole_and_end_by_a_stop_token(
    folder: str, new_weights: WeightsLocation
) -> None:
    async with running(folder) as engine:
        wishes = [SamplingParams(constraint=JSON, max_tokens=80, seed=seed, temperature=seed % 3) for seed in range(12)]
        # A random model likes no whitespace in particular, and there may be 32 blanks between any two parts.
        wishes = [
            msgspec.structs.replace(wish, logit_bias={engine.tokenizer.encode(blank)[0]: -100 for blank in " \n"})
            for wish in wishes
        ]
        pending = [asyncio.create_task(complete(engine, prompt_of(4), wish)) for wish in wishes]
        await asyncio.sleep(0.005)
        await engine.load_weights(new_weights, 1)
        for chunk in await asyncio.gather(*pending):
            assert set(json.loads(engine.tokenizer.decode(chunk.columns.ids_array().tolist()))) == {"ok", "kind"}
            assert chunk.finish_reason == "stop"
            assert chunk.columns.ids_array()[-1] in engine.tokenizer.stop_ids


async def test_most_likely_tokens_go_along_with_streams_and_changes_of_weights(
    folder: str, new_weights: WeightsLocation
) -> None:
    models = {0: random_qwen(0), 2: random_qwen(1)}
    prompt = prompt_of(7)

    async def sampled() -> list[TokenChunk]:
        async with running(folder) as engine:
            stream = engine.generate("s", prompt, SamplingParams(max_tokens=40, seed=4, top_logprobs=2), stream=True)
            chunks = [await anext(stream)]
            await engine.load_weights(new_weights, 2)
            return chunks + [chunk async for chunk in stream]

    chunks = await sampled()
    while (
        len({span.weight_version for chunk in chunks for span in chunk.columns.versions}) < 2
    ):  # it had ended before the weights came
        chunks = await sampled()
    columns, ids, logprobs = TokenColumns(), [], []
    for chunk in chunks:
        columns = columns.append(chunk.columns)
        chunk_ids, chunk_logprobs = top_of(chunk, 2)
        ids.append(chunk_ids)
        logprobs.append(chunk_logprobs)
    expected = {version: plain(model, prompt, columns, 1.0) for version, model in models.items()}
    assert {span.weight_version for span in columns.versions} == {0, 2}
    best = torch.stack([expected[version][at] for at, version in enumerate(columns.versions_array().tolist())]).topk(2)
    assert np.concatenate(ids).tolist() == best.indices.tolist()
    assert np.concatenate(logprobs) == pytest.approx(best.values.numpy(), abs=1e-5)


CONTINUED = {
    "greedy under penalties": SamplingParams(temperature=0, presence_penalty=2, frequency_penalty=1),
    "drawn under penalties": SamplingParams(presence_penalty=1, frequency_penalty=2, top_p=0.9),
    "greedy under a schema": SamplingParams(temperature=0, constraint=JSON),
    "drawn under a schema": SamplingParams(constraint=JSON, temperature=0.5),
}


@pytest.mark.parametrize("name", CONTINUED)
async def test_a_completion_cut_anywhere_continues_elsewhere_as_if_it_had_not_been(folder: str, name: str) -> None:
    prompt, sampling = prompt_of(6), msgspec.structs.replace(CONTINUED[name], max_tokens=24, seed=3)
    async with running(folder) as first, running(folder) as second:
        whole = [chunk async for chunk in first.generate("s", prompt, sampling, stream=True)]
        ids = [int(chunk.columns.ids_array()[0]) for chunk in whole]
        assert len(ids) > 8
        for cut in range(1, len(ids)):
            rest = msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - cut)
            later = [
                chunk async for chunk in second.generate("s", prompt + ids[:cut], rest, stream=True, resumed_tokens=cut)
            ]
            assert [int(chunk.columns.ids_array()[0]) for chunk in later] == ids[cut:]
            assert later[-1].finish_reason == whole[-1].finish_reason


async def test_a_stop_string_that_spans_a_cut_ends_the_completion_where_it_would_have(folder: str) -> None:
    prompt, sampling = prompt_of(7), SamplingParams(max_tokens=40, seed=5)
    async with running(folder) as engine:
        text = engine.tokenizer.decode((await complete(engine, prompt, sampling)).columns.ids_array().tolist())
        stop = text[6:12]
        stopping = msgspec.structs.replace(sampling, stop=(stop,))
        whole = await complete(engine, prompt, stopping)
        ids = whole.columns.ids_array().tolist()
        assert stop in engine.tokenizer.decode(ids)
        for cut in range(1, len(ids)):
            rest = msgspec.structs.replace(stopping, max_tokens=40 - cut)
            parts = [
                chunk async for chunk in engine.generate("s", prompt + ids[:cut], rest, stream=True, resumed_tokens=cut)
            ]
            assert [token for part in parts for token in part.columns.ids_array().tolist()] == ids[cut:]
            assert parts[-1].finish_reason == "stop"
        # The worker died between the last token and the word that it was the last.
        (nothing,) = [chunk async for chunk in engine.generate("s", prompt + ids, stopping, resumed_tokens=len(ids))]
        assert (len(nothing.columns), nothing.finish_reason) == (0, "stop")


async def test_a_stop_string_may_be_a_special_token(folder: str) -> None:
    async with running(folder) as engine:
        mark = engine.tokenizer.tokenizer.token_to_id(MARK)
        free = SamplingParams(max_tokens=20, logit_bias={mark: 9.0}, temperature=2.0, seed=2)
        ids = (await complete(engine, prompt_of(5), free)).columns.ids_array().tolist()
        assert 0 < ids.index(mark) < len(ids) - 1
        for stream in (False, True):
            sampling = msgspec.structs.replace(free, stop=("never", MARK))
            chunks = [chunk async for chunk in engine.generate("s", prompt_of(5), sampling, stream=stream)]
            assert [token for chunk in chunks for token in chunk.columns.ids_array().tolist()] == ids[
                : ids.index(mark) + 1
            ]
            assert chunks[-1].finish_reason == "stop"


async def test_a_wrong_constraint_is_refused_and_one_that_fails_midway_ends_alone(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder) as engine:
        with pytest.raises(RequestError, match="Invalid type") as refused:
            await complete(
                engine,
                prompt_of(3),
                SamplingParams(max_tokens=9, constraint=Constraint(kind="json_schema", text='{"type": "x"}')),
            )
        assert refused.value.field == "response_format"
        with pytest.raises(RequestError, match="violates its own constraint"):
            [
                chunk
                async for chunk in engine.generate(
                    "s", prompt_of(5), SamplingParams(max_tokens=9, constraint=JSON), resumed_tokens=2
                )
            ]
        endless = Constraint(kind="json_schema", text='{"$ref": "#"}')
        with pytest.raises(RequestError, match="cannot be followed any further") as refused:
            await complete(engine, prompt_of(3), SamplingParams(max_tokens=9, constraint=endless))
        assert refused.value.field == "response_format"
        matcher = engine._grammars.matcher(JSON)
        monkeypatch.setattr(engine._grammars, "matcher", lambda *_: matcher)
        matcher.accept_tokens(engine.tokenizer.encode('{"ok'))
        with pytest.raises(RequestError, match="cannot be followed any further"):
            await asyncio.gather(
                failing(engine, matcher),
                *(complete(engine, prompt_of(5), SamplingParams(max_tokens=60, seed=seed)) for seed in range(3)),
            )
        assert await complete(engine, prompt_of(3), SamplingParams(max_tokens=5))


@pytest.mark.parametrize("temperature", [1e-12, 1e-40, 5e-324, 1e308])
async def test_no_temperature_is_too_extreme(folder: str, temperature: float) -> None:
    async with running(folder) as engine:
        coldest = await complete(engine, prompt_of(3), SamplingParams(max_tokens=5, temperature=temperature))
        greedy = await complete(engine, prompt_of(3), SamplingParams(max_tokens=5, temperature=0))
    assert np.isfinite(coldest.columns.logprobs_array()).all()
    assert (coldest.columns.token_ids == greedy.columns.token_ids) == (temperature < 1)


async def failing(engine: TransformersEngine, matcher: object) -> None:
    """A completion whose constraint also gets a foreign token, which fails it."""
    stream = engine.generate("beside", prompt_of(5), SamplingParams(constraint=JSON, max_tokens=60), stream=True)
    await anext(stream)
    with pytest.raises(RequestError):
        matcher.accept_tokens(engine.tokenizer.encode("#"))  # type: ignore[attr-defined]
    [chunk async for chunk in stream]


async def test_the_worker_forwards_the_engine_s_output_and_refuses_unsupported_sampling(send, folder: str) -> None:
    published = WeightsPublished(weight_version=0, location=WeightsLocation(folder="", checksum="", model=""))
    worker = InferenceWorker(lambda _: ScriptedEngine(), name="inference_worker-0", concurrency=1)
    (loaded,) = await send(worker, published)
    assert isinstance(loaded, WeightsLoaded)
    wishes = {"response_format": SamplingParams(constraint=JSON), "top_logprobs": SamplingParams(top_logprobs=2)}
    for field, sampling in wishes.items():
        (refused,) = await send(worker, Generate(prompt_ids=pack_ids([1]), sampling=sampling))
        assert refused.error_field == field
        assert "ScriptedEngine" in refused.error
    (part,) = await send(worker, Generate(prompt_ids=pack_ids([1, 2]), sampling=SamplingParams(seed=4)))
    ids = part.columns.ids_array().tolist()
    question = Generate(prompt_ids=pack_ids([1, 2, *ids[:2]]), sampling=SamplingParams(seed=4), resumed_tokens=2)
    (later,) = await send(worker, question)
    assert later.columns.ids_array().tolist() == ids[2:]

    async with running(folder) as engine:
        able = InferenceWorker(lambda _: engine, name="inference_worker-1", concurrency=1)
        able.engine = engine
        asked = Generate(prompt_ids=pack_ids(prompt_of(4)), sampling=SamplingParams(max_tokens=5, top_logprobs=3))
        (reply,) = await send(able, asked)
        assert len(reply.top_ids) == len(reply.top_logprobs) == 4 * 3 * len(reply.columns)


async def test_a_vocabulary_that_is_not_the_models_cannot_be_leant_upon(folder: str) -> None:
    async with running(folder) as engine:
        for bias in ({-1: 1.0}, {engine.vocabulary_size: 1.0}, {3: float("nan")}):
            with pytest.raises(RequestError) as refused:
                await complete(engine, prompt_of(3), SamplingParams(logit_bias=bias, max_tokens=CONTEXT - 3))
            assert refused.value.field == "logit_bias"
