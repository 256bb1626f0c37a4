"""Who may start: granted groups become the sessions of agents outside the run, one task to a group.

The first session of a task begins the next granted group, and further ones of the same task are its members; the one
after the last begins another. A fold over events: after a restart the same events give the same table. Reservations
alone are forgotten by a restart; they are short leases.
"""

from __future__ import annotations

import msgspec

from bus.message import FrozenMeta


class GroupSlot(msgspec.Struct, metaclass=FrozenMeta):
    """A place in a group, and which session of its task takes it."""

    task: str
    group: int
    member: int
    """Of the group, counted from 0."""
    index: int
    """Counts the sessions of the task, from 0."""

    @property
    def session(self) -> str:
        """The session's name."""
        return f"{self.task}-{self.index}"

    @property
    def episode(self) -> str:
        """The episode's name."""
        return f"{self.group}.{self.member}"


class OpenGroup(msgspec.Struct, metaclass=FrozenMeta):
    """A group of which members have yet to start."""

    task: str
    opened: float
    """When its first session started; seconds since the epoch."""
    missing: frozenset[int]
    """Members that have not started."""


class CapacityState(msgspec.Struct, metaclass=FrozenMeta):
    """What a snapshot has of a `ExternalCapacity`; reservations are short leases and are not in it."""

    granted: int
    first: int
    begun: frozenset[int] = frozenset()
    open: dict[int, OpenGroup] = {}
    running: frozenset[str] = frozenset()
    indexes: dict[str, int] = {}


class ExternalCapacity:
    """Granted groups, reserved slots, and the groups that still take members."""

    def __init__(self, group_size: int, *, slots: int = 0) -> None:
        """Groups of `group_size` as the gate grants them; or, with `slots`, so many sessions at once, which nobody grants.

        A `group_size` of 0 is for runs whose own rollout workers take every group: nobody else starts.
        """
        self.group_size = 1 if slots else group_size
        self.slots = slots
        self.granted = slots
        """Groups that may begin: those numbered below."""
        self.begun: set[int] = set()
        """Groups from `_first` on that have begun."""
        self._first = 0
        """Every group below has begun."""
        self.open: dict[int, OpenGroup] = {}
        """By number."""
        self.running: set[str] = set()
        """Episodes that have started and not ended."""
        self.indexes: dict[str, int] = {}
        """Of the next session of each task."""
        self.reservations: list[float] = []
        """When each reserved slot is released, oldest first."""

    def copy(self) -> ExternalCapacity:
        """Another one with the same groups, without reservations."""
        other = ExternalCapacity(self.group_size)
        other.slots = self.slots
        other.restore(self.snapshot())
        return other

    def snapshot(self) -> CapacityState:
        """The groups as they stand."""
        return CapacityState(
            granted=self.granted,
            first=self._first,
            begun=frozenset(self.begun),
            open=dict(self.open),
            running=frozenset(self.running),
            indexes=dict(self.indexes),
        )

    def restore(self, state: CapacityState) -> None:
        """Begin with these groups."""
        self.granted, self._first = state.granted, state.first
        self.begun, self.open = set(state.begun), dict(state.open)
        self.running, self.indexes = set(state.running), dict(state.indexes)

    def grant(self, first_group: int, groups: int) -> None:
        """The gate lets these groups start."""
        self.granted = max(self.granted, first_group + groups)

    def room(self, now: float) -> int:
        """How many more slots may be reserved."""
        self.reservations = [until for until in self.reservations if until > now]
        unfilled = sum(len(group.missing) for group in self.open.values())
        return max((self.granted - self._first - len(self.begun)) * self.group_size + unfilled - len(self.reservations), 0)

    def reserve(self, now: float, seconds: float) -> bool:
        """Keep a slot for whoever starts a session next; False when there is none."""
        if not self.room(now):
            return False
        self.reservations.append(now + seconds)
        return True

    def next_slot(self, task: str) -> GroupSlot | None:
        """Where the next session of this task sits; None while no group is left for it."""
        if not self.group_size:
            return None
        index = self.indexes.get(task, 0)
        if (number := min((number for number, group in self.open.items() if group.task == task), default=None)) is not None:
            return GroupSlot(task=task, group=number, member=min(self.open[number].missing), index=index)
        return GroupSlot(task=task, group=self._first, member=0, index=index) if self._first < self.granted else None

    def take(self, slot: GroupSlot, now: float, *, reserved: bool = False) -> None:
        """A session has started, `reserved`: in the place of the oldest reservation, if there is one."""
        self.reservations = self.reservations[1:] if reserved else self.reservations
        self.indexes[slot.task] = max(self.indexes.get(slot.task, 0), slot.index + 1)
        self.running.add(slot.episode)
        if slot.group >= self._first and slot.group not in self.begun:
            self.begun.add(slot.group)
            while self._first in self.begun:
                self.begun.discard(self._first)
                self._first += 1
            self.open[slot.group] = OpenGroup(task=slot.task, opened=now, missing=frozenset(range(self.group_size)))
        if (group := self.open.pop(slot.group, None)) is not None and (missing := group.missing - {slot.member}):
            self.open[slot.group] = msgspec.structs.replace(group, missing=missing)

    def ended(self, episode: str) -> None:
        """An episode has ended; a group of which a member ends without having started takes no other."""
        if episode in self.running:
            self.running.discard(episode)
            self.granted += 1 if self.slots else 0
            return
        for number, group in list(self.open.items()):
            if episode in {f"{number}.{member}" for member in group.missing}:
                del self.open[number]

    def missing(self, now: float, seconds: float) -> list[GroupSlot]:
        """The places that were not taken within so long of their group's first."""
        late = [(number, group) for number, group in self.open.items() if now - group.opened > seconds]
        return [
            GroupSlot(task=group.task, group=number, member=member, index=self.indexes[group.task])
            for number, group in late
            for member in sorted(group.missing)
        ]
