"""Capacity for external sessions: granted groups are filled with sessions, one task to a group.

The first session of a task opens the next granted group, and later ones of the same task are its members until it is
full. A fold over events: after a restart the same events give the same state. Only reservations, which are short
leases, are lost in a restart.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import msgspec

from areal_actors.core.values import Value
from areal_actors.messages import RunEpisode, SessionStarted
from areal_bus.message import FrozenMeta

DESCRIBED = 3
"""Number of groups, and of sessions, that are described."""


class GroupSlot(msgspec.Struct, metaclass=FrozenMeta):
    """A slot in a group, and the index of its session among those of the task."""

    task: str
    group: int
    member: int
    """Index in the group, from 0."""
    index: int
    """Index among the sessions of the task, from 0."""

    @property
    def session(self) -> str:
        """The session's name."""
        return f"{self.task}-{self.index}"

    @property
    def episode(self) -> str:
        """The episode's name."""
        return f"{self.group}.{self.member}"


class OpenGroup(msgspec.Struct, metaclass=FrozenMeta):
    """A group with members that have not started."""

    task: str
    opened: float
    """Start time of its first session; seconds since the epoch."""
    missing: frozenset[int]
    """Members that have not started."""


class CapacityState(msgspec.Struct, metaclass=FrozenMeta):
    """Snapshot of an `ExternalCapacity`, without reservations, which are short leases."""

    granted: int
    first: int
    begun: frozenset[int] = frozenset()
    open: dict[int, OpenGroup] = {}
    running: frozenset[str] = frozenset()
    indexes: dict[str, int] = {}


class ExternalCapacity:
    """Granted groups, reserved slots, and the groups that still take members."""

    def __init__(self, group_size: int, *, slots: int = 0) -> None:
        """Groups of `group_size`, granted by the staleness gate.

        With `slots` there is that number of concurrent sessions instead, without grants. A `group_size` of 0 is for
        runs whose own rollout workers take every group: no external session starts.
        """
        self.group_size = 1 if slots else group_size
        self.slots = slots
        self.granted = slots
        """Groups with a number below this may start."""
        self.begun: set[int] = set()
        """Groups from `first` on that have started."""
        self.first = 0
        """All groups with a number below this have started."""
        self.open: dict[int, OpenGroup] = {}
        """Groups with free slots, by number."""
        self.running: set[str] = set()
        """Episodes that have started and not ended."""
        self.indexes: dict[str, int] = {}
        """Index of the next session, by task."""
        self.reservations: list[float] = []
        """Expiry time of each reservation, oldest first."""

    def copy(self) -> ExternalCapacity:
        """A copy without reservations."""
        other = ExternalCapacity(self.group_size)
        other.slots = self.slots
        other.restore(self.snapshot())
        return other

    def snapshot(self) -> CapacityState:
        """The current state of the groups."""
        return msgspec.convert(self, CapacityState, from_attributes=True)

    def restore(self, state: CapacityState) -> None:
        """Restore the state of the groups."""
        self.granted, self.first = state.granted, state.first
        self.begun, self.open = set(state.begun), dict(state.open)
        self.running, self.indexes = set(state.running), dict(state.indexes)

    def grant(self, first_group: int, groups: int) -> None:
        """Add groups that the staleness gate has granted."""
        self.granted = max(self.granted, first_group + groups)

    def room(self, now: float) -> int:
        """Number of slots that can still be reserved."""
        self.reservations = [until for until in self.reservations if until > now]
        unfilled = sum(len(group.missing) for group in self.open.values())
        return max(
            (self.granted - self.first - len(self.begun)) * self.group_size + unfilled - len(self.reservations), 0
        )

    def reserve(self, now: float, seconds: float) -> bool:
        """Reserve a slot for the next session to start; False if none is free."""
        if not self.room(now):
            return False
        self.reservations.append(now + seconds)
        return True

    def next_slot(self, task: str) -> GroupSlot | None:
        """The slot of this task's next session; None if no group is available."""
        if not self.group_size:
            return None
        index = self.indexes.get(task, 0)
        if (
            number := min((number for number, group in self.open.items() if group.task == task), default=None)
        ) is not None:
            return GroupSlot(task=task, group=number, member=min(self.open[number].missing), index=index)
        return GroupSlot(task=task, group=self.first, member=0, index=index) if self.first < self.granted else None

    def take(self, slot: GroupSlot, now: float, *, reserved: bool = False) -> None:
        """Take the slot of a started session; with `reserved` it uses up the oldest reservation."""
        self.reservations = self.reservations[1:] if reserved else self.reservations
        self.indexes[slot.task] = max(self.indexes.get(slot.task, 0), slot.index + 1)
        self.running.add(slot.episode)
        if slot.group >= self.first and slot.group not in self.begun:
            self.begun.add(slot.group)
            while self.first in self.begun:
                self.begun.discard(self.first)
                self.first += 1
            self.open[slot.group] = OpenGroup(task=slot.task, opened=now, missing=frozenset(range(self.group_size)))
        if (group := self.open.pop(slot.group, None)) is not None and (missing := group.missing - {slot.member}):
            self.open[slot.group] = msgspec.structs.replace(group, missing=missing)

    def end_episode(self, episode: str) -> None:
        """Record the end of an episode; a group with a member that ended without having started is closed."""
        if episode in self.running:
            self.running.discard(episode)
            self.granted += 1 if self.slots else 0
            return
        for number, group in list(self.open.items()):
            if episode in {f"{number}.{member}" for member in group.missing}:
                del self.open[number]

    def reopen(self, group: int, member: int, task: str, now: float) -> None:
        """Give the slot of a lost session to the next session of its task."""
        self.running.discard(f"{group}.{member}")
        before = self.open.get(group) or OpenGroup(task=task, opened=now, missing=frozenset())
        self.open[group] = msgspec.structs.replace(before, missing=before.missing | {member})

    def missing(self, now: float, seconds: float, left: AbstractSet[str] = frozenset()) -> list[GroupSlot]:
        """Slots not taken within `seconds` of their group's first session, and all of the tasks `left`."""
        late = [
            (number, group) for number, group in self.open.items() if now - group.opened > seconds or group.task in left
        ]
        return [
            GroupSlot(task=group.task, group=number, member=member, index=self.indexes[group.task])
            for number, group in late
            for member in sorted(group.missing)
        ]


