"""Constrained decoding: token masks for completions that must match a JSON schema, a regular expression or a grammar.

Masks come from llguidance. Text and special tokens are kept apart: schemas, expressions and strings match text of
ordinary tokens only, so `<tool_call>` as a special token in an answer is the model's delimiter and never data. A Lark
grammar refers to a special token as `<tool_call>` or, by its id, `<[151657]>`, in rules only. Grammars of
`tool_parsers` serve every tokenizer: their delimiters are resolved to tokens or text here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray
from tokenizers import Tokenizer

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.tokenization.tool_parsers.grammar import WHITESPACE, resolve_delimiters

FIELD = "response_format"
"""Request field that errors name."""
CACHE_SIZE = 64
"""Number of compiled constraints in the cache."""
MAX_CHARACTERS = 1_000_000
"""Largest accepted length of a constraint, in characters."""
LIMITS = LLParserLimits(verbose_errors=False)


class Matcher:
    """State of one completion in its constraint."""

    def __init__(self, matcher: LLMatcher, stop_ids: Sequence[int], vocabulary_size: int, bits: int) -> None:
        self._matcher = matcher
        self._stop_ids = frozenset(stop_ids)
        self._vocabulary_size = vocabulary_size
        self._mask = np.zeros((bits + 31) // 32, dtype=np.int32)

    def allowed_mask(self) -> NDArray[np.bool_]:
        """Mask of the allowed next tokens, [vocabulary].

        It includes end-of-sequence tokens where the completion may end, and only these where it must.

        Raises:
            RequestError: no token is allowed, or the constraint has become too complex.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        return np.unpackbits(self._mask.view(np.uint8), count=self._vocabulary_size, bitorder="little").view(np.bool_)

    def accept_tokens(self, token_ids: Sequence[int]) -> None:
        """Advance by these tokens; the last may be an end-of-sequence token.

        Raises:
            RequestError: one of them is not allowed.
        """
        # A matcher in its final state does not accept the end-of-sequence token itself.
        self._matcher.consume_tokens([token_id for token_id in token_ids if token_id not in self._stop_ids])
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                f"'{FIELD}': the constraint cannot be followed any further: {clean_error(self._matcher.get_error())}",
                FIELD,
            )


class Grammars:
    """Compiles constraints for one tokenizer, with an LRU cache. Thread-safe.

    Call it outside of event loops: reading a large vocabulary (with the first constraint) takes a second, compiling is
    slow too.
    """

    def __init__(self, tokenizer: ChatTokenizer, vocabulary_size: int) -> None:
        """`vocabulary_size`: the model's, which may be larger than the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._bits = max(vocabulary_size, tokenizer.vocabulary_size)
        self._vocabulary = lru_cache(maxsize=1)(self._read_vocabulary)
        self._compiled = lru_cache(maxsize=CACHE_SIZE)(self._compile)

    def matcher(self, constraint: Constraint, sampled: Sequence[int] = ()) -> Matcher:
        """Returns a matcher at the beginning of a completion, or after its `sampled` tokens.

        Raises:
            RequestError: the schema, expression or grammar is invalid (with llguidance's message), these tokens violate
                it, or this tokenizer does not support constraints.
        """
        matcher = Matcher(
            self._compiled(constraint).deep_copy(), self._tokenizer.stop_ids, self._vocabulary_size, self._bits
        )
        if sampled:
            try:
                matcher.accept_tokens(sampled)
            except RequestError as error:
                raise RequestError(
                    f"'resumed_tokens': the completion so far violates its own constraint: {error}", "resumed_tokens"
                ) from error
        return matcher

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if len(constraint.text) > MAX_CHARACTERS:
            raise constraint_error(
                constraint, f"it has {len(constraint.text)} characters; {MAX_CHARACTERS} are read at most"
            )
        try:
            vocabulary = self._vocabulary()
            matcher = LLMatcher(vocabulary, self._grammar(constraint, vocabulary), log_level=0, limits=LIMITS)
        except ValueError as error:
            raise constraint_error(constraint, str(error)) from error
        if matcher.is_error():
            raise constraint_error(constraint, clean_error(matcher.get_error()))
        return matcher

    def _grammar(self, constraint: Constraint, vocabulary: LLTokenizer) -> str:
        if constraint.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(constraint.text, defaults={"whitespace_pattern": WHITESPACE})
        if constraint.kind == "regex":
            return LLMatcher.grammar_from_regex(constraint.text)

        def token_of(mark: str) -> int | None:
            number: int | None = self._tokenizer.tokenizer.token_to_id(mark)
            return number if number is not None and vocabulary.is_special_token(number) else None

        return LLMatcher.grammar_from_lark(resolve_delimiters(constraint, token_of).text)

    def _read_vocabulary(self) -> LLTokenizer:
        stops = [number for number in self._tokenizer.stop_ids if number < self._vocabulary_size]
        if not stops:
            raise ValueError("this model has no end-of-sequence token, so a constrained completion could not end")
        vocabulary = Vocabulary(self._tokenizer.tokenizer, self._bits, stops)
        return LLTokenizer(vocabulary, n_vocab=self._bits, eos_token=stops)  # type: ignore[arg-type]


class Vocabulary:
    """Tokenizer interface of llguidance; forced text becomes ordinary tokens, even if it looks like a special token."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, stops: Sequence[int]) -> None:
        described = tokenizer.to_str()
        tokens = LLTokenizer(described, n_vocab=size, eos_token=list(stops))
        self.eos_token_id = stops[0]
        self.tokens = [tokens.decode_bytes([number]) for number in range(size)]
        self.special_token_ids = [number for number in range(size) if tokens.is_special_token(number)]
        self._spell_any = tokens.greedy_tokenize
        self._plain = Tokenizer.from_str(json.dumps({**json.loads(described), "added_tokens": []}))

    def __call__(self, text: str) -> list[int]:
        """Ordinary tokens of a text, the same as the model's own tokenizer where possible."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        spelled = b"".join(self.tokens[number] for number in ids)
        return ids if spelled == text.encode() else self._spell_any(text)


def clean_error(message: str) -> str:
    """Error message of llguidance, without parser state and the list of special tokens."""
    return re.sub(r";? following special tokens are available: .*", "", message.partition("<non-verbose/>")[0]).strip()


def constraint_error(constraint: Constraint, reason: str) -> RequestError:
    """Error for a constraint that cannot be compiled."""
    what = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}[constraint.kind]
    return RequestError(f"'{FIELD}': this {what} cannot be followed: {reason}", FIELD)
