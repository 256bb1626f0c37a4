"""All sessions of a run: live sessions, API keys, and finished episodes."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import TypeVar

import msgspec

from areal_actors.core.errors import SessionElsewhere, SessionError
from areal_actors.core.gateways import ONLY, GatewayShare
from areal_actors.core.values import Value
from areal_actors.gateway.sessions.table import FinishedSession, Session
from areal_actors.messages import RunEpisode

REMEMBERED_EPISODES = 8_192
"""Number of finished episodes kept, so that a late redelivery is not run again; beyond it the cost is a duplicate run.
Many times the number of episodes in flight."""
REMEMBERED_KEYS = 8_192
"""Number of keys of ended sessions kept, so that a late call gets "session is over" instead of "wrong key"."""
IN_PATH = (
    "or put it into the path in place of the session's name, as in /KEY/v1: then the key in the header is not read"
)
"""Remedy for clients whose key cannot be chosen."""

K = TypeVar("K")
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """The entries set last, at most `limit`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        if key in self:
            self.move_to_end(key)
        OrderedDict.__setitem__(self, key, value)
        if len(self) > self.limit:
            self.popitem(last=False)


class RegistryState(Value):
    """Snapshot of a `SessionRegistry`: all but live sessions, whose tokens are lost with their gateway."""

    finished: tuple[str, ...] = ()
    keys: tuple[tuple[bytes, str], ...] = ()
    """Key digest and session of sessions that are over."""
    kept: tuple[FinishedSession, ...] = ()


