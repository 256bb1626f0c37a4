"""Tinker's losses: element-wise, from the log-probabilities of the targets.

A request's loss is the sum over all elements.
With p the log-probabilities of the targets under the trained weights, q those recorded when they were sampled
(`logprobs`), A the advantages, r = exp(p - q) and clip(r) = r limited to [clip_low_threshold, clip_high_threshold]:

    cross_entropy        -p · weights
    importance_sampling  -r · A
    ppo                  -min(r · A, clip(r) · A)                             (arXiv:1707.06347)
    cispo                -stop_gradient(clip(r)) · p · A                      (arXiv:2506.13585)
    dro                  -(p · A - beta / 2 · (p - q)²)                       (arXiv:2405.19107)
    gspo                 -min(s · A, clip(s) · A), s = exp(stop_gradient(mean(p - q) over sequence_ratio_mask - p) + p)
                                                                              (arXiv:2507.18071, its variant per token)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from areal_actors.core.errors import RequestError

CLIP_LOW, CLIP_HIGH = 0.8, 1.2
"""Limits of the ratio unless `loss_fn_config`, or inputs of these names per token, set others."""
CLIPS = frozenset({"clip_low_threshold", "clip_high_threshold"})
POLICY = frozenset({"logprobs", "advantages"})
UNPUBLISHED = {
    "stable_reinforce": "its formula is not published",
    "custom": (
        "custom losses run in the client, which needs no support of the server: pass a function to"
        " forward_backward_custom"
    ),
}

Inputs = Mapping[str, Tensor]
"""Tensors of a datum by name, in the shape of its targets."""
Options = Mapping[str, float]
LossFunction = Callable[[Tensor, Inputs, Options], Tensor]


def cross_entropy(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:  # noqa: ARG001 - it has no options
    """Weighted negative log-likelihood; weights are 1 unless sent."""
    return -logp * inputs["weights"] if "weights" in inputs else -logp


def importance_sampling(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:  # noqa: ARG001 - it has no options
    """REINFORCE with the ratio of the policies as weight."""
    return -(logp - inputs["logprobs"]).exp() * inputs["advantages"]


def ppo(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:
    """The clipped surrogate."""
    return _clipped_surrogate((logp - inputs["logprobs"]).exp(), inputs, options)


def cispo(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:
    """REINFORCE with the clipped ratio as a constant weight."""
    ratio = _clip((logp - inputs["logprobs"]).exp(), inputs, options)
    return -ratio.detach() * logp * inputs["advantages"]


def dro(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:
    """Policy gradient with a quadratic penalty of the log ratio."""
    penalty = (logp - inputs["logprobs"]).square()
    return -(logp * inputs["advantages"] - 0.5 * options["beta"] * penalty)


def gspo(logp: Tensor, inputs: Inputs, options: Options) -> Tensor:
    """The clipped surrogate of the sequence's ratio; the gradient is that of each token's own log-probability."""
    counted = inputs["sequence_ratio_mask"] != 0
    if not counted.any():
        raise RequestError(
            "sequence_ratio_mask marks no token: mark the sampled tokens of each datum", "sequence_ratio_mask"
        )
    mean = (logp.detach() - inputs["logprobs"])[counted].mean()
    return _clipped_surrogate((mean + logp - logp.detach()).exp(), inputs, options)


LOSSES: dict[str, tuple[LossFunction, frozenset[str], frozenset[str], frozenset[str]]] = {
    "cross_entropy": (cross_entropy, frozenset(), frozenset({"weights"}), frozenset()),
    "importance_sampling": (importance_sampling, POLICY, frozenset(), frozenset()),
    "ppo": (ppo, POLICY, CLIPS, CLIPS),
    "cispo": (cispo, POLICY, CLIPS, CLIPS),
    "dro": (dro, POLICY, frozenset(), frozenset({"beta"})),
    "gspo": (gspo, POLICY | {"sequence_ratio_mask"}, CLIPS, CLIPS),
}
"""By name: the function, its inputs besides `target_tokens`, further inputs that it may have, and its options."""
REQUIRED_OPTIONS = {"dro": frozenset({"beta"})}


def loss_function(name: str, config: Mapping[str, float | str]) -> tuple[LossFunction, dict[str, float]]:
    """Returns a loss and its options.

    Raises:
        RequestError: there is no such loss, or it has no such option.
    """
    if name not in LOSSES:
        reason = UNPUBLISHED.get(name, "it is unknown")
        raise RequestError(f"loss_fn '{name}' is not supported: {reason}; supported are {', '.join(LOSSES)}", "loss_fn")
    function, _, _, defaults = LOSSES[name]
    if unknown := sorted(set(config) - defaults):
        takes = f"takes {', '.join(sorted(defaults))}" if defaults else "takes no options"
        raise RequestError(f"loss_fn_config.{unknown[0]}: {name} {takes}", "loss_fn_config")
    if missing := sorted(REQUIRED_OPTIONS.get(name, frozenset()) - set(config)):
        raise RequestError(f"loss_fn_config.{missing[0]} is missing: {name} needs it, as in 0.05", "loss_fn_config")
    options: dict[str, float] = {}
    for option, value in config.items():
        if isinstance(value, str) or not math.isfinite(value):
            raise RequestError(f"loss_fn_config.{option} is {value!r}: write a finite number", "loss_fn_config")
        options[option] = float(value)
    return function, options


def loss_inputs(name: str) -> tuple[frozenset[str], frozenset[str]]:
    """The inputs that a loss needs besides `target_tokens`, and all that it reads."""
    _, needed, further, _ = LOSSES[name]
    return needed, needed | further


def _clipped_surrogate(ratio: Tensor, inputs: Inputs, options: Options) -> Tensor:
    advantages = inputs["advantages"]
    return -torch.minimum(ratio * advantages, _clip(ratio, inputs, options) * advantages)


def _clip(ratio: Tensor, inputs: Inputs, options: Options) -> Tensor:
    """The ratio within its limits: those of each token if sent, else those of the request."""
    low = inputs.get(
        "clip_low_threshold", torch.tensor(options.get("clip_low_threshold", CLIP_LOW), device=ratio.device)
    )
    high = inputs.get(
        "clip_high_threshold", torch.tensor(options.get("clip_high_threshold", CLIP_HIGH), device=ratio.device)
    )
    return ratio.clamp(low, high)
