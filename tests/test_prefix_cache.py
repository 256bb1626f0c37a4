"""The prefix cache of the embedded engine: what a later turn reuses, and that it changes no number."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_engine import VOCABULARY, complete, difference, prompt_of, random_qwen, running, save
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from areal_actors.core.values import SamplingParams, WeightsLocation
from areal_actors.embedded import prefill as prefill_module
from areal_actors.embedded.decoders import ModelDecoder, SlotDecoder
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.embedded.kv_cache import KVCache
from areal_actors.embedded.prefill import prefill
from areal_actors.embedded.prefix_cache import MIN_PREFIX, PrefixCache
from areal_actors.embedded.slots import DecodeRequest, DecodeSlots
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.engine import EngineCounters, TokenChunk
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.weights.transfer import write_weights

POSITIONS = 128
SETTINGS = GenerationSettings(device="cpu", max_num_seqs=4, max_model_len=POSITIONS)
SHORT = SamplingParams(max_tokens=4, seed=1)


def gpt2() -> GPT2LMHeadModel:
    """Decoded by its own forward."""
    torch.manual_seed(0)
    sizes = {"n_positions": POSITIONS, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, initializer_range=0.1, **sizes)).eval()


MODELS = {"qwen3": lambda: random_qwen(0), "gpt2": gpt2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save(random_qwen(0), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def new_weights(tmp_path_factory: pytest.TempPathFactory, folder: str) -> WeightsLocation:
    return write_weights(random_qwen(1).state_dict(), tmp_path_factory.mktemp("weights") / "v1", folder)


def tokens_of(prompt: Sequence[int], chunk: TokenChunk) -> list[int]:
    """A prompt with its completion."""
    return [*prompt, *chunk.columns.ids_array().tolist()]


async def counted(
    engine: TransformersEngine, prompt: Sequence[int], sampling: SamplingParams = SHORT
) -> tuple[TokenChunk, EngineCounters]:
    """A completion, and what it added to the counters."""
    engine.take_counters()
    return await complete(engine, prompt, sampling), engine.take_counters()


async def ended(engine: TransformersEngine, seed: int = 0, length: int = MIN_PREFIX + 8) -> list[int]:
    """The tokens of a completion that has ended."""
    prompt = prompt_of(length, seed)
    return tokens_of(prompt, await complete(engine, prompt, SHORT))


@pytest.mark.parametrize("name", MODELS)
async def test_each_turn_computes_what_the_turn_before_has_not(name: str, tmp_path: Path) -> None:
    folder = save(MODELS[name](), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    history = prompt_of(MIN_PREFIX + 8)
    async with running(folder, SETTINGS) as engine:
        chunk, counters = await counted(engine, history)
        assert (counters.prefilled_tokens, counters.cached_tokens) == (len(history) - 1, 0)
        for turn in range(9):
            before = tokens_of(history, chunk)
            history = [*before, *prompt_of(3, turn)]
            chunk, counters = await counted(engine, history, SamplingParams(max_tokens=4, seed=turn))
            # The last token of the turn before was never fed, and the last of the prompt is fed by the decode step.
            assert (counters.prefilled_tokens, counters.cached_tokens) == (3, len(before) - 1)
            assert difference(model, history, chunk.columns, 1.0) < 1e-5


async def test_new_weights_reuse_nothing_of_earlier_ones(folder: str, new_weights: WeightsLocation) -> None:
    async with running(folder, SETTINGS) as engine:
        before = [*await ended(engine), 5, 6]
        await engine.load_weights(new_weights, 1)
        chunk, counters = await counted(engine, before)
        assert (counters.prefilled_tokens, counters.cached_tokens) == (len(before) - 1, 0)
        assert difference(random_qwen(1), before, chunk.columns, 1.0) < 1e-5
        after = [*tokens_of(before, chunk), 7, 8]
        chunk, counters = await counted(engine, after)
        assert counters.cached_tokens == len(after) - 3
        assert difference(random_qwen(1), after, chunk.columns, 1.0) < 1e-5


@contextmanager
def decoding_held(engine: TransformersEngine) -> Iterator[None]:
    """Decode no token before the next command: a busy machine may read weights more slowly than a completion takes."""
    decoder, commands, holds = engine._loop._decoder, engine._loop._inbox, [True]
    decode = decoder.decode

    def held(token_ids: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        while holds and commands.empty():
            time.sleep(0.001)
        return decode(token_ids, positions)

    decoder.decode = held  # type: ignore[method-assign]
    yield
    holds.clear()


async def test_a_completion_that_met_new_weights_is_continued_with_what_they_recomputed(
    folder: str, new_weights: WeightsLocation
) -> None:
    prompt = prompt_of(MIN_PREFIX)
    async with running(folder, SETTINGS) as engine:
        stream = engine.generate(
            "x", prompt, SamplingParams(max_tokens=60, seed=1, logit_bias={1: -100.0}), stream=True
        )
        history = tokens_of(prompt, await anext(stream))
        with decoding_held(engine):
            await engine.load_weights(new_weights, 1)
        async for chunk in stream:
            history = tokens_of(history, chunk)
        after, counters = await counted(engine, [*history, 5])
    assert counters.cached_tokens == len(history) - 1
    assert difference(random_qwen(1), [*history, 5], after.columns, 1.0) < 1e-5


async def test_a_history_that_diverges_reuses_the_common_prefix(folder: str) -> None:
    model = random_qwen(0)
    async with running(folder, SETTINGS) as engine:
        first = await ended(engine)
        for common in (MIN_PREFIX - 1, MIN_PREFIX, MIN_PREFIX + 1, len(first) - 2):
            diverging = [*first[:common], (first[common] + 1) % VOCABULARY, *prompt_of(9, common)]
            chunk, counters = await counted(engine, diverging)
            assert counters.cached_tokens == (common if common >= MIN_PREFIX else 0)
            assert counters.prefilled_tokens + counters.cached_tokens == len(diverging) - 1
            assert difference(model, diverging, chunk.columns, 1.0) < 1e-5
        chunk, counters = await counted(engine, [*first, 7])
        assert counters.cached_tokens == len(first) - 1, "the copied row is still whole"
        assert difference(model, [*first, 7], chunk.columns, 1.0) < 1e-5


async def test_a_prompt_that_is_cached_to_its_end_computes_nothing(folder: str) -> None:
    async with running(folder, SETTINGS) as engine:
        prompt = prompt_of(MIN_PREFIX + 8)
        first = await complete(engine, prompt, SHORT)
        again, counters = await counted(engine, prompt)
        assert (counters.prefilled_tokens, counters.cached_tokens) == (0, len(prompt) - 1)
        assert again == first


async def test_the_least_recently_used_slot_is_replaced_when_all_are_in_use(folder: str) -> None:
    async with running(folder, msgspec.structs.replace(SETTINGS, max_num_seqs=3)) as engine:
        first, second, third = [await ended(engine, seed) for seed in range(3)]
        first = tokens_of([*first, 5], await complete(engine, [*first, 5], SHORT))
        await ended(engine, 3)
        found = {}
        for name, history in (("third", third), ("first", first), ("second", second)):
            chunk, counters = await counted(engine, [*history, 5])
            found[name] = counters.cached_tokens
            assert difference(random_qwen(0), [*history, 5], chunk.columns, 1.0) < 1e-5
        assert found == {"third": len(third) - 1, "first": len(first) - 1, "second": 0}


async def test_requests_for_all_slots_replace_all_that_was_kept(folder: str) -> None:
    async with running(folder, SETTINGS) as engine:
        histories = [await ended(engine, seed) for seed in range(4)]
        streams = [
            engine.generate("x", prompt_of(20, seed), SamplingParams(max_tokens=50), stream=True)
            for seed in range(4, 8)
        ]
        for stream in streams:
            await anext(stream)
        for stream in streams:
            await stream.aclose()
        for history in histories:
            assert (await counted(engine, [*history, 5]))[1].cached_tokens == 0


async def test_two_requests_continue_the_same_history_at_once(folder: str) -> None:
    async with running(folder, SETTINGS) as engine:
        history = await ended(engine)
        branches = [[*history, 10 + branch, *prompt_of(6, branch)] for branch in range(2)]
        engine.take_counters()
        chunks = await asyncio.gather(*(complete(engine, branch, SHORT) for branch in branches))
        counters = engine.take_counters()
    assert counters.cached_tokens == 2 * (len(history) - 1)
    for branch, chunk in zip(branches, chunks, strict=True):
        assert difference(random_qwen(0), branch, chunk.columns, 1.0) < 1e-5


async def test_an_aborted_completion_is_continued_from_what_it_computed(folder: str) -> None:
    prompt = prompt_of(MIN_PREFIX)
    async with running(folder, SETTINGS) as engine:
        stream = engine.generate(
            "x", prompt, SamplingParams(max_tokens=90, seed=1, logit_bias={1: -100.0}), stream=True
        )
        sampled = [(await anext(stream)).columns.ids_array()[0] for _ in range(5)]
        await stream.aclose()
        history = [*prompt, *map(int, sampled), 9]
        chunk, counters = await counted(engine, history)
    assert counters.cached_tokens == len(history) - 1 - (counters.prefilled_tokens)
    assert counters.cached_tokens >= len(prompt) + 4
    assert difference(random_qwen(0), history, chunk.columns, 1.0) < 1e-5


async def test_episodes_that_come_and_go_keep_every_number_right(folder: str) -> None:
    """Rows are moved and copied all the time: slots for fewer episodes than there are, of unequal length."""
    model = random_qwen(0)
    shared = prompt_of(MIN_PREFIX + 2, 77)
    cached = 0

    async def episode(number: int) -> float:
        history, worst = [*shared, *prompt_of(1 + number % 7, number)], 0.0
        for turn in range(5):
            sampling = SamplingParams(max_tokens=1 + (3 * number + turn) % 9, seed=number)
            chunk = await complete(engine, history, sampling)
            worst = max(worst, difference(model, history, chunk.columns, 1.0))
            history = [*tokens_of(history, chunk), *prompt_of(1 + (number + turn) % 5, turn)]
        return worst

    for slots in (3, 6):
        async with running(folder, msgspec.structs.replace(SETTINGS, max_num_seqs=slots)) as engine:
            assert max(await asyncio.gather(*(episode(number) for number in range(9)))) < 1e-5
            cached += engine.take_counters().cached_tokens
    assert cached > 2 * 9 * len(shared)


async def test_batch_invariant_results_do_not_depend_on_what_was_computed_before(folder: str) -> None:
    settings = msgspec.structs.replace(SETTINGS, batch_invariant="on")
    sampling = SamplingParams(max_tokens=16, seed=3)
    async with running(folder, settings) as engine:
        history = [*await ended(engine), *prompt_of(4)]
        later, counters = await counted(engine, history, sampling)
    async with running(folder, settings) as fresh:
        first = await complete(fresh, history, sampling)
    assert later == first
    assert (counters.prefilled_tokens, counters.cached_tokens) == (len(history) - 1, 0)


async def test_a_group_s_shared_prompt_is_counted_once_as_prefilled_and_else_as_cached(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, endless = prompt_of(12), SamplingParams(max_tokens=80, logit_bias={1: -100.0})
    for invariant in ("on", "off"):
        async with running(folder, msgspec.structs.replace(SETTINGS, batch_invariant=invariant)) as engine:
            sent, admit = threading.Event(), engine._loop._admit
            monkeypatch.setattr(engine._loop, "_admit", lambda sent=sent, admit=admit: (sent.wait(), admit()))
            group = [asyncio.create_task(complete(engine, prompt, endless)) for _ in range(4)]
            await asyncio.sleep(0)
            sent.set()
            await asyncio.gather(*group)
            counters = engine.take_counters()
        assert (counters.prefilled_tokens, counters.cached_tokens) == (len(prompt) - 1, 3 * (len(prompt) - 1))


# ---------------------------------------------------------------- parts of it


@pytest.fixture
def slots(folder: str) -> DecodeSlots:
    return DecodeSlots(6, POSITIONS, VOCABULARY, ChatTokenizer.load(folder))


def request(prompt: Sequence[int], folder: str) -> DecodeRequest:
    return DecodeRequest("x", np.array(prompt, dtype=np.int64), SHORT, ChatTokenizer.load(folder), stream=False)


@pytest.mark.parametrize("kind", [FusedDecoder, ModelDecoder])
@pytest.mark.parametrize(("most", "budget"), [(512, 4096), (5, 40)])
async def test_rows_with_prefixes_of_any_length_are_extended_together(
    kind: type[SlotDecoder], most: int, budget: int, folder: str, slots: DecodeSlots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in parts, and to the end of the context, beyond which padding would lie."""
    monkeypatch.setattr(prefill_module, "SUFFIX_TOKENS", most)
    monkeypatch.setattr(prefill_module, "PREFILL_TOKENS", budget)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    decoder = kind(model, slots.capacity, POSITIONS)  # type: ignore[call-arg]
    lengths, prefixes = [124, 90, 33, 60, 2, 50], [100, 3, 31, 0, 0, 49]
    for row, (length, prefix) in enumerate(zip(lengths, prefixes, strict=True)):
        slots.add(row, request(prompt_of(length, row), folder))
        slots.lengths[row] = max(prefix + 1, 1)
    with torch.inference_mode():
        assert prefill(decoder, slots, range(6), equal=False) == sum(prefixes)
        slots.lengths[:] = lengths
        assert prefill(decoder, slots, range(6), equal=False) == sum(lengths) - 6 - sum(prefixes)
        assert slots.cached.tolist() == [length - 1 for length in lengths]
        logits = decoder.decode(*slots.step_inputs()[:2])
        for row, length in enumerate(lengths):
            plain = model(torch.tensor([prompt_of(length, row)])).logits[0, -1]
            assert (torch.log_softmax(plain, -1) - torch.log_softmax(logits[row], -1)).abs().max() < 1e-5


