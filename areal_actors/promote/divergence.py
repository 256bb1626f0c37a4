"""Divergence of a candidate from the served version, on tokens that each of them has sampled.

Engines return log-probabilities of what they sample. Those of the other version are computed here by its weights, so
that for p the version that sampled and q the other, KL(p ‖ q) is the mean of r - 1 - log r over its tokens, r = q / p
(k3 of Schulman's note; no term is below 0).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from areal_actors.core.errors import SetupError
from areal_actors.core.values import PROMPT_VERSION, SequenceCall, TrainingSequence
from areal_actors.promote.sampled_answers import SampledAnswer
from areal_actors.training.algorithms.offline import Offline
from areal_actors.training.algorithms.pieces import LOG_RATIO_LIMIT
from areal_actors.training.settings import TrainerSettings
from areal_actors.training.torch_trainer import TorchTrainer

MOST_ANSWERS = 256
"""Answers that are scored; with more, as many chosen at random."""
RESAMPLES = 1000
"""Resamples of the sessions for the limits."""
CONFIDENCE = 0.95


class Divergence(msgspec.Struct, frozen=True):
    """Divergence in nats a token, with limits by a bootstrap over sessions."""

    mean: float
    low: float
    high: float
    answers: int
    """Answers whose tokens were scored."""
    sessions: int

    def describe(self, sampled: str, other: str) -> str:
        """Returns the sentence for people."""
        limits = f"{self.low:.4f} to {self.high:.4f}"
        counts = f"{self.answers} answers of {self.sessions} sessions"
        return f"divergence of the {sampled} from the {other}: {self.mean:.4f} nats a token ({limits}) in {counts}"


def measure_divergence(
    answers: Sequence[SampledAnswer], model: str, trainer: TrainerSettings, *, temperature: float, seed: int
) -> Divergence:
    """Returns the divergence of the version that sampled the answers from another.

    Args:
        answers: of one version.
        model: folder of the other's weights.
        trainer: device and precision.
        temperature: of answers without one of their own.
        seed: of the choice of answers, and of the resamples.

    Raises:
        SetupError: there is no answer with a token.
        EngineError: the model cannot be loaded.
    """
    usable = [answer for answer in answers if answer.token_ids]
    if not usable:
        raise SetupError("the log has no answers of one version with tokens yet; let both answer sessions first")
    draws = random.Random(f"divergence {seed}")
    chosen = usable if len(usable) <= MOST_ANSWERS else draws.sample(usable, MOST_ANSWERS)
    settings = msgspec.structs.replace(trainer, logprob_check_sequences=0)
    engine = TorchTrainer(model, Offline(), settings, total_steps=1, temperature=1.0, max_staleness=0, seed=seed)
    logp = engine.logp([_sequence(answer, number, temperature) for number, answer in enumerate(chosen)])
    return divergence_of(chosen, logp.double().numpy(), draws)


def divergence_of(answers: Sequence[SampledAnswer], logp: Any, draws: random.Random) -> Divergence:
    """Returns the divergence, given the other version's log-probabilities of all tokens: float64 `[tokens]`."""
    recorded = np.concatenate([answer.logprobs for answer in answers])
    differences = (logp - recorded).clip(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    terms = np.exp(differences) - 1.0 - differences
    names = {name: number for number, name in enumerate(dict.fromkeys(answer.session for answer in answers))}
    owners = np.repeat([names[answer.session] for answer in answers], [len(answer.logprobs) for answer in answers])
    sums, tokens = np.bincount(owners, terms), np.bincount(owners)
    resampled = np.random.default_rng(draws.getrandbits(32)).integers(0, len(names), (RESAMPLES, len(names)))
    means = sums[resampled].sum(axis=1) / tokens[resampled].sum(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Divergence(float(terms.mean()), float(low), float(high), len(answers), len(names))


def _sequence(answer: SampledAnswer, group: int, temperature: float) -> TrainingSequence:
    prompt, size = len(answer.prompt), len(answer.prompt) + len(answer.token_ids)
    return TrainingSequence(
        token_ids=np.array([*answer.prompt, *answer.token_ids], dtype=np.int64),
        loss_mask=np.arange(size) >= prompt,
        logprobs=np.array([0.0] * prompt + answer.logprobs, dtype=np.float32),
        versions=np.where(np.arange(size) >= prompt, 0, PROMPT_VERSION).astype(np.int32),
        group=group,
        reward=0.0,
        truncated=False,
        calls=(
            SequenceCall(
                start=prompt,
                end=size,
                reward=0.0,
                truncated=False,
                temperature=temperature if answer.temperature is None else answer.temperature,
            ),
        ),
    )
