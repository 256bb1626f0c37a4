"""Token sampling by inverse CDF: one uniform number per token, fixed by the request's seed.

Two distributions are kept apart. Log-probabilities are the model's own, log_softmax(logits / temperature). The sampling
distribution may differ: a logits processor applies penalties, bias and constraint, then min-p, top-k and top-p remove
tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.errors import RequestError
from areal_actors.core.values import SamplingParams
from areal_actors.embedded.logits_processor import LogitsProcessor

ALL_EXCLUDED = "'logit_bias' and the constraint leave only tokens of probability 0; use smaller biases"
MIN_TEMPERATURE = 1e-6
"""Lower temperatures sample the same tokens; logits divided by this one are still finite."""
BLOCK_ENTRIES = 2**18
"""Entries of the logits that are processed together on a CPU: what is computed of them stays in its cache."""
MAX_UNIFORM = 1.0 - 2.0**-22
"""Keeps `uniform * total` below `total` in float32, so that no token of probability 0 is ever drawn."""


def uniforms(seed: int | None, count: int, start: int = 0) -> NDArray[np.float32]:
    """Uniform numbers for `count` tokens of a completion from its `start`-th on.

    They are independent of the other rows of the batch.
    """
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    numbers = np.random.Generator(np.random.Philox(key=key)).random(start + count, dtype=np.float32)[start:]
    return np.minimum(numbers, np.float32(MAX_UNIFORM))


class TopTokens(NamedTuple):
    """Most likely tokens of the rows that request `top_logprobs`, most likely first."""

    rows: Sequence[int]
    token_ids: NDArray[np.int64]
    """[len(rows), largest `top_logprobs` of them]."""
    logprobs: NDArray[np.float32]
    """Same shape."""


class SampledTokens(NamedTuple):
    """One token per row."""

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    """log_softmax(logits / temperature) of these tokens."""
    top: TopTokens | None
    failed: dict[int, RequestError]
    """Errors of the rows whose token must be discarded."""


class Sampler:
    """Draws one token per row; created again when the rows change."""

    def __init__(
        self, rows: Sequence[SamplingParams], device: torch.device, processors: Sequence[LogitsProcessor | None] = ()
    ) -> None:
        """`processors` holds the logits processor of each row, None for rows without one."""
        temperatures = [max(row.temperature, MIN_TEMPERATURE) if row.temperature else 1.0 for row in rows]
        greedy = [row.temperature == 0 for row in rows]
        filtered = [
            index for index, row in enumerate(rows) if not greedy[index] and (row.top_k or row.top_p < 1.0 or row.min_p)
        ]
        self._temperatures = column(temperatures, device) if any(value != 1.0 for value in temperatures) else None
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) else None
        self._all_greedy = all(greedy)
        self._filtered = indices(filtered, device)
        self._top_p = column([rows[index].top_p for index in filtered], device)
        self._top_k = column([rows[index].top_k or 2**31 for index in filtered], device)
        self._min_p = column([rows[index].min_p for index in filtered], device)
        self._processors = {index: processor for index, processor in enumerate(processors) if processor is not None}
        self._processed_rows = indices(list(self._processors), device)
        self._top_rows = [index for index, row in enumerate(rows) if row.top_logprobs]
        self._max_top = max((row.top_logprobs for row in rows), default=0)
        exact = sorted({*self._processors, *self._top_rows})
        self._exact = indices(exact, device)
        self._top_among_exact = indices([exact.index(index) for index in self._top_rows], device)

    def sample(self, logits: Tensor, numbers: NDArray[np.float32]) -> SampledTokens:
        """Draw from float32 logits [rows, vocabulary], which may be overwritten, with one uniform number per row."""
        scaled = logits if self._temperatures is None else logits / self._temperatures
        # The probability of a token that a constraint forces may round to 0; its logarithm stays finite.
        exact = None if self._exact is None else torch.log_softmax(scaled[self._exact], -1)
        failed = {} if self._processed_rows is None else self._process_logits(self._processed_rows, logits, scaled)
        tokens, logprobs = self._draw_all(scaled, torch.from_numpy(numbers).to(logits.device))
        if self._exact is not None and exact is not None:
            logprobs.index_copy_(0, self._exact, exact.gather(1, tokens[self._exact]))
        token_ids, own = tokens[:, 0].cpu().numpy(), logprobs[:, 0].cpu().numpy()
        for row, processor in self._processors.items():
            if own[row] == -np.inf:
                failed.setdefault(row, RequestError(ALL_EXCLUDED, "logit_bias"))
            if row not in failed:
                try:
                    processor.accept_token(int(token_ids[row]))
                except RequestError as error:
                    failed[row] = error
        return SampledTokens(token_ids, own, self._top(exact), failed)

    def _process_logits(self, rows: Tensor, logits: Tensor, scaled: Tensor) -> dict[int, RequestError]:
        """Overwrite the scaled logits of the rows that have a logits processor; returns the errors by row."""
        processed = logits[rows]
        failed = {}
        for row, choice in zip(self._processors, processed, strict=True):
            try:
                self._processors[row].apply(choice)
            except RequestError as error:
                failed[row] = error
        if self._temperatures is not None:
            processed /= self._temperatures[rows]
        scaled.index_copy_(0, rows, processed)
        return failed

    def _draw_all(self, scaled: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, each [rows, 1]."""
        likely = None if self._greedy is None else most_likely(scaled)
        if self._filtered is None and scaled.device.type == "cpu" and scaled.numel() > BLOCK_ENTRIES:
            # Row by row the same as together, but in the caches of a CPU.
            size = max(1, BLOCK_ENTRIES // scaled.shape[-1])
            blocks = [slice(start, start + size) for start in range(0, len(scaled), size)]
            parts = [
                self._draw(
                    scaled[rows],
                    numbers[rows],
                    None if likely is None else likely[rows],
                    None if self._greedy is None else self._greedy[rows],
                )
                for rows in blocks
            ]
            return torch.cat([tokens for tokens, _ in parts]), torch.cat([logprobs for _, logprobs in parts])
        return self._draw(scaled, numbers, likely, self._greedy)

    def _draw(
        self, scaled: Tensor, numbers: Tensor, likely: Tensor | None, greedy: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """As `_draw_all`; rows where `greedy` is set get their most likely token."""
        probabilities = torch.softmax(scaled, -1)
        if likely is not None and self._all_greedy:
            tokens = likely
        else:
            tokens = draw_tokens(self._filter(probabilities), numbers)
            if likely is not None and greedy is not None:
                tokens = torch.where(greedy[:, None], likely, tokens)
        return tokens, probabilities.gather(1, tokens).log_()

    def _filter(self, probabilities: Tensor) -> Tensor:
        """Probabilities of all rows, with those of removed tokens set to 0."""
        if self._filtered is None:
            return probabilities
        kept = filter_probabilities(probabilities[self._filtered], self._top_p, self._top_k, self._min_p)
        return probabilities.index_copy(0, self._filtered, kept)

    def _top(self, exact: Tensor | None) -> TopTokens | None:
        if exact is None or self._top_among_exact is None:
            return None
        logprobs, token_ids = exact[self._top_among_exact].topk(self._max_top)
        return TopTokens(self._top_rows, token_ids.cpu().numpy(), logprobs.cpu().numpy())


def draw_tokens(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """Draw a token for each row of probabilities [rows, vocabulary], which need not sum to 1; [rows, 1]."""
    cumulative = probabilities.cumsum(-1)
    drawn = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True)
    # Only a non-finite distribution yields an index beyond the vocabulary; the check of its log-probability reports
    # that.
    return drawn.clamp_(max=probabilities.shape[-1] - 1)


def filter_probabilities(probabilities: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Probabilities [rows, vocabulary] with removed tokens set to 0.

    A token is kept if its probability is at least min_p times the largest, it is among the top_k most likely, and among
    the smallest set of these that reaches top_p.
    """
    ordered, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill((ranks >= top_k) | (ordered < min_p * ordered[:, :1]), 0.0)
    before = ordered.cumsum(-1) - ordered
    outside = (before >= top_p * ordered.sum(-1, keepdim=True)) & (ranks > 0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered.masked_fill(outside, 0.0))


def most_likely(logits: Tensor) -> Tensor:
    """Most likely token of each row, [rows, 1]."""
    if logits.device.type == "cpu":
        # NumPy's argmax takes a tenth of torch's on a CPU.
        return torch.from_numpy(logits.numpy().argmax(-1, keepdims=True))
    return logits.argmax(-1, keepdim=True)


def indices(rows: Sequence[int], device: torch.device) -> Tensor | None:
    """TrainingSequence numbers, int64; None for none."""
    return torch.tensor(rows, device=device) if rows else None


def column(values: Sequence[float], device: torch.device) -> Tensor:
    """Values [rows, 1], float32."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
