"""Tiny random copies of published models: their `config.json` with every structural switch, and fewer and smaller layers.

What shrinks is width, depth, vocabulary, experts, context and windows. Kinds of layers, head layout, ties, biases, norms of queries and
keys, rotary scaling, sinks, soft caps and towers are as published, and so are tensors that transformers does not load (`extra`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from support.tiny_engine import save

VOCABULARY = 400
HIDDEN = 64
SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""The sizes that are not as published; families state what differs."""


@dataclass(frozen=True)
class Family:
    """One published model."""

    published: str
    """Repository of the model that was copied."""
    config: dict[str, Any]
    """Its `config.json`, shrunk."""
    features: str
    """Structural switches, for the table."""
    extra: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes of published tensors that transformers does not load, by name."""

    @property
    def text(self) -> dict[str, Any]:
        """Configuration of the language model."""
        return self.config.get("text_config", self.config)


def _config(model_type: str, architecture: str, **switches: Any) -> dict[str, Any]:
    return {"model_type": model_type, "architectures": [architecture], "torch_dtype": "bfloat16", **SIZE, **switches}


def _nested(model_type: str, architecture: str, text: dict[str, Any], vision: dict[str, Any], **switches: Any) -> dict[str, Any]:
    base = {"model_type": model_type, "architectures": [architecture], "torch_dtype": "bfloat16"}
    return {**base, "text_config": {**SIZE, **text}, "vision_config": vision, **switches}


def _mtp(prefix: str) -> dict[str, tuple[int, ...]]:
    """Some tensors of a head for the prediction of several tokens."""
    return {
        f"{prefix}.fc.weight": (HIDDEN, 2 * HIDDEN),
        f"{prefix}.norm.weight": (HIDDEN,),
        f"{prefix}.layers.0.self_attn.q_proj.weight": (128, HIDDEN),
        f"{prefix}.layers.0.mlp.down_proj.weight": (HIDDEN, 96),
    }


LINEAR = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_type": "llama3"}
YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 64}
MIXTURE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True, "router_aux_loss_coef": 0.001}
DEEPSEEK = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1, "norm_topk_prob": True}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 14}

FAMILIES = {
    "llama3": Family(
        "meta-llama/Llama-3.2-1B-Instruct",
        _config("llama", "LlamaForCausalLM", head_dim=16, rope_theta=500000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
        "llama3 rotary scaling, tied head",
    ),
    "qwen2": Family(
        "Qwen/Qwen2.5-7B-Instruct",
        _config("qwen2", "Qwen2ForCausalLM", rope_theta=1e6, sliding_window=131072, use_sliding_window=False, max_window_layers=28),
        "biases of queries, keys and values",
    ),
    "qwen3": Family(
        "Qwen/Qwen3-0.6B",
        _config("qwen3", "Qwen3ForCausalLM", head_dim=32, rope_theta=1e6, sliding_window=None, tie_word_embeddings=True),
        "norms of queries and keys, heads wider than hidden, tied head",
    ),
    "qwen3_moe": Family(
        "Qwen/Qwen3-30B-A3B",
        _config("qwen3_moe", "Qwen3MoeForCausalLM", head_dim=32, rope_theta=1e6, decoder_sparse_step=1, mlp_only_layers=[], **MIXTURE),
        "mixture of experts",
    ),
    "qwen3_next": Family(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        _config(
            "qwen3_next",
            "Qwen3NextForCausalLM",
            head_dim=32,
            partial_rotary_factor=0.25,
            full_attention_interval=4,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            shared_expert_intermediate_size=32,
            rope_theta=1e7,
            **MIXTURE,
            **LINEAR,
        ),
        "linear attention in 3 of 4 layers, gated attention, experts with a shared one, MTP",
        _mtp("mtp"),
    ),
    "qwen3_5": Family(
        "Qwen/Qwen3.5-4B",
        _nested(
            "qwen3_5",
            "Qwen3_5ForConditionalGeneration",
            {
                "model_type": "qwen3_5_text",
                "head_dim": 32,
                "full_attention_interval": 4,
                "layer_types": ["linear_attention"] * 3 + ["full_attention"],
                "attn_output_gate": True,
                "mtp_num_hidden_layers": 1,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e7,
                    "partial_rotary_factor": 0.25,
                    "mrope_interleaved": True,
                    "mrope_section": [2, 1, 1],
                },
                **LINEAR,
            },
            {
                "model_type": "qwen3_5",
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "patch_size": 16,
                "spatial_merge_size": 2,
                "temporal_patch_size": 2,
                "out_hidden_size": HIDDEN,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [],
            },
            image_token_id=390,
            video_token_id=391,
            vision_start_token_id=392,
            vision_end_token_id=393,
            tie_word_embeddings=True,
        ),
        "linear attention in 3 of 4 layers, gated attention, vision tower, MTP, tied head",
        _mtp("mtp"),
    ),
    "gemma2": Family(
        "google/gemma-2-2b-it",
        _config(
            "gemma2",
            "Gemma2ForCausalLM",
            head_dim=32,
            query_pre_attn_scalar=32,
            hidden_activation="gelu_pytorch_tanh",
            sliding_window=8,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
        ),
        "every other window, soft caps of scores and logits",
    ),
    "gemma3_text": Family(
        "google/gemma-3-1b-it",
        _config(
            "gemma3_text",
            "Gemma3ForCausalLM",
            num_hidden_layers=6,
            num_key_value_heads=1,
            head_dim=32,
            query_pre_attn_scalar=32,
            hidden_activation="gelu_pytorch_tanh",
            sliding_window=8,
            sliding_window_pattern=6,
            rope_theta=1e6,
            rope_local_base_freq=10000,
            final_logit_softcapping=None,
            attn_logit_softcapping=None,
        ),
        "5 of 6 windows with rotary frequencies of their own, tied head",
    ),
    "gemma3": Family(
        "google/gemma-3-4b-it",
        _nested(
            "gemma3",
            "Gemma3ForConditionalGeneration",
            {
                "model_type": "gemma3_text",
                "num_hidden_layers": 6,
                "head_dim": 32,
                "query_pre_attn_scalar": 32,
                "sliding_window": 8,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
            {"model_type": "siglip_vision_model", **VISION, "image_size": 56, "vision_use_head": False},
            mm_tokens_per_image=4,
            boi_token_index=390,
            eoi_token_index=391,
            image_token_index=392,
        ),
        "5 of 6 windows, linear rotary scaling, vision tower, tied head",
    ),
    "gpt_oss": Family(
        "openai/gpt-oss-20b",
        _config(
            "gpt_oss",
            "GptOssForCausalLM",
            head_dim=32,
            num_local_experts=8,
            num_experts_per_tok=2,
            intermediate_size=32,
            sliding_window=8,
            attention_bias=True,
            swiglu_limit=7.0,
            rope_theta=150000,
            rope_scaling={**YARN, "truncate": False},
            layer_types=["sliding_attention", "full_attention"] * 2,
            tie_word_embeddings=False,
        ),
        "attention sinks, every other window, YaRN, biases, experts with biases",
    ),
    "mistral": Family(
        "mistralai/Mistral-7B-Instruct-v0.3",
        _config("mistral", "MistralForCausalLM", head_dim=16, rope_theta=1e6, sliding_window=None, tie_word_embeddings=False),
        "untied head",
    ),
    "mistral_window": Family(
        "mistralai/Mistral-7B-Instruct-v0.1",
        _config("mistral", "MistralForCausalLM", rope_theta=1e4, sliding_window=8, tie_word_embeddings=False),
        "a window in every layer",
    ),
    "ministral3": Family(
        "mistralai/Ministral-3-3B-Instruct-2512-BF16",
        _nested(
            "mistral3",
            "Mistral3ForConditionalGeneration",
            {
                "model_type": "ministral3",
                "head_dim": 32,
                "sliding_window": None,
                "tie_word_embeddings": True,
                "rope_parameters": {
                    **YARN,
                    "type": "yarn",
                    "rope_theta": 1e6,
                    "mscale": 1.0,
                    "mscale_all_dim": 1.0,
                    "llama_4_scaling_beta": 0.1,
                },
            },
            {"model_type": "pixtral", **VISION, "head_dim": 16, "image_size": 56},
            image_token_index=390,
            spatial_merge_size=2,
            vision_feature_layer=-1,
            multimodal_projector_bias=False,
            projector_hidden_act="gelu",
            tie_word_embeddings=True,
        ),
        "YaRN with scaled queries, vision tower, tied head",
    ),
    "phi3": Family(
        "microsoft/Phi-4-mini-instruct",
        _config(
            "phi3",
            "Phi3ForCausalLM",
            partial_rotary_factor=0.75,
            original_max_position_embeddings=64,
            rope_scaling={"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0, 1.1, 1.5, 2.0, 4.0, 8.0]},
            sliding_window=262144,
            tie_word_embeddings=True,
        ),
        "long rotary scaling by length, partly rotated heads, fused projections, tied head",
    ),
    "smollm3": Family(
        "HuggingFaceTB/SmolLM3-3B",
        _config(
            "smollm3",
            "SmolLM3ForCausalLM",
            no_rope_layers=[1, 1, 1, 0],
            no_rope_layer_interval=4,
            use_sliding_window=False,
            sliding_window=None,
            max_window_layers=28,
            rope_theta=5e6,
            layer_types=["full_attention"] * 4,
            tie_word_embeddings=True,
        ),
        "every fourth layer without positions, tied head",
    ),
    "olmo2": Family(
        "allenai/OLMo-2-1124-7B-Instruct",
        _config("olmo2", "Olmo2ForCausalLM", rope_theta=500000, num_key_value_heads=4, tie_word_embeddings=False),
        "norms after the blocks, norms of all queries and keys",
    ),
    "olmo3": Family(
        "allenai/Olmo-3-7B-Instruct",
        _config(
            "olmo3",
            "Olmo3ForCausalLM",
            num_key_value_heads=4,
            rope_theta=500000,
            rope_scaling={**YARN, "attention_factor": 1.2079441541679836},
            sliding_window=8,
            layer_types=["sliding_attention"] * 3 + ["full_attention"],
            tie_word_embeddings=False,
        ),
        "3 of 4 windows, YaRN, norms after the blocks",
    ),
    "glm4": Family(
        "zai-org/GLM-4-9B-0414",
        _config("glm4", "Glm4ForCausalLM", head_dim=32, partial_rotary_factor=0.5, attention_bias=True, tie_word_embeddings=False),
        "partly rotated interleaved heads, norms before and after, fused projections",
    ),
    "glm4_moe": Family(
        "zai-org/GLM-4.5-Air",
        _config(
            "glm4_moe",
            "Glm4MoeForCausalLM",
            head_dim=32,
            partial_rotary_factor=0.5,
            attention_bias=True,
            use_qk_norm=False,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.0,
            num_nextn_predict_layers=1,
            tie_word_embeddings=False,
            **DEEPSEEK,
        ),
        "first layer dense, experts with a shared one and a correction bias, MTP",
        {
            "model.layers.46.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
            "model.layers.46.shared_head.norm.weight": (HIDDEN,),
            "model.layers.46.mlp.experts.0.up_proj.weight": (32, HIDDEN),
        },
    ),
    "deepseek_v3": Family(
        "deepseek-ai/DeepSeek-V3",
        _config(
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            num_key_value_heads=4,
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=16,
            first_k_dense_replace=1,
            n_group=4,
            topk_group=2,
            scoring_func="sigmoid",
            topk_method="noaux_tc",
            routed_scaling_factor=2.5,
            num_nextn_predict_layers=1,
            rope_theta=10000,
            rope_scaling={**YARN, "type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0},
            tie_word_embeddings=False,
            **DEEPSEEK,
        ),
        "latent attention, grouped experts with a correction bias, YaRN, MTP",
        {
            "model.layers.61.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
            "model.layers.61.shared_head.norm.weight": (HIDDEN,),
            "model.layers.61.self_attn.q_a_proj.weight": (24, HIDDEN),
        },
    ),
    "lfm2": Family(
        "LiquidAI/LFM2-1.2B",
        _config(
            "lfm2",
            "Lfm2ForCausalLM",
            block_auto_adjust_ff_dim=False,
            block_ff_dim=96,
            conv_L_cache=3,
            conv_bias=False,
            rope_theta=1e6,
            layer_types=["conv", "conv", "full_attention", "conv"],
            tie_embedding=True,
        ),
        "short convolutions in most layers, norms of queries and keys, tied head",
    ),
    "granite": Family(
        "ibm-granite/granite-3.3-2b-instruct",
        _config(
            "granite",
            "GraniteForCausalLM",
            attention_multiplier=0.0625,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            residual_multiplier=0.22,
            tie_word_embeddings=True,
        ),
        "multipliers of embeddings, scores, residuals and logits, tied head",
    ),
    "granite4_hybrid": Family(
        "ibm-granite/granite-4.0-h-tiny",
        _config(
            "granitemoehybrid",
            "GraniteMoeHybridForCausalLM",
            layer_types=["mamba", "mamba", "attention", "mamba"],
            position_embedding_type="nope",
            attention_multiplier=0.0625,
            embedding_multiplier=12.0,
            logits_scaling=1.0,
            residual_multiplier=0.22,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=32,
            mamba_n_heads=8,
            mamba_d_head=16,
            mamba_d_state=16,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_chunk_size=256,
            mamba_conv_bias=True,
            mamba_proj_bias=False,
            tie_word_embeddings=True,
        ),
        "Mamba in most layers, attention without positions, experts with a shared one, tied head",
    ),
}


def published_class(family: Family) -> Any:
    """The class that the published configuration names."""
    return getattr(transformers, family.config["architectures"][0])


def write_family(name: str, folder: Path, seed: int = 0) -> str:
    """Write a tiny random copy as a Hugging Face folder with a byte-level tokenizer; returns the folder."""
    family = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(family.config))
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(seed)
    model = published_class(family)(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1 and not key.endswith(("A_log", "dt_bias", ".D")):
                parameter.add_(torch.randn_like(parameter) * 0.1)  # biases, norms and sinks that change what a model computes
    save(model, folder)
    (folder / "config.json").write_text(json.dumps(family.config, indent=1))
    if family.extra:
        tensors = load_file(folder / "model.safetensors")
        extra = {key: torch.randn(shape).bfloat16() for key, shape in family.extra.items()}
        save_file(tensors | extra, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)
