"""Scores and gradients of the output head with the vocabularies of published models, at all lengths around the borders
of chunks.

The number of tokens of a chunk, and how many chunks have their probabilities saved, follow from the size of the
vocabulary: a small one reaches one branch only. `python tests/test_token_scores_vocabularies.py` prints the table of
docs/model-families.md.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from areal_actors.training.packing import token_scores as module
from areal_actors.training.packing.token_scores import token_scores

VOCABULARIES = {
    "Llama 2, Mistral 7B, Phi-3": 32_000,
    "SmolLM2": 49_152,
    "GPT-2": 50_257,
    "OLMo 2": 100_352,
    "Llama 3": 128_256,
    "DeepSeek-V3": 129_280,
    "GLM-4.5, Qwen2.5-0.5B": 151_936,
    "gpt-oss": 201_088,
    "Qwen3.5": 248_320,
    "Gemma 3": 262_144,
}
MODES = ("plain", "frozen", "bias", "temperature per token", "bf16")
HIDDEN = 8


def chunk_of(vocabulary: int) -> int:
    """Tokens of a chunk."""
    return max(module.TOKENS, module.LOGITS["cpu"] // vocabulary)


def lengths_of(vocabulary: int) -> list[int]:
    """Lengths on both sides of each border between chunks, with a last chunk of one token, of a few, and of nearly
    all."""
    chunk = chunk_of(vocabulary)
    saved = module.SAVED["cpu"] // vocabulary // chunk
    borders = sorted({chunk, 2 * chunk, (saved + 1) * chunk})
    return sorted({1, *(border + off for border in borders for off in (-1, 0, 1, 40)), borders[-1] - chunk // 2})


def largest_error(vocabulary: int, length: int, mode: str) -> float:
    """Largest relative error over log-probabilities and gradients, against float32 `log_softmax` of all logits at
    once."""
    torch.manual_seed(length)
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    head = nn.Linear(HIDDEN, vocabulary, bias=mode == "bias")
    nn.init.normal_(head.weight, std=HIDDEN**-0.5)
    if mode == "frozen":
        head.requires_grad_(requires_grad=False)
    hidden, labels = torch.randn(length, HIDDEN, requires_grad=True), torch.randint(0, vocabulary, (length,))
    temperature = torch.linspace(0.5, 1.5, length) if mode == "temperature per token" else 1.0
    inputs = [hidden, *(parameter for parameter in head.parameters() if parameter.requires_grad)]
    weights = torch.randn(length)
    logps, _ = token_scores(head, hidden, labels, temperature, dtype)
    gradients = torch.autograd.grad((logps * weights).sum(), inputs)
    bias = None if head.bias is None else head.bias.to(dtype)
    logits = nn.functional.linear(hidden.to(dtype), head.weight.to(dtype), bias).float()
    divided = logits / (temperature[:, None] if isinstance(temperature, torch.Tensor) else temperature)
    wanted = divided.log_softmax(-1).gather(1, labels[:, None]).squeeze(1)
    wanted_gradients = torch.autograd.grad((wanted * weights).sum(), inputs)
    pairs = zip((logps.detach(), *gradients), (wanted.detach(), *wanted_gradients), strict=True)
    return max(float((given - expected).norm() / expected.norm()) for given, expected in pairs)


def allowed(mode: str) -> float:
    """Allowed relative error: bfloat16 rounds the gradient of the logits; with a frozen head float32 sums are taken in
    another order."""
    return {"bf16": 1e-2, "frozen": 2e-4}.get(mode, 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_scores_and_gradients_at_the_borders_of_chunks(mode):
    vocabulary = VOCABULARIES["SmolLM2"]
    chunk = chunk_of(vocabulary)
    for length in (chunk, chunk + 1, 2 * chunk + 40):
        assert largest_error(vocabulary, length, mode) < allowed(mode), f"{length} tokens"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", VOCABULARIES)
def test_scores_and_gradients_with_each_vocabulary_at_each_length(family, mode):
    for length in lengths_of(VOCABULARIES[family]):
        assert largest_error(VOCABULARIES[family], length, mode) < allowed(mode), f"{length} tokens"


def main() -> None:
    """Print the table: largest relative error by family and mode."""
    # The table is what the program is for
    print("| family | vocabulary | tokens per chunk | lengths |", *(f"{mode} |" for mode in MODES))  # noqa: T201
    print("|---|---|---|---|" + "---|" * len(MODES))  # noqa: T201
    for family, vocabulary in VOCABULARIES.items():
        lengths = lengths_of(vocabulary)
        errors = [max(largest_error(vocabulary, length, mode) for length in lengths) for mode in MODES]
        cells = [f"{error:.1e} |" for error in errors]
        print(f"| {family} | {vocabulary:,} | {chunk_of(vocabulary)} | {', '.join(map(str, lengths))} |", *cells)  # noqa: T201


if __name__ == "__main__":
    main()
