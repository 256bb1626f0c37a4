"""A tokenizer of realistic size and texts of known length, created at the first use and cached.

Its components are those of large open models (byte-level BPE, NFC, ChatML turns), so that the cost of a prompt is
realistic.
"""

from __future__ import annotations

import hashlib
import json
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY = 24_576
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""Pre-tokenization pattern."""
SMALLEST_SOURCE_BYTES = 8192
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'These functions can be called:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' + tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\nA call is written as <tool_call>{"name": ..., "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif not (loop.first and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def corpus_files(corpus: Path | None) -> list[Path]:
    """The given file; without one, documentation and sources of Python."""
    if corpus is not None:
        return [corpus]
    library = Path(sysconfig.get_path("stdlib"))
    sources = sorted(file for file in library.glob("*.py") if file.stat().st_size >= SMALLEST_SOURCE_BYTES)
    return [library / "pydoc_data" / "topics.py", *sources]


def tokenizer_folder(corpus: Path | None = None) -> Path:
    """A Hugging Face folder with a tokenizer for these texts; trained at the first call, within seconds."""
    files = corpus_files(corpus)
    recipe = "|".join([f"{file}:{file.stat().st_size}" for file in files] + [WORDS, CHAT_TEMPLATE, str(VOCABULARY)])
    folder = (
        Path(tempfile.gettempdir())
        / f"areal-benchmark-tokenizer-{hashlib.blake2b(recipe.encode(), digest_size=6).hexdigest()}"
    )
    if not (folder / "tokenizer_config.json").is_file():
        folder.mkdir(exist_ok=True)
        _train(files).save(str(folder / "tokenizer.json"))
        settings = {"eos_token": TURN_END, "pad_token": END_OF_TEXT, "chat_template": CHAT_TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def _train(files: list[Path]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator((file.read_text(encoding="utf-8") for file in files), trainer)
    special = [AddedToken(text, special=True, normalized=False) for text in (END_OF_TEXT, TURN_START, TURN_END)]
    tokenizer.add_special_tokens(special)
    return tokenizer


class Texts:
    """Random texts of a given number of tokens from the corpus."""

    def __init__(self, folder: Path, corpus: Path | None, seed: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._ids = [
            token
            for file in corpus_files(corpus)
            for token in self._tokenizer.encode(file.read_text(encoding="utf-8"), add_special_tokens=False).ids
        ]
        self._random = Random(seed)

    def __call__(self, tokens: int) -> str:
        """Return a text of about `tokens` tokens from a random position."""
        start = self._random.randrange(len(self._ids) - tokens)
        return str(self._tokenizer.decode(self._ids[start : start + tokens]))

    def answers(self, count: int, tokens: int) -> Iterator[list[int]]:
        """Yield completions of exactly `tokens` tokens that end with the end of turn; ASCII text only."""
        end = self._tokenizer.token_to_id(TURN_END)
        while count:
            text = self(tokens + 32).replace("�", "?").strip()
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids[: tokens - 1]
            if text.isascii() and len(ids) == tokens - 1:
                count -= 1
                yield [*ids, end]
