"""How tokens are drawn: inverse cumulative distribution, one uniform number per token, fixed by the request's seed.

Two distributions are kept apart. Log-probabilities are the model's own, log_softmax(logits / temperature). What is drawn
from differs where a request asks for it: penalties, bias and constraint lean on the logits, then min-p, top-k and top-p
leave tokens out.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.engines.leaning import Leaning
from areal_actors.errors import RequestError
from areal_actors.values import SamplingParams

LEAVES_NOTHING = "'logit_bias' and the constraint leave only tokens that the model gives no probability; bias less"
COLDEST = 1e-6
"""Colder samples the same tokens, and logits divided by it are finite still."""
LARGEST_UNIFORM = 1.0 - 2.0**-22
"""Keeps `uniform * total` below `total` in float32, so that no token of probability 0 is ever drawn."""


def uniforms(seed: int | None, count: int, start: int = 0) -> NDArray[np.float32]:
    """The uniform numbers that draw `count` tokens of a completion from its `start`-th on, whatever is decoded beside it."""
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    numbers = np.random.Generator(np.random.Philox(key=key)).random(start + count, dtype=np.float32)[start:]
    return np.minimum(numbers, np.float32(LARGEST_UNIFORM))


class TopTokens(NamedTuple):
    """The most likely tokens of the rows that asked for them, most likely first."""

    rows: Sequence[int]
    token_ids: NDArray[np.int64]
    """[len(rows), most that any of them asked for]."""
    logprobs: NDArray[np.float32]
    """Same shape."""


class Draws(NamedTuple):
    """One token per row."""

    token_ids: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    """log_softmax(logits / temperature) of these tokens."""
    top: TopTokens | None
    failed: dict[int, RequestError]
    """Rows whose token is to be thrown away, and why."""


class Sampler:
    """Draws one token per row; made anew when the rows change."""

    def __init__(self, rows: Sequence[SamplingParams], device: torch.device, leanings: Sequence[Leaning | None] = ()) -> None:
        """`leanings` say what moves each row's choice, None what moves none."""
        temperatures = [max(row.temperature, COLDEST) if row.temperature else 1.0 for row in rows]
        greedy = [row.temperature == 0 for row in rows]
        filtered = [index for index, row in enumerate(rows) if not greedy[index] and (row.top_k or row.top_p < 1.0 or row.min_p)]
        self._temperatures = column(temperatures, device) if any(value != 1.0 for value in temperatures) else None
        self._greedy = torch.tensor(greedy, device=device) if any(greedy) else None
        self._all_greedy = all(greedy)
        self._filtered = indices(filtered, device)
        self._top_p = column([rows[index].top_p for index in filtered], device)
        self._top_k = column([rows[index].top_k or 2**31 for index in filtered], device)
        self._min_p = column([rows[index].min_p for index in filtered], device)
        self._leanings = {index: leaning for index, leaning in enumerate(leanings) if leaning is not None}
        self._leaning = indices(list(self._leanings), device)
        self._telling = [index for index, row in enumerate(rows) if row.top_logprobs]
        self._told = max((row.top_logprobs for row in rows), default=0)
        exact = sorted({*self._leanings, *self._telling})
        self._exact = indices(exact, device)
        self._telling_among_exact = indices([exact.index(index) for index in self._telling], device)

    def sample(self, logits: Tensor, numbers: NDArray[np.float32]) -> Draws:
        """Draw from float32 logits [rows, vocabulary], which may be overwritten, with one uniform number per row."""
        scaled = logits if self._temperatures is None else logits / self._temperatures
        # A token that a constraint forces may be so unlikely that its probability rounds to 0; its logarithm does not.
        exact = None if self._exact is None else torch.log_softmax(scaled[self._exact], -1)
        failed = {} if self._leaning is None else self._lean(self._leaning, logits, scaled)
        probabilities = torch.softmax(scaled, -1)
        tokens = most_likely(scaled) if self._all_greedy else self._drawn(probabilities, torch.from_numpy(numbers).to(logits.device))
        if self._greedy is not None and not self._all_greedy:
            tokens = torch.where(self._greedy[:, None], most_likely(scaled), tokens)
        logprobs = probabilities.gather(1, tokens).log_()
        if self._exact is not None and exact is not None:
            logprobs.index_copy_(0, self._exact, exact.gather(1, tokens[self._exact]))
        token_ids, own = tokens[:, 0].cpu().numpy(), logprobs[:, 0].cpu().numpy()
        for row, leaning in self._leanings.items():
            if row not in failed:
                failed.update(complaint(row, leaning, int(token_ids[row]), float(own[row])))
        return Draws(token_ids, own, self._top(exact), failed)

    def _lean(self, rows: Tensor, logits: Tensor, scaled: Tensor) -> dict[int, RequestError]:
        """Overwrite the scaled logits of the rows whose choice something moves; returns the rows where that failed."""
        leaned = logits[rows]
        failed = {}
        for row, choice in zip(self._leanings, leaned, strict=True):
            try:
                self._leanings[row].apply(choice)
            except RequestError as error:
                failed[row] = error
        if self._temperatures is not None:
            leaned /= self._temperatures[rows]
        scaled.index_copy_(0, rows, leaned)
        return failed

    def _drawn(self, probabilities: Tensor, numbers: Tensor) -> Tensor:
        if self._filtered is not None:
            kept = filtered(probabilities[self._filtered], self._top_p, self._top_k, self._min_p)
            probabilities = probabilities.index_copy(0, self._filtered, kept)
        cumulative = probabilities.cumsum(-1)
        drawn = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True)
        # Only a distribution that is not finite can lead beyond the vocabulary; its log-probability tells.
        return drawn.clamp_(max=probabilities.shape[-1] - 1)

    def _top(self, exact: Tensor | None) -> TopTokens | None:
        if exact is None or self._telling_among_exact is None:
            return None
        logprobs, token_ids = exact[self._telling_among_exact].topk(self._told)
        return TopTokens(self._telling, token_ids.cpu().numpy(), logprobs.cpu().numpy())


