"""Tiny random models, and GGUF files with the same weights, written by the `gguf` package as a converter of llama.cpp
writes them."""

from __future__ import annotations

import gguf
import torch
import transformers

from areal_actors.tokenization.byte_pairs import byte_characters

END, START, END_OF_TEXT = "<|im_end|>", "<|im_start|>", "<|endoftext|>"
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
CLASSES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
}
HEAD_DIM = 8


def vocabulary() -> list[str]:
    """Special tokens, one token per byte, and a merged one."""
    return [END_OF_TEXT, START, END, *byte_characters().values(), "he"]


def tiny_model(architecture: str, *, tied: bool = True, seed: int = 0, **settings):
    """A random model with the vocabulary above."""
    config, model = CLASSES[architecture]
    own = {} if architecture in ("llama", "qwen2") else {"head_dim": HEAD_DIM}
    torch.manual_seed(seed)
    made = model(config(**SIZES, **own, vocab_size=len(vocabulary()), tie_word_embeddings=tied, **settings)).eval()
    for parameter in made.parameters():  # norms and biases that are not all alike
        parameter.data += 0.02 * torch.randn_like(parameter)
    return made


def write_gguf(
    path,
    model,
    architecture,
    *,
    template=CHATML,
    eos=END,
    drop=(),
    extra=None,
    quantized=None,
    architecture_name="",
    **values,
):
    """Write the model as a GGUF file; `drop` leaves tensors out, `extra` adds some, `quantized` are Q8_0, `values` are
    further keys."""
    config, writer = model.config, gguf.GGUFWriter(path, architecture_name or architecture)
    writer.add_name(f"tiny {architecture}")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(float(rope.get("rope_theta") or rope["full_attention"]["rope_theta"]))
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    _add_tokenizer(writer, template, eos)
    for name, value in values.items():
        add = writer.add_string if isinstance(value, str) else writer.add_uint32
        add(name.replace("__", "."), value)
    for name, tensor in _tensors(model, architecture, drop):
        if name in (quantized or {}):
            writer.add_tensor(name, quantized[name], raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, tensor.to(torch.float32).contiguous().numpy())
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer, template, eos):
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(tokens.index(eos))
    writer.add_pad_token_id(0)
    if template:
        writer.add_chat_template(template)


def _tensors(model, architecture, drop):
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, architecture.upper()), model.config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        made = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert made is not None, name
        if made in drop:
            continue
        if architecture == "llama" and ("attn_q" in made or "attn_k" in made):
            heads = model.config.num_attention_heads if "attn_q" in made else model.config.num_key_value_heads
            yield made, tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)
        else:
            yield made, tensor + 1 if architecture == "gemma3" and made.endswith("norm.weight") else tensor
