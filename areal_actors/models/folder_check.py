"""Checks a model's folder for what a run needs beyond the weights.

Tokenizer, chat template, and a stop token that ends a turn.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from areal_actors.core.durable_files import atomic_write, read_json
from areal_actors.core.errors import ArealError, SetupError
from areal_actors.tokenization.tokenizer import ChatTokenizer

PLAIN_TEXT = "The sum of 17 and 25 is 42."
"""Text that must come back from its tokens."""
OTHER_TEXTS = (
    "def add(a, b):\n    return a + b  # tabs\tand  spaces\n",
    "Ein Gruß aus Zürich, naïve café, 東京, Привет, 😀",
)
"""Texts that a few tokenizers change, as those that normalize characters."""
QUESTION, ANSWER = "What is the capital of France?", "Paris"
CONVERSATION = ({"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER})
GENERATION = "generation_config.json"


class FolderCheck(NamedTuple):
    """Result of a check."""

    vocabulary: int
    """Tokens, the added ones among them."""
    stops: tuple[str, ...]
    """Texts of the tokens that end a completion."""
    has_template: bool
    changed_texts: tuple[str, ...]
    """Those of `OTHER_TEXTS` that do not come back from their tokens."""
    turn_end: str
    """Text of the token that the template writes after an answer; empty if it writes none, or there is no template."""

    def lines(self) -> list[str]:
        """Returns what was checked, a line each."""
        stops = " ".join(self.stops)
        fidelity = (
            f"changes {', '.join(map(repr, self.changed_texts))}"
            if self.changed_texts
            else "text comes back from its tokens"
        )
        template = (
            f"present, ends a turn with {self.turn_end or 'no token'}" if self.has_template else "none: a base model"
        )
        return [
            f"tokenizer      {self.vocabulary:,} tokens, {fidelity}",
            f"chat template  {template}",
            f"stop tokens    {stops or 'none'}",
        ]


def check_folder(folder: Path) -> FolderCheck:
    """Check the tokenizer, the template and the stop tokens of a model's folder.

    Raises:
        SetupError: the tokenizer changes text, the template cannot be rendered, or no stop token ends a turn of it.
    """
    chat = ChatTokenizer.load(folder)
    if not chat.is_lossless(PLAIN_TEXT):
        decoded = chat.decode(chat.encode(PLAIN_TEXT), skip_special=False)
        raise SetupError(
            f"{folder}: the tokenizer turns {PLAIN_TEXT!r} into {decoded!r}; take another copy of it (tokenizer.json)"
        )
    changed = tuple(text for text in OTHER_TEXTS if not chat.is_lossless(text))
    end = turn_end_id(chat)
    stops = tuple(chat.decode([number], skip_special=False) for number in chat.stop_ids)
    if not stops:
        raise SetupError(
            f"{folder}: no stop token; write the id of the token that ends a turn as eos_token_id into {GENERATION}"
        )
    if end is not None and end not in chat.stop_ids:
        shown = chat.decode([end], skip_special=False)
        raise SetupError(
            f"{folder}: the chat template ends a turn with {shown}, and the model stops at {' '.join(stops)} only; add"
            f" {end} to eos_token_id in {GENERATION}"
        )
    shown = "" if end is None else chat.decode([end], skip_special=False)
    return FolderCheck(chat.vocabulary_size, stops, bool(chat.template.source), changed, shown)


def turn_end_id(chat: ChatTokenizer) -> int | None:
    """Returns the special token that the template writes directly after an answer.

    None if it writes none, or there is no template.

    Raises:
        SetupError: the template cannot be rendered.
    """
    if not chat.template.source:
        return None
    try:
        text = chat.render(CONVERSATION, add_generation_prompt=False)
    except ArealError as error:
        raise SetupError(f"the chat template cannot render a question and its answer: {error}") from error
    rest = text.rpartition(ANSWER)[2].lstrip()
    ids = chat.encode(rest)
    return ids[0] if ids and chat.is_special(ids[0]) else None


def write_stop_ids(folder: Path) -> list[str]:
    """Add the token that ends a turn of the template to the stop tokens, if it is missing; returns the added texts."""
    chat = ChatTokenizer.load(folder)
    end = turn_end_id(chat)
    if end is None or end in chat.stop_ids:
        return []
    settings = read_json(folder / GENERATION) | {"eos_token_id": [*chat.stop_ids, end]}
    atomic_write(folder / GENERATION, msgspec.json.format(msgspec.json.encode(settings), indent=2))
    return [chat.decode([end], skip_special=False)]
