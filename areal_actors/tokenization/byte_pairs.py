"""Fast byte-level BPE with tiktoken: the same ids as the tokenizers library, in about a tenth of the time.

It is used only where a tokenizer's structure and a check on texts show that the results are equal; all other tokenizers
use the library.

Texts are tokenised in pieces, between special tokens: no token spans one, and no split pattern looks beyond it. The ids
of long pieces are kept: prompts that are rendered in full again share the system message, the tools and earlier
messages with those before.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

import tiktoken
from cachetools import LRUCache
from tokenizers import Tokenizer

from areal_actors.tokenization.literal_marks import join_marks

KEPT_CHARACTERS = 256
"""Length from which the ids of a piece are kept: shorter ones take as long to find as to tokenise."""
KEPT_TOKENS = 2**20
"""Tokens of all kept pieces, some 10 MB with their texts; a piece with more than an eighth of them is not kept."""
SEEN_PIECES = 8192
"""Pieces of texts that are not expected again, after which half of those that were seen once are forgotten."""
ORDINARY_CHARACTERS = 8192
"""Length up to which a piece is tokenised without a search for special tokens, in three quarters of the time. In a much
longer one tiktoken would panic where it otherwise raises an error."""
GPT2_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
"""Default split pattern of the library's ByteLevel pre-tokenizer."""
CHECKED_TEXTS = (
    (
        "The quick brown fox's 12,345.67 jumps; they'll write \"it's fine\" -- won't they?\n\n\tIndented\r\n  two "
        " spaces   three\n"
    ),
    'def f(x: int) -> str:\n    return f\'{x:>08.3f}\'  # comment\n\n\n{"a": [1, 2.5e-3, null], "b\\\\n": "\\u00e9"}',
    (
        "Größe, naïve café; Привет мир; 你好，世界。こんにちは　カタカナ; 안녕하세요; שלום עולם; مرحبا بالعالم; नमस्ते;"
        " สวัสดี"
    ),
    "🙂👩‍👩‍👧‍👦🏳️‍🌈 ½ ² Ⅷ ﬁ e\u0301 a\u0308\u0323 \u200b\u200d\ufeff\u00a0\u2028\u3000 ’s ʼn ǆ İ ß ẞ",
    (
        '<tool_call>\n{"name": "f", "arguments": {"x":'
        " 1}}\n</tool_call>\n<|im_start|>assistant\n<think>\n\n</think>\n\n#### 42 <<3*14=42>>"
    ),
    "A'S B'Ll C'VE D're 1234567890 ١٢٣ 𝟙𝟚 \x00\x01\x7f\x85 tail   ",
    "|".join(character * count for character in "a0 \n=-._" for count in range(1, 40)),
)


class BytePairs:
    """Encodes and decodes as its tokenizer does."""

    def __init__(self, encoding: tiktoken.Encoding, tokenizer: Tokenizer, *, normalizes: bool) -> None:
        self._encoding = encoding
        self._tokenizer = tokenizer
        self._normalizes = normalizes
        self._special = {token: encoding.encode_single_token(token) for token in sorted(encoding.special_tokens_set)}
        self._special_pattern = re.compile(f"({'|'.join(map(re.escape, self._special)) or '(?!)'})")
        self._lock = Lock()
        """Long prompts are tokenised beside the event loop."""
        self._kept: LRUCache[str, array[int]] = LRUCache(KEPT_TOKENS, getsizeof=len)
        self._seen: set[int] = set()
        """Hashes of pieces of texts that were not expected again, so that those that come again are kept."""
        self._seen_before: set[int] = set()

    def encode(self, text: str, *, once: bool = False) -> list[int]:
        """Ids of a text; its special tokens are recognised, but not marks with a joint (`literal_marks.py`).

        With `once` the text is not expected again: its pieces are kept only if they were seen before.
        """
        ids: list[int] = []
        for place, piece in enumerate(self._special_pattern.split(text)):
            if place % 2:
                ids.append(self._special[piece])
            elif len(piece) < KEPT_CHARACTERS:
                ids += self._encode_piece(join_marks(piece))
            else:
                ids += self._kept_ids(join_marks(piece), once=once)
        return ids

    def _kept_ids(self, piece: str, *, once: bool) -> Sequence[int]:
        with self._lock:
            if (kept := self._kept.get(piece)) is not None:
                return kept
            is_kept = not once or self._was_seen(hash(piece))
        ids = self._encode_piece(piece)
        if is_kept and len(ids) <= KEPT_TOKENS // 8:
            with self._lock:
                self._kept[piece] = array("I", ids)
        return ids

    def _was_seen(self, piece: int) -> bool:
        """True if the piece of this hash was seen a while ago at most; notes that it is seen now."""
        if piece in self._seen or piece in self._seen_before:
            return True
        if len(self._seen) >= SEEN_PIECES // 2:
            self._seen_before, self._seen = self._seen, set()
        self._seen.add(piece)
        return False

    def _encode_piece(self, piece: str) -> list[int]:
        """Ids of a text without special tokens.

        NFC applies to each, so that a combining mark after a special token does not change it.
        """
        if self._normalizes and not unicodedata.is_normalized("NFC", piece):
            piece = unicodedata.normalize("NFC", piece)
        if len(piece) <= ORDINARY_CHARACTERS:
            return self._encoding.encode_ordinary(piece)
        try:
            return self._encoding.encode(piece, disallowed_special=())
        except ValueError:
            # tiktoken's regular expressions fail on a million spaces; the library's do not.
            ids: list[int] = self._tokenizer.encode(piece, add_special_tokens=False).ids
            return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        """UTF-8 of ids, without ids outside the vocabulary; may begin or end within a character."""
        try:
            return self._encoding.decode_bytes(ids)
        except KeyError:
            return b"".join(map(self.token_bytes, ids))

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of a token; empty for an id outside the vocabulary."""
        try:
            return self._encoding.decode_single_token_bytes(token_id)
        except KeyError:
            return b""

    def is_lossless(self, text: str) -> bool:
        """True if decoding the text's ids gives the text again."""
        return not self._normalizes or unicodedata.is_normalized("NFC", text)


