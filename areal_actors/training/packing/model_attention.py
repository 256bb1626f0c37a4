"""Our attention in models of Hugging Face: over branches if there are any, else the model's own.

A model passes everything that its attention depends on to the attention function (window, sinks, caps), so that the
same function serves all of its layers. What this one does not compute is refused with the reason.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from areal_actors.core.model_config import VISION_TYPES
from areal_actors.training.packing.tree_attention import attend
from areal_actors.weights.training_notes import state_problem

ATTENTION = "areal_actors"
"""Name of our attention in Hugging Face's `AttentionInterface`."""
EAGER = "areal_actors_eager"
"""The same for models that have no attention but their own: outside of branches they keep it."""
OWN = {"sdpa": ATTENTION, "eager": EAGER, ATTENTION: ATTENTION, EAGER: EAGER}
"""Our attention for each implementation that it may replace."""


def sharing_problem(config: Any) -> str:
    """The reason why a model of this configuration cannot compute branches; empty if its layers can."""
    text = config.get_text_config()
    if config.model_type in VISION_TYPES:
        return "rows with images are computed one by one"
    kinds = set(getattr(text, "layer_types", None) or ()) | set(getattr(text, "layers_block_type", None) or ())
    if problem := state_problem(kinds):
        return problem
    if getattr(text, "attn_logit_softcapping", None) is not None:
        return "it caps the scores of its attention"
    if text._attn_implementation not in OWN:  # noqa: SLF001 - it has no public name
        return f"its attention is {text._attn_implementation}, which was chosen on purpose"  # noqa: SLF001
    if text._attn_implementation == "eager" and text.model_type != "gpt_oss":  # noqa: SLF001
        return "its attention is computed with all scores (eager), and other implementations are not its own"
    return ""


def windows_of(config: Any) -> set[int | None]:
    """Windows of the layers of this configuration, None for layers that attend to all earlier tokens."""
    text = config.get_text_config()
    window: int | None = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        return {window}
    return {window if kind == "sliding_attention" else None for kind in kinds}


def install_attention(base_model: Any) -> None:
    """Install our attention in the language model of `base_model`; its vision tower keeps its own."""
    config = base_model.config
    text = config.get_text_config()
    name = OWN[text._attn_implementation]  # noqa: SLF001 - it has no public name
    AttentionInterface.register(name, _attention)
    if text is config:
        base_model.set_attn_implementation(name)
    else:
        base_model.get_submodule("language_model").set_attn_implementation(name)


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention function for Hugging Face models.

    `[rows, heads, tokens, head_dim]` → `[rows, tokens, heads, head_dim]`.
    """
    branches, window, sinks = options.pop("branches", None), options.get("sliding_window"), options.get("s_aux")
    if branches is None:
        return _own_attention(module, query, key, value, attention_mask, options)
    if options.get("softcap") is not None:
        raise ValueError("it caps the scores of its attention")
    scale = options.get("scaling") or query.shape[-1] ** -0.5
    queries, keys, values = (part[0].transpose(0, 1) for part in (query, key, value))
    return attend(queries, keys, values, branches.plan_for_window(window), scale, sinks=sinks).unsqueeze(0), None


def _own_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The model's attention over padded rows; transformers makes no mask for the name of ours."""
    window, length = options.get("sliding_window"), query.shape[2]
    eager = module.config._attn_implementation == EAGER  # noqa: SLF001 - it has no public name
    if attention_mask is None and (eager or (window is not None and window < length)):
        places = torch.arange(length, device=query.device)
        distances = places[:, None] - places
        visible = (distances >= 0) & (distances < (window or length))
        attention_mask = torch.zeros(visible.shape, dtype=query.dtype, device=query.device)
        attention_mask = attention_mask.masked_fill_(~visible, torch.finfo(query.dtype).min)[None, None]
    attended: tuple[Tensor, Tensor | None]
    if eager:
        attended = sys.modules[type(module).__module__].eager_attention_forward(
            module, query, key, value, attention_mask, **options
        )
    else:
        attended = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    return attended
