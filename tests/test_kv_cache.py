"""Memory of the KV cache: used where it is written on a CPU, and growing on other devices."""

import asyncio
import os
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest
import torch
from support.tiny_engine import SETTINGS, complete, difference, prompt_of, random_qwen, running, save

from areal_actors.core.machine import anonymous_bytes
from areal_actors.core.values import SamplingParams
from areal_actors.embedded import fused_decoder, kv_cache
from areal_actors.embedded.decoders import ModelDecoder
from areal_actors.embedded.fused_decoder import FusedDecoder
from areal_actors.embedded.kv_cache import KVCache, zeros

MEBIBYTE = 2**20


def test_a_cache_takes_memory_for_what_is_written():
    cache, process = KVCache(4, 256, 1024), psutil.Process()
    before = process.memory_info().rss
    for layer in range(4):
        entries = torch.ones(3, 8, 40, 64)
        cache.write_prompts(layer, torch.tensor([0, 1, 200]), entries, entries)
    used = process.memory_info().rss - before
    assert sum(storage.nbytes for pair in cache._layers for storage in pair) == 4096 * MEBIBYTE
    assert used < 64 * MEBIBYTE, "4 layers x 3 rows x 8 heads x 40 positions x 64 x keys and values x 4 bytes are 2 MiB"


@pytest.fixture
def small_first(monkeypatch):
    """A cache of a device that provides no memory at the first write: it begins with 2 rows and 8 positions."""
    monkeypatch.setattr(kv_cache, "WHOLE", ())
    monkeypatch.setattr(kv_cache, "FIRST", (2, 8))


def test_rows_and_positions_grow_with_what_is_written(small_first):
    cache, written = KVCache(2, 16, 64), {}
    numbers = np.random.default_rng(0)
    for row, length in ((0, 3), (1, 8), (2, 5), (9, 20), (15, 64)):
        entries = torch.from_numpy(numbers.normal(size=(2, 1, 2, length, 4)).astype(np.float32))
        for layer in range(2):
            cache.write_prompts(layer, torch.tensor([row]), entries[layer], -entries[layer])
        written[row] = entries
    assert cache._layers[0][0].shape == (16, 2, 64, 4)
    for row, entries in written.items():
        for layer, (keys, values) in enumerate(cache._layers):
            assert torch.equal(keys[row, :, : entries.shape[3]], entries[layer, 0])
            assert torch.equal(values[row, :, : entries.shape[3]], -entries[layer, 0])


def test_a_copy_and_an_exchange_reach_rows_without_storage(small_first):
    cache, entries = KVCache(1, 16, 64), torch.randn(1, 2, 6, 4)
    cache.write_prompts(0, torch.tensor([0]), entries, -entries)
    cache.copy(0, 7, 6)
    cache.exchange(7, 12, 6, 0)
    keys, values = cache._layers[0]
    assert torch.equal(keys[12, :, :6], entries[0])
    assert torch.equal(values[12, :, :6], -entries[0])


@pytest.mark.parametrize("decoder", [FusedDecoder, ModelDecoder])
async def test_completions_are_those_of_the_model_while_the_cache_grows(tmp_path, small_first, monkeypatch, decoder):
    monkeypatch.setattr(FusedDecoder, "fits", staticmethod(lambda model: decoder is FusedDecoder))
    model = random_qwen(0)
    async with running(save(model, tmp_path), msgspec.structs.replace(SETTINGS, max_num_seqs=6)) as engine:
        first = engine._loop._decoder.kv_cache._layers[0][0].shape
        cases = [(prompt_of(3 + 8 * index), SamplingParams(max_tokens=3 + 3 * index, seed=index)) for index in range(9)]
        chunks = await asyncio.gather(*(complete(engine, *case) for case in cases))
        last = engine._loop._decoder.kv_cache._layers[0][0].shape
    assert (
        max(difference(model, prompt, chunk.columns, 1.0) for (prompt, _), chunk in zip(cases, chunks, strict=True))
        < 1e-5
    )
    assert first[0] < last[0] == 6
    assert first[2] < last[2]


@pytest.mark.parametrize("rows", [1, 3, 8, 32, 33])
def test_logits_of_a_large_vocabulary_are_those_of_the_model(monkeypatch, rows):
    monkeypatch.setattr(fused_decoder, "HEAD_SIZE", 100)
    monkeypatch.setattr(fused_decoder, "HEAD_PART", 96)  # the last part is smaller
    model = random_qwen(0)
    decoder, hidden = FusedDecoder(model, 64, 32), torch.randn(rows, 64)
    with torch.inference_mode():
        assert torch.allclose(decoder._logits(hidden), model.lm_head(hidden), rtol=1e-5, atol=1e-5)


def test_the_parameters_of_the_model_are_views_of_the_fused_weights():
    model, other = random_qwen(0), random_qwen(1)
    ids = torch.tensor([prompt_of(12)])
    expected = other(ids).logits
    decoder = FusedDecoder(model, 4, 32)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(other.state_dict()[name])
        decoder.refresh()
        decoder.prefill([0], ids[:, :-1].numpy())
        logits = decoder.decode(ids[0, -1:].numpy(), np.array([11]))
    assert torch.allclose(logits[0], expected[0, -1], rtol=1e-4, atol=1e-5)
    assert torch.allclose(model(ids).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory by kind is Linux's")
def test_memory_of_keys_and_values_counts_as_that_of_the_process():
    before = anonymous_bytes(os.getpid())
    storage = zeros((16, 4, 1024, 64), torch.zeros(0))
    storage.fill_(1.0)
    assert anonymous_bytes(os.getpid()) - before == pytest.approx(storage.nbytes, rel=0.2)


@pytest.mark.parametrize("together", [512, 4])
def test_several_rows_are_exchanged_as_one_after_another(monkeypatch, together):
    monkeypatch.setattr(kv_cache, "TOGETHER", together)
    lengths = np.array([5, 9, 0, 7, 3, 12, 6, 1])
    caches = [KVCache(2, 8, 16), KVCache(2, 8, 16)]
    entries = torch.randn(2, 8, 2, 12, 4)
    for cache in caches:
        for layer in range(2):
            cache.write_prompts(layer, torch.arange(8), entries[layer], -entries[layer])
    firsts, seconds = np.array([5, 6, 7]), np.array([2, 0, 3])
    caches[0].exchange_rows(firsts, seconds, lengths)
    for first, second in zip(firsts.tolist(), seconds.tolist(), strict=True):
        caches[1].exchange(first, second, int(lengths[first]), int(lengths[second]))
    lengths[[*firsts, *seconds]] = lengths[[*seconds, *firsts]]
    for pair, expected in zip(caches[0]._layers, caches[1]._layers, strict=True):
        for storage, whole in zip(pair, expected, strict=True):
            for row, length in enumerate(lengths):
                assert torch.equal(storage[row, :, :length], whole[row, :, :length])
