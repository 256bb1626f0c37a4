"""Tiny random copies of published models: `published/*.json` are their `config.json`, shrunk, with every structural
switch.

Width, depth, vocabulary, experts, context and windows shrink. Kinds of layers, head layout, ties, biases, norms of
queries and keys, rotary scaling, sinks, soft caps and towers are as published, and so are names of tensors that
transformers does not load (`mtp`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from support.tiny_engine import save

FOLDER = Path(__file__).parent / "published"
HIDDEN = 64
UNCHANGED = ("A_log", "dt_bias", ".D")
"""Vectors of state-space layers, whose first values are not 0 or 1."""


@dataclass(frozen=True)
class Published:
    """A published model."""

    repository: str
    """The model that was copied."""
    features: str
    """Its structural switches."""
    mtp: str = ""
    """Prefix of published tensors that transformers does not load: a head for the prediction of several tokens."""


PUBLISHED = {
    "llama3": Published("meta-llama/Llama-3.2-1B-Instruct", "llama3 rotary scaling, tied head"),
    "qwen2": Published("Qwen/Qwen2.5-7B-Instruct", "biases of queries, keys and values"),
    "qwen3": Published("Qwen/Qwen3-0.6B", "norms of queries and keys, heads wider than hidden, tied head"),
    "qwen3_moe": Published("Qwen/Qwen3-30B-A3B", "mixture of experts"),
    "qwen3_next": Published(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "linear attention in 3 of 4 layers, gated attention, experts with a shared one, MTP",
        mtp="mtp",
    ),
    "qwen3_5": Published(
        "Qwen/Qwen3.5-4B", "linear attention in 3 of 4 layers, gated attention, vision tower, MTP, tied head", mtp="mtp"
    ),
    "gemma2": Published("google/gemma-2-2b-it", "every other window, soft caps of scores and logits"),
    "gemma3_text": Published("google/gemma-3-1b-it", "5 of 6 windows with rotary frequencies of their own, tied head"),
    "gemma3": Published("google/gemma-3-4b-it", "5 of 6 windows, linear rotary scaling, vision tower, tied head"),
    "gpt_oss": Published(
        "openai/gpt-oss-20b", "attention sinks, every other window, YaRN, biases, experts with biases"
    ),
    "mistral": Published("mistralai/Mistral-7B-Instruct-v0.3", "untied head"),
    "mistral_window": Published("mistralai/Mistral-7B-Instruct-v0.1", "a window in every layer"),
    "ministral3": Published(
        "mistralai/Ministral-3-3B-Instruct-2512-BF16", "YaRN with scaled queries, vision tower, tied head"
    ),
    "phi3": Published(
        "microsoft/Phi-4-mini-instruct",
        "long rotary scaling by length, partly rotated heads, fused projections, tied head",
    ),
    "smollm3": Published("HuggingFaceTB/SmolLM3-3B", "every fourth layer without positions, tied head"),
    "olmo2": Published("allenai/OLMo-2-1124-7B-Instruct", "norms after the blocks, norms of all queries and keys"),
    "olmo3": Published("allenai/Olmo-3-7B-Instruct", "3 of 4 windows, YaRN, norms after the blocks"),
    "glm4": Published(
        "zai-org/GLM-4-9B-0414", "partly rotated interleaved heads, norms before and after, fused projections"
    ),
    "glm4_moe": Published(
        "zai-org/GLM-4.5-Air",
        "first layer dense, experts with a shared one and a correction bias, MTP",
        mtp="model.layers.46",
    ),
    "deepseek_v3": Published(
        "deepseek-ai/DeepSeek-V3",
        "latent attention, grouped experts with a correction bias, YaRN, MTP",
        mtp="model.layers.61",
    ),
    "lfm2": Published("LiquidAI/LFM2-1.2B", "short convolutions in most layers, norms of queries and keys, tied head"),
    "granite": Published(
        "ibm-granite/granite-3.3-2b-instruct", "multipliers of embeddings, scores, residuals and logits, tied head"
    ),
    "granite4_hybrid": Published(
        "ibm-granite/granite-4.0-h-tiny",
        "Mamba in most layers, attention without positions, experts with a shared one, tied head",
    ),
}


def config_of(name: str) -> dict[str, Any]:
    """The shrunk `config.json`."""
    config: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return config


def published_class(name: str) -> Any:
    """The class that the published configuration names."""
    return getattr(transformers, config_of(name)["architectures"][0])


def mtp_tensors(name: str) -> dict[str, torch.Tensor]:
    """Some tensors of a head for the prediction of several tokens, in bfloat16 as published."""
    prefix = PUBLISHED[name].mtp
    if not prefix:
        return {}
    shapes = {
        "eh_proj.weight": (HIDDEN, 2 * HIDDEN),
        "shared_head.norm.weight": (HIDDEN,),
        "mlp.experts.0.up_proj.weight": (32, HIDDEN),
    }
    generator = torch.Generator().manual_seed(1)
    return {f"{prefix}.{key}": torch.randn(shape, generator=generator).bfloat16() for key, shape in shapes.items()}


def write_published(name: str, folder: Path, seed: int = 0) -> str:
    """Write a tiny random copy as a Hugging Face folder with a byte-level tokenizer; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    published = json.dumps(config_of(name), indent=1)
    (folder / "config.json").write_text(published)
    torch.manual_seed(seed)
    model = published_class(name)(transformers.AutoConfig.from_pretrained(folder)).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 and not key.endswith(UNCHANGED):
                parameter.add_(
                    torch.randn_like(parameter) * 0.1
                )  # biases, norms and sinks that change what a model computes
    save(model, folder)
    (folder / "config.json").write_text(published)
    if extra := mtp_tensors(name):
        save_file(
            load_file(folder / "model.safetensors") | extra, folder / "model.safetensors", metadata={"format": "pt"}
        )
    return str(folder)
