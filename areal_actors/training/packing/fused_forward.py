"""Fused training forward of the Llama architecture (Llama, Qwen2, Qwen3) over packed chains, with few kernels and little saved memory.

Small models spend their time between matrix products. Here tokens are packed without padding, and everything between two
products is one autograd function that saves only what its backward pass needs. Projections are the model's modules,
called as modules, so that adapters and hooks on them keep working.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from areal_actors.training.packing.packed_tree import OutputPositions, PackedTree
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

    @staticmethod
    def supports(base_model: Any) -> bool:
        """True if this forward computes the same function as the model, and the model's own forward was not modified.

        Gradient checkpointing of the blocks is such a modification.
        """
        config = base_model.config
        sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
        known = type(base_model).__name__ in FAMILIES and config.hidden_act == "silu" and not sliding
        keeps = not any(getattr(layer, "gradient_checkpointing", False) for layer in base_model.layers) if known else True
        whole = all(type(parameter) is torch.nn.Parameter for parameter in base_model.parameters())
        hooks = base_model._forward_hooks or base_model._forward_pre_hooks or "forward" in vars(base_model)  # noqa: SLF001 - there is no public accessor
        return known and keeps and whole and not hooks and config._attn_implementation in ATTENTIONS  # noqa: SLF001 - it has no public name

    def __call__(self, token_ids: Tensor, chains: PackedTree) -> Tensor:
        """Hidden states `[tokens, hidden]` of token ids `[tokens]`, with gradient; `[outputs, hidden]` if the chains have `outputs`."""
        model = self._model
        hidden = model.embed_tokens(token_ids)
        cos, sin = model.rotary_emb(hidden[None], chains.depths[None])
        cos, sin = cos[0].unsqueeze(1), sin[0].unsqueeze(1)
        for number, layer in enumerate(model.layers, 1):
            seen, outputs = _rms_norm(hidden, layer.input_layernorm), chains.outputs if number == len(model.layers) else None
            if outputs is not None:
                hidden = hidden.index_select(0, outputs.tokens)
            hidden = hidden + self._attention(layer.self_attn, seen, cos, sin, chains, outputs)
            mlp, seen = layer.mlp, _rms_norm(hidden, layer.post_attention_layernorm)
            hidden = hidden + mlp.down_proj(_SiluMul.apply(mlp.gate_proj(seen), mlp.up_proj(seen)))  # type: ignore[no-untyped-call]
        return _rms_norm(hidden, model.norm)

    def _attention(
        self, attention: Any, seen: Tensor, cos: Tensor, sin: Tensor, chains: PackedTree, outputs: OutputPositions | None
    ) -> Tensor:
        keys, values = (self._heads(projection, seen) for projection in (attention.k_proj, attention.v_proj))
        around = [cos, sin]
        if outputs is not None:
            seen, *around = (column.index_select(0, outputs.tokens) for column in (seen, cos, sin))
        queries = self._heads(attention.q_proj, seen)
        if hasattr(attention, "q_norm"):
            queries, keys = _rms_norm(queries, attention.q_norm), _rms_norm(keys, attention.k_norm)
        queries, keys = _RotaryEmbedding.apply(queries, *around), _RotaryEmbedding.apply(keys, cos, sin)  # type: ignore[no-untyped-call]
        attended: Tensor = attention.o_proj(attend(queries, keys, values, chains, attention.scaling, outputs).flatten(1))
        return attended

    def _heads(self, projection: Any, seen: Tensor) -> Tensor:
        heads: Tensor = projection(seen).view(len(seen), -1, self._head_dim)
        return heads


def _rms_norm(hidden: Tensor, norm: Any) -> Tensor:
    normed: Tensor = _RmsNorm.apply(hidden.to(norm.weight.dtype), norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
    return normed


class _RmsNorm(torch.autograd.Function):
    """RMSNorm over the last dimension."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale: Tensor = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).square_().div_(hidden.shape[-1]).add_(eps).rsqrt_()
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
