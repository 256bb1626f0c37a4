"""Forward of Llama architectures (Llama, Qwen2, Qwen3) with few operations per token.

Small models are bound by the overhead per operation. Here projections are fused, the last layer of a prefill stops at
its keys and values, and a decode step attends per key-value head without copying keys. The model's own parameters
become views of the fused ones, so loading weights into the model loads them here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from areal_actors.embedded.batch_invariance import BLOCK
from areal_actors.embedded.kv_cache import DecodeStep, KVCache, SuffixStep

FAMILIES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
ROTARY_KINDS = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings whose frequencies do not depend on the length of the sequence."""

HEAD_ROWS, HEAD_SIZE, HEAD_PART = (3, 32), 4096, 256
"""Rows, and smallest vocabulary, with which a CPU takes up to half the time for the logits if it computes `HEAD_PART`
columns at a time."""


class Norm:
    """Root mean square normalisation over the last dimension, then a weight per entry.

    On a CPU in float32 it takes four operations instead of the nine of torch: x w sqrt(n) / hypot(|x|, sqrt(n eps)) is
    x w / sqrt(mean(x x) + eps).
    """

    def __init__(self, eps: float, *modules: tuple[Any, int]) -> None:
        """`modules`: each with the number of heads it normalises, side by side; a whole hidden state is one head."""
        self._eps = eps
        self._modules = modules
        self.refresh()

    def refresh(self) -> None:
        """Recompute the values that depend on the modules' weights."""
        self._weight = torch.cat([module.weight.expand(heads, -1) for module, heads in self._modules])
        size = self._weight.shape[-1]
        self._plain = self._weight.dtype != torch.float32 or self._weight.is_cuda
        self._scaled = self._weight * size**0.5
        self._floor = torch.full((), (size * self._eps) ** 0.5, device=self._weight.device)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Normalise [tokens, size] or [tokens, heads, size]."""
        if self._plain:
            return functional.rms_norm(hidden, hidden.shape[-1:], eps=self._eps) * self._weight
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True).hypot_(self._floor)
        scaled: Tensor = hidden * self._scaled
        return scaled.div_(length)


class FusedLayer:
    """One transformer block: its norms, and its projections fused over parameters that stay shared with the model."""

    def __init__(self, block: Any, config: Any, *, by_input: bool) -> None:
        """`by_input`: see `fuse_projections`."""
        attention, mlp, eps = block.self_attn, block.mlp, config.rms_norm_eps
        self.attention_norm = Norm(eps, (block.input_layernorm, 1))
        self.mlp_norm = Norm(eps, (block.post_attention_layernorm, 1))
        self.heads_norm = None
        if hasattr(attention, "q_norm"):
            self.heads_norm = Norm(
                eps, (attention.q_norm, config.num_attention_heads), (attention.k_norm, config.num_key_value_heads)
            )
        self.qkv, self.qkv_bias = fuse_projections(
            attention.q_proj, attention.k_proj, attention.v_proj, by_input=by_input
        )
        self.gate_up, self.gate_up_bias = fuse_projections(mlp.gate_proj, mlp.up_proj, by_input=by_input)
        self.output, self.output_bias = fuse_projections(attention.o_proj, by_input=by_input)
        self.down, self.down_bias = fuse_projections(mlp.down_proj, by_input=by_input)

    def refresh(self) -> None:
        """Recompute the values that are not views of the model's weights."""
        for norm in (self.attention_norm, self.mlp_norm, self.heads_norm):
            if norm is not None:
                norm.refresh()


