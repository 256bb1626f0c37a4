"""Log-probabilities and entropies of tokens from hidden states, without materializing the logits of all tokens.

Logits are one float32 per token and vocabulary entry: 4,096 tokens with 150,000 entries take 2.4 GB, and their gradient
as much again. Here they exist for one chunk of tokens at a time. The probabilities of chunks that fit into a limit are
saved; those of the others are recomputed in the backward pass. With a frozen head (LoRA) nothing is saved: the gradient
of each log-probability by its hidden state needs no later layer, and is computed from the chunk's probabilities in the
forward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS = {"cpu": 2**22, "cuda": 2**27}
"""Approximate number of logits per chunk: 16 MiB, which fit a CPU's cache; 512 MiB, with which a GPU spends its time on
products of matrices rather than on adding the gradients of chunks to that of the head."""
SAVED = {"cpu": 2**24, "cuda": 2**27}
"""Maximum of probabilities saved for the backward pass: 64 MiB, 512 MiB."""
TOKENS = 256
"""Minimum tokens per chunk: with fewer, reading the head's weights dominates."""


def token_scores(
    head: Any,
    hidden: Tensor,
    labels: Tensor,
    temperature: float | Tensor,
    dtype: torch.dtype,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of labels, with gradient, and entropies, without or with.

    Args:
        head: a linear layer, or any module that computes logits.
        hidden: `[tokens, hidden]`.
        labels: int64 `[tokens]`.
        temperature: divisor of the logits; float32 `[tokens]` if tokens have their own.
        dtype: of the head's product; everything after it is float32.
        entropy_gradient: True gives entropies a gradient, too, for more time.

    Returns:
        float32 `[tokens]` each.
    """
    device = hidden.device.type
    size = max(TOKENS, LOGITS[device] // head.out_features) if hasattr(head, "out_features") else TOKENS
    if _plain(head) and not entropy_gradient:
        room = SAVED[device] if torch.is_grad_enabled() else 0
        frozen = not any(parameter.requires_grad for parameter in head.parameters())
        apply: Callable[..., tuple[Tensor, Tensor]] = (
            _FrozenHeadScores.apply if frozen else partial(_LinearScores.apply, room)
        )
        return apply(hidden, head.weight, head.bias, labels, temperature, size, dtype)

    def of_chunk(hidden: Tensor, labels: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = head(hidden)
        return _scores((logits.float() / temperature).log_softmax(-1), labels, entropy_gradient=entropy_gradient)

    chunks = [
        checkpoint(of_chunk, *chunk, use_reentrant=False) if len(labels) > size else of_chunk(*chunk)
        for chunk in zip(
            torch.split(hidden, size), torch.split(labels, size), _divisors(temperature, size), strict=False
        )
    ]
    logps, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logps, entropies


def _divisors(temperature: float | Tensor, size: int) -> Iterable[float | Tensor]:
    """Divisors of the logits `[tokens, vocabulary]`, one for each chunk of `size` tokens.

    Without an end if it is one number.
    """
    return (
        torch.split(temperature.unsqueeze(1), size)
        if isinstance(temperature, Tensor)
        else itertools.repeat(temperature)
    )


def _scores(logps: Tensor, labels: Tensor, *, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Scores of labels `[tokens]` from all log-probabilities `[tokens, vocabulary]`."""
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, labels.unsqueeze(1)).squeeze(1), entropy


def _plain(head: Any) -> bool:
    """True if the head is an unsharded linear layer without hooks."""
    hooked = getattr(head, "_forward_hooks", None) or getattr(head, "_forward_pre_hooks", None)
    return type(head) is nn.Linear and type(head.weight) is nn.Parameter and not hooked


