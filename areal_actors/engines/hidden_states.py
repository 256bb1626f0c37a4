"""Last hidden states of the positions that score a token of interest, however the micro-batch is laid out.

Chains (see `prefix_tree`) are computed by the lean forward where the model is of its kind; else by the model's own
forward, into which our attention is put through the interface that Hugging Face has for that; else, where a probe shows
that neither gives the model's own hidden states and gradients, as if nothing were shared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from areal_actors.engines.chains import Chains
from areal_actors.engines.fused_forward import FusedForward
from areal_actors.engines.tensors import MicroBatch, Sharing
from areal_actors.engines.tree_attention import attend
from areal_actors.errors import EngineError
from areal_actors.steps.prefix_tree import build_prefix_tree

ATTENTION = "areal_actors"
"""The name of our attention among those of Hugging Face."""
TOLERANCE = 1e-3
"""Of the probe, relative to the largest entry: rounding stays far below it, a token that sees too much or too little far above."""
PROBE_IDS = ((1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 0, 6, 3), (1, 2, 3, 4, 5, 7), (2, 0))
"""Three sequences with a common beginning, and one without."""
PROBE_WEIGHTS = 4
"""By how many weights the gradient is taken; the first of a model are those that every other layer stands behind."""


class HiddenStates:
    """The base model of a causal language model of Hugging Face, run on micro-batches in `dtype` (weights stay as they are)."""

    def __init__(self, base_model: Any, dtype: torch.dtype = torch.float32) -> None:
        self.base_model = base_model
        self.dtype = dtype
        self._fused = FusedForward(base_model) if FusedForward.supports(base_model) else None
        self.shares_prefixes = self._probe()
        """Whether what rows share is computed once; if not, chains are computed as if nothing were shared."""

    def __call__(self, batch: MicroBatch) -> Tensor:
        """Hidden states `[tokens, hidden]`, with gradient."""
        with torch.autocast(batch.token_ids.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            if batch.chains is None:
                return self.forward_ids(batch.token_ids).flatten(0, 1).index_select(0, batch.positions)
            outputs = batch.chains.outputs if self.shares_prefixes and self._fused is not None else None
            positions = batch.positions if outputs is None else outputs.indices[batch.positions]
            return self.forward_chains(batch.token_ids[0], batch.chains).index_select(0, positions)

    def resolve_sharing(self, wanted: Sharing) -> Sharing:
        """What `make_micro_batches` is to be told, of what the recipe wants and the model can.

        Raises:
            EngineError: prefix sharing must be on and the model cannot.
        """
        if self.shares_prefixes:
            return wanted
        if wanted == "on":
            raise EngineError(
                f'trainer.prefix_sharing = "on": {type(self.base_model).__name__} does not give the same hidden states and gradients '
                'when its rows share what they have in common; set it to "auto" or "off"'
            )
        return "off"

    def forward_ids(self, token_ids: Tensor) -> Tensor:
        """Hidden states `[rows, width, hidden]` of token ids `[rows, width]`; no mask: padding stands where a causal model never spans."""
        hidden: Tensor = self.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
        return hidden

    def forward_chains(self, token_ids: Tensor, chains: Chains) -> Tensor:
        """Hidden states `[tokens, hidden]` of token ids `[tokens]`.

        Where the chains say what is read and the forward is lean, only those of these: `[outputs, hidden]`.
        """
        if not self.shares_prefixes:
            paths, slots = chains.unrolled()
            return self.forward_ids(token_ids[paths]).flatten(0, 1)[slots]
        return self._of_chains(token_ids, chains)

    def _of_chains(self, token_ids: Tensor, chains: Chains) -> Tensor:
        if self._fused is not None:
            return self._fused(token_ids, chains)
        hidden: Tensor = self.base_model(
            input_ids=token_ids[None], position_ids=chains.depths[None], use_cache=False, chains=chains
        ).last_hidden_state[0]
        return hidden

    def _probe(self) -> bool:
        """See that shared and unshared computation give the same hidden states and the same gradient."""
        device = next(self.base_model.parameters()).device
        tree = build_prefix_tree([np.array(ids) for ids in PROBE_IDS])
        token_ids, chains = torch.from_numpy(tree.token_ids).to(device), Chains.of(tree, device)
        paths, slots = chains.unrolled()
        if self._fused is None and not _install_attention(self.base_model):
            return False
        try:
            with torch.set_grad_enabled(not _sharded(self.base_model)):
                shared = _outputs_and_gradients(self.base_model, self._of_chains(token_ids, chains))
                unshared = _outputs_and_gradients(self.base_model, self.forward_ids(token_ids[paths]).flatten(0, 1)[slots])
        except (TypeError, ValueError, RuntimeError):  # a forward that does not take what ours is given
            return False
        same = all(_close(ours, own) for ours, own in zip(shared, unshared, strict=True))
        # Of several stages only the last sees hidden states, but all lay out their micro-batches alike.
        agree = getattr(self.base_model, "agree", bool)
        return bool(agree(same))


def _install_attention(base_model: Any) -> bool:
    """Give a model our attention in place of torch's, which it still gets for what is not in chains; False if it uses another."""
    config = base_model.config
    kinds = {*(getattr(config, "layer_types", None) or ())} - {"full_attention"}
    if config._attn_implementation not in ("sdpa", ATTENTION) or kinds or getattr(config, "sliding_window", None):  # noqa: SLF001 - it has no public name
        return False
    AttentionInterface.register(ATTENTION, _attention)
    base_model.set_attn_implementation(ATTENTION)
    return True


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What Hugging Face calls for attention: `[rows, heads, tokens, head_dim]` → `[rows, tokens, heads, head_dim]`."""
    chains = options.pop("chains", None)
    if chains is None:
        attended, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return attended, None
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(queries, keys, values, chains, scale).unsqueeze(0), None


def _outputs_and_gradients(base_model: Any, hidden: Tensor) -> tuple[Tensor, ...]:
    """Hidden states, and (unless the weights lie on several ranks) the gradient of a sum of them by the first trained weights."""
    if not hidden.requires_grad:
        return (hidden,)
    weights = torch.linspace(-1, 1, hidden.numel(), device=hidden.device).view_as(hidden)
    first = [parameter for parameter in base_model.parameters() if parameter.requires_grad][:PROBE_WEIGHTS]
    return hidden.detach(), *torch.autograd.grad((hidden * weights).sum(), first)


def _sharded(base_model: Any) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in base_model.parameters())


def _close(ours: Tensor, own: Tensor) -> bool:
    return float((ours - own).abs().max()) <= TOLERANCE * float(own.abs().max())
