"""Batch assembly: groups are completed, checked against the staleness bound and the filter, and batched oldest first.

The assembler is a fold over events in log order: the same log gives the same batches. Each method changes it by one
event and returns it. It is changed in place, and a complete group is judged once for each bound, so that an event costs
the same with ten groups as with ten thousand; a snapshot is its encoded copy. Invariants: a group is in at most one
batch, and whole; no trained token is older than the bound unless the exit policy is `keep`; no group that the filter
rejects is trained.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from areal_actors.core.agent_host.faults import format_error
from areal_actors.core.config import Config, PositiveInt
from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named
from areal_actors.core.scalars import differ, plain_scalar
from areal_actors.core.values import PROMPT_VERSION, Trajectory
from areal_actors.sequences.build import EPISODE
from areal_actors.sequences.credit import Credit, sample_rewards
from areal_bus.message import FrozenMeta

Filter = Callable[[tuple[float, ...]], bool]
"""Returns True if a group is to be trained, given the rewards of its episodes (of their calls under
`task.baseline_over = "calls"`). Must be deterministic."""
Refusal = Literal["stale", "incomplete group", "filtered", "surplus", "forked"]


def has_signal(rewards: tuple[float, ...]) -> bool:
    """True if the rewards differ by more than rounding.

    If all are equal, every advantage is 0 (DAPO, arXiv:2503.14476, sec. 3.2).
    """
    return bool(rewards) and differ(min(rewards), max(rewards))


class BatcherConfig(Config):
    """`[batcher]`: treatment of stale tokens, of groups that lost an episode, and of groups without signal."""

    exit_policy: Literal["mask", "keep", "drop", "wait"] = "mask"
    """`mask` trains groups without their tokens older than the bound (a group without younger tokens is dropped);
    `drop` drops groups that have any such token; `keep` trains tokens of any age. `wait` is `mask`, but no batch is
    formed while a group that still runs would become too old by it, so that nothing is masked as long as the engines
    follow the weights."""
    incomplete_groups: Literal["train_partial", "drop"] = "train_partial"
    """Treatment of a group of which an episode was abandoned after all attempts."""
    dynamic_sampling: bool = False
    """Drops groups whose rewards are all equal; others are sampled in their place (DAPO, arXiv:2503.14476, section
    3.2)."""
    filter: str = ""
    """`path.py:function` drops groups for whose rewards, a tuple of numbers, the function returns False. Empty keeps
    all."""
    dynamic_batch: bool = False
    """Groups dropped by `dynamic_sampling` or `filter` count towards the batch size, so batches are smaller (AReaL's
    `dynamic_bs`)."""
    max_filtered_batches: PositiveInt = 16
    """The run ends when this many batches of groups were filtered out since the last batch was formed."""


def group_filter(config: BatcherConfig, root: Path) -> Filter | None:
    """Returns the filter of `batcher.dynamic_sampling` and `batcher.filter`; None if every group is kept.

    Paths are relative to `root`.

    Raises:
        RecipeError: there is no such function; later, from the filter, if it raises, or returns neither True nor False.
    """
    if not config.filter:
        return has_signal if config.dynamic_sampling else None
    function = load_named(config.filter, root)
    if not callable(function):
        raise RecipeError(f"`batcher.filter`: `{config.filter}` is not a function; write `def keep(rewards) -> bool`")

    def keeps(rewards: tuple[float, ...]) -> bool:
        if config.dynamic_sampling and not has_signal(rewards):
            return False
        try:
            answer = plain_scalar(function(rewards))
        except BaseException as error:  # the function is the user's and may raise anything
            raise RecipeError(f"`batcher.filter`: {config.filter}({rewards}) raised {format_error(error)}") from error
        if not isinstance(answer, bool):
            returned = f"{config.filter}({rewards}) returned {answer!r:.80}"
            raise RecipeError(f"`batcher.filter`: {returned}; return True to train the group, or False")
        return answer

    return keeps


class TrajectoryInfo(msgspec.Struct, metaclass=FrozenMeta):
    """Metadata of a trajectory; its tokens stay in the log."""

    episode: str
    sequence: int
    oldest_version: int
    newest_version: int
    tokens: int
    rewards: tuple[float, ...] = ()
    """Rewards in the statistics of its group: one, or one per call (`task.baseline_over`)."""
    role_rewards: dict[str, float] = {}
    """Reward of each of its roles, by the name of its baseline; empty without role-wise baselines."""
    spans: int = 0
    """Number of rewards of spans of its completions."""

    @classmethod
    def of(cls, trajectory: Trajectory, sequence: int, credit: Credit = EPISODE) -> TrajectoryInfo:
        """Returns the metadata of a trajectory at this sequence in the log, with rewards under this credit."""
        spans = [span for turn in trajectory.interactions for span in turn.completion.versions]
        newest = max((span.weight_version for span in spans), default=PROMPT_VERSION)
        return cls(
            episode=trajectory.episode,
            sequence=sequence,
            oldest_version=trajectory.oldest_version(),
            newest_version=newest,
            tokens=trajectory.sampled_tokens(),
            rewards=sample_rewards(trajectory, credit),
            spans=sum(len(turn.spans) for turn in trajectory.interactions if turn.trained),
        )


class PartialGroup(msgspec.Struct, metaclass=FrozenMeta):
    """A group with its ended episodes."""

    number: int
    members: dict[str, TrajectoryInfo] = {}
    lost: frozenset[str] = frozenset()

    def count_ended(self) -> int:
        """Returns the number of exported and lost episodes."""
        return len(self.members) + len(self.lost)

    def oldest_version(self) -> int:
        """Returns the weight version of its oldest token."""
        return min(member.oldest_version for member in self.members.values())

    def newest_version(self) -> int:
        """Returns the weight version of its newest token."""
        return max(member.newest_version for member in self.members.values())

    def trajectories(self) -> tuple[TrajectoryInfo, ...]:
        """Returns its trajectories, in order of episodes."""
        return tuple(member for _, member in sorted(self.members.items()))

    def rewards(self) -> tuple[float, ...]:
        """Returns rewards of its episodes, or of their calls, in order of episodes."""
        return tuple(reward for member in self.trajectories() for reward in member.rewards)


class TrajectoryTotals(msgspec.Struct, metaclass=FrozenMeta):
    """Number of trajectories (trained or dropped) and of their sampled tokens."""

    trajectories: int = 0
    tokens: int = 0

    def with_groups(self, groups: list[PartialGroup]) -> TrajectoryTotals:
        """Returns the totals with these groups added."""
        members = [member for group in groups for member in group.members.values()]
        return TrajectoryTotals(
            trajectories=self.trajectories + len(members), tokens=self.tokens + sum(member.tokens for member in members)
        )


class BatchAssembler(msgspec.Struct, kw_only=True):
    """Groups from their first ended episode until they are in a batch or dropped."""

    group_size: int
    weight_version: int = -1
    batches_formed: int = 0
    open: dict[int, PartialGroup] = {}
    complete: dict[int, PartialGroup] = {}
    finished: set[int] = set()
    """Numbers of groups whose episodes have all ended, from `finished_below` on; duplicate ends are ignored."""
    finished_below: int = 0
    trained: TrajectoryTotals = TrajectoryTotals()
    """Totals in batches."""
    dropped: TrajectoryTotals = TrajectoryTotals()
    filtered: int = 0
    """Number of groups dropped by the filter since the last batch was formed."""
    max_staleness: int | None = None
    """Staleness bound while it is adapted (`OffPolicyChanged`); None for that of the recipe."""
    granted: dict[int, int] = {}
    """Weight version at the grant of each group that still runs; empty unless batches wait for them."""
    judged: int | None = None
    """Oldest weight version that could be trained when the complete groups were judged; None if they have to be judged
    again."""
    unjudged: set[int] = set()
    """Complete groups that were not judged since, or refused."""
    baselines: dict[str, float] = {}
    """Role-wise baselines after the latest batch, by name."""
    discarded_below: int = 0
    """Groups with a lower number are not trained: a fork has other settings of their episodes."""
    sizes: dict[int, int] = {}
    """Number of episodes of each open group that has another size than `group_size`."""

    def record_grant(self, first: int, groups: int, weight_version: int) -> BatchAssembler:
        """Record the grant of groups, for which batches shall wait."""
        self.granted.update(dict.fromkeys(range(first, first + groups), weight_version))
        return self

    def add_trajectory(self, group: int, member: TrajectoryInfo) -> BatchAssembler:
        """Add a trajectory; a second one of the same episode is ignored."""
        before = self._open_group(group, member.episode)
        return (
            self.with_group(msgspec.structs.replace(before, members={**before.members, member.episode: member}))
            if before
            else self
        )

    def record_lost_episode(self, group: int, episode: str) -> BatchAssembler:
        """Record an episode that was abandoned after all attempts."""
        before = self._open_group(group, episode)
        return self.with_group(msgspec.structs.replace(before, lost=before.lost | {episode})) if before else self

    def _open_group(self, number: int, episode: str) -> PartialGroup | None:
        """Returns the group of an episode; None if the episode has ended already."""
        group = self.open.get(number) or PartialGroup(number=number)
        finished = number < self.finished_below or number in self.finished
        return None if finished or episode in group.members or episode in group.lost else group

    def with_group(self, group: PartialGroup) -> BatchAssembler:
        """Replace a group after one more of its episodes has ended."""
        if group.count_ended() < self.sizes.get(group.number, self.group_size):
            self.open[group.number] = group
            return self
        self.open.pop(group.number, None)
        self.sizes.pop(group.number, None)
        self.granted.pop(group.number, None)
        if group.members:
            self.complete[group.number] = group
            self.unjudged.add(group.number)
        self.finished.add(group.number)
        while self.finished_below in self.finished:
            self.finished.remove(self.finished_below)
            self.finished_below += 1
        return self

    def oldest_sequence(self) -> int:
        """Returns the sequence of the oldest trajectory that may still be trained; 0 if there is none."""
        groups = (*self.open.values(), *self.complete.values())
        return min((member.sequence for group in groups for member in group.members.values()), default=0)

    def weights_published(self, weight_version: int) -> BatchAssembler:
        """Record a weight version, after which the trainer is ready for its next batch."""
        self.weight_version = max(weight_version, self.weight_version)
        return self

    def to_drop(self, config: BatcherConfig, max_staleness: int, keeps: Filter | None = None) -> dict[int, Refusal]:
        """Returns complete groups that may not be trained, by number, with the reason.

        A group that may be trained is judged again only under another bound: `config` and `keeps` are always the same.
        """
        bound = self.weight_version - max_staleness
        judged = (
            self.complete
            if bound != self.judged
            else sorted(number for number in self.unjudged if number in self.complete)
        )
        refusals = {
            number: "forked" if number < self.discarded_below else _refusal(self.complete[number], config, bound, keeps)
            for number in judged
        }
        refused = {number: refusal for number, refusal in refusals.items() if refusal}
        self.judged, self.unjudged = bound, set(refused)
        return refused

    def without(self, refused: Mapping[int, Refusal]) -> BatchAssembler:
        """Remove dropped groups."""
        if refused:
            self.dropped = self.dropped.with_groups([self.complete.pop(number) for number in refused])
            self.filtered += sum(reason == "filtered" for reason in refused.values())
            self.unjudged -= refused.keys()
        return self

    def next_batch(self, batch_size: int, *, max_staleness: int = 0, dynamic: bool = False) -> list[PartialGroup]:
        """Returns the oldest complete groups, if the trainer waits and there are enough.

        `dynamic` also counts the filtered ones.
        There is no batch while it would have a group of `granted` exceed the bound.
        """
        wanted = max(batch_size - self.filtered, 1) if dynamic else batch_size
        if self.batches_formed > self.weight_version or len(self.complete) < wanted:
            return []
        chosen = heapq.nsmallest(
            batch_size, self.complete.values(), key=lambda group: (group.oldest_version(), group.number)
        )
        return [] if self.granted and self._waits(chosen, batch_size, max_staleness) else chosen

    def _waits(self, chosen: list[PartialGroup], batch_size: int, max_staleness: int) -> bool:
        """True if a group that still runs should be in the batch instead of a younger one of these.

        A group that is as old as the bound must be in this batch; those that become so within n further steps must fit
        into n batches.
        """
        youngest = max(group.oldest_version() for group in chosen)
        for steps in range(max_staleness + 1):
            due = self.weight_version - max_staleness + steps
            running = sum(version <= due for version in self.granted.values())
            if running > steps * batch_size and (youngest > due or len(chosen) < batch_size):
                return True
        return False

    def discard_groups(self, below: int) -> BatchAssembler:
        """Train no group with a lower number that is in no batch yet."""
        self.discarded_below, self.judged = below, None
        return self

    def form_batch(self, groups: list[PartialGroup]) -> BatchAssembler:
        """Move these groups into a batch."""
        for group in groups:
            del self.complete[group.number]
        self.trained = self.trained.with_groups(groups)
        self.batches_formed, self.filtered = self.weight_version + 1, 0
        return self


def _refusal(group: PartialGroup, config: BatcherConfig, bound: int, keeps: Filter | None) -> Refusal | None:
    if config.incomplete_groups == "drop" and group.lost:
        return "incomplete group"
    if config.exit_policy == "drop" and group.oldest_version() < bound:
        return "stale"
    if config.exit_policy in {"mask", "wait"} and group.newest_version() < bound:
        return "stale"
    if keeps is has_signal and any(member.spans for member in group.members.values()):
        return None  # rewards of spans differ within episodes whose rewards are equal
    return "filtered" if keeps is not None and not keeps(group.rewards()) else None