async def test_the_longest_prefix_is_the_one_that_a_comparison_of_every_token_finds(
    folder: str, slots: DecodeSlots
) -> None:
    cache, numbers = PrefixCache(slots, KVCache(0, slots.capacity, POSITIONS)), np.random.default_rng(0)
    base = numbers.integers(0, VOCABULARY, POSITIONS)
    sizes = (0, 1, MIN_PREFIX - 1, MIN_PREFIX, MIN_PREFIX + 1, 2 * MIN_PREFIX - 1, 2 * MIN_PREFIX, 100, POSITIONS - 1)
    reused = 0
    for _ in range(2000):
        for row in range(slots.capacity):
            slots.tokens[row] = base
            slots.tokens[row, numbers.choice(sizes)] += 1
            slots.cached[row] = numbers.choice(sizes)
        prompt = base[: numbers.integers(1, POSITIONS)].copy()
        prompt[numbers.integers(0, len(prompt))] += numbers.integers(0, 2)
        limits = np.minimum(slots.cached, len(prompt) - 1)
        lengths = [
            next((at for at in range(limit) if row[at] != prompt[at]), limit)
            for row, limit in zip(slots.tokens, limits, strict=True)
        ]
        longest = max(lengths)
        rows, length = cache._find(prompt)
        if longest < MIN_PREFIX:
            assert (len(rows), length) == (0, 0)
        else:
            assert (rows.tolist(), length) == ([row for row, own in enumerate(lengths) if own == longest], longest)
            reused += 1
    assert reused > 200