def complaint(row: int, leaning: Leaning, token_id: int, logprob: float) -> dict[int, RequestError]:
    """Tell what moves a row's choice which token was drawn; the row and what is wrong with that, if anything is."""
    if logprob == -np.inf:
        return {row: RequestError(LEAVES_NOTHING, "logit_bias")}
    try:
        leaning.took(token_id)
    except RequestError as error:
        return {row: error}
    return {}


def filtered(probabilities: Tensor, top_p: Tensor, top_k: Tensor, min_p: Tensor) -> Tensor:
    """Probabilities [rows, vocabulary] with 0 where a token is left out.

    What stays has at least min_p of the most likely one's probability, is among the top_k most likely, and of these among
    the fewest that reach top_p.
    """
    ordered, order = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    ranks = torch.arange(ordered.shape[-1], device=ordered.device)
    ordered = ordered.masked_fill((ranks >= top_k) | (ordered < min_p * ordered[:, :1]), 0.0)
    before = ordered.cumsum(-1) - ordered
    outside = (before >= top_p * ordered.sum(-1, keepdim=True)) & (ranks > 0)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered.masked_fill(outside, 0.0))


def most_likely(logits: Tensor) -> Tensor:
    """The most likely token of each row, [rows, 1]."""
    if logits.device.type == "cpu":
        # NumPy's argmax takes a tenth of torch's on a CPU.
        return torch.from_numpy(logits.numpy().argmax(-1, keepdims=True))
    return logits.argmax(-1, keepdim=True)


def indices(rows: Sequence[int], device: torch.device) -> Tensor | None:
    """Row numbers, int64; None for none."""
    return torch.tensor(rows, device=device) if rows else None


def column(values: Sequence[float], device: torch.device) -> Tensor:
    """Values [rows, 1], float32."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