class ExternalSessionsState(Value):
    """Snapshot of `ExternalSlots`."""

    capacity: CapacityState
    started: dict[str, SessionStarted] = {}
    exported: int = 0
    abandoned: int = 0
    attempts: dict[str, int] = {}
    rejoining: dict[str, float] = {}


class ExternalSlots:
    """A fold over `CapacityGranted`, `SessionStarted` and the ends of episodes.

    It has the granted slots, the sessions in them, and counts of ended ones.
    """

    def __init__(self, capacity: ExternalCapacity) -> None:
        self.capacity = capacity
        self.started: dict[str, SessionStarted] = {}
        """Sessions that have not ended, by episode."""
        self.exported = self.abandoned = 0
        self.attempts: dict[str, int] = {}
        """Attempts of each episode whose session was lost with its gateway, and that has not ended."""
        self.rejoining: dict[str, float] = {}
        """Tasks with open groups that have lost a session, and the time of the last start or end of one of their
        sessions since."""

    def start(self, event: SessionStarted, now: float, *, reserved: bool = False) -> None:
        """Record a started session and take its slot; with `reserved` it uses up the oldest reservation."""
        self.started[event.work.episode] = event
        slot = GroupSlot(task=event.work.task.id, group=int(event.work.group), member=event.member, index=event.index)
        self.capacity.take(slot, now, reserved=reserved)
        self._note(event, now)

    def end_episode(self, episode: str, now: float, *, exported: bool) -> SessionStarted | None:
        """Record that an episode was exported, or abandoned after all retries; idempotent.

        Returns its session if it had not ended.
        """
        self.capacity.end_episode(episode)
        self.attempts.pop(episode, None)
        if (started := self.started.pop(episode, None)) is not None:
            self.exported += exported
            self.abandoned += not exported
        self._note(started, now)
        return started

    def lose(self, work: RunEpisode, now: float) -> SessionStarted | None:
        """Record that this attempt was lost with its gateway: the next session of its task takes its slot; idempotent.

        Returns its session if it had not ended.
        """
        started = self.started.get(work.episode)
        if started is None or started.work.attempt != work.attempt:
            return None
        del self.started[work.episode]
        self.abandoned += 1
        self.attempts[work.episode] = work.attempt
        self.rejoining[work.task.id] = now
        self.capacity.reopen(int(work.group), started.member, work.task.id, now)
        return started

    def _note(self, event: SessionStarted | None, now: float) -> None:
        """Note when a task that lost a session had another one, until all of its groups are full or closed."""
        if self.rejoining:
            waiting = {group.task for group in self.capacity.open.values()}
            self.rejoining = {task: at for task, at in self.rejoining.items() if task in waiting}
            if event is not None and event.work.task.id in self.rejoining:
                self.rejoining[event.work.task.id] = now

    def late(self, now: float, seconds: float, rejoin_seconds: float) -> list[GroupSlot]:
        """Slots not taken within `seconds` of their group's first session.

        Of tasks that have lost a session also those that no session has taken for `rejoin_seconds`, while no session of
        the task runs: the replacement may be in another group.
        """
        running = {started.work.task.id for started in self.started.values()}
        left = {task for task, at in self.rejoining.items() if task not in running and now - at > rejoin_seconds}
        return self.capacity.missing(now, seconds, left)

    def describe_waits(self) -> str:
        """Describes groups that lack sessions, and sessions that have not ended; empty if there are none."""
        lacking = [
            f"group {number} of task '{group.task}' lacks a session for member"
            f" {', '.join(map(str, sorted(group.missing)))}"
            for number, group in sorted(self.capacity.open.items())
        ]
        running = [
            f"session {started.session} (member {started.member} of group {started.work.group}) has not ended"
            for started in self.started.values()
        ]
        return "; ".join([*_first_few(lacking, "groups"), *_first_few(running, "sessions")])

    def counts(self, now: float) -> dict[str, int]:
        """Ended sessions of the whole run, and slots that can still be reserved."""
        return {"exported": self.exported, "abandoned": self.abandoned, "room": self.capacity.room(now)}

    def snapshot(self) -> ExternalSessionsState:
        """The current state."""
        return msgspec.convert(self, ExternalSessionsState, from_attributes=True)

    def restore(self, state: ExternalSessionsState) -> None:
        """Restore this state."""
        self.capacity.restore(state.capacity)
        self.started = dict(state.started)
        self.exported, self.abandoned = state.exported, state.abandoned
        self.attempts, self.rejoining = dict(state.attempts), dict(state.rejoining)


def _first_few(parts: list[str], what: str) -> list[str]:
    more = len(parts) - DESCRIBED
    return [*parts[:DESCRIBED], *([f"{more} further {what}"] if more > 0 else [])]
