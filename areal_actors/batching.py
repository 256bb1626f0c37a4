"""From trajectories to batches: groups complete, the exit door of the staleness gate, batches oldest first.

The assembly is an immutable value and a fold over events, in log order: the same log gives the same batches. Invariants:
a group enters a batch whole or not at all, at most once; no trained token is older than the bound unless the exit
policy is `keep`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.config import Config
from areal_actors.values import Trajectory
from bus.message import FrozenMeta


class BatcherConfig(Config):
    """`[batcher]`: what happens to old tokens and to groups that lost a sample."""

    exit_policy: Literal["mask", "keep", "drop"] = "mask"
    """`mask` trains every group but not its tokens older than the bound (a group with no younger token is dropped); `drop`
    drops groups that have any such token; `keep` trains whatever its age."""
    lost_sample: Literal["train_without", "drop"] = "train_without"
    """What becomes of a group of which an episode was abandoned for good."""


class Exported(msgspec.Struct, metaclass=FrozenMeta):
    """What the assembly keeps of a trajectory; its tokens stay in the log."""

    episode: str
    sequence: int
    oldest_version: int
    newest_version: int
    tokens: int

    @classmethod
    def of(cls, trajectory: Trajectory, sequence: int) -> Exported:
        """Remember where in the log a trajectory lies."""
        newest = max(span.weight_version for turn in trajectory.interactions for span in turn.completion.versions)
        return cls(
            episode=trajectory.episode,
            sequence=sequence,
            oldest_version=trajectory.oldest_version(),
            newest_version=newest,
            tokens=trajectory.sampled_tokens(),
        )


class GroupSoFar(msgspec.Struct, metaclass=FrozenMeta):
    """A group and what has become of its episodes."""

    number: int
    members: dict[str, Exported] = {}
    lost: frozenset[str] = frozenset()

    def ended(self) -> int:
        """Episodes that have ended, either way."""
        return len(self.members) + len(self.lost)

    def oldest_version(self) -> int:
        """Of its oldest token."""
        return min(member.oldest_version for member in self.members.values())

    def newest_version(self) -> int:
        """Of its newest token."""
        return max(member.newest_version for member in self.members.values())


class Tally(msgspec.Struct, metaclass=FrozenMeta):
    """Trajectories of one fate, and their sampled tokens."""

    trajectories: int = 0
    tokens: int = 0

    def with_groups(self, groups: list[GroupSoFar]) -> Tally:
        """These groups share the fate."""
        members = [member for group in groups for member in group.members.values()]
        return Tally(trajectories=self.trajectories + len(members), tokens=self.tokens + sum(member.tokens for member in members))


class Assembly(msgspec.Struct, metaclass=FrozenMeta):
    """Every group from its first ended episode until it is in a batch or dropped."""

    group_size: int
    weight_version: int = -1
    batches_formed: int = 0
    open: dict[int, GroupSoFar] = {}
    complete: dict[int, GroupSoFar] = {}
    finished: frozenset[int] = frozenset()
    """Groups from `finished_below` on of which every episode has ended; a second end is not counted."""
    finished_below: int = 0
    trained: Tally = Tally()
    """In batches."""
    dropped: Tally = Tally()

    def exported(self, group: int, member: Exported) -> Assembly:
        """A trajectory has arrived; a second one of the same episode is ignored."""
        before = self.open.get(group) or GroupSoFar(number=group)
        if self._has_ended(before, member.episode):
            return self
        after = msgspec.structs.replace(before, members={**before.members, member.episode: member})
        return self.with_group(after)

    def lost(self, group: int, episode: str) -> Assembly:
        """An episode was abandoned for good."""
        before = self.open.get(group) or GroupSoFar(number=group)
        if self._has_ended(before, episode):
            return self
        return self.with_group(msgspec.structs.replace(before, lost=before.lost | {episode}))

    def _has_ended(self, group: GroupSoFar, episode: str) -> bool:
        finished = group.number < self.finished_below or group.number in self.finished
        return finished or episode in group.members or episode in group.lost

    def with_group(self, group: GroupSoFar) -> Assembly:
        """A group after one more of its episodes has ended."""
        rest = {number: other for number, other in self.open.items() if number != group.number}
        if group.ended() < self.group_size:
            return msgspec.structs.replace(self, open={**rest, group.number: group})
        complete = {**self.complete, group.number: group} if group.members else self.complete
        finished, below = self.finished | {group.number}, self.finished_below
        while below in finished:
            finished, below = finished - {below}, below + 1
        return msgspec.structs.replace(self, open=rest, complete=complete, finished=finished, finished_below=below)

    def weights_published(self, weight_version: int) -> Assembly:
        """The trainer is ready for its next batch."""
        return msgspec.structs.replace(self, weight_version=max(weight_version, self.weight_version))

    def to_drop(self, config: BatcherConfig, max_staleness: int) -> list[GroupSoFar]:
        """Complete groups that may not be trained any more."""
        bound = self.weight_version - max_staleness
        return [group for group in self.complete.values() if _refused(group, config, bound)]

    def without(self, groups: list[GroupSoFar]) -> Assembly:
        """These groups have been dropped."""
        numbers = {group.number for group in groups}
        complete = {number: group for number, group in self.complete.items() if number not in numbers}
        return msgspec.structs.replace(self, complete=complete, dropped=self.dropped.with_groups(groups))

    def next_batch(self, batch_size: int) -> list[GroupSoFar]:
        """The oldest complete groups, if the trainer waits and there are enough of them."""
        if self.batches_formed > self.weight_version or len(self.complete) < batch_size:
            return []
        return sorted(self.complete.values(), key=lambda group: (group.oldest_version(), group.number))[:batch_size]

    def formed(self, groups: list[GroupSoFar]) -> Assembly:
        """These groups are in a batch."""
        numbers = {group.number for group in groups}
        complete = {number: group for number, group in self.complete.items() if number not in numbers}
        trained = self.trained.with_groups(groups)
        return msgspec.structs.replace(self, complete=complete, batches_formed=self.weight_version + 1, trained=trained)


def _refused(group: GroupSoFar, config: BatcherConfig, bound: int) -> bool:
    if config.lost_sample == "drop" and group.lost:
        return True
    if config.exit_policy == "drop":
        return group.oldest_version() < bound
    return config.exit_policy == "mask" and group.newest_version() < bound
