"""Rule of what counts as an episode, its end, a failure, a surplus, for all that count the episodes of a run.

An episode ends once: with a trajectory, with an evaluation, or when its last attempt is abandoned. A later end of the
same episode is a repetition and does not count. An abandoned attempt is a failure, unless the recipe rejected it, or it
is surplus: started so that the last batches need not wait for the slowest, and not needed in the end.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from areal_actors.messages.outcome import EpisodeAbandoned, EpisodeEvaluated, TrajectoryDropped, TrajectoryExported
from areal_actors.messages.run import RunResumed, RunStarted
from areal_bus.message import Message

EpisodeEnd = TrajectoryExported | EpisodeEvaluated | EpisodeAbandoned
Outcome = Literal["exported", "evaluated", "abandoned", "rejected", "surplus"]
OUTCOMES: tuple[Outcome, ...] = ("exported", "evaluated", "abandoned", "rejected", "surplus")
"""Outcomes of an attempt; only `abandoned` is a failure."""
SURPLUS = "surplus"
UNUSED = "unused"
"""Reason of an episode that ended without a call of the policy whose log this is: other policies were called."""
UNREWARDED = "unrewarded"
"""Reason of a session of a served model that ended without a reward: its feedback may come at any time."""
NO_CONSENT = "consent"
"""Reason of a session from which nothing may be learned."""
REDACTED = "redacted"
"""Reason of a session in which a rule of `log.redaction` matches: neither its tokens nor its texts are kept."""
FORKED = "forked"
"""Reason of an episode that is not trained, because a fork has other settings of its episodes."""
NOT_FAILED = frozenset({SURPLUS, UNUSED, UNREWARDED, NO_CONSENT, REDACTED, FORKED})
BY_RECIPE = ("filtered", SURPLUS, FORKED)
"""Reasons of dropped trajectories that are no loss: the recipe asks for it."""
LONGEST_DEED = 100
"""Characters of the deed by which a model ended an episode."""


def abandoned_outcome(reason: str) -> Outcome:
    """Returns the outcome of an attempt that was abandoned for this reason.

    `abandoned`, which is a failure, `rejected` or `surplus`.
    """
    return "rejected" if reason == "rejected" else "surplus" if reason in NOT_FAILED else "abandoned"


def is_failure(event: EpisodeAbandoned) -> bool:
    """Returns True if the attempt failed, whether or not another follows."""
    return abandoned_outcome(event.reason) == "abandoned"


def outcome_of(event: EpisodeEnd) -> Outcome:
    """Returns the outcome of the attempt that ended with this event."""
    if isinstance(event, EpisodeAbandoned):
        return abandoned_outcome(event.reason)
    return "evaluated" if isinstance(event, EpisodeEvaluated) else "exported"


def party_at_end(event: EpisodeEnd) -> tuple[str, str]:
    """Returns who ended an attempt and by which deed.

    `agent`, `model` (only it has a deed), `environment`, `infrastructure`; or two ''.
    """
    if isinstance(event, EpisodeAbandoned):
        return event.ended_by(), ""
    end = event if isinstance(event, EpisodeEvaluated) else event.trajectory
    return end.ended_by, end.end_cause


def describe_party(event: EpisodeEnd) -> str:
    """Returns who ended an attempt as text, such as `the model: its turns were used up`.

    Empty for an agent that returned.
    """
    party, deed = party_at_end(event)
    if party == "agent" and not isinstance(event, EpisodeAbandoned):
        return ""
    return ": ".join(filter(None, (f"the {party}" if party else "", deed)))


def model_deed(cause: str) -> str:
    """Returns the kind of a deed by which a model ended its episode, without the details of the episode."""
    return cause.partition(": ")[0][:LONGEST_DEED]


class EpisodeSet(msgspec.Struct):
    """A set of episodes; of a training group that is whole only its number is kept."""

    members: dict[str, set[str]] = {}
    """Episodes by group."""
    whole: set[int] = set()
    """Numbers of whole groups, from `whole_below` on; all below are whole."""
    whole_below: int = 0

    def add(self, episode: str, group_size: int) -> bool:
        """Add an episode; returns False if it is in the set already.

        `group_size`: episodes of a group, 0 if unknown.
        """
        group = episode.rpartition(".")[0]
        number = int(group) if group.isdecimal() else -1
        members = self.members.setdefault(group, set())
        if 0 <= number < self.whole_below or number in self.whole or episode in members:
            if not members:
                del self.members[group]
            return False
        members.add(episode)
        if number >= 0 and len(members) == group_size:
            del self.members[group]
            self.whole.add(number)
            while self.whole_below in self.whole:
                self.whole.discard(self.whole_below)
                self.whole_below += 1
        return True

    def has(self, episode: str) -> bool:
        """Returns True if the episode is in the set."""
        group = episode.rpartition(".")[0]
        number = int(group) if group.isdecimal() else -1
        return 0 <= number < self.whole_below or number in self.whole or episode in self.members.get(group, ())


class EpisodeEnds(msgspec.Struct):
    """Separates the ends of attempts from their repetitions."""

    group_size: int = 0
    """Episodes of a training group; 0 while unknown."""
    ended: EpisodeSet = msgspec.field(default_factory=EpisodeSet)
    failed: dict[str, int] = {}
    """Newest abandoned attempt of each episode that goes on."""

    def begin(self, recipe: dict[str, object]) -> None:
        """Take the size of groups from the resolved recipe of a start or resume."""
        algorithm = recipe.get("algorithm")
        self.group_size = int(algorithm.get("group_size") or 0) if isinstance(algorithm, dict) else self.group_size

    def is_first(self, episode: str, attempt: int, attempts_left: int = 0) -> bool:
        """Record the end of an attempt; returns False if it repeats one.

        The episode itself ends unless attempts are left.
        """
        if not attempts_left:
            self.failed.pop(episode, None)
            return self.ended.add(episode, self.group_size)
        if self.ended.has(episode) or attempt <= self.failed.get(episode, 0):
            return False
        self.failed[episode] = attempt
        return True


class EpisodeCounts(msgspec.Struct):
    """Numbers of episodes and attempts of a run: a fold over its events, for every display that counts.

    `episodes` = `exported` + `evaluated` + `given_up` + `rejected_episodes` + `surplus_running`.
    """

    ends: EpisodeEnds = msgspec.field(default_factory=EpisodeEnds)
    dropped_episodes: EpisodeSet = msgspec.field(default_factory=EpisodeSet)
    episodes: int = 0
    """Ended episodes."""
    exported: int = 0
    evaluated: int = 0
    """Held-out episodes with a score."""
    abandoned: dict[str, int] = {}
    """Failed attempts by reason."""
    given_up: int = 0
    """Episodes whose last attempt failed."""
    rejected: int = 0
    """Attempts that the recipe rejected."""
    rejected_episodes: int = 0
    """Episodes whose last attempt the recipe rejected."""
    surplus_running: int = 0
    """Episodes that still ran when the last batch was formed."""
    dropped: dict[str, int] = {}
    """Exported trajectories that are not trained, by reason, `surplus` among them."""
    model_ends: dict[str, int] = {}
    """Exported episodes that the model itself ended, by its deed."""
    repeated: int = 0
    """Ends that repeat an earlier one, and count as nothing."""

    def surplus(self) -> int:
        """Returns the number of episodes that the last batches did not need, complete or not."""
        return self.surplus_running + self.dropped.get(SURPLUS, 0)

    def of_reason(self, reason: str) -> int:
        """Returns the number of attempts that were abandoned for this reason, failures or not."""
        counts: dict[str, int] = {"rejected": self.rejected, "surplus": self.surplus_running}
        return counts.get(abandoned_outcome(reason), self.abandoned.get(reason, 0))

    def failures(self) -> int:
        """Returns the number of failed attempts."""
        return sum(self.abandoned.values())

    def losses(self) -> dict[str, int]:
        """Returns the dropped trajectories for which the recipe does not ask, by reason."""
        return {reason: count for reason, count in self.dropped.items() if reason not in BY_RECIPE}

    def receive(self, message: Message) -> bool:
        """Fold an event; returns False if it repeats an end or a drop that was counted."""
        match message:
            case RunStarted() | RunResumed():
                self.ends.begin(message.recipe)
            case TrajectoryExported() | EpisodeEvaluated() | EpisodeAbandoned():
                return self._end(message)
            case TrajectoryDropped():
                if not self.dropped_episodes.add(message.episode, self.ends.group_size):
                    return False
                _count(self.dropped, message.reason)
        return True

    def _end(self, event: EpisodeEnd) -> bool:
        attempt = event.trajectory if isinstance(event, TrajectoryExported) else event.work
        left = event.work.attempts_left if isinstance(event, EpisodeAbandoned) else 0
        if not self.ends.is_first(attempt.episode, attempt.attempt, left):
            self.repeated += 1
            return False
        self.episodes += not left
        match event:
            case TrajectoryExported():
                self.exported += 1
                if event.trajectory.ended_by == "model":
                    _count(self.model_ends, model_deed(event.trajectory.end_cause))
            case EpisodeEvaluated():
                self.evaluated += 1
            case EpisodeAbandoned():
                self._abandon(event, last=not left)
        return True

    def _abandon(self, event: EpisodeAbandoned, *, last: bool) -> None:
        match abandoned_outcome(event.reason):
            case "surplus":
                self.surplus_running += 1
            case "rejected":
                self.rejected += 1
                self.rejected_episodes += last
            case _:
                _count(self.abandoned, event.reason)
                self.given_up += last


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
