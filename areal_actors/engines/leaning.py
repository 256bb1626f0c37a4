"""What moves a completion's choice among tokens away from the model's own distribution: bias, penalties, a constraint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_actors.engines.constraints import Matcher
from areal_actors.values import SamplingParams


class Leaning:
    """State of one completion. It goes by tokens alone, so a change of weights in mid-completion leaves it valid."""

    def __init__(self, sampling: SamplingParams, matcher: Matcher | None, vocabulary_size: int, device: torch.device) -> None:
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
        cls, sampling: SamplingParams, matcher: Matcher | None, vocabulary_size: int, device: torch.device, sampled: Sequence[int]
    ) -> Leaning | None:
        """The leaning of a completion that has these tokens already (the matcher has seen them); None if nothing moves it."""
        if matcher is None and not (sampling.logit_bias or sampling.presence_penalty or sampling.frequency_penalty):
            return None
        leaning = cls(sampling, matcher, vocabulary_size, device)
        for token_id in sampled:
            leaning._penalise(token_id)
        return leaning

    def apply(self, logits: Tensor) -> None:
        """Change the logits [vocabulary] of the next token in place.

        Raises:
            RequestError: the constraint cannot be followed any further.
        """
        if self._offsets is not None:
            logits += self._offsets
        if self._matcher is not None:
            forbidden = torch.from_numpy(~self._matcher.allowed()).to(logits.device)
            logits.masked_fill_(forbidden, -torch.inf)

    def took(self, token_id: int) -> None:
        """Take in which token was drawn.

        Raises:
            RequestError: the constraint does not allow it.
        """
        self._penalise(token_id)
        if self._matcher is not None:
            self._matcher.took([token_id])

    def _penalise(self, token_id: int) -> None:
        if self._offsets is None:
            return
        self._offsets[token_id] -= self._frequency + (0.0 if token_id in self._seen else self._presence)
        self._seen.add(token_id)
