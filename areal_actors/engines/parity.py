"""Does the trainer see the same policy that sampled? The trainer's own log-probabilities, by the very weights that sampled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.engines.models import ValueScorer
from areal_actors.engines.ranks import ALONE, Ranks
from areal_actors.engines.scoring import Scorer
from areal_actors.engines.tensors import Sharing, arrange
from areal_actors.values import Row

SMALL_MODEL = 50_000_000
"""Trained parameters up to which copies of older weights are kept."""


class Parity:
    """Compares recorded log-probabilities with those of the weight version that sampled each token.

    A generation engine that recomputes its cache at every weight update samples a token of version v as weights v see
    the whole sequence before it, whichever versions made that. So scoring the full row under weights v must give the
    same number, up to rounding. The copies are of the last versions; of a model that is not small, none.
    """

    def __init__(
        self, scorer: Scorer | ValueScorer, versions: int, rows: int, budget: int, ranks: Ranks = ALONE, sharing: Sharing = "off"
    ) -> None:
        """Keep at most `versions` copies of what is trained, compare at most `rows` rows of each version per step."""
        self._scorer = scorer
        self._rows = rows
        self._budget = budget
        self._ranks = ranks
        self._sharing = sharing
        self._trained = {name: parameter for name, parameter in scorer.model.named_parameters() if parameter.requires_grad}
        small = ranks.trained_numbers(scorer.model) <= SMALL_MODEL
        self._versions = versions if small and rows > 0 else 0
        self.copies: dict[int, dict[str, Tensor]] = {}

    def remember(self, weight_version: int) -> None:
        """Copy the weights, which are now those of this version, and forget the oldest copy too many."""
        if self._versions == 0:
            return
        self.copies[weight_version] = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        for old in sorted(self.copies)[: -self._versions]:
            del self.copies[old]

    @torch.no_grad()
    def compare(self, rows: Sequence[Row], weight_version: int) -> tuple[float, int]:
        """The largest difference of a log-probability in nats, and of how many tokens; (0, 0) if none could be compared."""
        largest, tokens = 0.0, 0
        for version in sorted({*self.copies, weight_version}):
            with nullcontext() if version == weight_version else self._under(version):
                for ours, theirs in self._score(rows, version):
                    difference = (ours - theirs).abs()
                    # A NaN compares false with everything: it must not pass for parity.
                    largest = max(largest, float(difference.nan_to_num(nan=torch.inf).max()))
                    tokens += len(ours)
        sums, most = self._ranks.merge({"tokens": float(tokens)}, {"difference": largest})
        return most["difference"], int(sums["tokens"])

    @contextmanager
    def _under(self, version: int) -> Iterator[None]:
        """Within it the trained weights are those of another version."""
        own = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        try:
            self._put(self.copies[version])
            yield
        finally:
            self._put(own)

    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.data.copy_(weights[name])

    def _score(self, rows: Sequence[Row], version: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of our and the recorded log-probabilities of the tokens of one version."""

        def sampled(row: Row) -> NDArray[np.bool_]:
            return np.equal(row.versions, version)

        having = [index for index, row in enumerate(rows) if sampled(row)[1:].any()]
        if not having or self._rows == 0:
            return
        picked = having[:: -(-len(having) // self._rows)]
        device = next(self._scorer.parameters()).device
        for batch in self._ranks.share_out(arrange(rows, picked, self._budget, device, sampled, sharing=self._sharing)):
            logp = self._scorer(batch)[0]
            if len(logp):
                yield logp, batch.behaviour
