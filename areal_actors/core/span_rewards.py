"""Rewards of spans of a call's completion: as they are stated, in characters, and as they are trained, in tokens."""

from __future__ import annotations

import msgspec

from areal_bus.message import FrozenMeta


class SpanReward(msgspec.Struct, array_like=True, metaclass=FrozenMeta):
    """A reward of a part of a completion, as a reward function or an agent states it."""

    reward: float
    name: str = "span"
    """Rewards of one name are compared in a group."""
    text: str = ""
    """Text of the span; every place where the completion has it is a span. Empty for a range."""
    start: int = 0
    """First character of a range."""
    end: int = 0
    """End of the range, exclusive."""
    call: str = ""
    """Id of the call, or its place among the trained calls as `0` or `-1`; empty for the last trained one."""


class TokenSpan(msgspec.Struct, array_like=True, metaclass=FrozenMeta):
    """A reward of sampled tokens of a call."""

    start: int
    """First token of the completion, counted from 0."""
    end: int
    """End of the tokens, exclusive."""
    reward: float
    name: str

    def describe(self) -> str:
        """Returns the span as text, such as `step +1 on tokens 3 to 9`."""
        last = f" to {self.end - 1}" if self.end - self.start > 1 else ""
        return f"{self.name} {self.reward:+g} on token{'s' if last else ''} {self.start}{last}"


class SpanCredit(msgspec.Struct, array_like=True, metaclass=FrozenMeta):
    """A place of a training sequence whose tokens a span's reward credits."""

    key: str
    """Names the span among those of its episode: it counts once in statistics, at however many places it is."""
    start: int
    """First position in the sequence."""
    end: int
    """End of the positions, exclusive."""
    reward: float
    name: str
    share: float = 1.0
    """Factor of the credit: that of the discount, at calls before the one of the span."""
    is_carried: bool = False
    """True at calls before the one of the span."""
