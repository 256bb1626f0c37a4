"""All sessions of a run: which are alive, whose key is whose, and which episodes need none any more."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import sha256
from hmac import compare_digest

from areal_actors.errors import SessionError
from areal_actors.messages import RunEpisode
from areal_actors.sessions import Session

REMEMBERED_EPISODES = 65_536
"""Finished episodes kept, so that one redelivered late is not run again; a late one beyond that costs a duplicate run, no more."""


class SessionBook:
    """At most one live session per episode: a later attempt, or the same one redelivered, replaces the earlier session."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._of_episode: dict[str, str] = {}
        self._of_key: dict[bytes, str] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def refuses(self, work: RunEpisode) -> str:
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
        self._sessions[session.id] = session
        self._of_key[_digest(session.api_key)] = session.id
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
        self._of_key.pop(_digest(session.api_key), None)
        if self._of_episode.get(session.work.episode) == session.id:
            del self._of_episode[session.work.episode]
        if finished:
            self.finished(session.work.episode)

    def finished(self, episode: str) -> None:
        """Remember that an episode has its trajectory."""
        self._finished[episode] = None
        while len(self._finished) > REMEMBERED_EPISODES:
            self._finished.popitem(last=False)

    def abandoned(self, work: RunEpisode) -> None:
        """Forget the session of an attempt that somebody reported lost."""
        session = self._sessions.get(self._of_episode.get(work.episode, ""))
        if session is not None and session.work.attempt == work.attempt:
            self.close(session)
        if work.attempts_left == 0:
            self.finished(work.episode)

    def is_over(self, work: RunEpisode) -> bool:
        """The episode is finished, or another session has taken over."""
        return work.episode in self._finished or work.episode in self._of_episode

    def expired(self, now: float) -> list[Session]:
        """Sessions whose lease has passed."""
        return [session for session in self._sessions.values() if session.expired(now)]

    def session_of_key(self, api_key: str, session: str = "") -> str:
        """The session that a key opens; with a session named in the path, the key must be its own.

        Raises:
            SessionError: no live session has this key, or it is another session's.
        """
        if session:
            found = self.get(session)
            if not compare_digest(found.api_key.encode(), api_key.encode()):
                raise SessionError(f"this API key does not open session {session}")
            return session
        if (named := self._of_key.get(_digest(api_key))) is None:
            raise SessionError("no live session has this API key; the session is over, or the key is wrong")
        return named


def _digest(api_key: str) -> bytes:
    """What keys are looked up by: how long a look-up takes says nothing about the key."""
    return sha256(api_key.encode()).digest()