class SessionRegistry:
    """At most one live session per episode.

    A later attempt, or the same one redelivered, replaces the earlier session.
    """

    def __init__(self, secret: bytes = b"", *, kept: int = 0, share: GatewayShare = ONLY) -> None:
        """`secret` keys the digests, so that weak keys cannot be guessed from them.

        `kept`: number of finished sessions to keep. `share`: that of this gateway, if there are several.
        """
        self._secret, self._share = secret, share
        self._sessions: dict[str, Session] = {}
        self._of_episode: dict[str, str] = {}
        self._of_key: dict[bytes, str] = {}
        self._of_old_key: Recent[bytes, str] = Recent(REMEMBERED_KEYS)
        self._finished: Recent[str, None] = Recent(REMEMBERED_EPISODES)
        self._kept: Recent[str, FinishedSession] = Recent(kept)
        self._replaced: Recent[str, str] = Recent(REMEMBERED_EPISODES)
        """The replacement of each session that was replaced before its end."""

    def snapshot(self) -> RegistryState:
        """The state for a successor gateway."""
        return RegistryState(
            finished=tuple(self._finished), keys=tuple(self._of_old_key.items()), kept=tuple(self._kept.values())
        )

    def restore(self, state: RegistryState) -> None:
        """Restore the state of a predecessor."""
        self._finished.update(dict.fromkeys(state.finished))
        self._of_old_key.update(state.keys)
        self._kept.update((session.id, session) for session in state.kept)

    def forget_finished(self, names: Iterable[str]) -> None:
        """Forget the trajectories of finished sessions, so that they can no longer be exported."""
        for name in names:
            self._kept.pop(name, None)

    def __len__(self) -> int:
        return len(self._sessions)

    def rejection_reason(self, work: RunEpisode) -> str:
        """The reason why an attempt gets no session: its episode is finished or at a later attempt.

        Empty if it gets one.
        """
        if work.episode in self._finished:
            return f"episode {work.episode} is finished"
        current = self._sessions.get(self._of_episode.get(work.episode, ""))
        if current is not None and current.work.attempt > work.attempt:
            return f"episode {work.episode} is at attempt {current.work.attempt}"
        return ""

    def open(self, session: Session) -> Session | None:
        """Add a new session, in place of the episode's earlier one, which is returned."""
        if (earlier := self._sessions.get(self._of_episode.get(session.work.episode, ""))) is not None:
            self.close(earlier)
            self._replaced[earlier.id] = session.id
        self._sessions[session.id] = session
        self._of_key[session.key or self.digest(session.api_key)] = session.id
        self._of_episode[session.work.episode] = session.id
        return earlier

    def find(self, session: str) -> Session | None:
        """The live session of this id."""
        return self._sessions.get(session)

    def session_of_episode(self, episode: str) -> Session | None:
        """The live session of an episode."""
        return self._sessions.get(self._of_episode.get(episode, ""))

    def get(self, session: str) -> Session:
        """The live session of this id.

        Raises:
            SessionError: it is over or unknown.
        """
        if (entry := self._sessions.get(session)) is None:
            raise SessionError(f"session {session} is over or unknown; a new attempt has a new session")
        return entry

    def update(self, session: Session) -> Session:
        """Store a session's next state; a session that is over stays over."""
        if session.id in self._sessions:
            self._sessions[session.id] = session
        return session

    def close(self, session: Session, *, finished: bool = False) -> None:
        """Remove a session; with `finished` its episode gets no other."""
        self._sessions.pop(session.id, None)
        key = session.key or self.digest(session.api_key)
        self._of_key.pop(key, None)
        self.remember(key, session.id)
        if self._of_episode.get(session.work.episode) == session.id:
            del self._of_episode[session.work.episode]
        if finished:
            self.mark_finished(session.work.episode)

    def remember(self, key: bytes, session: str) -> None:
        """Keep the key digest of a session that is over."""
        self._of_old_key[key] = session

    def is_known(self, session: str) -> bool:
        """True if a session of this name existed and is over."""
        return session in self._of_old_key.values()

    def replacement_of(self, session: str) -> str:
        """The session that replaced this one before its end; empty if none did."""
        return self._replaced.get(session, "")

    def add_finished(self, session: FinishedSession) -> None:
        """Keep a finished session, in place of the oldest one kept."""
        self._kept[session.id] = session

    def find_finished(self, session: str) -> FinishedSession | None:
        """The finished session of this id, while it is kept."""
        return self._kept.get(session)

    def count_by_state(self) -> dict[str, int]:
        """Number of live sessions by state."""
        return dict(Counter(session.state for session in self._sessions.values()))

    def mark_finished(self, episode: str) -> None:
        """Record that an episode needs no further attempt."""
        self._finished[episode] = None

    def is_finished(self, episode: str) -> bool:
        """True if an episode has its trajectory, or was abandoned after all retries."""
        return episode in self._finished

    def mark_abandoned(self, work: RunEpisode) -> Session | None:
        """Remove the session of an attempt that was reported lost, and return it; None if there is none."""
        session = self._sessions.get(self._of_episode.get(work.episode, ""))
        abandoned = session if session is not None and session.work.attempt == work.attempt else None
        if abandoned is not None:
            self.close(abandoned)
        if work.attempts_left == 0:
            self.mark_finished(work.episode)
        return abandoned

    def is_superseded(self, work: RunEpisode) -> bool:
        """True if the episode is finished or another session has taken over."""
        return work.episode in self._finished or work.episode in self._of_episode

    def expired_sessions(self, now: float) -> list[Session]:
        """Sessions whose lease has expired."""
        return [session for session in self._sessions.values() if session.is_expired(now)]

    def extend(self, seconds: float) -> None:
        """Extend all leases: no session could be used for this time."""
        for name, session in self._sessions.items():
            self._sessions[name] = msgspec.structs.replace(session, expires=session.expires + seconds)

    def session_of_key(self, api_key: str, session: str = "") -> str:
        """The session of a key, live or over; with the session of a path, the key must belong to it.

        A path may have the session's key in place of its name: then the key of the request is not looked at.

        Raises:
            SessionElsewhere: another gateway has the session.
            SessionError: there is no key, or it has no session, or another one.
        """
        try:
            entry = self._session_of_key(api_key, session)
        except SessionError:
            if owner := self._share.elsewhere(session) or self._share.elsewhere(api_key):
                raise SessionElsewhere("the session", owner) from None
            raise
        if owner := self._share.elsewhere(entry):
            raise SessionElsewhere(f"session {entry}", owner)
        return entry

    def _session_of_key(self, api_key: str, session: str) -> str:
        if (
            session
            and session not in self._sessions
            and (named := self._session_of_digest(self.digest(session))) is not None
        ):
            return named
        if not api_key:
            raise SessionError(
                f"no API key: send the session's key as 'Authorization: Bearer <key>' or 'x-api-key: <key>', {IN_PATH}"
            )
        if (named := self._session_of_digest(self.digest(api_key))) is None:
            raise SessionError(
                f"no session has this API key; send the key that came with the session's base_url, {IN_PATH}"
            )
        if session and session != named:
            raise SessionError(
                "this API key does not open the session in the path; send the key that came with that base_url,"
                f" {IN_PATH}"
            )
        return named

    def _session_of_digest(self, key: bytes) -> str | None:
        return self._of_key.get(key) or self._of_old_key.get(key)

    def live_session_of_key(self, api_key: str) -> Session | None:
        """The live session of a key."""
        return self._sessions.get(self._of_key.get(self.digest(api_key), ""))

    def digest(self, api_key: str) -> bytes:
        """Keyed digest for lookups, so that their timing leaks nothing about the key."""
        return blake2b(api_key.encode(errors="surrogateescape"), key=self._secret[:64], digest_size=32).digest()
