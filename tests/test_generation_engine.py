"""The embedded engine: sampled tokens match the model's log-probabilities, whatever runs in the same batch."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
import torch
from support.tiny_engine import (
    CONTEXT,
    SETTINGS,
    SHAPE,
    VOCABULARY,
    complete,
    difference,
    prompt_of,
    random_qwen,
    running,
    save,
)
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from areal_actors.core.errors import EngineError, RequestError, SetupError
from areal_actors.core.values import SamplingParams
from areal_actors.embedded import slots
from areal_actors.embedded.decoders import load_model
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.transfer import write_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


async def test_log_probabilities_are_those_of_a_plain_forward_whatever_shares_the_batch(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    cases = [
        (
            prompt_of(1 + 7 * (index % 9)),
            SamplingParams(temperature=(0.0, 0.5, 1.0, 1.7)[index % 4], max_tokens=3 + index % 23, seed=index),
        )
        for index in range(40)
    ]
    async with running(folder) as engine:
        chunks = await asyncio.gather(*(complete(engine, *case) for case in cases))
        counters = engine.take_counters()
    assert (
        max(
            difference(model, prompt, chunk.columns, how.temperature)
            for (prompt, how), chunk in zip(cases, chunks, strict=True)
        )
        < 1e-5
    )
    assert all(
        len(chunk.columns) == how.max_tokens or chunk.finish_reason == "stop"
        for (_, how), chunk in zip(cases, chunks, strict=True)
    )
    assert counters.tokens == sum(len(chunk.columns) for chunk in chunks)
    assert (counters.running, counters.waiting) == (0, 0)


async def test_greedy_decoding_agrees_with_generate_of_transformers(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    async with running(folder) as engine:
        for length in (1, 5, 30):
            prompt = prompt_of(length)
            chunk = await complete(engine, prompt, SamplingParams(temperature=0, max_tokens=20))
            expected = model.generate(
                torch.tensor([prompt]), attention_mask=torch.ones(1, length), max_new_tokens=20, do_sample=False
            )
            assert chunk.columns.ids_array().tolist() == expected[0, length:].tolist()


async def test_a_seed_draws_the_same_tokens_alone_and_in_company(folder: str) -> None:
    sampling = SamplingParams(max_tokens=24, seed=11)
    async with running(folder) as engine:
        alone = await complete(engine, prompt_of(9), sampling)
        company = [complete(engine, prompt_of(3 + index), SamplingParams(max_tokens=5 + index)) for index in range(7)]
        together, *_ = await asyncio.gather(complete(engine, prompt_of(9), sampling), *company)
        other = await complete(engine, prompt_of(9), SamplingParams(max_tokens=24, seed=12))
    assert alone.columns.token_ids == together.columns.token_ids
    assert alone.columns.token_ids != other.columns.token_ids


async def test_siblings_without_a_seed_differ_and_compute_their_prompt_once(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = prompt_of(30)
    async with running(folder) as engine:
        chunks = await asyncio.gather(*(complete(engine, prompt, SamplingParams(max_tokens=16)) for _ in range(8)))
        assert engine.take_counters().prefilled_tokens < 2 * len(prompt)
    assert len({chunk.columns.token_ids for chunk in chunks}) == 8
    assert max(difference(model, prompt, chunk.columns, 1.0) for chunk in chunks) < 1e-5


async def test_more_requests_than_slots_wait_in_line(folder: str) -> None:
    async with running(folder, GenerationSettings(device="cpu", max_num_seqs=2, max_model_len=CONTEXT)) as engine:
        requests = [
            asyncio.create_task(complete(engine, prompt_of(5), SamplingParams(max_tokens=20, seed=seed)))
            for seed in range(9)
        ]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        counters = engine.take_counters()
        assert counters.running <= 2
        chunks = await asyncio.gather(*requests)
    async with running(folder) as roomy:
        for seed, chunk in enumerate(chunks):
            assert (
                chunk.columns.token_ids
                == (await complete(roomy, prompt_of(5), SamplingParams(max_tokens=20, seed=seed))).columns.token_ids
            )


async def test_a_request_that_waited_for_a_slot_delivers_its_first_token_at_once(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder, msgspec.structs.replace(SETTINGS, max_num_seqs=1)) as engine:

        async def lengths(sampling: SamplingParams) -> list[int]:
            return [len(chunk.columns) async for chunk in engine.generate("request", prompt_of(9), sampling)]

        sampling = SamplingParams(max_tokens=12, seed=0)
        monkeypatch.setattr(slots, "ANNOUNCED_SECONDS", 1e9)
        (whole,) = await lengths(sampling)
        monkeypatch.setattr(slots, "ANNOUNCED_SECONDS", -1.0)
        assert await lengths(sampling) == [1, whole - 1]


async def test_closing_the_iterator_or_cancelling_its_task_frees_the_slot(folder: str) -> None:
    endless = SamplingParams(max_tokens=CONTEXT - 4, seed=3)
    async with running(folder, GenerationSettings(device="cpu", max_num_seqs=1, max_model_len=CONTEXT)) as engine:
        stream = engine.generate("closed", prompt_of(4), endless, stream=True)
        await anext(stream)
        cancelled = asyncio.create_task(complete(engine, prompt_of(4), endless))
        await asyncio.sleep(0)
        await stream.aclose()
        cancelled.cancel()
        chunk = await asyncio.wait_for(
            complete(engine, prompt_of(6), SamplingParams(temperature=0, max_tokens=4)), timeout=300
        )
        assert difference(AutoModelForCausalLM.from_pretrained(folder), prompt_of(6), chunk.columns, 0.0) < 1e-5
        counters = engine.take_counters()
        assert (counters.running, counters.waiting) == (0, 0)
        assert counters.tokens < 2 * endless.max_tokens


async def test_ids_out_of_range_and_too_long_requests_are_refused_by_field(folder: str) -> None:
    async with running(folder) as engine:
        for bad in ([2, VOCABULARY], [-1, 3], []):
            with pytest.raises(RequestError, match="prompt_ids") as refused:
                await complete(engine, bad, SamplingParams(max_tokens=4))
            assert refused.value.field == "prompt_ids"
        with pytest.raises(RequestError, match=r"90.*7.*96") as refused:
            await complete(engine, prompt_of(90), SamplingParams(max_tokens=7))
        assert refused.value.field == "max_tokens"
        assert len((await complete(engine, prompt_of(90), SamplingParams(temperature=0, max_tokens=6))).columns) <= 6


async def test_a_stop_token_ends_the_completion(tmp_path: Path) -> None:
    model = random_qwen(2)
    prompt = prompt_of(6)
    with torch.no_grad():
        first = int(model(torch.tensor([prompt])).logits[0, -1].argmax())
    model.config.eos_token_id = model.generation_config.eos_token_id = [1, first]
    async with running(save(model, tmp_path)) as engine:
        chunk = await complete(engine, prompt, SamplingParams(temperature=0, max_tokens=10))
    assert chunk.columns.ids_array().tolist() == [first]
    assert chunk.finish_reason == "stop"


async def test_a_stop_string_ends_the_completion_and_its_tokens_are_kept(folder: str) -> None:
    sampling = SamplingParams(max_tokens=40, seed=5)
    async with running(folder) as engine:
        whole = await complete(engine, prompt_of(7), sampling)
        text = engine.tokenizer.decode(whole.columns.ids_array().tolist())
        stop = text[8:11]
        cut = await complete(engine, prompt_of(7), SamplingParams(max_tokens=40, seed=5, stop=("never said", stop)))
        chunks = [
            chunk
            async for chunk in engine.generate(
                "s", prompt_of(7), SamplingParams(max_tokens=40, seed=5, stop=(stop,)), stream=True
            )
        ]
    assert cut.finish_reason == "stop"
    assert b"".join(chunk.columns.token_ids for chunk in chunks) == cut.columns.token_ids
    assert whole.columns.token_ids.startswith(cut.columns.token_ids)
    assert stop in engine.tokenizer.decode(cut.columns.ids_array().tolist())


async def test_streamed_chunks_add_up_to_the_whole(folder: str) -> None:
    async with running(folder) as engine:
        for seed in range(6):
            sampling = SamplingParams(max_tokens=32, seed=seed)
            whole = await complete(engine, prompt_of(5), sampling)
            chunks = [chunk async for chunk in engine.generate("s", prompt_of(5), sampling, stream=True)]
            assert b"".join(chunk.columns.token_ids for chunk in chunks) == whole.columns.token_ids
            assert b"".join(chunk.columns.logprobs for chunk in chunks) == whole.columns.logprobs
            assert [chunk.finish_reason for chunk in chunks] == [""] * (len(chunks) - 1) + [whole.finish_reason]


async def test_a_failure_of_the_decode_thread_fails_all_calls_and_closes_the_engine(tmp_path: Path) -> None:
    model = random_qwen(0)
    model.config.max_position_embeddings = 2048
    folder = save(model, tmp_path / "model")
    poisoned = {name: torch.full_like(tensor, torch.nan) for name, tensor in model.state_dict().items()}
    location = write_weights(poisoned, tmp_path / "v1", folder)
    endless = SamplingParams(max_tokens=2000, logit_bias={1: -100.0})
    async with running(folder, msgspec.structs.replace(SETTINGS, max_model_len=2048)) as engine:
        streams = [engine.generate(str(index), prompt_of(5), endless, stream=True) for index in range(3)]
        for stream in streams:
            await anext(stream)
        await engine.load_weights(location, 1)
        for stream in streams:
            with pytest.raises(EngineError, match="not finite under weight version 1"):
                [chunk async for chunk in stream]
        with pytest.raises(EngineError, match="not finite"):
            await complete(engine, prompt_of(5), SamplingParams(max_tokens=4))


async def test_closing_fails_what_still_runs(folder: str) -> None:
    sampling = SamplingParams(max_tokens=90)
    async with running(folder, msgspec.structs.replace(SETTINGS, max_num_seqs=1)) as engine:
        streams = [engine.generate(f"late {number}", prompt_of(5), sampling, stream=True) for number in range(64)]
        reading = [
            asyncio.create_task(count_chunks(stream)) for stream in streams
        ]  # the last of them waits for the slot
        await asyncio.sleep(0.01)
        await engine.close()
        ended = await asyncio.gather(*reading, return_exceptions=True)
    assert isinstance(ended[-1], EngineError)
    assert "closed" in str(ended[-1])


async def count_chunks(stream) -> int:
    return len([chunk async for chunk in stream])


FAMILIES = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=2,
            n_positions=128,
            initializer_range=0.1,
            bos_token_id=1,
            eos_token_id=1,
        )
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_other_families_decode_as_they_compute(family: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = FAMILIES[family]().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    prompts = [prompt_of(length) for length in (1, 9, 33)]
    async with running(save(model, tmp_path)) as engine:
        chunks = await asyncio.gather(
            *(complete(engine, prompt, SamplingParams(max_tokens=12, seed=0)) for prompt in prompts)
        )
    assert (
        max(difference(model, prompt, chunk.columns, 1.0) for prompt, chunk in zip(prompts, chunks, strict=True)) < 1e-5
    )


async def test_bfloat16_decodes_within_its_own_rounding(folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    async with running(
        folder, GenerationSettings(device="cpu", dtype="bfloat16", max_num_seqs=4, max_model_len=CONTEXT)
    ) as engine:
        chunks = await asyncio.gather(
            *(complete(engine, prompt_of(length), SamplingParams(max_tokens=12, seed=0)) for length in (3, 20))
        )
    for length, chunk in zip((3, 20), chunks, strict=True):
        assert difference(model, prompt_of(length), chunk.columns, 1.0) < 0.1


def test_a_missing_model_and_a_context_beyond_it_are_refused(folder: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json"):
        load_model(str(tmp_path), SETTINGS)
    with pytest.raises(SetupError, match=r"500.*128"):
        load_model(folder, GenerationSettings(device="cpu", max_model_len=500))