async def test_a_request_that_fits_a_kept_history_gets_it_before_another_replaces_it(
    folder: str, slots: DecodeSlots
) -> None:
    cache = PrefixCache(slots, KVCache(0, slots.capacity, POSITIONS))
    histories = [request(prompt_of(40, seed), folder) for seed in range(slots.capacity)]
    cache.place(histories)
    slots.cached[:] = 39
    cache.retain([history.row for history in histories])
    fresh, continued = request(prompt_of(50, 9), folder), request([*prompt_of(40, 0), 5], folder)
    cache.place([fresh, continued])
    assert slots.cached[[fresh.row, continued.row]].tolist() == [0, 39]
    assert fresh.row != continued.row


async def test_running_completions_move_to_the_first_rows_and_exchange_what_is_kept_there(
    folder: str, slots: DecodeSlots
) -> None:
    kv_cache = KVCache(1, slots.capacity, POSITIONS)
    cache = PrefixCache(slots, kv_cache)
    requests = [request(prompt_of(40 + seed, seed), folder) for seed in range(6)]
    cache.place(requests)
    for row, one in enumerate(requests):
        entries = torch.tensor(one.prompt_ids, dtype=torch.float32)[None, None, :, None]
        kv_cache.write_prompts(0, torch.tensor([row]), entries, -entries)
        slots.cached[row] = len(one.prompt_ids) - 1
    cache.retain([0, 1, 4])
    cache.compact()
    assert sorted(slots.running) == [0, 1, 2]
    assert all(slots.running[one.row] is one for one in requests if one.row >= 0)
    stored = kv_cache._layers[0]
    assert stored is not None
    for row in range(6):
        count = int(slots.cached[row])
        for storage, sign in zip(stored, (1, -1), strict=True):
            assert (storage[row, 0, :count, 0] * sign).tolist() == slots.tokens[row, :count].tolist()
    assert sorted(slots.cached.tolist()) == [39, 40, 41, 42, 43, 44]
    for seed in (0, 1, 4):
        again = request([*prompt_of(40 + seed, seed), 5], folder)
        cache.place([again])
        assert slots.cached[again.row] == 39 + seed
