from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from areal_actors.core.gateways import GatewayShare
from areal_actors.core.values import SamplingParams
from areal_actors.gateway.sessions.capacity import ExternalCapacity, ExternalSlots
from areal_actors.gateway.sessions.group_ends import end_slot, lost_sessions, work_of
from areal_actors.gateway.sessions.registry import SessionRegistry
from areal_actors.messages import SessionStarted


def start(capacity, task, now=0.0):
    slot = capacity.next_slot(task)
    if slot is not None:
        capacity.take(slot, now, reserved=True)
    return slot


def test_a_task_fills_its_group_before_it_begins_another():
    capacity = ExternalCapacity(2)
    capacity.grant(0, 2)
    slots = [start(capacity, task) for task in ("a", "b", "a", "b")]
    assert [(slot.session, slot.episode) for slot in slots] == [
        ("a-0", "0.0"),
        ("b-0", "1.0"),
        ("a-1", "0.1"),
        ("b-1", "1.1"),
    ]
    assert start(capacity, "a") is None
    capacity.grant(2, 1)
    assert start(capacity, "a").episode == "2.0"


def test_what_was_granted_twice_is_granted_once():
    capacity = ExternalCapacity(1)
    capacity.grant(0, 2)
    capacity.grant(0, 2)
    assert capacity.room(0.0) == 2


def test_reservations_take_room_until_they_are_used_or_run_out():
    capacity = ExternalCapacity(2)
    capacity.grant(0, 1)
    assert [capacity.reserve(0.0, 10.0) for _ in range(3)] == [True, True, False]
    start(capacity, "a")
    assert capacity.room(0.0) == 0
    assert capacity.room(10.5) == 1


def test_where_the_run_s_own_workers_take_the_groups_no_external_session_starts():
    capacity = ExternalCapacity(0)
    capacity.grant(0, 5)
    assert (capacity.room(0.0), capacity.next_slot("a")) == (0, None)


def test_slots_come_back_when_sessions_end_once_each():
    capacity = ExternalCapacity(8, slots=2)
    first = start(capacity, "a")
    start(capacity, "b")
    assert start(capacity, "c") is None
    capacity.end_episode(first.episode)
    capacity.end_episode(first.episode)
    assert start(capacity, "c").session == "c-0"
    assert start(capacity, "d") is None


def test_unused_slots_expire_and_close_the_group():
    capacity = ExternalCapacity(3)
    capacity.grant(0, 2)
    start(capacity, "a", now=5.0)
    assert capacity.missing(14.0, 10.0) == []
    late = capacity.missing(15.5, 10.0)
    assert [slot.episode for slot in late] == ["0.1", "0.2"]
    for slot in late:
        capacity.end_episode(slot.episode)
    assert (capacity.missing(99.0, 10.0), start(capacity, "a").episode) == ([], "1.0")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_the_log_folds_to_the_same_table_in_whatever_order_starts_were_written(happenings, group_size, random):
    live = ExternalCapacity(group_size)
    live.grant(0, 6)
    slots, ended = [], []
    for task, ends in happenings:
        if (slot := start(live, task)) is not None:
            slots.append(slot)
            if ends:
                live.end_episode(slot.episode)
                ended.append(slot.episode)
    assert len({slot.episode for slot in slots}) == len({slot.session for slot in slots}) == len(slots)
    folded = ExternalCapacity(group_size)
    folded.grant(0, 6)
    random.shuffle(slots)
    for slot in slots:
        folded.take(slot, 0.0)
    for episode in ended:
        folded.end_episode(episode)
    assert (folded.room(0.0), folded.running, folded.indexes) == (live.room(0.0), live.running, live.indexes)
    assert [folded.next_slot(task) for task in "abcd"] == [live.next_slot(task) for task in "abcd"]


def begin(slots, task, now, gateway=0):
    """Start a session at a gateway; returns its episode and attempt."""
    slot = slots.capacity.next_slot(task)
    work = work_of(slots, slot, SamplingParams())
    name = f"{slot.session}-g{gateway}"
    slots.start(SessionStarted(session=name, work=work, member=slot.member, index=slot.index, key=b""), now)
    return work.episode, work.attempt


def lose(slots, gateway, now):
    """Lose the sessions of a gateway; the event of each arrives twice."""
    its = GatewayShare(number=gateway, count=2)
    for lost in lost_sessions(slots, its, SessionRegistry(b"secret")):
        assert end_slot(slots, lost, now) is not None
        assert end_slot(slots, lost, now) is None


def test_a_lost_session_gives_its_place_to_the_next_one_of_its_task():
    slots = ExternalSlots(ExternalCapacity(2))
    slots.capacity.grant(0, 3)
    assert [begin(slots, "a", 0.0, gateway) for gateway in (0, 1)] == [("0.0", 1), ("0.1", 1)]
    lose(slots, 1, 5.0)
    assert begin(slots, "a", 6.0, gateway=1) == ("0.1", 2)
    lose(slots, 1, 7.0)
    assert begin(slots, "a", 8.0) == ("0.1", 3)
    assert begin(slots, "a", 9.0) == ("1.0", 1)
    assert slots.rejoining == {}


def test_groups_of_a_task_that_lost_a_session_are_late_sooner_once_none_of_its_sessions_runs():
    slots = ExternalSlots(ExternalCapacity(2))
    slots.capacity.grant(0, 3)
    for gateway in (0, 1):
        begin(slots, "a", 0.0, gateway)
    begin(slots, "a", 1.0)
    begin(slots, "b", 1.0)
    lose(slots, 1, 5.0)
    assert slots.late(100.0, 600.0, 60.0) == [], "sessions of the task still run"
    slots.end_episode("0.0", 110.0, exported=True)
    slots.end_episode("1.0", 120.0, exported=True)
    assert slots.late(180.0, 600.0, 60.0) == []
    assert [slot.episode for slot in slots.late(181.0, 600.0, 60.0)] == ["1.1", "0.1"]
    assert slots.describe_waits().startswith(
        "group 0 of task 'a' lacks a session for member 1; group 1 of task 'a' lacks"
    )
