"""Prompts and completions that an inference worker has served last, so that a later request sends only what is new.

They are named by a digest of all of their tokens, which the gateway computes from the tokens that it records: a prompt
is completed only if prefix and new tokens together have the digest that the request names.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict

from areal_actors.core.token_digest import TokenDigest
from areal_actors.messages import Generate
from areal_actors.messages.generation import PrefixProblem

HELD_MB = 256
"""Memory of an inference worker for them: 60 million tokens. What is not held is sent whole."""
ENDS = 16
"""Ends of a conversation by which it can be continued: of its first prompt, and of its last prompts and answers."""
END_BYTES = 1024
"""Memory of an end, about."""
WORD = 4


class PrefixLost(Exception):
    """Raised when the prefix of a request is not held, or is another than its caller believes."""

    def __init__(self, problem: PrefixProblem) -> None:
        super().__init__(problem)
        self.problem = problem


class HeldTokens:
    """Tokens of a conversation, at whose end more are appended."""

    __slots__ = ("ends", "ids")

    def __init__(self, ids: array[int]) -> None:
        self.ids = ids
        self.ends: dict[bytes, tuple[int, TokenDigest]] = {}
        """Length and digest of the prompts and answered prompts that these tokens begin with, the oldest first."""

    def size(self) -> int:
        """Returns the bytes of memory, about."""
        return WORD * len(self.ids) + END_BYTES * len(self.ends)


class HeldPrompts:
    """At most `most_bytes` of prompts with their answers; those that were not used for the longest time leave first."""

    def __init__(self, most_bytes: int = HELD_MB << 20) -> None:
        self.most_bytes = most_bytes
        self.size = 0
        """Bytes of memory, about."""
        self.problems: Counter[PrefixProblem] = Counter()
        """Requests that had to be sent again, whole."""
        self.saved_tokens = 0
        """Number of prompt tokens that requests left out."""
        self._by_end: dict[bytes, HeldTokens] = {}
        self._recent: OrderedDict[HeldTokens, None] = OrderedDict()

    def counts(self) -> dict[str, float]:
        """Returns figures for the worker's heartbeats, those that are not 0."""
        figures = {
            "held prompts, bytes": self.size,
            "prompt tokens not sent": self.saved_tokens,
            **{f"prefixes, {problem}": count for problem, count in self.problems.items()},
        }
        return {name: float(value) for name, value in figures.items() if value}

    def take_prompt(self, request: Generate) -> array[int]:
        """Returns the whole prompt of a request, and holds it if the request names it.

        Raises:
            PrefixLost: the prompt cannot be completed; the request has to be sent whole.
        """
        try:
            prompt = self._complete(request)
        except PrefixLost as error:
            self.problems[error.problem] += 1
            raise
        self.saved_tokens += request.prefix_tokens
        return prompt

    def _complete(self, request: Generate) -> array[int]:
        if (held := self._by_end.get(request.digest)) is not None:
            length, _ = held.ends[request.digest]
            if length == request.prompt_tokens():
                self._recent.move_to_end(held)
                return held.ids[:length]
            if request.prefix:  # a whole prompt is never refused: it would be sent again without an end
                raise PrefixLost("mismatch")
        if not request.prefix:
            return self._take_whole(request)
        if (held := self._by_end.get(request.prefix)) is None:
            raise PrefixLost("missing")
        length, before = held.ends[request.prefix]
        digest = before.extended(request.prompt_ids)
        if length != request.prefix_tokens or digest.value() != request.digest:
            raise PrefixLost("mismatch")
        prompt = held.ids[:length]
        prompt.frombytes(request.prompt_ids)
        self._append(held, length, request.prompt_ids, digest)
        return prompt

    def _take_whole(self, request: Generate) -> array[int]:
        prompt = array("I", request.prompt_ids)
        if request.digest:
            digest = TokenDigest(request.prompt_ids)
            if digest.value() == request.digest:
                self._append(HeldTokens(array("I")), 0, request.prompt_ids, digest)
            else:
                self.problems["mismatch"] += 1
        return prompt

    def add_completion(self, digest: bytes, sampled: bytes) -> None:
        """Append the sampled tokens (u32) to the prompt of this digest, if it is still held."""
        if (held := self._by_end.get(digest)) is not None:
            length, before = held.ends[digest]
            self._append(held, length, sampled, before.extended(sampled))

    def _append(self, held: HeldTokens, length: int, more: bytes, digest: TokenDigest) -> None:
        """Hold the first `length` tokens with more after them; a branch is a copy of them."""
        name = digest.value()
        if name in self._by_end:
            self._recent.move_to_end(self._by_end[name])
            return
        if length < len(held.ids):
            held = HeldTokens(held.ids[:length])
        self.size -= held.size() if held in self._recent else 0
        held.ids.frombytes(more)
        held.ends[name] = len(held.ids), digest
        self._by_end[name] = held
        if len(held.ends) > ENDS:
            _, second, *_ = held.ends
            del held.ends[second], self._by_end[second]
        self.size += held.size()
        self._recent[held] = None
        self._recent.move_to_end(held)
        while self.size > self.most_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        oldest, _ = self._recent.popitem(last=False)
        self.size -= oldest.size()
        for name in oldest.ends:
            del self._by_end[name]
