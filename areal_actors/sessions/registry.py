"""All sessions of a run: which are alive, whose key is whose, and which episodes need none any more."""

from __future__ import annotations

from collections import Counter, OrderedDict
from hashlib import blake2b
from typing import Any

from areal_actors.errors import SessionError
from areal_actors.messages import RunEpisode
from areal_actors.sessions.table import FinishedSession, Session
from areal_actors.values import Value

REMEMBERED_EPISODES = 8_192
"""Finished episodes kept, so that one redelivered late is not run again; a late one beyond that costs a duplicate run, no more. Many
times what a run has under way at once."""
REMEMBERED_KEYS = 8_192
"""Keys of sessions that are over kept, so that a late call is told that its session is over and not that its key is wrong."""


class RegistryState(Value):
    """What a snapshot has of a `SessionRegistry`: everything but live sessions, whose tokens go with their gateway."""

    finished: tuple[str, ...] = ()
    keys: tuple[tuple[bytes, str], ...] = ()
    """Digest and session of keys that no longer open one."""
    kept: tuple[FinishedSession, ...] = ()


class SessionRegistry:
    """At most one live session per episode: a later attempt, or the same one redelivered, replaces the earlier session."""

    def __init__(self, secret: bytes = b"", *, kept: int = 0) -> None:
        """`secret` goes into the digests of keys, so that nobody guesses a weak key from one; `kept`: how many sessions to keep."""
        self._secret = secret
        self._room = kept
        self._sessions: dict[str, Session] = {}
        self._of_episode: dict[str, str] = {}
        self._of_key: dict[bytes, str] = {}
        self._of_old_key: OrderedDict[bytes, str] = OrderedDict()
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._kept: OrderedDict[str, FinishedSession] = OrderedDict()
        self._names: OrderedDict[str, None] = OrderedDict()
        self._replaced: OrderedDict[str, str] = OrderedDict()
        """By which session another one was replaced, of those that had not ended."""

    def snapshot(self) -> RegistryState:
        """What a gateway that takes over knows."""
        return RegistryState(finished=tuple(self._finished), keys=tuple(self._of_old_key.items()), kept=tuple(self._kept.values()))

    def restore(self, state: RegistryState) -> None:
        """Take over."""
        self._finished.update(dict.fromkeys(state.finished))
        self._of_old_key.update(state.keys)
        self._names.update((session, None) for _, session in state.keys)
        self._kept.update((session.id, session) for session in state.kept)

    def __len__(self) -> int:
        return len(self._sessions)

    def refusal(self, work: RunEpisode) -> str:
        """Why an attempt gets no session: somebody else has finished the episode or is at a later attempt. Empty if it gets one."""
        if work.episode in self._finished:
            return f"episode {work.episode} is finished"
        current = self._sessions.get(self._of_episode.get(work.episode, ""))
        if current is not None and current.work.attempt > work.attempt:
            return f"episode {work.episode} is at attempt {current.work.attempt}"
        return ""

    def open(self, session: Session) -> None:
        """Enter a new session, in place of the episode's earlier one."""
        if (earlier := self._sessions.get(self._of_episode.get(session.work.episode, ""))) is not None:
            self.close(earlier)
            self._replaced[earlier.id] = session.id
            _forget_oldest(self._replaced, REMEMBERED_EPISODES)
        self._sessions[session.id] = session
        self._of_key[self.digest(session.api_key)] = session.id
        self._of_episode[session.work.episode] = session.id

    def find(self, session: str) -> Session | None:
        """The live session of this id."""
        return self._sessions.get(session)

    def get(self, session: str) -> Session:
        """The live session of this id.

        Raises:
            SessionError: it is over, or never was.
        """
        if (found := self._sessions.get(session)) is None:
            raise SessionError(f"session {session} is over or unknown; a new attempt has a new session")
        return found

    def update(self, session: Session) -> Session:
        """Keep a session's next state."""
        if session.id in self._sessions:
            self._sessions[session.id] = session
        return session

    def close(self, session: Session, *, finished: bool = False) -> None:
        """Forget a session; a finished episode gets no other."""
        self._sessions.pop(session.id, None)
        key = self.digest(session.api_key)
        self._of_key.pop(key, None)
        self.remember(key, session.id)
        if self._of_episode.get(session.work.episode) == session.id:
            del self._of_episode[session.work.episode]
        if finished:
            self.mark_finished(session.work.episode)

    def remember(self, key: bytes, session: str) -> None:
        """Whose key this was, of a session that is over."""
        self._of_old_key[key] = session
        self._of_old_key.move_to_end(key)
        self._names[session] = None
        _forget_oldest(self._of_old_key, REMEMBERED_KEYS)
        _forget_oldest(self._names, REMEMBERED_KEYS)

    def is_known(self, session: str) -> bool:
        """Whether there was a session of this name, which is over."""
        return session in self._names

    def replaced_by(self, session: str) -> str:
        """The session that the episode got while this one had not ended; empty if there was none."""
        return self._replaced.get(session, "")

    def add_finished(self, session: FinishedSession) -> None:
        """Keep what a session led to, in place of the oldest one kept."""
        self._kept[session.id] = session
        _forget_oldest(self._kept, self._room)

    def find_finished(self, session: str) -> FinishedSession | None:
        """What a session led to, while that is kept."""
        return self._kept.get(session)

    def count_by_state(self) -> dict[str, int]:
        """How many live sessions are in which state."""
        return dict(Counter(session.state for session in self._sessions.values()))

    def mark_finished(self, episode: str) -> None:
        """Remember that an episode has its trajectory."""
        self._finished[episode] = None
        _forget_oldest(self._finished, REMEMBERED_EPISODES)

    def is_finished(self, episode: str) -> bool:
        """Whether an episode has its trajectory, or was abandoned for good."""
        return episode in self._finished

    def mark_abandoned(self, work: RunEpisode) -> None:
        """Forget the session of an attempt that somebody reported lost."""
        session = self._sessions.get(self._of_episode.get(work.episode, ""))
        if session is not None and session.work.attempt == work.attempt:
            self.close(session)
        if work.attempts_left == 0:
            self.mark_finished(work.episode)

    def is_superseded(self, work: RunEpisode) -> bool:
        """The episode is finished, or another session has taken over."""
        return work.episode in self._finished or work.episode in self._of_episode

    def expired(self, now: float) -> list[Session]:
        """Sessions whose lease has passed."""
        return [session for session in self._sessions.values() if session.expired(now)]

    def session_of_key(self, api_key: str, session: str = "") -> str:
        """The session that a key opens, alive or over; with a session named in the path, the key must be its own.

        Raises:
            SessionError: the key opens no session, or another one.
        """
        key = self.digest(api_key)
        if (named := self._of_key.get(key) or self._of_old_key.get(key)) is None:
            raise SessionError("no session has this API key; send the key that came with the session's base_url")
        if session and session != named:
            raise SessionError("this API key does not open the session in the path; send the key that came with that base_url")
        return named

    def live_session_of_key(self, api_key: str) -> Session | None:
        """The session that a key opens, if it is alive."""
        return self._sessions.get(self._of_key.get(self.digest(api_key), ""))

    def digest(self, api_key: str) -> bytes:
        """What keys are looked up by: how long a look-up takes says nothing about the key."""
        return blake2b(api_key.encode(errors="surrogateescape"), key=self._secret[:64], digest_size=32).digest()


def _forget_oldest(remembered: OrderedDict[Any, Any], limit: int) -> None:
    while len(remembered) > limit:
        remembered.popitem(last=False)
