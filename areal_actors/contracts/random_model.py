"""A small model of random weights for the contract of engines, and another version of them."""

from __future__ import annotations

from pathlib import Path

import torch

from areal_actors.embedded.embedded_model import initial_model, train_tokenizer, write_tokenizer
from areal_actors.weights.transfer import write_weights


def write_random_model(folder: Path) -> str:
    """Write a Hugging Face folder, and a version of its weights in `v3` beside it; returns the folder."""
    torch.manual_seed(0)
    tokenizer = train_tokenizer()
    model = initial_model(tokenizer, 0)
    model.save_pretrained(folder)
    write_tokenizer(tokenizer, folder)
    return str(folder)


def write_next_version(folder: str, target: Path) -> object:
    """Write other weights of the same shape as a version; returns its location."""
    tokenizer = train_tokenizer()
    return write_weights(initial_model(tokenizer, 1).state_dict(), target, folder)
