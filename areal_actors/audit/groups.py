"""Group ledger of the audit.

Each group from its grant until it is trained, dropped or abandoned, each trajectory counted once.
The state is plain and encodable, and holds only open groups; of the others it keeps the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from areal_actors.messages import BatchFormed, TrajectoryRef

Finding = tuple[str, str]
"""A fault: the name of the check, and a sentence."""


class ExportedTrajectory(msgspec.Struct):
    """An exported trajectory that is neither in a batch nor dropped."""

    sequence: int
    """Sequence of its event in the log."""
    tokens: int
    oldest_version: int


class PendingGroup(msgspec.Struct):
    """A group that was granted and has not ended: trained, dropped or abandoned."""

    exported: dict[str, ExportedTrajectory] = {}
    """Trajectories by episode."""
    given_up: list[str] = []
    """Episodes abandoned after all attempts."""
    dropped: list[str] = []
    """Episodes whose trajectory was dropped."""
    complete_at: int = 0
    """Sequence of the event that ended its last episode; 0 before that."""
    step: int = -1
    """Step of its batch; -1 if it is in none."""

    def age(self, number: int) -> tuple[int, int]:
        """Returns the sort key by which batches take groups, smallest first."""
        return min((member.oldest_version for member in self.exported.values()), default=-1), number


class GroupLedger(msgspec.Struct):
    """Groups of a run by number."""

    group_size: int = 1
    granted: int = 0
    """Number of the next group to be granted."""
    under_way: dict[int, PendingGroup] = {}
    ended: set[int] = set()
    """Numbers of ended groups, from `ended_below` on; all below have ended."""
    ended_below: int = 0
    trained_groups: int = 0
    dropped_groups: int = 0
    abandoned_groups: int = 0
    exported: int = 0
    """Number of exported trajectories, duplicates excluded."""
    repeated: int = 0
    """Number of duplicate ends of episodes, which are otherwise ignored."""
    trained: int = 0
    """Number of trajectories in batches."""
    trained_tokens: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    dropped_for: dict[str, int] = {}
    """Number of dropped trajectories by reason."""
    passed_over: set[int] = set()
    """Complete groups that a batch left out in favour of younger ones."""

    def grant(self, first: int, groups: int) -> Iterator[Finding]:
        """Grant groups; their numbers must continue those granted before."""
        if first > self.granted:
            yield (
                "grant",
                f"groups {first} to {first + groups - 1} were granted, but {_range(self.granted, first)} never were",
            )
        elif first < self.granted:
            yield (
                "grant",
                f"groups from {first} on were granted, but those below {self.granted} had been granted already",
            )
        self._grant_below(first + groups)

    def _grant_below(self, end: int) -> None:
        """Treat all groups below this number as granted, so that a missing grant is reported once."""
        for number in range(self.granted, end):
            self.under_way[number] = PendingGroup()
        self.granted = max(self.granted, end)

    def end(
        self, episode: str, group: str, sequence: int, exported: ExportedTrajectory | None = None
    ) -> Iterator[Finding]:
        """Record the end of an episode: exported, or abandoned after all attempts; duplicate ends are ignored."""
        number, findings = self._place(episode, group)
        yield from findings
        record = self.under_way.get(number)
        if record is None or episode in record.exported or episode in record.given_up:
            self.repeated += number >= 0
            return
        if exported is None:
            record.given_up.append(episode)
        else:
            record.exported[episode] = exported
            self.exported += 1
        if len(record.exported) + len(record.given_up) >= self.group_size:
            record.complete_at = sequence
            if not record.exported:
                self.abandoned_groups += 1
                self._settle(number)

    def drop(self, episode: str, group: str, reason: str) -> Iterator[Finding]:
        """Record a dropped trajectory."""
        number, findings = self._place(episode, group)
        yield from findings
        record = self.under_way.get(number)
        if findings:
            return
        if record is None:
            yield (
                "twice",
                f"the trajectory of episode {episode} was dropped ({reason}), but its group had ended already",
            )
        elif record.step >= 0:
            yield (
                "twice",
                (
                    f"the trajectory of episode {episode} was dropped ({reason}), but it is in the batch of step"
                    f" {record.step + 1}"
                ),
            )
        elif episode in record.dropped:
            yield "twice", f"the trajectory of episode {episode} was dropped twice ({reason})"
        elif episode not in record.exported:
            yield "drop", f"the trajectory of episode {episode} was dropped ({reason}), but it was never exported"
        else:
            record.dropped.append(episode)
            self.dropped += 1
            self.dropped_tokens += record.exported[episode].tokens
            self.dropped_for[reason] = self.dropped_for.get(reason, 0) + 1
            if not record.complete_at:
                yield (
                    "drop",
                    f"the trajectory of episode {episode} was dropped ({reason}) before its group was complete",
                )
            elif len(record.dropped) == len(record.exported):
                self.dropped_groups += 1
                self._settle(number)

    def batch(self, event: BatchFormed, known_up_to: int) -> Iterator[Finding]:
        """Record a batch of a batcher that had read the log at least up to this sequence."""
        step, chosen = event.step + 1, []
        for group in event.groups:
            number, findings = self._check_batched_group(group, step)
            yield from findings
            if number >= 0:
                chosen.append(number)
        yield from self._check_tally(event)
        youngest = max((self.under_way[number].age(number) for number in chosen), default=None)
        for number in chosen:
            self.under_way[number].step = event.step
        if youngest is not None:
            yield from self._check_left_out(step, youngest, known_up_to)

    def _check_batched_group(self, group: Sequence[TrajectoryRef], step: int) -> tuple[int, list[Finding]]:
        """Returns the number of a group of a batch, -1 if it may not be trained, and its faults."""
        names = [member.episode for member in group]
        if not names:
            return -1, [("batch", f"the batch of step {step} has a group without trajectories")]
        self.trained += len(names)
        numbers = {_number(name.partition(".")[0]) for name in names}
        number = numbers.pop()
        if numbers:
            return -1, [("batch", f"the batch of step {step} mixes several groups: {', '.join(names)}")]
        record = self.under_way.get(number)
        if record is None:
            cause = (
                "had ended already (trained, dropped or abandoned)"
                if 0 <= number < self.granted
                else "was never granted"
            )
            return -1, [
                (
                    "twice" if 0 <= number < self.granted else "batch",
                    f"the batch of step {step} has group {number}, which {cause}",
                )
            ]
        if record.step >= 0:
            return -1, [
                (
                    "twice",
                    (
                        f"the batch of step {step} has group {number}, which is also in the batch of step"
                        f" {record.step + 1}"
                    ),
                )
            ]
        self.trained_tokens += sum(record.exported[name].tokens for name in names if name in record.exported)
        return number, list(self._members(group, number, record, step))

    def _members(
        self, group: Sequence[TrajectoryRef], number: int, record: PendingGroup, step: int
    ) -> Iterator[Finding]:
        names = [member.episode for member in group]
        if len(set(names)) < len(names):
            yield "twice", f"the batch of step {step} has a trajectory of group {number} twice: {', '.join(names)}"
        if missing := sorted(set(record.exported) - set(names)):
            yield (
                "lost",
                f"the batch of step {step} has group {number} without {', '.join(missing)}, exported before it",
            )
        if not record.complete_at:
            ended = len(record.exported) + len(record.given_up)
            yield (
                "batch",
                (
                    f"the batch of step {step} has group {number}, but only {ended} of {self.group_size} episodes have"
                    " ended"
                ),
            )
        if record.dropped:
            yield (
                "twice",
                (
                    f"the batch of step {step} has group {number}, but its trajectories {', '.join(record.dropped)}"
                    " were dropped"
                ),
            )
        for member in group:
            exported = record.exported.get(member.episode)
            if exported is None:
                yield "batch", f"the batch of step {step} has episode {member.episode}, which was never exported"
            elif exported.sequence != member.sequence:
                claimed = f"event {member.sequence} as the trajectory of episode {member.episode}"
                yield "batch", f"the batch of step {step} names {claimed}, expected event {exported.sequence}"

    def _check_tally(self, event: BatchFormed) -> Iterator[Finding]:
        """Yields counts of the batcher that differ from those of the log."""
        counts = (
            ("trajectories in batches", event.trained_trajectories, self.trained),
            ("tokens in batches", event.trained_tokens, self.trained_tokens),
            ("dropped trajectories", event.dropped_trajectories, self.dropped),
            ("dropped tokens", event.dropped_tokens, self.dropped_tokens),
        )
        for what, claimed, counted in counts:
            if claimed != counted:
                yield (
                    "count",
                    (
                        f"the batch of step {event.step + 1} counts {claimed} {what} since the run began; the log has"
                        f" {counted}"
                    ),
                )
        self.trained, self.trained_tokens = event.trained_trajectories, event.trained_tokens
        self.dropped, self.dropped_tokens = event.dropped_trajectories, event.dropped_tokens

    def _check_left_out(self, step: int, youngest: tuple[int, int], known_up_to: int) -> Iterator[Finding]:
        """Yields complete groups that are older than the youngest of the batch.

        Batches take the oldest, so the batcher lost them.
        """
        for number, record in self.under_way.items():
            waits = (
                record.step < 0
                and 0 < record.complete_at <= known_up_to
                and not record.dropped
                and number not in self.passed_over
            )
            if waits and record.exported and record.age(number) < youngest:
                self.passed_over.add(number)
                yield (
                    "lost",
                    (
                        f"the batch of step {step} left out group {number}, which was complete and older than others of"
                        " the batch"
                    ),
                )

    def trained_step(self, step: int) -> None:
        """Record that the batch formed on this weight version has been trained."""
        for number in [number for number, record in self.under_way.items() if record.step == step]:
            self.trained_groups += 1
            self._settle(number)

    def _place(self, episode: str, group: str) -> tuple[int, list[Finding]]:
        """Returns the number of a group, -1 if it has none, and the faults of the episode's name."""
        number = _number(group)
        member = _number(episode.removeprefix(f"{group}."))
        if number < 0 or not 0 <= member < self.group_size:
            size = f"groups have {self.group_size} episodes"
            return -1, [("grant", f"episode {episode} of group {group} ended, which no task source draws: {size}")]
        if number >= self.granted:
            self._grant_below(number + 1)
            return number, [("grant", f"episode {episode} ended, but group {group} was never granted")]
        return number, []

    def _settle(self, number: int) -> None:
        del self.under_way[number]
        self.ended.add(number)
        self.passed_over.discard(number)
        while self.ended_below in self.ended:
            self.ended.discard(self.ended_below)
            self.ended_below += 1

    def waiting_trajectories(self) -> int:
        """Returns the number of trajectories that are exported, in no batch and not dropped."""
        return sum(len(record.exported) - len(record.dropped) for record in self.under_way.values() if record.step < 0)


def _number(name: str) -> int:
    """Returns the number in the name of a group or episode; -1 if it is not decimal."""
    return int(name) if name.isdecimal() else -1


def _range(first: int, end: int) -> str:
    return f"group {first}" if end - first == 1 else f"groups {first} to {end - 1}"


def format_numbers(numbers: Iterable[int], most: int = 5) -> str:
    """Returns `3, 4, 7`, or the first few and the count of the rest."""
    every = sorted(numbers)
    rest = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(str, every[:most])) + rest
