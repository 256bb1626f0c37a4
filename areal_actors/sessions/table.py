"""The life of a session as one table: what may happen in which state, and what it becomes.

Everything that decides what a session accepts stands here; the session manager and its gateway only ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from areal_actors.conversations.rows import last_trained
from areal_actors.conversations.turns import CANCELLED, ConversationTurn
from areal_actors.errors import SessionError
from areal_actors.messages import ModelAnswered, RunEpisode
from areal_actors.values import Interaction, Trajectory
from bus.message import FrozenMeta

State = Literal["opened", "active", "ended", "scored", "exported", "abandoned"]
Happening = Literal["call", "record", "reward", "end", "score", "export", "abandon"]

TRANSITIONS: dict[State, dict[Happening, State]] = {
    "opened": {"call": "active", "end": "ended", "score": "scored", "abandon": "abandoned"},
    "active": {"call": "active", "record": "active", "reward": "active", "end": "ended", "score": "scored", "abandon": "abandoned"},
    "ended": {"end": "ended", "score": "scored", "abandon": "abandoned"},
    "scored": {"end": "scored", "export": "exported", "abandon": "abandoned"},
    "exported": {"end": "exported"},
    "abandoned": {"end": "abandoned"},
}
"""Ending twice is ending once; a session that a rollout worker opened is scored without being ended first."""
OVER: frozenset[State] = frozenset({"ended", "scored", "exported", "abandoned"})
"""Takes no call and no reward any more."""


class Session(msgspec.Struct, metaclass=FrozenMeta):
    """The gateway's record of one attempt at an episode."""

    id: str
    api_key: str
    work: RunEpisode
    lease_seconds: float
    expires: float
    """Seconds since the epoch; a call or a running generation renews it."""
    state: State = "opened"
    turns: tuple[ConversationTurn, ...] = ()
    """Completed calls, in order of completion."""
    rewards: dict[str, float] = {}
    """Set by the agent over HTTP, by interaction id."""
    answered: dict[str, tuple[ModelAnswered, ...]] = {}
    """The answers to requests that their client has named, one for each choice, by that name."""
    unanswered: dict[bytes, str] = {}
    """Requests that failed in the engine and were not answered since: the cause, by the request's digest."""
    calls: int = 0
    """Begun, completed or not."""
    asked: dict[bytes, int] = {}
    """How many of them asked the same, by a digest of it."""
    running: int = 0
    """Calls in hand; their session does not expire."""
    returned: bool = False
    """Its agent has returned text, and a score is awaited."""
    outside: bool = False
    """Started over HTTP by an agent outside the run, which ends it too; otherwise a rollout worker opened it and has it scored."""

    @property
    def label(self) -> str:
        """The session's name in any run of the same seed: the attempt, or what an agent outside the run calls it."""
        return self.id if self.outside else f"{self.work.episode}-{self.work.attempt}"

    def interactions(self) -> list[Interaction]:
        """Completed calls, in order of completion."""
        return [turn.interaction for turn in self.turns]

    def after(self, happening: Happening, now: float) -> Session:
        """The session after something happened to it.

        Raises:
            SessionError: that cannot happen in this state; the message says what the session is.
        """
        state = TRANSITIONS[self.state].get(happening)
        if state is None:
            raise SessionError(f"session {self.id} is {self.state}: it takes no {happening} any more; open a new session")
        return msgspec.structs.replace(self, state=state, expires=now + self.lease_seconds)

    def called(self, now: float) -> Session:
        """A model call begins."""
        after = self.after("call", now)
        return msgspec.structs.replace(after, calls=self.calls + 1, running=self.running + 1)

    def asking(self, what: bytes) -> Session:
        """A model call asks this."""
        return msgspec.structs.replace(self, asked={**self.asked, what: self.asked.get(what, 0) + 1})

    def call_over(self, now: float) -> Session:
        """A model call is over, with or without an interaction."""
        return msgspec.structs.replace(self, running=self.running - 1, expires=now + self.lease_seconds)

    def recorded(self, turn: ConversationTurn, now: float) -> Session:
        """A model call has become an interaction, in place of one whose client left and now has asked the same again."""
        continued = {link for one in self.turns for link in (one.interaction.parent, one.interaction.prefix)}
        earlier = [one for one in self.turns if one.interaction.id in continued or not _asks_again(turn, one)]
        return msgspec.structs.replace(self.after("record", now), turns=(*earlier, turn))

    def with_answer(self, name: str, answer: Sequence[ModelAnswered]) -> Session:
        """A request of this name has its answer."""
        return msgspec.structs.replace(self, answered={**self.answered, name: tuple(answer)})

    def engine_failed(self, request: bytes, cause: str) -> Session:
        """A request, by its digest, has failed in the engine."""
        return msgspec.structs.replace(self, unanswered={**self.unanswered, request: cause})

    def engine_answered(self, request: bytes) -> Session:
        """A request, asked again or for the first time, has its answer."""
        rest = {digest: cause for digest, cause in self.unanswered.items() if digest != request}
        return msgspec.structs.replace(self, unanswered=rest)

    def engine_failure(self) -> str:
        """The cause of the last request that failed in the engine and was not answered since; empty if there is none."""
        return next(reversed(self.unanswered.values()), "")

    def rewarded(self, interaction: str, reward: float, now: float) -> Session:
        """The agent has set a reward; an empty interaction id is the last completed one.

        Raises:
            SessionError: there is no such interaction.
        """
        made = self.interactions()
        known = [turn.id for turn in made]
        named = interaction or (last_trained(made).id if made else "")
        if named not in known:
            raise SessionError(f"session {self.id} has no completed interaction '{interaction}'; it has {', '.join(known) or 'none'}")
        return msgspec.structs.replace(self.after("reward", now), rewards={**self.rewards, named: reward})

    def agent_returned(self) -> Session:
        """The agent has returned, and its text is to be scored."""
        return msgspec.structs.replace(self, returned=True)

    def touched(self, now: float) -> Session:
        """Somebody asked about the session: its lease begins anew."""
        return msgspec.structs.replace(self, expires=now + self.lease_seconds)

    def expired(self, now: float) -> bool:
        """Nobody has used the session for its lease, and nothing of it is running."""
        return self.state not in {"exported", "abandoned"} and self.running == 0 and now > self.expires


def _asks_again(turn: ConversationTurn, earlier: ConversationTurn) -> bool:
    """Whether a call is an earlier one again, whose client left while it was streamed."""
    same = (turn.prompt.request_digest, turn.prompt.settings) == (earlier.prompt.request_digest, earlier.prompt.settings)
    return earlier.interaction.finish_reason == CANCELLED and bool(turn.prompt.request_digest) and same


class KeptSession(msgspec.Struct, metaclass=FrozenMeta):
    """What is kept of a session that is over, for those who ask about it or export it."""

    id: str
    task: str
    state: State
    """`exported` or `abandoned`."""
    detail: str = ""
    """Why it was abandoned."""
    calls: int = 0
    """Completed."""
    trajectory: Trajectory | None = None
