"""Section `model`: makes the random model, in the architecture of Qwen2, that all later sections use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measuring import count_parameters, device_of
from options import Options
from report import Figures, Report
from tokenizers import Tokenizer
from transformers import Qwen2Config, Qwen2ForCausalLM

from areal_actors.embedded.embedded_model import END_OF_TEXT, TURN_END, train_tokenizer, write_tokenizer


def measure(report: Report, options: Options) -> None:
    """Write the model's folder."""
    report.case("random model", lambda: make_folder(options))


def make_folder(options: Options) -> Iterator[Figures]:
    """Write a Hugging Face folder with weights in bfloat16 and the tokenizer of the embedded model.

    The vocabulary of the model is larger than that of the tokenizer: the other ids have no text.
    """
    began = time.perf_counter()
    folder = Path(options.model)
    folder.mkdir()
    tokenizer = train_tokenizer()
    random_model(tokenizer, options).save_pretrained(folder)
    write_tokenizer(tokenizer, folder)
    size = sum(file.stat().st_size for file in folder.iterdir())
    yield {"parameters": count_parameters(options.model), "bytes": size, "seconds": time.perf_counter() - began}


def random_model(tokenizer: Tokenizer, options: Options) -> Any:
    """Return the model, created on the device."""
    config = Qwen2Config(
        **options.sizes.model,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    torch.manual_seed(0)
    with device_of(options):
        model: Any = Qwen2ForCausalLM(config)
    return model.to(torch.bfloat16)
