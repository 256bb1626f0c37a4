"""Attention over branches of tokens that share contexts (see `prefix_tree`).

Each key and value is computed and kept once.
On a CPU a branch attends to itself, causally, and to its context, in one call for all branches of a group; both results
are merged by their log-sum-exps (Dao et al. 2022, FlashAttention, https://arxiv.org/abs/2205.14135, section 3.1). The
backward pass of each is the attention kernel's own, given the merged output and log-sum-exp. Elsewhere flex_attention
computes all branches in one call, with a block mask (`block_mask`). Neither keeps a score matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from areal_actors.training.packing.packed_tree import AttentionPlan, AttentionSpan, PaddedRanges

# The public function does not return the log-sum-exp
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


HIDDEN = -1e30
"""Added to the score of a hidden pair: finite in every type, so that no sum of exponentials is 0."""


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: AttentionPlan | BlockMask,
    scale: float,
    *,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of branches.

    Args:
        queries: `[tokens, heads, head_dim]` of the tokens of the plan that are queries.
        keys: `[all tokens, kv_heads, head_dim]`.
        values: as `keys`.
        plan: of a `PackedTree`: for all of its tokens, its `outputs`, or the window of a layer.
        scale: factor of the scores.
        sinks: `[heads]`: score of an additional key whose value is 0.

    Returns:
        `[tokens, heads, head_dim]`.
    """
    if torch.is_autocast_enabled(queries.device.type):
        queries, keys, values = (
            column.to(torch.get_autocast_dtype(queries.device.type)) for column in (queries, keys, values)
        )
    if isinstance(plan, BlockMask):
        return _masked_attention(queries, keys, values, plan, scale, sinks)
    size, widest = values.shape[-1], max(queries.shape[-1], values.shape[-1])
    if (
        size != queries.shape[-1]
    ):  # as in latent attention; the kernel takes heads of one size, and added zeros change no score
        queries, keys, values = (
            functional.pad(column, (0, widest - column.shape[-1])) for column in (queries, keys, values)
        )
    attended: Tensor = _PlannedAttention.apply(queries, keys, values, plan, scale, sinks)  # type: ignore[no-untyped-call]
    return attended[..., :size]


class _PlannedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, keys: Tensor, values: Tensor, plan: AttentionPlan, scale: float, sinks: Tensor | None
    ) -> Tensor:
        out = torch.empty_like(queries, memory_format=torch.contiguous_format)
        peaks = torch.empty(queries.shape[:2], dtype=torch.float32 if queries.dtype != torch.float64 else torch.float64)
        for own, seen in plan.buckets:
            attended, peak = _forward(
                _pad(own, queries), _pad(seen, keys), _pad(seen, values), 0.0, is_causal=True, scale=scale
            )
            _unpad(own, attended, out)
            _unpad(own, peak.unsqueeze(-1), peaks.unsqueeze(-1))
        for span in plan.spans:
            first, last = span.queries
            context = [_context(column, span.context) for column in (keys, values)]
            hidden = _hidden_scores(span, queries)
            attended, peak = _forward(
                _batch(queries[first:last]), *context, 0.0, is_causal=False, attn_mask=hidden, scale=scale
            )
            attended, peak = attended[0].transpose(0, 1), peak[0].transpose(0, 1)
            mine = peaks[first:last]
            out[first:last].lerp_(attended, torch.sigmoid(peak - mine).unsqueeze(-1).to(out.dtype))
            torch.logaddexp(mine, peak, out=mine)
        if sinks is not None:
            out.mul_(torch.sigmoid(peaks - sinks).unsqueeze(-1).to(out.dtype))
            torch.logaddexp(peaks, sinks.to(peaks.dtype), out=peaks)
        ctx.save_for_backward(queries, keys, values, out, peaks, sinks)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, out, peaks, sinks = ctx.saved_tensors
        grad = grads[0].contiguous()
        query_grad = torch.empty_like(queries, memory_format=torch.contiguous_format)
        make = torch.empty_like if ctx.plan.whole else torch.zeros_like
        totals = [make(column, memory_format=torch.contiguous_format) for column in (keys, values)]
        for own, seen in ctx.plan.buckets:
            parts = _pad(own, grad), _pad(own, queries), _pad(seen, keys), _pad(seen, values), _pad(own, out)
            peak = _pad(own, peaks.unsqueeze(-1), filling=torch.inf).squeeze(-1)
            gradients = _backward(*parts, peak, 0.0, is_causal=True, scale=ctx.scale)
            _unpad(own, gradients[0], query_grad)
            for column, total in zip(gradients[1:], totals, strict=True):
                _unpad(seen, column, total)
        for span in ctx.plan.spans:
            first, last = span.queries
            context = [_context(column, span.context) for column in (keys, values)]
            grad_of, query, attended = (_batch(column[first:last]) for column in (grad, queries, out))
            peak = peaks[first:last].transpose(0, 1).unsqueeze(0)
            hidden = _hidden_scores(span, queries)
            gradients = _backward(
                grad_of, query, *context, attended, peak, 0.0, is_causal=False, attn_mask=hidden, scale=ctx.scale
            )
            query_grad[first:last] += gradients[0][0].transpose(0, 1)
            for column, total in zip(gradients[1:], totals, strict=True):
                at = 0
                for begin, end in span.context:
                    total[begin:end] += column[0, :, at : at + end - begin].transpose(0, 1)
                    at += end - begin
        sink_grad = None
        if sinks is not None:
            sink_grad = -(torch.exp(sinks - peaks) * (grad.float() * out.float()).sum(-1)).sum(0).to(sinks.dtype)
        return query_grad, *totals, None, None, sink_grad


