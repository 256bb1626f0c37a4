from __future__ import annotations

import pytest
from support.samples import interaction, work

from areal_actors.core.errors import SessionError
from areal_actors.gateway.conversations.turns import ConversationTurn, Prompt
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.gateway.sessions.table import CLOSED_STATES, TRANSITIONS, Session


def session(name="s", episode="0.0", *, attempt=1, attempts_left=0, key="", expires=10.0):
    run = work(episode, attempt=attempt, attempts_left=attempts_left)
    return Session(id=name, api_key=key or f"sk-{name}", work=run, lease_seconds=10.0, expires=expires)


def turn(identifier):
    return ConversationTurn(interaction=interaction(identifier, "x"), answer={}, prompt=Prompt(suffix_ids=b""))


ACTIONS = sorted({action for row in TRANSITIONS.values() for action in row})


@pytest.mark.parametrize("state", TRANSITIONS)
@pytest.mark.parametrize("action", ACTIONS)
def test_what_the_table_does_not_allow_is_refused_by_name(state, action):
    at = Session(id="s", api_key="k", work=work(), lease_seconds=10.0, expires=1.0, state=state)
    if action in TRANSITIONS[state]:
        after = at.transition(action, 5.0)
        assert (after.state, after.expires) == (TRANSITIONS[state][action], 15.0)
    else:
        with pytest.raises(SessionError, match=f"session s is {state}: it takes no {action}"):
            at.transition(action, 5.0)


def test_the_table_speaks_of_its_own_states_only_and_what_is_over_takes_no_call():
    assert {after for row in TRANSITIONS.values() for after in row.values()} <= set(TRANSITIONS)
    for state in CLOSED_STATES:
        assert not {"call", "record", "reward"} & set(TRANSITIONS[state])


def test_a_session_lives_from_call_to_call_and_does_not_expire_while_one_runs():
    opened = session()
    assert opened.is_expired(10.5)
    assert not opened.is_expired(10.0)
    calling = opened.begin_call(9.0)
    assert (calling.state, calling.calls, calling.running) == ("active", 1, 1)
    assert not calling.is_expired(1000.0)
    over = calling.end_call(100.0)
    assert not over.is_expired(110.0)
    assert over.is_expired(110.5)


def test_a_reward_without_an_interaction_is_that_of_the_last_completed_one():
    active = session().begin_call(1.0).record(turn("a"), 2.0).record(turn("b"), 3.0)
    assert active.set_reward("", 1.0, 4.0).rewards == {"b": 1.0}
    assert active.set_reward("a", 0.5, 4.0).set_reward("a", 0.75, 4.0).rewards == {"a": 0.75}


@pytest.mark.parametrize(
    ("turns", "named", "complaint"), [((), "", "it has none"), (("a", "b"), "c", "'c'; it has a, b")]
)
def test_a_reward_for_an_unknown_interaction_is_refused_and_names_those_there_are(turns, named, complaint):
    active = session().begin_call(1.0)
    for identifier in turns:
        active = active.record(turn(identifier), 2.0)
    with pytest.raises(SessionError, match=complaint):
        active.set_reward(named, 1.0, 3.0)


def test_a_later_session_of_an_episode_replaces_the_earlier_one():
    registry = SessionRegistry()
    registry.open(session("a"))
    registry.open(session("b"))
    assert (len(registry), registry.find("a")) == (1, None)
    assert registry.session_of_key("sk-b") == "b"
    with pytest.raises(SessionError, match="session a is over or unknown"):
        registry.get("a")


def test_an_earlier_attempt_is_refused_while_a_later_one_lives():
    registry = SessionRegistry()
    registry.open(session("b", attempt=2))
    assert registry.rejection_reason(work(attempt=1)) == "episode 0.0 is at attempt 2"
    assert not registry.rejection_reason(work(attempt=2))
    assert not registry.rejection_reason(work("0.1"))


def test_a_finished_episode_gets_no_session():
    registry = SessionRegistry()
    registry.open(session("a"))
    registry.close(registry.get("a"), finished=True)
    assert registry.rejection_reason(work()) == "episode 0.0 is finished"
    assert registry.is_finished("0.0")
    assert len(registry) == 0


@pytest.mark.parametrize(("attempts_left", "refused"), [(1, False), (0, True)])
def test_an_abandoned_attempt_closes_its_own_session_and_the_last_one_the_episode(attempts_left, refused):
    registry = SessionRegistry()
    registry.open(session("a", attempts_left=attempts_left))
    registry.mark_abandoned(work(attempts_left=attempts_left))
    assert len(registry) == 0
    assert bool(registry.rejection_reason(work(attempt=2))) is refused


def test_a_late_report_of_an_earlier_attempt_leaves_the_later_session_alone():
    registry = SessionRegistry()
    registry.open(session("b", attempt=2))
    registry.mark_abandoned(work(attempt=1, attempts_left=1))
    assert registry.find("b") is not None


def test_a_key_opens_its_own_session_only():
    registry = SessionRegistry()
    registry.open(session("a", "0.0"))
    registry.open(session("b", "0.1"))
    assert registry.session_of_key("sk-a") == registry.session_of_key("sk-a", "a") == "a"
    with pytest.raises(SessionError, match="does not open the session in the path"):
        registry.session_of_key("sk-a", "b")
    with pytest.raises(SessionError, match="does not open the session in the path"):
        registry.session_of_key("sk-a", "never-was")
    for wrong in ("sk-c", "sk-A", "\udcff"):
        with pytest.raises(SessionError, match="no session has this API key"):
            registry.session_of_key(wrong, "a")
    with pytest.raises(SessionError, match="no API key"):
        registry.session_of_key("", "a")


def test_the_key_of_a_session_that_is_over_still_names_it():
    registry = SessionRegistry()
    registry.open(session("a"))
    registry.close(registry.get("a"))
    assert registry.session_of_key("sk-a") == registry.session_of_key("sk-a", "a") == "a"
    with pytest.raises(SessionError, match="is over"):
        registry.get("a")


def test_a_state_that_comes_late_does_not_revive_a_session():
    registry = SessionRegistry()
    registry.open(session("a"))
    late = registry.get("a").begin_call(1.0)
    registry.close(registry.get("a"))
    registry.update(late)
    assert registry.find("a") is None


def test_the_memory_of_finished_episodes_is_bounded(monkeypatch):
    monkeypatch.setattr("areal_actors.gateway.sessions.registry.REMEMBERED_EPISODES", 3)
    monkeypatch.setattr("areal_actors.gateway.sessions.registry.REMEMBERED_KEYS", 2)
    registry = SessionRegistry()
    for number in range(5):
        registry.open(session(f"s{number}", f"{number}.0"))
        registry.close(registry.get(f"s{number}"), finished=True)
    assert [number for number in range(5) if registry.is_finished(f"{number}.0")] == [2, 3, 4]
    assert registry.session_of_key("sk-s4") == "s4"
    with pytest.raises(SessionError):
        registry.session_of_key("sk-s2")


def test_expired_sessions_are_found():
    registry = SessionRegistry()
    registry.open(session("a", "0.0", expires=10.0))
    registry.open(session("b", "0.1", expires=20.0))
    assert [expired.id for expired in registry.expired_sessions(15.0)] == ["a"]
