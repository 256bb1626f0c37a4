"""Constrained decoding: which tokens may come next so that a completion obeys a JSON schema, a regular expression or a grammar.

llguidance does the work. Text and marks are kept apart: schemas, expressions and strings speak of text, which is spelled
with ordinary tokens only, never with a token that is a mark (`<tool_call>` in an answer is then really the model's mark and
not somebody's data). A Lark grammar names the token of a mark `<tool_call>` or, by its id, `<[151657]>`, in rules only.
Those of `tool_parsers` hold for every tokenizer: whether their marks are tokens or text is resolved here.
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

from areal_actors.errors import RequestError
from areal_actors.text.tokenizer import ChatTokenizer
from areal_actors.tool_parsers.grammar import WHITESPACE, resolve_delimiters
from areal_actors.values import Constraint

FIELD = "response_format"
"""The request's field that errors name: where clients state a constraint."""
KEPT = 64
"""Compiled constraints that are kept for the next request that states them."""
LONGEST = 1_000_000
"""Characters of a constraint that are read at all."""
LIMITS = LLParserLimits(verbose_errors=False)


class Matcher:
    """Follows one completion through its constraint."""

    def __init__(self, matcher: LLMatcher, stop_ids: Sequence[int], vocabulary_size: int, bits: int) -> None:
        self._matcher = matcher
        self._stop_ids = frozenset(stop_ids)
        self._vocabulary_size = vocabulary_size
        self._mask = np.zeros((bits + 31) // 32, dtype=np.int32)

    def allowed(self) -> NDArray[np.bool_]:
        """Which tokens may come next, [vocabulary]; an end-of-sequence token where the completion may end, only these where it must.

        Raises:
            RequestError: the constraint cannot be followed any further: nothing fits, or it has become too complex.
        """
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self._check()
        return np.unpackbits(self._mask.view(np.uint8), count=self._vocabulary_size, bitorder="little").view(np.bool_)

    def took(self, token_ids: Sequence[int]) -> None:
        """Go on by these tokens; one that ends the completion may be the last.

        Raises:
            RequestError: one of them is not allowed.
        """
        # A matcher that knows that nothing can follow does not take the end itself.
        self._matcher.consume_tokens([token_id for token_id in token_ids if token_id not in self._stop_ids])
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"'{FIELD}': the constraint cannot be followed any further: {words(self._matcher.get_error())}", FIELD)


class Grammars:
    """Compiles constraints for one tokenizer, and keeps what was used last. Safe to use from several threads.

    Neither reading a large vocabulary (a second, with the first constraint) nor compiling belongs into an event loop.
    """

    def __init__(self, tokenizer: ChatTokenizer, vocabulary_size: int) -> None:
        """`vocabulary_size` is the model's, which may be larger than the tokenizer's."""
        self._tokenizer = tokenizer
        self._vocabulary_size = vocabulary_size
        self._bits = max(vocabulary_size, tokenizer.vocabulary_size)
        self._vocabulary = lru_cache(maxsize=1)(self._read_vocabulary)
        self._compiled = lru_cache(maxsize=KEPT)(self._compile)

    def matcher(self, constraint: Constraint, sampled: Sequence[int] = ()) -> Matcher:
        """Follow a constraint from the beginning of a completion, or after the tokens that it has already.

        Raises:
            RequestError: the schema, expression or grammar is wrong (in llguidance's words), these tokens break it, or
                this tokenizer allows no constraints.
        """
        matcher = Matcher(self._compiled(constraint).deep_copy(), self._tokenizer.stop_ids, self._vocabulary_size, self._bits)
        if sampled:
            try:
                matcher.took(sampled)
            except RequestError as error:
                raise RequestError(f"'sampled': the completion so far breaks its own constraint: {error}", "sampled") from error
        return matcher

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if len(constraint.text) > LONGEST:
            raise refused(constraint, f"it has {len(constraint.text)} characters; {LONGEST} are read at most")
        try:
            vocabulary = self._vocabulary()
            matcher = LLMatcher(vocabulary, self._grammar(constraint, vocabulary), log_level=0, limits=LIMITS)
        except ValueError as error:
            raise refused(constraint, str(error)) from error
        if matcher.is_error():
            raise refused(constraint, words(matcher.get_error()))
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
            raise ValueError("this model names no end-of-sequence token, so nothing could end a completion that must end")
        return LLTokenizer(Vocabulary(self._tokenizer.tokenizer, self._bits, stops), n_vocab=self._bits, eos_token=stops)  # type: ignore[arg-type]


class Vocabulary:
    """A tokenizer as llguidance asks for it; forced text is spelled with ordinary tokens, even if it looks like a mark."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, size: int, stops: Sequence[int]) -> None:
        described = json.loads(tokenizer.to_str())
        known = LLTokenizer(json.dumps({**described, "truncation": None, "padding": None}), n_vocab=size, eos_token=list(stops))
        self.eos_token_id = stops[0]
        self.tokens = [known.decode_bytes([number]) for number in range(size)]
        self.special_token_ids = [number for number in range(size) if known.is_special_token(number)]
        self._spell_any = known.greedy_tokenize
        self._plain = Tokenizer.from_str(json.dumps({**described, "truncation": None, "padding": None, "added_tokens": []}))

    def __call__(self, text: str) -> list[int]:
        """Ordinary tokens that spell a text, as the model's own tokenizer would where that is possible."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        spelled = b"".join(self.tokens[number] for number in ids)
        return ids if spelled == text.encode() else self._spell_any(text)


def words(complaint: str) -> str:
    """What llguidance says, without the state of its parser and the names of all special tokens."""
    return re.sub(r";? following special tokens are available: .*", "", complaint.partition("<non-verbose/>")[0]).strip()


def refused(constraint: Constraint, reason: str) -> RequestError:
    """The error for a constraint that cannot be followed."""
    what = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}[constraint.kind]
    return RequestError(f"'{FIELD}': this {what} cannot be followed: {reason}", FIELD)
