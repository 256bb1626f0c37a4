"""How tokens are drawn: inverse cumulative distribution, one uniform number per token, fixed by the request's seed."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.values import SamplingParams

LARGEST_UNIFORM = 1.0 - 2.0**-22
"""Keeps `uniform * total` below `total` in float32, so that no token of probability 0 is ever drawn."""


def uniforms(seed: int | None, count: int) -> NDArray[np.float32]:
    """The uniform numbers that draw a completion's first `count` tokens, whatever else is decoded beside it."""
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    numbers = np.random.Generator(np.random.Philox(key=key)).random(count, dtype=np.float32)
    return np.minimum(numbers, np.float32(LARGEST_UNIFORM))


class Sampler:
    """Draws one token per row; made anew when the rows change."""

    def __init__(self, rows: Sequence[SamplingParams], device: torch.device) -> None:
        temperatures = [row.temperature or 1.0 for row in rows]
        greedy = [row.temperature == 0 for row in rows]
        filtered = [index for index, row in enumerate(rows) if not greedy[index] and (row.top_k or row.top_p < 1.0)]
        self._temperatures = column(temperatures, device) if any(value != 1.0 for value in temperatures) else None
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) else None
        self._all_greedy = all(greedy)
        self._filtered = torch.tensor(filtered, device=device) if filtered else None
        self._top_p = column([rows[index].top_p for index in filtered], device)
        self._top_k = column([rows[index].top_k or 2**31 for index in filtered], device)

    def sample(self, logits: Tensor, numbers: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Draw from float32 logits [rows, vocabulary] with one uniform number per row.

        Returns:
            token ids [rows] and their log_softmax(logits / temperature) [rows], before top-p and top-k.
        """
        if self._temperatures is not None:
            logits = logits / self._temperatures
        probabilities = torch.softmax(logits, -1)
        tokens = most_likely(logits) if self._all_greedy else self._drawn(probabilities, torch.from_numpy(numbers).to(logits.device))
        if self._greedy is not None and not self._all_greedy:
            tokens = torch.where(self._greedy[:, None], most_likely(logits), tokens)
        logprobs = probabilities.gather(1, tokens).log_()
        return tokens[:, 0].cpu().numpy(), logprobs[:, 0].cpu().numpy()

    def _drawn(self, probabilities: Tensor, numbers: Tensor) -> Tensor:
        if self._filtered is not None:
            kept = filtered(probabilities[self._filtered], self._top_p, self._top_k)
            probabilities = probabilities.index_copy(0, self._filtered, kept)
        cumulative = probabilities.cumsum(-1)
        drawn = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True)
        # Only a distribution that is not finite can lead beyond the vocabulary; its log-probability tells.
        return drawn.clamp_(max=probabilities.shape[-1] - 1)


def filtered(probabilities: Tensor, top_p: Tensor, top_k: Tensor) -> Tensor:
    """Probabilities [rows, vocabulary] with 0 outside the top_k most likely and, of these, the fewest that reach top_p."""
    ordered, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill(ranks >= top_k, 0.0)
    before = ordered.cumsum(-1) - ordered
    outside = (before >= top_p * ordered.sum(-1, keepdim=True)) & (ranks > 0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered.masked_fill(outside, 0.0))


def most_likely(logits: Tensor) -> Tensor:
    """The most likely token of each row, [rows, 1]."""
    if logits.device.type == "cpu":
        # NumPy's argmax takes a tenth of torch's on a CPU.
        return torch.from_numpy(logits.numpy().argmax(-1, keepdims=True))
    return logits.argmax(-1, keepdim=True)


def column(values: Sequence[float], device: torch.device) -> Tensor:
    """Values [rows, 1], float32."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