def byte_pairs_of(tokenizer: Tokenizer) -> BytePairs | None:
    """Returns the fast implementation of a tokenizer; None where its results would differ."""
    described = json.loads(tokenizer.to_str())
    if (pattern := _pattern(described.get("pre_tokenizer"))) is None or not _is_plain(described):
        return None
    added = {entry["content"]: entry["id"] for entry in described["added_tokens"]}
    ranks = _ranks(described["model"], _ordinary(described))
    if ranks is None or not _merges_match(described, tokenizer):
        return None
    try:
        encoding = tiktoken.Encoding("model", pat_str=pattern, mergeable_ranks=ranks, special_tokens=added)
        pairs = BytePairs(encoding, tokenizer, normalizes=described.get("normalizer") is not None)
        texts = [*CHECKED_TEXTS, *(f"a {token} b{token}" for token in added)]
        same = all(pairs.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    except (ValueError, BaseExceptionGroup):
        return None
    return pairs if same else None


def _is_plain(described: Mapping[str, Any]) -> bool:
    """True if the tokenizer has no features that tiktoken lacks."""
    model, added = described["model"], described["added_tokens"]
    contents = sorted(entry["content"] for entry in added)
    return (
        model["type"] == "BPE"
        and not model.get("dropout")
        and not model.get("continuing_subword_prefix")
        and not model.get("end_of_word_suffix")
        and not model.get("byte_fallback")
        and described.get("normalizer") in (None, {"type": "NFC"})
        and (described.get("decoder") or {}).get("type") == "ByteLevel"
        and not any(entry["lstrip"] or entry["rstrip"] or entry["single_word"] for entry in added)
        and not (described.get("normalizer") and any(entry["normalized"] for entry in added))
        # Where one special token is a prefix of another, the two libraries may match differently.
        and not any(later.startswith(earlier) for earlier, later in pairwise(contents))
    )


def _pattern(pre_tokenizer: Mapping[str, Any] | None) -> str | None:
    """Split pattern of the pre-tokenizer; None if it does more than split by one pattern."""
    if pre_tokenizer is None:
        return None
    steps = pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]
    last = steps[-1]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if len(steps) == 1 and last["use_regex"]:
        return GPT2_PATTERN
    if len(steps) == 2 and steps[0]["type"] == "Split" and not last["use_regex"]:
        split = steps[0]
        expression = split["pattern"].get("Regex")
        if expression and split["behavior"] == "Isolated" and not split["invert"]:
            return str(expression)
    return None


def _ranks(model: Mapping[str, Any], ordinary: Sequence[tuple[str, int]]) -> dict[bytes, int] | None:
    """Maps the bytes of tokens to ids.

    None unless ids follow the order of merges and every longer token comes from a merge.
    """
    of_character = {character: byte for byte, character in byte_characters().items()}
    vocabulary = dict(ordinary)
    try:
        ranks = {bytes(of_character[character] for character in token): number for token, number in vocabulary.items()}
    except KeyError:
        return None
    merged_ids = [vocabulary.get("".join(merge), -1) for merge in model["merges"]]
    reachable = set(merged_ids) | {vocabulary.get(character) for character in of_character}
    ordered = -1 not in merged_ids and all(earlier <= later for earlier, later in pairwise(dict.fromkeys(merged_ids)))
    whole = all(bytes([byte]) in ranks for byte in range(256)) and reachable >= set(vocabulary.values())
    return ranks if ordered and whole else None


def _merges_match(described: Mapping[str, Any], tokenizer: Tokenizer) -> bool:
    """True if merging any adjacent pair that forms a token, as tiktoken does, is equivalent to the listed merges.

    Either every such pair is listed, or the merges produce each token from its own characters: then no other pair can
    occur where the token does.
    """
    model = described["model"]
    if not model.get("ignore_merges"):
        return all(
            [merged_token.id for merged_token in tokenizer.model.tokenize(token)] == [number]
            for token, number in _ordinary(described)
        )
    listed, vocabulary = set(map(tuple, model["merges"])), model["vocab"].keys()
    return all(
        (token[:cut], token[cut:]) in listed
        for token, _ in _ordinary(described)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )


def _ordinary(described: Mapping[str, Any]) -> list[tuple[str, int]]:
    added = {entry["content"]: entry["id"] for entry in described["added_tokens"]}
    return [(token, number) for token, number in described["model"]["vocab"].items() if added.get(token) != number]


def byte_characters() -> dict[int, str]:
    """Printable character of each byte in byte-level vocabularies."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unprintable = [byte for byte in range(256) if byte not in set(plain)]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(unprintable)}
