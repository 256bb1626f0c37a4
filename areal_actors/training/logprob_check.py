"""Training-inference mismatch: the trainer's log-probabilities under the weights that sampled, against the recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from areal_actors.core.values import TrainingSequence
from areal_actors.training.algorithms.off_policy import kl_estimates
from areal_actors.training.algorithms.veto import VETO_THRESHOLD, is_catastrophic
from areal_actors.training.packing.scoring import TokenScorer, ValueScorer
from areal_actors.training.packing.tensors import Sharing, make_micro_batches
from areal_actors.training.prepared import TokenColumn
from areal_actors.training.ranks import SINGLE_PROCESS, Ranks

SMALL_MODEL = 50_000_000
"""Maximum of trained parameters for which `older_weights = "auto"` keeps copies."""
OlderWeights = Literal["auto", "on", "off"]


class LogprobCheck:
    """Rescores tokens under the weight version that sampled each of them.

    A generation engine that recomputes its KV cache at every weight update samples a token of version v from weights v over
    the whole sequence before it, whichever versions sampled that. So scoring the full sequence under weights v must give the
    same number, up to rounding. Copies of the last versions are kept, for small models only.
    """

    def __init__(
        self,
        scorer: TokenScorer | ValueScorer,
        versions: int,
        sequences: int,
        budget: int,
        ranks: Ranks = SINGLE_PROCESS,
        sharing: Sharing = "off",
        *,
        older_weights: OlderWeights = "auto",
        complete: bool = False,
    ) -> None:
        """Keep copies of the trained weights.

        Args:
            scorer: the trained model.
            versions: maximum of copies: the current version and those before it.
            sequences: sequences of each version that are rescored per step; 0 for none.
            budget: computed tokens of a micro-batch.
            ranks: the processes that train together.
            sharing: as in `make_micro_batches`.
            older_weights: keep copies; `auto` for small models.
            complete: rescore all sequences of older versions. For the current version the step's own forward pass gives the same.
        """
        self._scorer = scorer
        self._sequences = sequences
        self._budget = budget
        self._ranks = ranks
        self._sharing = sharing
        self._complete = complete
        self._trained = {name: parameter for name, parameter in scorer.model.named_parameters() if parameter.requires_grad}
        keeps = older_weights == "on" or (older_weights == "auto" and ranks.count_trainable(scorer.model) <= SMALL_MODEL)
        self._versions = versions if keeps and (sequences > 0 or complete) else 0
        self.copies: dict[int, dict[str, Tensor]] = {}

    def store_copy(self, weight_version: int) -> None:
        """Copy the current weights as this version, and discard copies beyond the maximum, oldest first."""
        if self._versions == 0:
            return
        self.copies[weight_version] = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        for old in sorted(self.copies)[: -self._versions]:
            del self.copies[old]

    @torch.no_grad()
    def rescore(self, sequences: Sequence[TrainingSequence], weight_version: int) -> Tensor:
        """Each trained token's log-probability under the version that sampled it: float32 `[tokens]` on the CPU, NaN where not scored.

        Tokens are in the order of `StepTokens`. Tokens of versions without a copy are not scored, nor (unless `complete`) sequences
        beyond `sequences`.
        """
        versions = torch.from_numpy(np.concatenate([sequence.versions[1:][sequence.loss_mask[1:]] for sequence in sequences]))
        column = torch.full((len(versions),), torch.nan)
        for version in sorted({*self.copies, weight_version}):
            picked = self._select_sequences(sequences, version, every=self._complete and version != weight_version)
            if picked:
                with nullcontext() if version == weight_version else self._weights_of(version):
                    indices, logp = self._score(sequences, picked, version)
                column[(versions == version).nonzero()[:, 0][indices]] = logp
        return column

    def _select_sequences(self, sequences: Sequence[TrainingSequence], version: int, *, every: bool) -> list[int]:
        """Sequences with trained tokens of this version: all, or at most `self._sequences` of them, evenly spread."""
        having = [index for index, sequence in enumerate(sequences) if _sampled_by(sequence, version)[1:].any()]
        if every or not having:
            return having
        return having[:: -(-len(having) // self._sequences)] if self._sequences else []

    @contextmanager
    def _weights_of(self, version: int) -> Iterator[None]:
        """Swap in the trained weights of another version within the context."""
        own = {name: parameter.detach().clone() for name, parameter in self._trained.items()}
        try:
            self._copy_weights(self.copies[version])
            yield
        finally:
            self._copy_weights(own)

    def _copy_weights(self, weights: Mapping[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.data.copy_(weights[name])

    def _score(self, sequences: Sequence[TrainingSequence], picked: Sequence[int], version: int) -> tuple[Tensor, Tensor]:
        """Score the trained tokens of one version in these sequences: indices among all tokens of that version, and log-probabilities."""
        device = next(self._scorer.parameters()).device
        logp, scored = TokenColumn(), TokenColumn()
        parts = make_micro_batches(
            sequences, picked, self._budget, device, lambda sequence: _sampled_by(sequence, version), sharing=self._sharing
        )
        for batch in self._ranks.distribute(parts):
            logp.add(batch, self._scorer(batch)[0])
            scored.add(batch, torch.ones_like(batch.labels))
        tokens = sum(int(_sampled_by(sequence, version)[1:].sum()) for sequence in sequences)
        indices = scored.gather(self._ranks, tokens).nonzero()[:, 0]
        return indices, logp.gather(self._ranks, tokens)[indices]


def _sampled_by(sequence: TrainingSequence, version: int) -> NDArray[np.bool_]:
    """The trained tokens of a sequence that a version sampled: bool `[n]`."""
    return np.equal(sequence.versions, version) & sequence.loss_mask


def mismatch_metrics(sequences: Sequence[TrainingSequence], behaviour: Tensor, rescored: Tensor) -> dict[str, float]:
    """Mismatch of recorded log-probabilities and the trainer's own, over the rescored tokens.

    Args:
        sequences: sequences of the step.
        behaviour: `[tokens]` on the CPU, recorded by the engine.
        rescored: `[tokens]` on the CPU, as `LogprobCheck.rescore` gives them.

    Returns:
        `train_infer_logprob_diff_max`, in nats (infinite if one is not a number), and `parity_tokens`; if there are any,
        `mismatch_kl_k1`, `_k2`, `_k3` and `mismatch_vetoed_frac`, and where the largest difference is: `mismatch_worst_sequence`,
        `_position` and `_logprob` (the trainer's). All but the first also for each inference worker that the sequences name, as
        `NAME/WORKER`.
    """
    known = (~rescored.isnan()).nonzero()[:, 0]
    if not len(known):
        return {"train_infer_logprob_diff_max": 0.0, "parity_tokens": 0.0}
    differences = rescored[known].double() - behaviour[known].double()
    positions = [np.flatnonzero(sequence.loss_mask[1:]) + 1 for sequence in sequences]
    sequence_of, position_of = np.repeat(np.arange(len(sequences)), list(map(len, positions))), np.concatenate(positions)
    # A NaN compares false with everything: it must not pass for parity.
    sizes = differences.abs().nan_to_num(nan=torch.inf)

    def of(tokens: Tensor) -> dict[str, float]:
        worst = int(known[tokens][sizes[tokens].argmax()])
        return {
            "parity_tokens": float(len(tokens)),
            **kl_estimates(differences[tokens], "mismatch_kl"),
            "mismatch_vetoed_frac": float(is_catastrophic(differences[tokens], VETO_THRESHOLD).double().mean()),
            "mismatch_worst_sequence": float(sequence_of[worst]),
            "mismatch_worst_position": float(position_of[worst]),
            "mismatch_worst_logprob": float(rescored[worst]),
        }

    metrics = {"train_infer_logprob_diff_max": float(sizes.max()), **of(torch.arange(len(known)))}
    workers = _workers(sequences)[known.numpy()]
    for worker in sorted(set(workers.tolist()) - {""}):
        own = torch.from_numpy(np.flatnonzero(workers == worker))
        metrics |= {f"{name}/{worker}": value for name, value in of(own).items()}
    return metrics


def _workers(sequences: Sequence[TrainingSequence]) -> NDArray[np.str_]:
    """The inference worker that sampled each trained token, empty where it is not recorded: `[tokens]`."""
    columns = []
    for sequence in sequences:
        names = np.full(len(sequence.token_ids), "", dtype=object)
        for call in sequence.calls:
            names[call.start : call.end] = call.worker
        columns.append(names[1:][sequence.loss_mask[1:]])
    return np.concatenate(columns).astype(np.str_)
