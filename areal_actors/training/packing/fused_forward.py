"""Fused training forward of the Llama architecture (Llama, Qwen2, Qwen3) over packed branches.

It has few kernels and saves little memory. Small models spend their time between matrix products. Here tokens are
packed without padding, and everything between two products is one autograd function that saves only what its backward
pass needs. Projections are the model's modules, called as modules, so that adapters and hooks on them keep working.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from areal_actors.training.compilation import compile_on_first_call
from areal_actors.training.packing.packed_tree import PackedTree
from areal_actors.training.packing.tree_attention import attend

FAMILIES = ("LlamaModel", "Qwen2Model", "Qwen3Model")
ATTENTIONS = ("sdpa", "eager")
"""Attention implementations that this forward may replace; any other was installed on purpose."""


class FusedForward:
    """Computes the hidden states of a base model with the model's own parameters."""

    def __init__(self, base_model: Any) -> None:
        self._model = base_model
        config = base_model.config
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._before_attention, self._after_attention = _before_attention, _after_attention

    @staticmethod
    def supports(base_model: Any) -> bool:
        """True if this forward computes the same function as the model, and the model's own forward was not modified.

        Gradient checkpointing of the blocks is such a modification.
        """
        config = base_model.config
        sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
        is_supported_family = type(base_model).__name__ in FAMILIES and config.hidden_act == "silu" and not sliding
        keeps = (
            not any(getattr(layer, "gradient_checkpointing", False) for layer in base_model.layers)
            if is_supported_family
            else True
        )
        whole = all(type(parameter) is torch.nn.Parameter for parameter in base_model.parameters())
        # There is no public accessor
        hooks = base_model._forward_hooks or base_model._forward_pre_hooks or "forward" in vars(base_model)  # noqa: SLF001
        # It has no public name
        return is_supported_family and keeps and whole and not hooks and config._attn_implementation in ATTENTIONS  # noqa: SLF001

    def __call__(self, token_ids: Tensor, branches: PackedTree) -> Tensor:
        """Hidden states `[tokens, hidden]` of token ids `[tokens]`, with gradient.

        `[outputs, hidden]` if the branches have `outputs`.
        """
        model = self._model
        hidden = model.embed_tokens(token_ids)
        cos, sin = model.rotary_emb(hidden[None], branches.depths[None])
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        for number, layer in enumerate(model.layers, 1):
            outputs = branches.outputs if number == len(model.layers) else None
            read, plan = (None, branches.plan) if outputs is None else (outputs.tokens, outputs.plan)
            hidden, queries, keys, values = self._before_attention(layer, self._head_dim, hidden, cos, sin, read)
            attended = attend(queries, keys, values, plan, layer.self_attn.scaling)
            hidden = self._after_attention(layer, hidden, attended)
        return _rms_norm(hidden, model.norm)

    def compile(self) -> None:
        """Compile what precedes and follows the attention of a block."""
        self._before_attention = compile_on_first_call(_before_attention)
        self._after_attention = compile_on_first_call(_after_attention)


def _before_attention(
    layer: Any, head_dim: int, hidden: Tensor, cos: Tensor, sin: Tensor, read: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and queries of the tokens `read` (None: of all), and keys and values of all."""
    attention, seen = layer.self_attn, _rms_norm(hidden, layer.input_layernorm)

    def heads(projection: Any, seen: Tensor) -> Tensor:
        split: Tensor = projection(seen).view(len(seen), -1, head_dim)
        return split

    keys, values = heads(attention.k_proj, seen), heads(attention.v_proj, seen)
    around = [cos, sin]
    if read is not None:
        hidden, seen, *around = (column.index_select(0, read) for column in (hidden, seen, cos, sin))
    queries = heads(attention.q_proj, seen)
    if hasattr(attention, "q_norm"):
        queries, keys = _rms_norm(queries, attention.q_norm), _rms_norm(keys, attention.k_norm)
    queries, keys = _RotaryEmbedding.apply(queries, *around), _RotaryEmbedding.apply(keys, cos, sin)  # type: ignore[no-untyped-call]
    return hidden, queries, keys, values


def _after_attention(layer: Any, hidden: Tensor, attended: Tensor) -> Tensor:
    """Hidden states after a block, from those before it and the attention's result."""
    hidden = hidden + layer.self_attn.o_proj(attended.flatten(1))
    mlp, seen = layer.mlp, _rms_norm(hidden, layer.post_attention_layernorm)
    out: Tensor = hidden + mlp.down_proj(_SiluMul.apply(mlp.gate_proj(seen), mlp.up_proj(seen)))  # type: ignore[no-untyped-call]
    return out


def _rms_norm(hidden: Tensor, norm: Any) -> Tensor:
    normed: Tensor = _RmsNorm.apply(hidden.to(norm.weight.dtype), norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


class _RmsNorm(torch.autograd.Function):
    """RMSNorm over the last dimension."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = (
            torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
        )
        ctx.save_for_backward(hidden, weight, scale)
        return (hidden * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, scale = ctx.saved_tensors
        unit = hidden * scale
        product = grad * unit
        weight_grad = product.flatten(0, -2).sum(0)
        inner = torch.mv(product.flatten(0, -2), weight).view(scale.shape).div_(-hidden.shape[-1])
        hidden_grad: Tensor = torch.addcmul(grad * weight, unit, inner).mul_(scale)
        return hidden_grad, weight_grad, None


class _SiluMul(torch.autograd.Function):
    """silu(gate) up."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        up_grad = functional.silu(gate).mul_(grad)
        return torch.ops.aten.silu_backward(grad * up, gate), up_grad


class _RotaryEmbedding(torch.autograd.Function):
    """Rotary position embedding of heads `[tokens, heads, head_dim]`; the backward pass is the inverse rotation."""

    @staticmethod
    def forward(ctx: Any, heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, -sin), None, None


def _rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = heads.shape[-1] // 2
    rotated = heads * cos
    rotated[..., :half].addcmul_(heads[..., half:], sin[..., :half], value=-1)
    rotated[..., half:].addcmul_(heads[..., :half], sin[..., half:])
    return rotated