def _pad(ranges: PaddedRanges, column: Tensor, filling: float | None = None) -> Tensor:
    """Entries `[all tokens, heads, size]` of ranges as `[rows, heads, width, size]`.

    Empty slots hold `filling`, or arbitrary values.
    """
    if ranges.begin is not None:
        padded = column[ranges.begin : ranges.begin + len(ranges.tokens)]
    else:
        padded = column.index_select(0, ranges.filled)
        if filling is not None:
            padded.index_fill_(0, ranges.empty, filling)
    return padded.view(ranges.rows, ranges.width, *column.shape[1:]).transpose(1, 2)


def _unpad(ranges: PaddedRanges, padded: Tensor, column: Tensor) -> None:
    """Write entries `[rows, heads, width, size]` of ranges back into a column `[all tokens, heads, size]`."""
    entries = padded.transpose(1, 2).reshape(-1, *column.shape[1:])
    if ranges.begin is not None:
        column[ranges.begin : ranges.begin + len(entries)] = entries
    else:
        column.index_copy_(0, ranges.tokens, entries.index_select(0, ranges.slots))


def _hidden_scores(span: AttentionSpan, queries: Tensor) -> Tensor | None:
    """Summand of the scores `[1, 1, queries, context]` of a span; None if the window contains all of its context."""
    if span.window is None:
        return None
    seen = sum(last - first for first, last in span.context)
    asking, asked = (torch.arange(count, device=queries.device) for count in (span.queries[1] - span.queries[0], seen))
    outside = asking[:, None] + seen - asked >= span.window
    return torch.zeros(outside.shape, dtype=queries.dtype, device=queries.device).masked_fill_(outside, HIDDEN)[
        None, None
    ]


def _masked_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: BlockMask, scale: float, sinks: Tensor | None
) -> Tensor:
    if sinks is not None:
        raise NotImplementedError("attention sinks over a block mask")
    kernel: Callable[..., Tensor] = _compiled_kernel() if queries.device.type == "cuda" else _all_scores
    several = queries.shape[1] != keys.shape[1]
    attended = kernel(_batch(queries), _batch(keys), _batch(values), block_mask=mask, scale=scale, enable_gqa=several)
    return attended[0].transpose(0, 1)


@cache
def _compiled_kernel() -> Callable[..., Any]:
    """flex_attention as a kernel that skips hidden blocks.

    Compiled when it is called first, and once more for other lengths.
    """
    return torch.compile(flex_attention)


def _all_scores(
    query: Tensor, key: Tensor, value: Tensor, *, block_mask: BlockMask, scale: float, enable_gqa: bool
) -> Tensor:
    """flex_attention with all scores at once, for devices on which it has no gradients."""
    asking, asked = (torch.arange(length, device=query.device) for length in block_mask.seq_lengths)
    zero = asking.new_zeros(())
    mask = block_mask.mask_mod(zero, zero, asking[:, None], asked)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa
    )


def _batch(column: Tensor) -> Tensor:
    """`[tokens, heads, head_dim]` → `[1, heads, tokens, head_dim]`."""
    return column.transpose(0, 1).unsqueeze(0)


def _context(column: Tensor, ranges: tuple[tuple[int, int], ...]) -> Tensor:
    """Selects ranges of tokens of a column as `[1, heads, tokens, head_dim]`."""
    parts = [column[begin:end] for begin, end in ranges]
    return _batch(parts[0] if len(parts) == 1 else torch.cat(parts) if parts else column[:0])
