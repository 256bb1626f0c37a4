"""A tiny random mixture of experts (Qwen3-MoE) whose second block is dense, as a Hugging Face folder with a
tokenizer."""

from __future__ import annotations

from pathlib import Path

import torch
from support.tiny_engine import SHAPE, save
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from areal_actors.core.routes import RouteShape

EXPERTS, TOP_K, BLOCKS, DENSE = 8, 2, 3, 1
ROUTES = RouteShape(layers=(0, 2), experts=EXPERTS, top_k=TOP_K, blocks=BLOCKS)
MIXTURE = {
    "num_hidden_layers": BLOCKS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": TOP_K,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "norm_topk_prob": True,
    "mlp_only_layers": [DENSE],
    "tie_word_embeddings": True,
    "head_dim": 32,
}


def random_mixture(seed: int, **more: object) -> Qwen3MoeForCausalLM:
    torch.manual_seed(seed)
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**(SHAPE | MIXTURE | more))).eval()


def save_mixture(folder: Path, seed: int = 0, **more: object) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return save(random_mixture(seed, **more), folder)


@torch.no_grad()
def plain_routes(model: Qwen3MoeForCausalLM, token_ids: list[int], shape: RouteShape = ROUTES) -> bytes:
    """The experts that a model chooses for each position but the last, in one plain forward pass."""
    chosen: list[torch.Tensor] = []
    hooks = [
        model.model.layers[number].mlp.gate.register_forward_hook(lambda _, __, output: chosen.append(output[2]))
        for number in shape.layers
    ]
    model(input_ids=torch.tensor([token_ids[:-1]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return shape.pack(torch.stack(chosen, 1).numpy())