class FusedDecoder:
    """See `SlotDecoder` for the contract of prefill and decode."""

    def __init__(self, model: Any, slots: int, context: int, *, batch_invariant: bool = False) -> None:
        config = model.config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        by_input = model.device.type == "cpu" and model.dtype == torch.float32 and not batch_invariant
        self.layers = [FusedLayer(block, config, by_input=by_input) for block in model.model.layers]
        self.kv_cache = KVCache(len(self.layers), slots, context, batch_invariant=batch_invariant)
        self._device = model.device
        self._embedding = model.model.embed_tokens.weight
        self._norm = Norm(config.rms_norm_eps, (model.model.norm, 1))
        self._head = model.lm_head
        self._cos, self._sin = rotary_tables(model, context)

    @staticmethod
    def fits(model: Any) -> bool:
        """True if this forward is equivalent to the model's."""
        if type(model).__name__ not in FAMILIES or model.config.hidden_act != "silu":
            return False
        return model.model.rotary_emb.rope_type in ROTARY_KINDS

    def refresh(self) -> None:
        """See `SlotDecoder.refresh`."""
        self._norm.refresh()
        for layer in self.layers:
            layer.refresh()

    def prefill(self, rows: Sequence[int], token_ids: NDArray[np.int64]) -> None:
        """See `SlotDecoder.prefill`."""
        targets = torch.tensor(rows, device=self._device)

        def write(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            self.kv_cache.write_prompts(layer, targets, keys, values)
            return keys, values

        self._fill(token_ids, torch.arange(token_ids.shape[1], device=self._device).repeat(len(rows)), write)

    def extend(
        self, rows: Sequence[int], token_ids: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """See `SlotDecoder.extend`."""
        step = SuffixStep(rows, starts, counts, self._device)

        def write(layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            return self.kv_cache.write_suffixes(layer, step, keys, values)

        self._fill(token_ids, step.positions.view(-1), write, step.mask(self._embedding.dtype))

    def _fill(
        self,
        token_ids: NDArray[np.int64],
        positions: Tensor,
        write: Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]],
        mask: Tensor | None = None,
    ) -> None:
        """Compute keys and values of tokens [rows, width].

        `write` stores those of a layer and returns all that its attention reads.
        Without a mask these are of the same tokens, and attention is causal.
        """
        shape = token_ids.shape
        hidden = functional.embedding(torch.from_numpy(token_ids).to(self._device).view(-1), self._embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self.layers):
            heads = (
                part.view(*shape, -1, self.head_dim).transpose(1, 2) for part in self._project(layer, hidden, cos, sin)
            )
            queries, keys, values = heads
            keys, values = write(index, keys, values)
            if index == len(self.layers) - 1:
                return
            attended = functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            hidden = self._finish(layer, hidden, attended.transpose(1, 2).reshape(hidden.shape[0], -1))

    def decode(self, token_ids: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """See `SlotDecoder.decode`."""
        step = DecodeStep(positions, self._device, batch_invariant=self.kv_cache.batch_invariant)
        mask = step.mask(self.kv_heads, self._embedding.dtype)
        hidden = functional.embedding(torch.from_numpy(token_ids).to(self._device), self._embedding)
        cos, sin = self._cos[step.positions], self._sin[step.positions]
        rows = len(step)
        for index, layer in enumerate(self.layers):
            queries, keys, values = self._project(layer, hidden, cos, sin)
            keys, values = self.kv_cache.write_tokens(index, step, keys[:, :, None], values[:, :, None])
            # The query heads of one key-value head form its batch of queries, so keys are not copied.
            scores = torch.baddbmm(
                mask,
                queries.reshape(rows * self.kv_heads, -1, self.head_dim),
                keys.flatten(0, 1).transpose(1, 2),
                alpha=self.head_dim**-0.5,
            )
            attended = weighted_sum(torch.softmax(scores, -1), values.flatten(0, 1))
            hidden = self._finish(layer, hidden, attended.view(rows, -1))
        return self._logits(self._norm(hidden))

    def _logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [rows, vocabulary]."""
        weight, bias = self._head.weight, self._head.bias
        is_split = weight.dtype == torch.float32 and self._device.type == "cpu" and not self.kv_cache.batch_invariant
        if (
            not is_split
            or bias is not None
            or len(weight) < HEAD_SIZE
            or not HEAD_ROWS[0] <= len(hidden) <= HEAD_ROWS[1]
        ):
            return functional.linear(hidden, weight, bias).float()
        logits = hidden.new_empty((len(hidden), len(weight)))
        for start in range(0, len(weight), HEAD_PART):
            torch.mm(hidden, weight[start : start + HEAD_PART].t(), out=logits[:, start : start + HEAD_PART])
        return logits

    def _project(self, layer: FusedLayer, hidden: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [tokens, heads, head_dim] and keys and values [tokens, kv_heads, head_dim], rotated."""
        parts = functional.linear(layer.attention_norm(hidden), layer.qkv, layer.qkv_bias).view(
            len(hidden), -1, self.head_dim
        )
        seeking, values = parts[:, : -self.kv_heads], parts[:, -self.kv_heads :]
        if layer.heads_norm is not None:
            seeking = layer.heads_norm(seeking)
        seeking = apply_rotary(seeking, cos, sin)
        return seeking[:, : self.heads], seeking[:, self.heads :], values

    def _finish(self, layer: FusedLayer, hidden: Tensor, attended: Tensor) -> Tensor:
        """Output projection and feed-forward part, with their residual connections."""
        hidden = hidden + functional.linear(attended, layer.output, layer.output_bias)
        gate, up = functional.linear(layer.mlp_norm(hidden), layer.gate_up, layer.gate_up_bias).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate, inplace=True).mul_(up), layer.down, layer.down_bias)


def weighted_sum(probabilities: Tensor, values: Tensor) -> Tensor:
    """Sum of values [batch, positions, head_dim] weighted with probabilities [batch, queries, positions], in blocks."""
    total = torch.bmm(probabilities[:, :, :BLOCK], values[:, :BLOCK])
    for start in range(BLOCK, values.shape[1], BLOCK):
        total.baddbmm_(probabilities[:, :, start : start + BLOCK], values[:, start : start + BLOCK])
    return total


def fuse_projections(*projections: nn.Linear, by_input: bool) -> tuple[Tensor, Tensor | None]:
    """One weight [outputs, inputs] (and bias) for several projections of the same input; theirs become views of it.

    `by_input` stores the weights of each input side by side. On a CPU products of 4 to 128 rows then take 10 to 40 %
    less time in float32 (matrices of SmolLM2-135M), and others as long as before.
    """
    weight = torch.cat([projection.weight.data for projection in projections])
    if by_input:
        weight = weight.t().contiguous().t()
    biases = [projection.bias.data for projection in projections if projection.bias is not None]
    bias = torch.cat(biases) if biases else None
    start = 0
    for projection in projections:
        end = start + projection.out_features
        projection.weight.data = weight[start:end]
        if bias is not None:
            projection.bias.data = bias[start:end]
        start = end
    return weight, bias


def rotary_tables(model: Any, context: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context, 1, head_dim]; the first half of the sines is negated, as `apply_rotary` needs it."""
    positions = torch.arange(context, device=model.device)[None]
    cos, sin = model.model.rotary_emb(model.model.embed_tokens.weight[:1, None], positions)
    half = sin.shape[-1] // 2
    return cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), -1)


def apply_rotary(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of heads [tokens, heads, head_dim]."""
    return torch.addcmul(heads * cos, torch.roll(heads, heads.shape[-1] // 2, -1), sin)
