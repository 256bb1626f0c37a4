"""Text to tokens and back, from a Hugging Face folder, without loading torch or transformers."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import compress, groupby
from pathlib import Path
from threading import Lock
from typing import Any

import jinja2
from cachetools import LRUCache
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from areal_actors.core.durable_files import read_json
from areal_actors.core.errors import SetupError
from areal_actors.tokenization.byte_pairs import BytePairs, byte_pairs_of
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.literal_marks import ESCAPED_JOINT, JOINT, LiteralMarks
from areal_actors.tokenization.tokenizer_files import chat_template_of, stop_ids_of, text_of_special_tokens
from areal_actors.tokenization.tool_parsers.base import AnswerFormat
from areal_actors.tokenization.tool_parsers.families import format_for_template
from areal_actors.tokenization.tool_parsers.round_trip import ToolSupport, tool_support
from areal_actors.tokenization.tool_parsers.stream_parser import partial_delimiter_start

CACHED_CHARACTERS = 2**21
"""Size of the cache of tokenized texts: the episodes of a group share prompts."""
SHORT_CHARACTERS = 16_384
"""Texts up to this length are tokenised without a length check."""
COMPOSED_FROM = 3
"""Largest ratio of bytes before and after NFC normalization."""
PREFIX_FACTOR, PREFIX_SLACK = 1.25, 64
"""A prefix proves that a text exceeds n tokens if it has more than n * PREFIX_FACTOR + PREFIX_SLACK: only its end is
uncertain."""
LIKELY_BYTES = 8
"""Texts with fewer bytes per allowed token are tokenised as a whole."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
DELIMITERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Delimiters in answers that are ordinary tokens in most tokenizers and special tokens in some."""


class ChatTokenizer:
    """A model's tokenizer, its chat template and its stop ids."""

    def __init__(
        self, tokenizer: Tokenizer, chat_template: str, special_tokens: Mapping[str, str], stop_ids: Sequence[int]
    ) -> None:
        self.stop_ids = tuple(stop_ids)
        """Ids that end a completion; part of its columns, not of its text."""
        self.vocabulary_size = tokenizer.get_vocab_size(with_added_tokens=True)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self.template = ChatTemplate(chat_template, special_tokens)
        self.reads_marks = False
        """True if the text of a special token in a message is that token, as in servers that tokenise the rendered text
        as it is."""
        self.byte_pairs: BytePairs | None = byte_pairs_of(tokenizer)
        self._special_ids = frozenset(
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._use_format(format_for_template(chat_template))
        self._lock = Lock()
        """Long prompts are tokenised beside the event loop."""
        self._cache: LRUCache[str, list[int]] = LRUCache(CACHED_CHARACTERS, getsizeof=lambda ids: 8 * len(ids) + 64)

    def _use_format(self, form: AnswerFormat) -> None:
        special = {number: self.tokenizer.id_to_token(number) or "" for number in self._special_ids}
        self.marks = LiteralMarks(
            special.values(), (*form.marks, *DELIMITERS, *[mark for pair in form.reasoning for mark in pair])
        )
        self.format = form
        """Format of reasoning and tool calls."""
        self.shown_ids = frozenset(
            number for number, text in special.items() if text and any(text in mark for mark in form.marks)
        )
        """Special tokens that answers are decoded with, if not all."""
        self.shows_special = not form.marks and (
            form.special_tokens or not set(special.values()).isdisjoint(DELIMITERS)
        )
        """True if answers can only be parsed with their special tokens."""

    def use_template(self, source: str) -> None:
        """Render with another chat template.

        Raises:
            jinja2.TemplateSyntaxError: it does not compile.
        """
        self.template = ChatTemplate(source, self.template.special_tokens)
        self._use_format(format_for_template(source))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render messages and tools to prompt text, as `ChatTemplate.render`.

        Special tokens come from the template only.
        Marks in messages and tools have a joint (`literal_marks.py`), which `encode` takes out.
        """
        if not self.reads_marks:
            messages, tools = self.marks.messages(messages), self.marks.break_in(tools)
        text = self.template.render(messages, tools, add_generation_prompt=add_generation_prompt, **kwargs)
        return text.replace(ESCAPED_JOINT, JOINT) if ESCAPED_JOINT in text else text

    def text_of(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens included, as `render` would write it.

        Marks that are no tokens have a joint.
        """
        text = self.decode(ids, skip_special=False)
        if self.reads_marks or self.marks.count(text) <= sum(self.is_special(number) for number in ids):
            return text
        runs = groupby(ids, self.is_special)
        return "".join(
            [
                written if is_special else self.marks.break_in(written, of_model=True)
                for is_special, written in self._decode_runs(runs)
            ]
        )

    def _decode_runs(self, runs: Iterable[tuple[bool, Iterable[int]]]) -> Iterator[tuple[bool, str]]:
        for is_special, run in runs:
            yield is_special, self.decode(list(run), skip_special=False)

    def choose_format(self, name: str) -> ToolSupport:
        """Choose the answer format, `auto` or one by name, and test it with tool calls that the template renders.

        Raises:
            SetupError: there is no format of this name.
        """
        stops = [text for number in self.stop_ids if (text := self.decode([number], skip_special=False))]
        form, support = tool_support(self.template, stops, name)
        self._use_format(form)
        return support

    def special_id(self, text: str) -> int | None:
        """Id of a special token; None for any other text."""
        number: int | None = self.tokenizer.token_to_id(text)
        return number if number in self._special_ids else None

    @classmethod
    def load(cls, folder: str | Path) -> ChatTokenizer:
        """Read `tokenizer.json`, its configuration, the chat template and the model's end-of-sequence ids.

        Raises:
            SetupError: the folder has no tokenizer.json, or a file in it does not parse.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise SetupError(
                f"{folder} holds no tokenizer.json: give a Hugging Face folder with a fast tokenizer (save_pretrained"
                " writes one)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
            config = read_json(folder / "special_tokens_map.json") | read_json(folder / "tokenizer_config.json")
            special_tokens = text_of_special_tokens(config)
            stop_ids = stop_ids_of(folder, tokenizer, special_tokens)
            return cls(tokenizer, chat_template_of(folder, config), special_tokens, stop_ids)
        except (ValueError, jinja2.TemplateSyntaxError) as error:
            raise SetupError(
                f"the tokenizer in {folder} cannot be loaded: {error}; save it again or take another copy"
            ) from error
        except Exception as error:
            # The tokenizers library raises bare Exception for a file that it cannot parse.
            if type(error) is not Exception:
                raise
            raise SetupError(f"{path} cannot be loaded: {error}; save it again or take another copy") from error

    @cached_property
    def largest_id(self) -> int:
        """Largest token id; ids may have gaps."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Ids of a text: special tokens in it are recognised, none are added.

        The list is shared: copy it to change it.
        """
        with self._lock:
            if (cached := self._cache.get(text)) is not None:
                return cached
        ids = self._encode(text, once=False)
        if len(ids) * 8 < CACHED_CHARACTERS // 4:
            with self._lock:
                self._cache[text] = ids
        return ids

    def encode_once(self, text: str) -> list[int]:
        """Ids of a text that is not expected again: it is not kept."""
        return self._encode(text, once=True)

    def _encode(self, text: str, *, once: bool) -> list[int]:
        if self.byte_pairs is not None:
            return self.byte_pairs.encode(text, once=once)
        encoded = self.tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoded.ids
        if JOINT in text:
            return [
                number
                for number, (start, end) in zip(ids, encoded.offsets, strict=True)
                if not text[start:end] or text[start:end].strip(JOINT)
            ]
        return ids

    @cached_property
    def leading_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer puts before every text that is no template's, such as its BOS; may be empty."""
        plain, whole = (list(self.tokenizer.encode("a", add_special_tokens=added).ids) for added in (False, True))
        places = (place for place in range(len(whole)) if plain and whole[place : place + len(plain)] == plain)
        return tuple(whole[: next(places, 0)])

    @cached_property
    def longest_token(self) -> int:
        """Largest number of bytes that one token can represent; 0 where unknown."""
        if self.byte_pairs is None:
            return 0
        return (
            max((len(self.byte_pairs.token_bytes(number)) for number in range(self.largest_id + 1)), default=0)
            * COMPOSED_FROM
        )

    def min_token_count(self, text: str, limit: int) -> int:
        """Lower bound of the token count of a text that exceeds `limit`; 0 if the text may fit.

        The bound comes from its bytes and the longest token if possible, else from prefixes of growing length.
        """
        if len(text) <= SHORT_CHARACTERS:
            return 0
        if self.longest_token and (least := len(text) // self.longest_token) > limit:
            return least
        size = max(SHORT_CHARACTERS, LIKELY_BYTES * limit)
        while size < len(text):
            count = len(self.encode_once(text[: _word_boundary(text, size)]))
            if count > PREFIX_FACTOR * limit + PREFIX_SLACK:
                return count
            size *= 4
        return 0

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:  # noqa: FBT001, FBT002 - clear at the call
        """Text of ids, with replacement characters for incomplete ones."""
        if skip_special and not self._special_ids.isdisjoint(ids):
            ids = [number for number in ids if not self.is_hidden(number)]
        if self.byte_pairs is None:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special and not self.shown_ids))
        return self.byte_pairs.decode(ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """UTF-8 of one token, which may be a part of a character."""
        if self.byte_pairs is not None:
            return self.byte_pairs.token_bytes(token_id)
        text = self.tokenizer.id_to_token(token_id)
        if text is None:
            return b""
        if self._falls_back_to_bytes and (byte := BYTE_TOKEN.fullmatch(text)) is not None:
            return bytes([int(byte[1], 16)])
        # Some tokenizers remove the space before the first token of a text.
        alone, twice = (self.tokenizer.decode([token_id] * count, skip_special_tokens=False) for count in (1, 2))
        return str(twice[len(alone) :] if twice.startswith(alone) else alone).encode()

    @cached_property
    def _falls_back_to_bytes(self) -> bool:
        """True if tokens `<0x00>` to `<0xFF>` are the bytes of characters without a token, as in SentencePiece."""
        return "ByteFallback" in json.dumps(json.loads(self.tokenizer.to_str())["decoder"])

    def is_lossless(self, text: str) -> bool:
        """True if decoding the text's ids gives the text again."""
        if JOINT in text:
            return False
        if self.byte_pairs is not None:
            return self.byte_pairs.is_lossless(text)
        return self.decode(self.encode(text), skip_special=False) == text

    def is_special(self, token_id: int) -> bool:
        """True for special tokens, which plain text omits."""
        return token_id in self._special_ids

    def is_hidden(self, token_id: int) -> bool:
        """True for special tokens that answers are decoded without."""
        return token_id in self._special_ids and token_id not in self.shown_ids


def _word_boundary(text: str, before: int) -> int:
    """Last position before `before` that no token spans; `before` itself if there is none."""
    place = text.rfind(" ", 1, before)
    while place > 0 and text[place - 1].isspace():
        place = text.rfind(" ", 1, place)
    return place if place > 0 else before


class IncrementalDecoder:
    """Decodes tokens incrementally; emits complete characters only."""

    def __init__(self, tokenizer: ChatTokenizer, *, special: bool) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._bytes = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream = DecodeStream(skip_special_tokens=not special and not tokenizer.shown_ids)
        self._ids: list[int] = []
        self._text = ""

    def push(self, token_id: int) -> str:
        """Text that a token completes."""
        pairs = self._tokenizer.byte_pairs
        if not self._special and self._tokenizer.is_hidden(token_id):
            return ""
        if pairs is not None:
            return self._bytes.decode(pairs.token_bytes(token_id))
        self._ids.append(token_id)
        step = self._stream.step(self._tokenizer.tokenizer, token_id) or ""
        self._text += step
        return step

    def push_all(self, ids: Sequence[int]) -> str:
        """Text that tokens complete."""
        pairs = self._tokenizer.byte_pairs
        if pairs is None:
            return "".join([self.push(token_id) for token_id in ids])
        shown = ids if self._special else [token_id for token_id in ids if not self._tokenizer.is_hidden(token_id)]
        return self._bytes.decode(pairs.decode(shown))

    def finish(self) -> str:
        """Text of an incomplete character at the end."""
        if self._tokenizer.byte_pairs is not None:
            return self._bytes.decode(b"", final=True)
        whole = self._tokenizer.decode(self._ids, skip_special=not self._special)
        return whole[len(self._text) :] if whole.startswith(self._text) else ""


class TextStream:
    """Incremental text of a completion: holds back incomplete characters and possible beginnings of a stop string.

    Stop strings match the text of special tokens, whether or not it is released, as in the engine.
    """

    def __init__(self, tokenizer: ChatTokenizer, stop: Sequence[str] = (), *, special: bool = False) -> None:
        """`special`: release the text of special tokens."""
        self.matched = ""
        """Stop string that ended the text; empty before a match."""
        self.released = ""
        """All text released so far."""
        self._tokenizer = tokenizer
        self._stop = tuple(string for string in stop if string)
        self._hides = bool(self._stop) and not special
        self._decoder = IncrementalDecoder(tokenizer, special=special or self._hides)
        self._pending = ""
        """Text that was neither released nor omitted."""
        self._shown = bytearray()
        """One entry for each of its characters, 0 for those of special tokens; used only if these are hidden."""

    def push(self, ids: Sequence[int]) -> str:
        """Append tokens; returns the text that is now final."""
        if self.matched:
            return ""
        if not self._hides:
            self._pending += self._decoder.push_all(ids)
            return self._release(final=False)
        for token_id in ids:
            piece = self._decoder.push(token_id)
            self._pending += piece
            self._shown += b"\x01" * len(piece)
            if self._tokenizer.is_hidden(token_id):
                hidden = min(len(self._tokenizer.decode([token_id], skip_special=False)), len(self._shown))
                self._shown[len(self._shown) - hidden :] = bytes(hidden)
        return self._release(final=False)

    def finish(self) -> str:
        """Return the text held back; call it after the last token."""
        if self.matched:
            return ""
        piece = self._decoder.finish()
        self._pending += piece
        self._shown += b"\x01" * len(piece)
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        end = len(self._pending) if final else partial_delimiter_start(self._pending, self._stop)
        places = [(self._pending.find(string), string) for string in self._stop if string in self._pending]
        if places:
            # Released text holds no beginning of a stop string, so the earliest match lies in the pending text.
            end, self.matched = min(places)
        text, self._pending = self._pending[:end], self._pending[end:]
        if self._hides:
            text = "".join(compress(text, self._shown))
            del self._shown[:end]
        self.released += text
        return text
