"""Input files of both sides of `trainer.py`: a random model of one of two sizes, and a batch of groups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.embedded.embedded_model import train_tokenizer, write_tokenizer

GROUP_SIZE = 8
PROMPT_TOKENS = (40, 71)
COMPLETION_TOKENS = (16, 61)
"""Bounds of uniform draws: about 55 and 38 tokens, as the embedded model's problems and answers have."""


@dataclass(frozen=True)
class Size:
    """A model, and the number of groups per step."""

    groups: int
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SIZES = {
    "embedded": Size(16, 600, 64, 320, 2, 4, 2, 16),
    "50M": Size(4, 16384, 512, 1664, 12, 8, 4, 64),
    "135M": Size(4, 49152, 576, 1536, 30, 9, 3, 64),
}


def write_model(size: Size, folder: Path) -> int:
    """A Hugging Face folder of a random Qwen3 of this size, with an unused tokenizer.

    Returns its number of parameters.
    """
    tokenizer = train_tokenizer()
    write_tokenizer(tokenizer, folder)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=size.vocabulary,
            hidden_size=size.hidden,
            intermediate_size=size.intermediate,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            num_key_value_heads=size.kv_heads,
            head_dim=size.head_dim,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.token_to_id("<|im_end|>"),
            pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
            bos_token_id=None,
        )
    )
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def write_batch(size: Size, file: Path) -> int:
    """Write prompts, completions and rewards of one step; returns the number of tokens."""
    draw = np.random.default_rng(0)
    prompts, completions = [], []
    for _ in range(size.groups):
        prompt = draw.integers(3, size.vocabulary, draw.integers(*PROMPT_TOKENS)).tolist()
        prompts += [prompt] * GROUP_SIZE
        completions += [
            draw.integers(3, size.vocabulary, draw.integers(*COMPLETION_TOKENS)).tolist() for _ in range(GROUP_SIZE)
        ]
    rewards = draw.integers(0, 2, len(prompts)).astype(float).tolist()
    file.write_text(json.dumps({"prompts": prompts, "completions": completions, "rewards": rewards}))
    return sum(map(len, prompts)) + sum(map(len, completions))
