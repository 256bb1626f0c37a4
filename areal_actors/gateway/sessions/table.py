"""The state machine of a session, as one transition table.

All decisions on what a session accepts are made here; the session manager and the gateway only call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from areal_actors.core.errors import SessionError
from areal_actors.core.gateways import without_mark
from areal_actors.core.span_rewards import SpanReward
from areal_actors.core.values import Interaction, Trajectory
from areal_actors.gateway.conversations.credit_links import NO_LINKS, CreditLinks
from areal_actors.gateway.conversations.turns import CANCELLED, ConversationTurn
from areal_actors.messages import InteractionSummary, ModelResponsePart, RunEpisode
from areal_actors.sequences.build import last_trained
from areal_actors.sequences.credit_links import links_of
from areal_bus.message import FrozenMeta

State = Literal["opened", "active", "ended", "scored", "exported", "abandoned"]
Action = Literal["call", "record", "reward", "end", "score", "export", "abandon"]

TRANSITIONS: dict[State, dict[Action, State]] = {
    "opened": {"call": "active", "end": "ended", "score": "scored", "abandon": "abandoned"},
    "active": {
        "call": "active",
        "record": "active",
        "reward": "active",
        "end": "ended",
        "score": "scored",
        "abandon": "abandoned",
    },
    "ended": {"end": "ended", "score": "scored", "abandon": "abandoned"},
    "scored": {"end": "scored", "export": "exported", "abandon": "abandoned"},
    "exported": {"end": "exported"},
    "abandoned": {"end": "abandoned"},
}
"""Ending is idempotent; a session opened by a rollout worker is scored without being ended first."""
CLOSED_STATES: frozenset[State] = frozenset({"ended", "scored", "exported", "abandoned"})
"""States that accept no call and no reward."""
EMPTY: Mapping[str, Any] = MappingProxyType({})


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
    answered: dict[str, tuple[ModelResponsePart, ...]] = {}
    """Answers by request id of the client, one part per choice."""
    unanswered: dict[bytes, str] = {}
    """Causes by request digest, for requests that failed in the engine and were not answered since."""
    overflow: str = ""
    """Error of the last call, if its prompt was too long for the context and no call was answered since."""
    left: int = 0
    """Number of calls whose client left before the answer."""
    calls: int = 0
    """Number of calls begun, completed or not."""
    call_counts: dict[bytes, int] = {}
    """Number of calls by `PromptDigest.call`, for seeds."""
    running: int = 0
    """Number of calls in flight; the session does not expire while there are any."""
    returned: bool = False
    """True if its agent has returned text and the score is pending."""
    calls_policies: bool = False
    """True if its agent has called another policy of the recipe."""
    external: bool = False
    """True if an external agent started it over HTTP and ends it; otherwise a rollout worker opened it and has it
    scored."""
    is_kept: bool = True
    """False if its conversation may not be kept: its user has not consented."""
    matches: dict[str, int] = {}
    """Matches of the rules of `log.redaction` in its calls; with one it is not kept either."""
    key: bytes = b""
    """Digest of its key, if another gateway started it, and only that is known here."""
    spans: tuple[SpanReward, ...] = ()
    """Rewards of parts of completions, set by the agent over HTTP."""

    @property
    def label(self) -> str:
        """The session's name in any run of the same seed: the attempt, or the name from an external agent's task."""
        return without_mark(self.id) if self.external else f"{self.work.episode}-{self.work.attempt}"

    def interactions(self) -> list[Interaction]:
        """Completed calls, in order of completion."""
        return [turn.interaction for turn in self.turns]

    def client_sessions(self) -> dict[str, str]:
        """Names of conversations at the client, by interaction id."""
        return {turn.interaction.id: turn.client_session for turn in self.turns}

    def transition(self, action: Action, now: float) -> Session:
        """The session after an action.

        Raises:
            SessionError: this state does not allow it; the message has the state.
        """
        return self._after(action, now)

    def _after(self, action: Action, now: float, **changes: Any) -> Session:
        """The session after an action that changes these fields, too."""
        state = TRANSITIONS[self.state].get(action)
        if state is None:
            raise SessionError(f"session {self.id} is {self.state}: it takes no {action} any more; open a new session")
        return msgspec.structs.replace(self, state=state, expires=now + self.lease_seconds, **changes)

    def begin_call(self, now: float) -> Session:
        """Begin a model call."""
        return self._after("call", now, calls=self.calls + 1, running=self.running + 1)

    def count_call(self, digest: bytes) -> Session:
        """Count a model call by its digest."""
        return msgspec.structs.replace(
            self, call_counts={**self.call_counts, digest: self.call_counts.get(digest, 0) + 1}
        )

    def end_call(self, now: float, *, left: bool = False) -> Session:
        """End a model call, with or without an interaction; `left` if its client left."""
        return msgspec.structs.replace(
            self, running=self.running - 1, left=self.left + left, expires=now + self.lease_seconds
        )

    def refuse_overflow(self, message: str) -> Session:
        """Record that a prompt with what the model wrote was too long."""
        return msgspec.structs.replace(self, overflow=message)

    def record(
        self, turn: ConversationTurn, now: float, client_session: str = "", links: CreditLinks = NO_LINKS
    ) -> Session:
        """Record a completed call, its conversation's name at the client, and the calls it continues for credit.

        It replaces a cancelled call that it retries, in the credit links too.
        """
        turn = msgspec.structs.replace(turn, client_session=client_session) if client_session else turn
        retried, follows = self._calls_retried_by(turn), links.follows
        earlier = [one for one in self.turns if one.interaction.id not in retried] if retried else self.turns
        if follows:
            kept = {one.interaction.id for one in earlier}
            follows = tuple(link for name in follows for link in retried.get(name, (name,)) if link in kept)
        if follows or links.role != turn.interaction.role:
            turn = msgspec.structs.replace(
                turn, interaction=msgspec.structs.replace(turn.interaction, follows=follows, role=links.role)
            )
        return self._after("record", now, turns=(*earlier, turn), overflow="")

    def _calls_retried_by(self, turn: ConversationTurn) -> dict[str, tuple[str, ...]]:
        """Calls that a call retries and that no other continues, with their credit links."""
        retried = {one.interaction.id: links_of(one.interaction) for one in self.turns if _is_retry(turn, one)}
        continued = {link for one in self.turns for link in _continued_calls(one.interaction)} if retried else ()
        return {name: links for name, links in retried.items() if name not in continued}

    def with_answer(self, name: str, answer: Sequence[ModelResponsePart]) -> Session:
        """Store the answer to a request of this name."""
        return msgspec.structs.replace(self, answered={**self.answered, name: tuple(answer)})

    def engine_failed(self, request: bytes, cause: str) -> Session:
        """Record that a request failed in the engine."""
        return msgspec.structs.replace(self, unanswered={**self.unanswered, request: cause})

    def engine_answered(self, request: bytes) -> Session:
        """Clear the failure of a request that was answered."""
        rest = {digest: cause for digest, cause in self.unanswered.items() if digest != request}
        return msgspec.structs.replace(self, unanswered=rest)

    def engine_failure(self) -> str:
        """Cause of the last request that failed in the engine and was not answered since; empty if there is none."""
        return next(reversed(self.unanswered.values()), "")

    def set_reward(
        self, interaction: str, reward: float, now: float, role: str = "", spans: Sequence[SpanReward] = ()
    ) -> Session:
        """Set a reward; an empty interaction id means the last completed one.

        `role` names the call's role and all calls in it; `spans` replace those of the call.

        Raises:
            SessionError: there is no such interaction.
        """
        interactions = self.interactions()
        call_ids = [turn.id for turn in interactions]
        named = interaction or (last_trained(interactions).id if interactions else "")
        if named not in call_ids:
            raise SessionError(
                f"session {self.id} has no completed interaction '{interaction}'; it has"
                f" {', '.join(call_ids) or 'none'}"
            )
        kept = [span for span in self.spans if span.call != named]
        own = [msgspec.structs.replace(span, call=named) for span in spans]
        after = msgspec.structs.replace(
            self.transition("reward", now), rewards={**self.rewards, named: reward}, spans=(*kept, *own)
        )
        return after.with_role(interactions[call_ids.index(named)].role, role) if role else after

    def with_role(self, before: str, role: str) -> Session:
        """Give the calls of a role another name."""
        turns = tuple(
            (
                msgspec.structs.replace(turn, interaction=msgspec.structs.replace(turn.interaction, role=role))
                if turn.interaction.role == before
                else turn
            )
            for turn in self.turns
        )
        return msgspec.structs.replace(self, turns=turns)

    def select_trained(self, interactions: Sequence[str], now: float) -> Session:
        """Train only these completed interactions; the other ones become context of later calls.

        Raises:
            SessionError: there is no such interaction, or it is not trained already.
        """
        chosen, trained = set(interactions), {turn.interaction.id for turn in self.turns if turn.interaction.trained}
        if unknown := sorted(chosen - trained):
            call_ids = ", ".join(sorted(trained)) or "none"
            raise SessionError(
                f"session {self.id} has no completed interaction '{unknown[0]}' that is trained; it has {call_ids}"
            )
        turns = tuple(
            msgspec.structs.replace(
                turn, interaction=msgspec.structs.replace(turn.interaction, trained=turn.interaction.id in chosen)
            )
            for turn in self.turns
        )
        return msgspec.structs.replace(self.transition("reward", now), turns=turns)

    def agent_returned(self) -> Session:
        """Record that the agent has returned and its text awaits scoring."""
        return msgspec.structs.replace(self, returned=True)

    def renew_lease(self, now: float) -> Session:
        """Renew the lease."""
        return msgspec.structs.replace(self, expires=now + self.lease_seconds)

    def is_expired(self, now: float) -> bool:
        """True if the lease has passed without use and no call is in flight."""
        return self.state not in {"exported", "abandoned"} and self.running == 0 and now > self.expires


def _continued_calls(call: Interaction) -> tuple[str, ...]:
    return (call.parent, call.prefix, *call.follows)


def _is_retry(turn: ConversationTurn, earlier: ConversationTurn) -> bool:
    """True if a call retries an earlier streamed one that its client cancelled."""
    if earlier.interaction.finish_reason != CANCELLED:
        return False
    same = (turn.prompt.request_digest, turn.prompt.settings) == (
        earlier.prompt.request_digest,
        earlier.prompt.settings,
    )
    return bool(turn.prompt.request_digest) and same


class FinishedSession(msgspec.Struct, metaclass=FrozenMeta):
    """A session that is over, kept for status requests and exports."""

    id: str
    task: str
    state: State
    """`exported` or `abandoned`."""
    detail: str = ""
    """Reason if it was abandoned."""
    calls: int = 0
    """Number of completed calls."""
    trajectory: Trajectory | None = None


def summaries(
    turns: Sequence[Interaction], rewards: Mapping[str, float] = EMPTY, names: Mapping[str, str] = EMPTY
) -> tuple[InteractionSummary, ...]:
    """Summaries of calls without tokens.

    `rewards` override the calls' own, `names` are those of their conversations at the client.
    """
    lengths: dict[str, int] = {}
    summaries: list[InteractionSummary] = []
    for interaction in turns:
        prompt = lengths.get(interaction.prefix, 0) + len(interaction.prompt_suffix) // 4
        lengths[interaction.id] = prompt + len(interaction.completion)
        summaries.append(
            InteractionSummary(
                id=interaction.id,
                parent=interaction.parent,
                prompt_tokens=prompt,
                completion_tokens=len(interaction.completion),
                finish_reason=interaction.finish_reason,
                reward=rewards.get(interaction.id, interaction.reward),
                client_session=names.get(interaction.id, ""),
                follows=interaction.follows,
            )
        )
    return tuple(summaries)
