"""Support of a log for the model that is to learn from it: importance weights of its sessions before the first step."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from areal_actors.core.errors import SetupError
from areal_actors.core.values import PROMPT_VERSION, TrainingSequence
from areal_actors.supervised.recorded_session import RecordedRow
from areal_actors.training.algorithms.offline import Offline
from areal_actors.training.algorithms.pieces import LOG_RATIO_LIMIT
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

MOST_ROWS = 256
"""Rows that are scored; with more, as many chosen at random."""


class Support(msgspec.Struct, frozen=True):
    """Importance weights of a log under the model that is to learn from it."""

    rows: int
    """Rows that were scored."""
    effective: float
    """Effective sample size of the sequences, (Σw)² / (n Σw²), w the product of the weights of their tokens."""
    within_clip: float
    """Share of the sampled tokens whose ratio is within the bounds of the clip."""
    kl: float
    """Divergence of the sampling weights from the model, in nats a token (k3)."""

    def describe(self) -> str:
        """Returns the sentence for people."""
        return (
            f"support: effective sample size {self.effective:.2f} of {self.rows} sequences,"
            f" {self.within_clip:.1%} of their tokens within the clip, divergence {self.kl:.4f} nats a token"
        )


class SupportMeter:
    """The model that is to learn, loaded to measure logs and the time of a step; its weights are thrown away after."""

    def __init__(self, model: str, algorithm: Offline, trainer: TrainerSettings, *, seed: int) -> None:
        """Load the model.

        Args:
            model: folder of the model that is to learn.
            algorithm: its clip counts.
            trainer: device, precision and optimizer.
            seed: of the choice of rows.

        Raises:
            EngineError: the model cannot be loaded.
        """
        self._algorithm = algorithm
        self._seed = seed
        settings = msgspec.structs.replace(trainer, logprob_check_sequences=0)
        self._trainer = TorchTrainer(
            model, algorithm, settings, total_steps=2, temperature=1.0, max_staleness=0, seed=seed
        )

    def measure(self, rows: Sequence[RecordedRow]) -> Support | None:
        """Returns the support of a log; None if no row was sampled."""
        sampled = [row for row in rows if row.calls]
        if not sampled:
            return None
        sequences = _sequences_of(self._choose(sampled, MOST_ROWS))
        return support_of(sequences, self._trainer.logp(sequences).double().numpy(), self._algorithm)

    def time_step(self, rows: Sequence[RecordedRow], batch: int) -> float:
        """Returns the seconds of a training step of `batch` rows, the second of two that are taken."""
        sequences = _sequences_of(self._choose(rows, batch))
        self._trainer.step(sequences)
        start = time.perf_counter()
        self._trainer.step(sequences)
        return time.perf_counter() - start

    def _choose(self, rows: Sequence[RecordedRow], most: int) -> Sequence[RecordedRow]:
        return rows if len(rows) <= most else random.Random(f"support {self._seed}").sample(rows, most)


def _sequences_of(rows: Sequence[RecordedRow]) -> list[TrainingSequence]:
    return [sequence for number, row in enumerate(rows) for sequence in row.sequences(number)]


def support_of(
    sequences: Sequence[TrainingSequence], logp: np.ndarray[tuple[int], np.dtype[np.float64]], algorithm: Offline
) -> Support:
    """Returns the support of sequences, given log-probabilities of their trained tokens: float64 `[tokens]`."""
    recorded = [sequence.logprobs[1:][sequence.loss_mask[1:]] for sequence in sequences]
    assert all((sequence.versions[sequence.loss_mask] != PROMPT_VERSION).all() for sequence in sequences)
    differences = (logp - np.concatenate(recorded)).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    owners = np.repeat(np.arange(len(sequences)), [len(own) for own in recorded])
    weights = np.exp(np.bincount(owners, differences).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    ratios = np.exp(differences)
    above = algorithm.clip if algorithm.clip_higher is None else algorithm.clip_higher
    return Support(
        rows=len(sequences),
        effective=float(weights.sum() ** 2 / (len(weights) * np.square(weights).sum())),
        within_clip=float(((ratios >= 1.0 - algorithm.clip) & (ratios <= 1.0 + above)).mean()),
        kl=float((ratios - 1.0 - differences).mean()),
    )


def refuse_weak_support(support: Support, least: float, log: str = "the log") -> None:
    """Refuse a log that is too far from the model.

    Args:
        support: what was measured.
        least: smallest effective sample size, as a share.
        log: name of the log, for the message.

    Raises:
        SetupError: it is smaller.
    """
    if support.effective < least:
        raise SetupError(
            f"the effective sample size of {log} is {support.effective:.3f} of its sequences, less than"
            f" {least:g} (--least-effective): the model is not the one that was served, or has moved far from it;"
            " learn with `model=` of the weights that were served, or from newer sessions with --since"
        )
