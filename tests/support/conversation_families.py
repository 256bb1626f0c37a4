"""Chat templates of model families with a small tokenizer, and their delimiters."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from areal_actors.core.errors import RequestError
from areal_actors.gateway.conversations.template_window import SENTINEL
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tokenizer import ChatTokenizer

MARKS = re.compile(r"<\|[^|<>{} ]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]{4,}\]")


STOPS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<｜end▁of▁sentence｜>",
)


STOPS += (
    "<|endoftext|>",
    "</s>",
    "<|user|>",
    "<|observation|>",
    "<|tool_response>",
    "<|eom_id|>",
    "<|tools_suffix|>",
    "<|calls|>",
)


STOP = re.compile(r"<[^<>\s]+>|\[[A-Z_/]+\]")


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Works an expression out.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Finds a passage.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
        },
    },
)


@cache
def byte_pairs(marks: tuple[str, ...]) -> Tokenizer:
    """A byte-level BPE of two thousand tokens, learnt from this repository's documents; marks are special tokens."""
    tokenizer = Tokenizer.from_str(learnt_byte_pairs())
    tokenizer.add_special_tokens(list(marks))
    return tokenizer


@cache
def learnt_byte_pairs() -> str:
    """The tokenizer without marks, as JSON."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [path.read_text(encoding="utf-8") for path in sorted((Path(__file__).parents[2] / "docs").glob("*.md"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def family(template: str) -> ChatTokenizer:
    """A tokenizer with this chat template and its marks."""
    stops = stops_of(template)
    tokenizer = byte_pairs(tuple(sorted({*MARKS.findall(template), *STOPS, *stops, "<s>"})))
    return ChatTokenizer(tokenizer, template, SPECIAL, [tokenizer.token_to_id(mark) for mark in dict.fromkeys(stops)])


@cache
def stops_of(template: str) -> tuple[str, ...]:
    """The marks with which this template ends an answer, and one with a call; those of all families where it writes
    none."""
    question, result = (
        {"role": "user", "content": "q"},
        {"role": "tool", "tool_call_id": "call00000", "name": "look_up", "content": "r"},
    )
    call = {
        "id": "call00000",
        "type": "function",
        "function": {"name": "look_up", "arguments": json.dumps({"query": SENTINEL})},
    }
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    compiled, found = ChatTemplate(template, SPECIAL), []
    for answer, after in (({"role": "assistant", "content": SENTINEL}, question), (calling, result)):
        for new in ([], [after]):
            try:
                text = compiled.render([question, answer, *new], TOOLS, add_generation_prompt=False)
            except RequestError:
                continue
            marks = STOP.findall(text.rpartition(SENTINEL)[2]) if SENTINEL in text else []
            if stops := [mark for mark in marks if mark in STOPS] or (marks if answer is not calling else []):
                found.append(stops[0])
                break
    return tuple(found) or STOPS
