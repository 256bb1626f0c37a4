"""From trajectories to batches: groups complete, the exit door of the staleness gate, batches oldest first.

The assembly is an immutable value and a fold over events, in log order: the same log gives the same batches. Invariants:
a group enters a batch whole or not at all, at most once; no trained token is older than the bound unless the exit
policy is `keep`; no trained group is one that the filter refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from areal_actors.config import Config, PositiveInt
from areal_actors.conversations.credit import Credit, sample_rewards
from areal_actors.conversations.rows import EPISODE
from areal_actors.errors import RecipeError
from areal_actors.loading import load_named
from areal_actors.values import PROMPT_VERSION, Trajectory
from bus.message import FrozenMeta

Filter = Callable[[tuple[float, ...]], bool]
"""Whether a group is to be trained, given the rewards of its episodes (of their calls under `task.baseline_over = "calls"`). The same
rewards always give the same answer."""
Refusal = Literal["stale", "incomplete group", "filtered", "surplus"]


def has_signal(rewards: tuple[float, ...]) -> bool:
    """Whether the rewards differ: where all are equal, every advantage relative to the group is 0 (DAPO, arXiv:2503.14476, sec. 3.2)."""
    return len(set(rewards)) > 1


def filter_named(spec: str, root: Path) -> Filter | None:
    """What `batcher.filter` says: nothing, `signal`, or a function of the user's; paths count from `root`.

    Raises:
        RecipeError: there is no such function; later, from the filter, when it says neither True nor False.
    """
    if not spec:
        return None
    if spec == "signal":
        return has_signal
    function = load_named(spec, root)
    if not callable(function):
        raise RecipeError(f"`batcher.filter`: `{spec}` is no function; write `def keep(rewards) -> bool`")

    def keeps(rewards: tuple[float, ...]) -> bool:
        answer = function(rewards)
        if not isinstance(answer, bool):
            raise RecipeError(f"`batcher.filter`: {spec}({rewards}) returned {answer!r:.80}; return True to train the group, or False")
        return answer

    return keeps


class BatcherConfig(Config):
    """`[batcher]`: what happens to old tokens, to groups that lost a sample, and to groups from which nothing can be learned."""

    exit_policy: Literal["mask", "keep", "drop"] = "mask"
    """`mask` trains every group but not its tokens older than the bound (a group with no younger token is dropped); `drop`
    drops groups that have any such token; `keep` trains whatever its age."""
    lost_sample: Literal["train_without", "drop"] = "train_without"
    """What becomes of a group of which an episode was abandoned for good."""
    filter: str = ""
    """`signal` drops groups whose rewards are all equal, and others are drawn in their place (DAPO's dynamic sampling);
    `path.py:function` those of whose rewards, a tuple of numbers, the function says False. Empty trains all."""
    dynamic_batch: bool = False
    """Dropped by the filter, a group still counts towards the batch, which is then smaller (AReaL's `dynamic_bs`)."""
    max_filtered_batches: PositiveInt = 16
    """When the filter has dropped so many batches' worth of groups since the last batch was formed, the run ends."""


class Exported(msgspec.Struct, metaclass=FrozenMeta):
    """What the assembly keeps of a trajectory; its tokens stay in the log."""

    episode: str
    sequence: int
    oldest_version: int
    newest_version: int
    tokens: int
    rewards: tuple[float, ...] = ()
    """What it contributes to the statistics of its group: one value, or one for each call (`task.baseline_over`)."""

    @classmethod
    def of(cls, trajectory: Trajectory, sequence: int, credit: Credit = EPISODE) -> Exported:
        """Remember where in the log a trajectory lies, and its reward under this credit."""
        spans = [span for turn in trajectory.interactions for span in turn.completion.versions]
        newest = max((span.weight_version for span in spans), default=PROMPT_VERSION)
        return cls(
            episode=trajectory.episode,
            sequence=sequence,
            oldest_version=trajectory.oldest_version(),
            newest_version=newest,
            tokens=trajectory.sampled_tokens(),
            rewards=sample_rewards(trajectory, credit),
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

    def rewards(self) -> tuple[float, ...]:
        """Of its episodes, or of their calls, episode after episode."""
        return tuple(reward for _, member in sorted(self.members.items()) for reward in member.rewards)


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
    filtered: int = 0
    """Groups that the filter has dropped since the last batch was formed."""

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

    def oldest_sequence(self) -> int:
        """Place in the log of the oldest trajectory that may still be trained; 0 if there is none."""
        groups = (*self.open.values(), *self.complete.values())
        return min((member.sequence for group in groups for member in group.members.values()), default=0)

    def weights_published(self, weight_version: int) -> Assembly:
        """The trainer is ready for its next batch."""
        return msgspec.structs.replace(self, weight_version=max(weight_version, self.weight_version))

    def to_drop(self, config: BatcherConfig, max_staleness: int, keeps: Filter | None = None) -> dict[int, Refusal]:
        """Complete groups that may not be trained, by number, each with the reason."""
        bound = self.weight_version - max_staleness
        refusals = {number: _refusal(group, config, bound, keeps) for number, group in self.complete.items()}
        return {number: refusal for number, refusal in refusals.items() if refusal}

    def without(self, refused: dict[int, Refusal]) -> Assembly:
        """These groups have been dropped."""
        gone = [self.complete[number] for number in refused]
        complete = {number: group for number, group in self.complete.items() if number not in refused}
        filtered = self.filtered + sum(reason == "filtered" for reason in refused.values())
        return msgspec.structs.replace(self, complete=complete, dropped=self.dropped.with_groups(gone), filtered=filtered)

    def next_batch(self, batch_size: int, *, dynamic: bool = False) -> list[GroupSoFar]:
        """The oldest complete groups, if the trainer waits and there are enough of them; `dynamic` counts the filtered ones, too."""
        wanted = max(batch_size - self.filtered, 1) if dynamic else batch_size
        if self.batches_formed > self.weight_version or len(self.complete) < wanted:
            return []
        return sorted(self.complete.values(), key=lambda group: (group.oldest_version(), group.number))[:batch_size]

    def formed(self, groups: list[GroupSoFar]) -> Assembly:
        """These groups are in a batch."""
        numbers = {group.number for group in groups}
        complete = {number: group for number, group in self.complete.items() if number not in numbers}
        trained = self.trained.with_groups(groups)
        return msgspec.structs.replace(self, complete=complete, batches_formed=self.weight_version + 1, trained=trained, filtered=0)


def _refusal(group: GroupSoFar, config: BatcherConfig, bound: int, keeps: Filter | None) -> Refusal | None:
    if config.lost_sample == "drop" and group.lost:
        return "incomplete group"
    if config.exit_policy == "drop" and group.oldest_version() < bound:
        return "stale"
    if config.exit_policy == "mask" and group.newest_version() < bound:
        return "stale"
    return "filtered" if keeps is not None and not keeps(group.rewards()) else None
