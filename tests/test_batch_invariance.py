"""A completion's numbers are the same to the last bit whatever is decoded beside it, in whichever slot."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from support.tiny_engine import SHAPE, VOCABULARY, complete, prompt_of, random_qwen, running, save
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.batch_invariance import (
    MIN_POSITIONS,
    MIN_ROWS,
    ROW_STEP,
    VECTOR,
    pad_rows,
    padded_positions,
)
from areal_actors.embedded.prefill import prefill_batches
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.settings import GenerationSettings
from areal_actors.recipe.recipe import Recipe

LONG = 640
"""Positions beyond several blocks of attention."""
TOKENS = 16


def qwen2() -> Qwen2ForCausalLM:
    """Wider than the other, where products of few rows are done by yet other kernels; biases; seven queries to a head
    of keys."""
    shape = {
        **SHAPE,
        "hidden_size": 112,
        "intermediate_size": 1024,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**shape, "max_position_embeddings": LONG})).eval()


def gpt2() -> GPT2LMHeadModel:
    """Decoded by its own forward."""
    torch.manual_seed(0)
    sizes = {"n_positions": LONG, "n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": None, "eos_token_id": 1}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, **sizes)).eval()


MODELS = {"qwen3": (lambda: random_qwen(0), 96), "qwen2": (qwen2, LONG), "gpt2": (gpt2, LONG)}


async def beside(
    engine: TransformersEngine, prompt: list[int], sampling: SamplingParams, others: int, context: int
) -> TokenChunk:
    """The completion among `others` others of all lengths; half of them came before it, and some end before it does."""
    lengths = [1 + (37 * number + len(prompt)) % (context - TOKENS) for number in range(others)]
    company = [
        complete(engine, prompt_of(length, number), SamplingParams(max_tokens=1 + 7 * number % TOKENS, seed=number))
        for number, length in enumerate(lengths)
    ]
    found = await asyncio.gather(*company[: others // 2], complete(engine, prompt, sampling), *company[others // 2 :])
    return found[others // 2]


@pytest.mark.parametrize("name", MODELS)
async def test_what_is_decoded_beside_a_completion_changes_no_bit_of_it(name: str, tmp_path: Path) -> None:
    make, context = MODELS[name]
    settings = GenerationSettings(device="cpu", max_num_seqs=48, max_model_len=context, batch_invariant="on")
    lengths = [length for length in (1, 15, 17, 71, 129, 385, 600) if length + TOKENS <= context]
    differing = []
    async with running(save(make(), tmp_path), settings) as engine:
        for length in lengths:
            prompt, sampling = prompt_of(length), SamplingParams(max_tokens=TOKENS, seed=length)
            alone = await complete(engine, prompt, sampling)
            found = [(others, await beside(engine, prompt, sampling, others, context)) for others in (3, 40)]
            differing += [(length, others) for others, chunk in found if chunk != alone]
    assert differing == []


async def test_siblings_that_share_a_prompt_have_the_numbers_that_each_has_alone(tmp_path: Path) -> None:
    settings = GenerationSettings(device="cpu", max_num_seqs=16, max_model_len=96, batch_invariant="on")
    ways = [SamplingParams(max_tokens=TOKENS, seed=seed, temperature=0.5 + seed / 4) for seed in range(4)]
    async with running(save(random_qwen(0), tmp_path), settings) as engine:
        alone = [await complete(engine, prompt_of(33), way) for way in ways]
        together = await asyncio.gather(*(complete(engine, prompt_of(33), way) for way in ways))
    assert list(together) == alone
    assert len({chunk.columns.token_ids for chunk in alone}) == len(ways)


async def test_fewer_slots_than_a_step_has_rows_are_enough(tmp_path: Path) -> None:
    folder, sampling = save(random_qwen(0), tmp_path), SamplingParams(max_tokens=TOKENS, seed=3)
    found = []
    for slots in (1, 3, 40):
        async with running(
            folder, GenerationSettings(device="cpu", max_num_seqs=slots, max_model_len=57, batch_invariant="on")
        ) as engine:
            found += await asyncio.gather(*(complete(engine, prompt_of(33), sampling) for _ in range(4)))
    assert all(chunk == found[0] for chunk in found)


def test_only_prompts_of_one_length_are_computed_together_within_the_budget() -> None:
    batches = prefill_batches([5, 9, 5, 9, 5, 70], 12, equal=True)
    assert batches == [[0, 2], [4], [1], [3], [5]]


def test_attention_looks_at_whole_vectors_of_positions_and_never_at_few() -> None:
    seen = [padded_positions(longest) for longest in range(1, 1025)]
    assert all(number >= max(longest, MIN_POSITIONS) and number % VECTOR == 0 for longest, number in enumerate(seen, 1))
    assert max(number - longest for longest, number in enumerate(seen, 1) if longest > MIN_POSITIONS) < VECTOR


def test_rows_beyond_those_in_use_are_at_the_first_position() -> None:
    assert pad_rows(np.array([7, 8])).tolist() == [7, 8, *[0] * (MIN_ROWS - 2)]
    for rows in range(1, 200):
        column = pad_rows(np.arange(1, rows + 1))
        assert column[:rows].tolist() == list(range(1, rows + 1))
        assert not column[rows:].any()
        assert len(column) >= MIN_ROWS
        assert len(column) % ROW_STEP == 0


@pytest.mark.parametrize(
    ("stated", "staleness", "resolved"), [("auto", 0, "on"), ("auto", 2, "off"), ("off", 0, "off"), ("on", 2, "on")]
)
def test_a_recipe_s_engines_are_batch_invariant_where_training_is_synchronous(
    stated: str, staleness: int, resolved: str
) -> None:
    tables = {
        "run": "x",
        "steps": 1,
        "model": "embedded",
        "task": {},
        "algorithm": {"name": "grpo"},
        "staleness_gate": {"max_staleness": staleness},
        "generation": {"batch_invariant": stated, "max_num_seqs": 7},
    }
    made = msgspec.convert(tables, Recipe).engine_settings()
    assert (made.batch_invariant, made.max_num_seqs) == (resolved, 7)
