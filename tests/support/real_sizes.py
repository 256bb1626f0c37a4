"""Tokenizers and models with the vocabulary of published ones, and little else: 151,643 tokens, 22 added ones, a head
of 151,936 rows."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations, product
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from areal_actors.tokenization.byte_pairs import byte_characters
from areal_actors.tokenization.tokenizer import ChatTokenizer

ORDINARY, ADDED, ROWS = 151_643, 22, 151_936
"""Qwen2.5 and Qwen3: ordinary tokens, added tokens, rows of the head."""
END, CALL = ORDINARY + 2, ORDINARY + 14
"""Ids of the token that ends a turn, and of one that is added but not special."""
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEMPLATE = (
    "{% for message in messages %}<|added 1|>{{ message.role }}\n{{ message.content }}<|added 2|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|added 1|>assistant\n{% endif %}"
)


@cache
def byte_level() -> Tokenizer:
    """A byte-level tokenizer in the form of Qwen's: all pairs of bytes, and two letters in order before any byte."""
    characters = [byte_characters()[byte] for byte in range(256)]
    letters = [character for character in characters if character.isascii() and character.isalpha()]
    merges = list(product(characters, characters))
    merges += [("".join(pair), character) for pair in combinations(letters, 2) for character in characters]
    merges = merges[: ORDINARY - len(characters)]
    vocabulary = {token: number for number, token in enumerate([*characters, *map("".join, merges)])}
    assert len(vocabulary) == ORDINARY
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(f"<|added {number}|>", special=number != CALL - ORDINARY, normalized=False)
            for number in range(ADDED)
        ]
    )
    return tokenizer


def sentence_pieces(style: str) -> ChatTokenizer:
    """A tokenizer that falls back to bytes, in the form of Llama 2's and Mistral's ("llama2") or of Gemma's."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for character in "▁abcdefghijklmnopqrstuvwxyz.,!é\n":
        vocabulary[character] = len(vocabulary)
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "a"), ("i", "s"), ("▁", "is"), ("▁", "▁"), ("▁▁", "▁▁")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    )
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if style == "llama2":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        spaces.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(spaces)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_special_tokens([AddedToken("<end_of_turn>", special=True)])
    return ChatTokenizer(tokenizer, "", {}, [2])


def write_model(folder: Path, *, tied: bool, hidden: int = 64) -> str:
    """A random Qwen3 of two layers with the vocabulary above, as a Hugging Face folder; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=ROWS,
        hidden_size=hidden,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32_768,
        initializer_range=0.1,
        eos_token_id=END,
        pad_token_id=ORDINARY,
        bos_token_id=None,
        tie_word_embeddings=tied,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|added 2|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)
