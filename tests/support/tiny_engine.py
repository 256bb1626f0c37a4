"""Shared by the tests of the embedded engine: a tiny random model in a folder, and an engine over it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.core.values import SamplingParams, TokenColumns, joined_columns
from areal_actors.embedded.transformers import TransformersEngine
from areal_actors.generation.engine import TokenChunk
from areal_actors.generation.settings import GenerationSettings

VOCABULARY = 400
CONTEXT = 96
MARK = "<mark>"
"""A special token besides those that end a completion."""
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.08,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "bos_token_id": None,
}
SETTINGS = GenerationSettings(device="cpu", max_num_seqs=8, max_model_len=CONTEXT)


def save(model: torch.nn.Module, folder: Path) -> str:
    """A Hugging Face folder of a model with a byte-level tokenizer of fewer tokens than the model has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = ["<pad>", "<end>", MARK]
    tokenizer.train_from_iterator(
        [], trainers.BpeTrainer(initial_alphabet=alphabet, special_tokens=marks, show_progress=False)
    )
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>"}))
    return str(folder)


def random_qwen(seed: int, head_dim: int = 16) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=head_dim, tie_word_embeddings=True)).eval()


@asynccontextmanager
async def running(folder: str, settings: GenerationSettings = SETTINGS) -> AsyncIterator[TransformersEngine]:
    engine = TransformersEngine(folder, settings)
    try:
        yield engine
    finally:
        await engine.close()


async def complete(engine: TransformersEngine, prompt: Sequence[int], sampling: SamplingParams) -> TokenChunk:
    """A completion that is not streamed: one chunk, or on a slow machine those of every few seconds, as one."""
    chunks = [chunk async for chunk in engine.generate("request", prompt, sampling)]
    assert chunks[-1].finish_reason
    return msgspec.structs.replace(
        chunks[-1],
        columns=joined_columns([chunk.columns for chunk in chunks]),
        top_ids=b"".join(chunk.top_ids for chunk in chunks),
        top_logprobs=b"".join(chunk.top_logprobs for chunk in chunks),
    )


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([length, seed]).integers(2, VOCABULARY, length).tolist()


@torch.no_grad()
def plain_logprobs(
    model: torch.nn.Module, prompt: Sequence[int], columns: TokenColumns, temperature: float
) -> np.ndarray:
    """Log-probabilities of a completion's tokens by one ordinary forward over the full sequence."""
    ids = torch.tensor([[*prompt, *columns.ids_array().tolist()]])
    logits = model(ids).logits[0, len(prompt) - 1 : -1] / (temperature or 1.0)
    return torch.log_softmax(logits.float(), -1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


def difference(model: torch.nn.Module, prompt: Sequence[int], columns: TokenColumns, temperature: float) -> float:
    return float(np.abs(plain_logprobs(model, prompt, columns, temperature) - columns.logprobs_array()).max())
