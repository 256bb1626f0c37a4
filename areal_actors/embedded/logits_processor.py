"""Logits processor: applies bias, penalties and a constraint to the logits of one completion."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_actors.core.values import SamplingParams
from areal_actors.embedded.constraints import Matcher


class LogitsProcessor:
    """State of one completion. It depends on tokens only, so it stays valid when weights change in mid-completion."""

    def __init__(
        self, sampling: SamplingParams, matcher: Matcher | None, vocabulary_size: int, device: torch.device
    ) -> None:
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._matcher = matcher
        self._seen: set[int] = set()
        self._offsets: Tensor | None = None
        if sampling.logit_bias or self._presence or self._frequency:
            self._offsets = torch.zeros(vocabulary_size, device=device)
            for token_id, bias in sampling.logit_bias.items():
                self._offsets[token_id] = bias

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        matcher: Matcher | None,
        vocabulary_size: int,
        device: torch.device,
        sampled: Sequence[int],
    ) -> LogitsProcessor | None:
        """Processor of a completion with these tokens so far (the matcher has consumed them).

        None if logits stay unchanged.
        """
        if matcher is None and not (sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty):
            return None
        processor = cls(sampling, matcher, vocabulary_size, device)
        for token_id in sampled:
            processor._penalize(token_id)
        return processor

    def apply(self, logits: Tensor) -> None:
        """Change the logits [vocabulary] of the next token in place.

        Raises:
            RequestError: the constraint cannot be followed any further.
        """
        if self._offsets is not None:
            logits += self._offsets
        if self._matcher is not None:
            forbidden = torch.from_numpy(~self._matcher.allowed_mask()).to(logits.device)
            logits.masked_fill_(forbidden, -torch.inf)

    def accept_token(self, token_id: int) -> None:
        """Update the state with the sampled token.

        Raises:
            RequestError: the constraint does not allow it.
        """
        self._penalize(token_id)
        if self._matcher is not None:
            self._matcher.accept_tokens([token_id])

    def _penalize(self, token_id: int) -> None:
        if self._offsets is None:
            return
        self._offsets[token_id] -= self._frequency + (0.0 if token_id in self._seen else self._presence)
        self._seen.add(token_id)
