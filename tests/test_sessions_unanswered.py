"""A session whose engine owes it an answer: which request, until when, and how the session ends."""

from __future__ import annotations

import msgspec
import pytest
from support.samples import interaction, work

from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt
from areal_actors.gateway.sessions.episode_end import expired_event, outcome
from areal_actors.gateway.sessions.table import Session
from areal_actors.messages import EpisodeAbandoned, EpisodeScored

SCORED = EpisodeScored(work=work(), session="s", reward=1.0)
SESSION = Session(id="s", api_key="sk-1", work=work(), lease_seconds=10.0, expires=0.0)


def test_the_last_request_without_an_answer_is_the_session_s_failure():
    session = SESSION.engine_failed(b"one", "first").engine_failed(b"two", "second")
    assert session.engine_failure() == "second"
    assert session.engine_answered(b"two").engine_failure() == "first"
    assert session.engine_answered(b"two").engine_answered(b"one").engine_failure() == ""
    assert session.engine_answered(b"three").engine_failure() == "second"


@pytest.mark.parametrize(("failure", "reason"), [("", "lost"), ("worker-0: nan", "engine")])
def test_an_unused_session_is_lost_or_was_left_because_of_the_engine(failure, reason):
    session = SESSION.engine_failed(b"one", failure) if failure else SESSION
    end = expired_event(session)
    assert (end.reason, end.detail.endswith("session s was not used for 10 s"), end.detail.startswith(failure)) == (
        reason,
        True,
        True,
    )


@pytest.mark.parametrize("purpose", ["train", "evaluate"])
def test_an_episode_with_an_unanswered_call_is_abandoned_even_with_a_reward(purpose):
    turn = ConversationTurn(interaction=interaction("a", "x"), answer={}, prompt=Prompt(suffix_ids=b""))
    session = msgspec.structs.replace(SESSION, work=work(purpose=purpose), turns=(turn,))
    end = outcome(session.engine_failed(b"one", "worker-0: nan"), SCORED)
    assert isinstance(end, EpisodeAbandoned)
    assert (end.reason, end.detail) == ("engine", "worker-0: nan")
    assert not isinstance(outcome(session, SCORED), EpisodeAbandoned)
