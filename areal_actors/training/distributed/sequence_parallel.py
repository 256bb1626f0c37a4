"""Sequence parallelism.

Each rank holds a shard of positions, and for attention all positions of its share of the heads.
Two all-to-all collectives around the attention convert one into the other (Jacobs et al. 2023, DeepSpeed-Ulysses,
https://arxiv.org/abs/2309.14509, section 3). The inverse of an all-to-all is an all-to-all with the dimensions swapped,
so the backward pass is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed._functional_collectives import all_to_all_single
from torch.nn import functional
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from areal_actors.core.errors import EngineError, SetupError

NAME = "areal_ulysses"
"""Name of the attention function. transformers makes no masks for unknown names; a causal mask of a shard would be
wrong."""
POSITIONS, HEADS = 1, 2
"""Dimensions of `[rows, positions, heads, head_dim]`."""

Attention = Callable[..., tuple[Tensor, Tensor | None]]
Forward = Callable[..., Any]


def all_to_all(tensor: Tensor, group: ProcessGroup, scattered: int, gathered: int) -> Tensor:
    """Splits dimension `scattered`, a multiple of the group's size, and concatenates `gathered`, in order of ranks."""
    sent = torch.stack(tensor.chunk(group.size(), dim=scattered))
    return torch.cat(all_to_all_single(sent, None, None, group).unbind(), dim=gathered)


class AllGather(torch.autograd.Function):
    """Shards of positions `[rows, width / parts, …]` of all ranks → `[rows, width, …]`.

    Every rank computes the following layers, with the same gradient: the backward pass takes its shard of it, times the
    number of ranks, because weight gradients are averaged over them.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        """Gathers all shards, in the order of the ranks."""
        ctx.group = group
        shards = [torch.empty_like(tensor) for _ in range(group.size())]
        dist.all_gather(shards, tensor.contiguous(), group=group)
        return torch.cat(shards, dim=POSITIONS)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """This rank's shard of the gradient."""
        own = grads[0].chunk(ctx.group.size(), dim=POSITIONS)[ctx.group.rank()]
        return own * ctx.group.size(), None


def use_all_to_all(base_model: Any, group: ProcessGroup) -> None:
    """Make a model's attention cover all positions, for a share of the heads.

    Raises:
        SetupError: the model has layers with a window, which needs masks from transformers, or layers other than
            attention, which would compute each shard of positions by itself.
    """
    config = base_model.config
    kinds = set(getattr(config, "layer_types", None) or ())
    if "sliding_attention" in kinds or getattr(config, "sliding_window", None):
        raise SetupError("trainer.sequence_parallel: models with sliding-window attention are not supported; write 1")
    if unsupported := sorted(kinds - {"full_attention", "attention"}):
        raise SetupError(
            f"trainer.sequence_parallel: models with layers of kind {', '.join(unsupported)} are not supported; write 1"
        )
    # Set below too
    AttentionInterface.register(NAME, _with_all_to_all(ALL_ATTENTION_FUNCTIONS[config._attn_implementation], group))  # noqa: SLF001
    config._attn_implementation = NAME  # noqa: SLF001


def _with_all_to_all(attention: Attention, group: ProcessGroup) -> Attention:
    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **named: Any
    ) -> tuple[Tensor, Tensor | None]:
        # transformers passes [rows, heads, positions, head_dim] and expects [rows, positions, heads, head_dim].
        whole = [all_to_all(column, group, 1, 2) for column in (query, key, value)]
        seen, _ = attention(module, *whole, attention_mask, **named)
        return all_to_all(seen, group, POSITIONS, HEADS), None

    return attend


def shard_positions(plain: Forward, group: ProcessGroup, *, joined: bool) -> Forward:
    """Wraps a base model's forward for this rank's shard of positions, padded to equal widths.

    Args:
        plain: the forward of token ids `[rows, width]`.
        group: ranks with the other shards.
        joined: gather the hidden states `[rows, width, hidden]` of all shards, as the last stage must.
    """

    def own(column: Tensor) -> Tensor:
        return column.chunk(group.size(), dim=POSITIONS)[group.rank()].contiguous()

    def forward(input_ids: Tensor, routes: Tensor | None = None, **named: Any) -> Any:
        if given := {name for name, value in named.items() if value is not None and value is not False}:
            raise EngineError(
                f"trainer.sequence_parallel: only rows of token ids are supported, without {', '.join(sorted(given))}"
            )
        rows, width = input_ids.shape
        padded = functional.pad(input_ids, (0, -width % group.size()))
        positions = torch.arange(padded.shape[1], device=input_ids.device).expand(rows, -1)
        replayed = {}
        if routes is not None:
            replayed["routes"] = own(functional.pad(routes, (0, 0, 0, 0, 0, -width % group.size()), value=-1))
        output = plain(input_ids=own(padded), position_ids=own(positions), use_cache=False, **replayed)
        if joined:
            whole: Tensor = AllGather.apply(output.last_hidden_state, group)  # type: ignore[no-untyped-call]
            # A sharded module must not return a view.
            output.last_hidden_state = whole if whole.shape[1] == width else whole[:, :width].clone()
        return output

    return forward