class _LinearScores(torch.autograd.Function):
    """With z the logits over temperature and p their softmax.

    Log p of the label, whose gradient by z is onehot(label) - p.
    """

    @staticmethod
    def forward(
        ctx: Any,
        room: int,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float | Tensor,
        size: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        scores, saved = list[tuple[Tensor, Tensor]](), list[Tensor | None]()  # one entry per chunk each
        used = _cast(weight, bias, dtype)
        for chunk, wanted, divisor in zip(
            torch.split(hidden, size), torch.split(labels, size), _divisors(temperature, size), strict=False
        ):
            chunk_scores, probabilities, sums = _softmax(_logits(chunk, *used, divisor), wanted)
            scores.append(chunk_scores)
            fits = probabilities.numel() <= room
            room -= probabilities.numel() if fits else 0
            saved.append(probabilities.div_(sums) if fits else None)
        logp, entropy = (torch.cat(columns) for columns in zip(*scores, strict=True))
        ctx.save_for_backward(hidden, weight, bias, labels, *saved)
        ctx.temperature, ctx.size, ctx.dtype = temperature, size, dtype
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, *saved = ctx.saved_tensors
        weight_grad = torch.zeros_like(weight) if ctx.needs_input_grad[2] else None
        bias_grad = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[3] else None
        hidden_grads = []
        used, used_bias = _cast(weight, bias, ctx.dtype)
        columns = zip(
            *(column.split(ctx.size) for column in (hidden, labels, grad / ctx.temperature)), saved, strict=True
        )
        divisors = _divisors(ctx.temperature, ctx.size)
        for (chunk, wanted, scale, probabilities), divisor in zip(columns, divisors, strict=False):
            factor = scale.unsqueeze(1)
            if probabilities is None:
                logits_grad = _logits(chunk, used, used_bias, divisor).softmax(-1).mul_(-factor)
            else:
                logits_grad = probabilities * -factor
            logits_grad.scatter_add_(1, wanted.unsqueeze(1), factor)
            if bias_grad is not None:
                bias_grad += logits_grad.sum(0)
            logits_grad = logits_grad.to(ctx.dtype)
            hidden_grads.append((logits_grad @ used).to(hidden.dtype))
            if weight_grad is not None:
                _add_product(weight_grad, logits_grad.T, chunk.to(ctx.dtype))
        return None, torch.cat(hidden_grads), weight_grad, bias_grad, None, None, None, None


class _FrozenHeadScores(torch.autograd.Function):
    """As `_LinearScores`.

    The gradient of each log-probability by its hidden state is computed with it, and all that is saved.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float | Tensor,
        size: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        chunk_scores, slopes = [], list[Tensor]()
        used = _cast(weight, bias, dtype)
        for chunk, wanted, divisor in zip(
            torch.split(hidden, size), torch.split(labels, size), _divisors(temperature, size), strict=False
        ):
            scores, probabilities, sums = _softmax(_logits(chunk, *used, divisor), wanted)
            chunk_scores.append(scores)
            if ctx.needs_input_grad[0]:
                slope = probabilities.div_(sums).neg_().scatter_add_(1, wanted.unsqueeze(1), torch.ones_like(sums))
                slopes.append((slope.to(dtype) @ used[0]).to(hidden.dtype) / divisor)
        logp, entropy = (torch.cat(parts) for parts in zip(*chunk_scores, strict=True))
        ctx.save_for_backward(*slopes)
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        return torch.cat(ctx.saved_tensors) * grad.unsqueeze(1), None, None, None, None, None, None


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product of matrices; in one dtype without a second tensor of the size of the total."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _softmax(logits: Tensor, labels: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Scores of the labels, and of all entries e^z up to a factor per token, with their sums `[tokens, 1]`.

    Overwrites the logits.
    """
    logits.sub_(logits.amax(-1, keepdim=True))
    picked = logits.gather(1, labels.unsqueeze(1)).squeeze(1)
    powers = logits.exp()
    sums = powers.sum(-1)
    expected, logs = logits.mul_(powers).sum(-1).div_(sums), sums.log()
    return (picked - logs, logs - expected), powers, sums.unsqueeze(1)


def _cast(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """The head's weights in the dtype of its product: once, not for every chunk."""
    return weight.to(dtype), None if bias is None else bias.to(dtype)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float | Tensor) -> Tensor:
    """Float32 `[tokens, vocabulary]`, computed in the dtype of the weights."""
    logits = nn.functional.linear(hidden.to(weight.dtype), weight, bias).float()
    return logits if isinstance(temperature, float) and temperature == 1.0 else logits.div_(temperature)
