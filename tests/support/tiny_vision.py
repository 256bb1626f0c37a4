"""A tiny random Qwen2.5-VL in a folder, with its processor's files, and pictures for it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

VISION_MARKS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *VISION_MARKS)
CONTEXT = 512
SHARPER = 5
"""Factor of the output layer: among sharper logits one of 0 is far from the largest."""
TOP_K = 100
"""Tokens that are sampled from: a random model would write what surrounds images and stands for them, which no trained
one does, and which SGLang refuses."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""As the model's own, without tools."""
PREPROCESSING = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "min_pixels": 56 * 56,
    "max_pixels": 112 * 112,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        ["user\n", "assistant\n"] * 9, trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": CONTEXT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, "processor_class": "Qwen2_5_VLProcessor"}))
    return tokenizer


def random_vision_model(tokenizer: Tokenizer, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    ids = {mark: tokenizer.token_to_id(mark) for mark in MARKS}
    text = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.08,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]},
        "eos_token_id": ids["<|im_end|>"],
        "bos_token_id": None,
        "pad_token_id": ids["<|endoftext|>"],
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 56,
        "fullatt_block_indexes": [1],
        "initializer_range": 0.08,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(SHARPER)[[ids[mark] for mark in VISION_MARKS]] = 0
    return model


def write_vision_model(folder: Path, seed: int = 0) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder)
    random_vision_model(tokenizer, seed).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.token_to_id("<|im_end|>")}))
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


def picture(seed: int, width: int = 100, height: int = 70, kind: str = "PNG") -> bytes:
    """An image file of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(blocks).resize((width, height), Image.Resampling.NEAREST).save(out, kind)
    return out.getvalue()


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
