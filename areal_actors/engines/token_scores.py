"""Log-probabilities and entropies of tokens from hidden states, without the logits of all tokens at once.

Logits are float32 numbers per token and vocabulary entry: of 4,096 tokens and 150,000 entries they take 2.4 GB, and
their gradient as much again. Here they exist for a chunk of tokens at a time and are computed again for the backward
pass; where all of them fit one chunk, the probabilities are kept instead and nothing is computed twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

LOGITS = 2**24
"""Logits computed together, about (64 MiB)."""
TOKENS = 256
"""Tokens of a chunk at least: with fewer, the head's weights are read for too little work."""


def token_scores(head: Any, hidden: Tensor, labels: Tensor, temperature: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities of labels, with gradient, and entropies, without.

    Args:
        head: a linear layer, or any module that makes logits.
        hidden: `[tokens, hidden]`.
        labels: int64 `[tokens]`.
        temperature: what logits are divided by.
        dtype: of the head's product; everything after it is float32.

    Returns:
        float32 `[tokens]` each.
    """
    size = max(TOKENS, LOGITS // head.out_features) if hasattr(head, "out_features") else TOKENS
    if _plain(head):
        scores: tuple[Tensor, Tensor] = _LinearScores.apply(hidden, head.weight, head.bias, labels, temperature, size, dtype)  # type: ignore[no-untyped-call]
        return scores

    def of_chunk(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = head(hidden)
        return _scores((logits.float() / temperature).log_softmax(-1), labels)

    if len(labels) <= size:
        return of_chunk(hidden, labels)
    chunks = [
        checkpoint(of_chunk, *chunk, use_reentrant=False)
        for chunk in zip(torch.split(hidden, size), torch.split(labels, size), strict=True)
    ]
    logps, entropies = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logps, entropies


def _scores(logps: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Those of labels `[tokens]`, of all log-probabilities `[tokens, vocabulary]`."""
    with torch.no_grad():
        entropy = -(logps.exp() * logps).sum(-1)
    return logps.gather(1, labels.unsqueeze(1)).squeeze(1), entropy


def _plain(head: Any) -> bool:
    """Whether calling the head is multiplying with its weights, here and whole."""
    hooked = getattr(head, "_forward_hooks", None) or getattr(head, "_forward_pre_hooks", None)
    return type(head) is nn.Linear and type(head.weight) is nn.Parameter and not hooked


class _LinearScores(torch.autograd.Function):
    """With z the logits over temperature and p their softmax: log p of the label, whose gradient by z is onehot(label) - p."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        temperature: float,
        size: int,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        whole = len(labels) <= size
        found, probabilities = [], None
        for chunk, wanted in zip(torch.split(hidden, size), torch.split(labels, size), strict=True):
            logps = _logits(chunk, weight, bias, temperature, dtype).log_softmax(-1)
            picked = logps.gather(1, wanted.unsqueeze(1)).squeeze(1)
            probabilities = logps.exp()
            found.append((picked, logps.mul_(probabilities).sum(-1).neg_()))
        logp, entropy = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, bias, labels, probabilities if whole else None)
        ctx.temperature, ctx.size, ctx.dtype = temperature, size, dtype
        ctx.mark_non_differentiable(entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, labels, kept = ctx.saved_tensors
        weight_grad, bias_grad = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        hidden_grads = []
        used = weight.to(ctx.dtype)
        for chunk, wanted, scale in zip(*(column.split(ctx.size) for column in (hidden, labels, grad / ctx.temperature)), strict=True):
            factor = scale.unsqueeze(1)
            if kept is None:
                logits_grad = _logits(chunk, weight, bias, ctx.temperature, ctx.dtype).softmax(-1).mul_(-factor)
            else:
                logits_grad = kept * -factor
            logits_grad.scatter_add_(1, wanted.unsqueeze(1), factor)
            if bias_grad is not None:
                bias_grad += logits_grad.sum(0)
            logits_grad = logits_grad.to(ctx.dtype)
            hidden_grads.append((logits_grad @ used).to(hidden.dtype))
            weight_grad += logits_grad.T @ chunk.to(ctx.dtype)
        return torch.cat(hidden_grads), weight_grad, bias_grad, None, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, dtype: torch.dtype) -> Tensor:
    """Float32 `[tokens, vocabulary]`."""
    cast = None if bias is None else bias.to(dtype)
    logits = nn.functional.linear(hidden.to(dtype), weight.to(dtype), cast).float()
    return logits if temperature == 1.0 else logits.div_(temperature)
