"""Off-policy metrics of a step: divergences, importance weights, effective sample size.

With d = log p - log q of tokens sampled by q (Schulman, "Approximating KL divergence", 2020), estimates of KL(q ‖ p)
are

    k1 = -d    k2 = d² / 2    k3 = exp(d) - 1 - d

There are two pairs. Engine mismatch: q is recorded by the engine, p is the trainer under the same weight version.
Staleness: q is the trainer under the version that sampled the token, p the trainer under the weights at the start of
the step. Importance weights combine both, w = exp(proximal - behaviour), before clipping.

Tokens of catastrophic weight (`veto.VETO_THRESHOLD`) are excluded from means, because one of them would dominate; they
are counted separately, and the largest and the smallest weight are over all tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from areal_actors.training.algorithms.groups import sum_by
from areal_actors.training.algorithms.pieces import Estimator, estimate, ratio
from areal_actors.training.algorithms.veto import VETO_THRESHOLD, is_catastrophic

if TYPE_CHECKING:
    from torch import Tensor


def kl_estimates(differences: Tensor, name: str) -> dict[str, float]:
    """Returns `name_k1`, `_k2` and `_k3` of d, float64 `[tokens]`: means over tokens that are not catastrophic."""
    sound = -differences[~is_catastrophic(differences, VETO_THRESHOLD)]
    return {
        f"{name}_{estimator}": float(estimate(estimator, sound).mean()) if len(sound) else 0.0
        for estimator in get_args(Estimator)
    }


def weight_metrics(sequences: Tensor, behaviour: Tensor, proximal: Tensor, rescored: Tensor | None) -> dict[str, float]:
    """Returns statistics of the importance weights of a step, and of their staleness part.

    Args:
        sequences: int64 `[tokens]`: sequence of each trained token.
        behaviour: `[tokens]`, recorded by the engine.
        proximal: `[tokens]`, by the trainer under the weights at the start of the step.
        rescored: `[tokens]`, by the trainer under the weights that sampled the token; NaN, or None, if unknown.

    Returns:
        `importance_weight_mean`, `_max` and `_min`; `effective_sample_size`, (Σw)² / (n Σw²), 1 for equal weights;
        `chi2_token`, E[w²] - 1 over tokens, and `chi2_sequence`, over sequences, whose weight is the product of their
        token weights; `staleness_kl_k1`, `_k2` and `_k3`, if `rescored` is known.
    """
    log_weights = proximal.double() - behaviour.double()
    finite = log_weights[~log_weights.isnan()]
    if not len(finite):
        return {}
    catastrophic = is_catastrophic(log_weights, VETO_THRESHOLD)
    every = ratio(finite)
    metrics = {"importance_weight_max": float(every.max()), "importance_weight_min": float(every.min())}
    sound = ~catastrophic
    if sound.any():
        weights = log_weights[sound].exp()
        of_sequence = sum_by(log_weights[sound], sequences[sound])[
            sum_by(weights.new_ones(len(weights)), sequences[sound]) > 0
        ]
        squares = float(weights.square().mean())
        metrics |= {
            "importance_weight_mean": float(weights.mean()),
            "effective_sample_size": float(weights.mean()) ** 2 / squares,
            "chi2_token": squares - 1.0,
            "chi2_sequence": float(ratio(of_sequence).square().mean()) - 1.0,
        }
    if rescored is not None and len(staleness := (proximal.double() - rescored.double())[~rescored.isnan()]):
        metrics |= kl_estimates(staleness, "staleness_kl")
    return metrics
