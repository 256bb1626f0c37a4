"""A sound log of a short run, event by event, to be spoilt in tests: two lives, three steps, a lost episode, a dropped
group."""

from __future__ import annotations

import msgspec

from areal_actors.audit.audit import Audit
from areal_actors.audit.sequences import SequencesCheck
from areal_actors.core.values import (
    Interaction,
    SamplingParams,
    Task,
    TokenColumns,
    Trajectory,
    WeightsLocation,
    pack_ids,
)
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    CheckpointStaged,
    EpisodeAbandoned,
    RunEpisode,
    RunFinished,
    RunResumed,
    RunStarted,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    TrajectoryRef,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.sequences.build import EPISODE
from areal_actors.sequences.sequence_check import SequenceLimits, batch_sequences
from areal_actors.sequences.step_metrics import sequences_checksum

RECIPE = {"steps": 3, "algorithm": {"group_size": 2}, "actors": {"trainer": {"count": 1}}, "trainer": {"batch_size": 2}}
STARTED = RunStarted(recipe=RECIPE, profile="embedded", reason="", folder="runs/a")
TOKENS = 3


def checksum(version):
    return f"{version:032x}"


def published(version):
    return WeightsPublished(
        weight_version=version, location=WeightsLocation(folder="w", checksum=checksum(version), model="m")
    )


def loaded(version, worker="inference_worker-0"):
    return WeightsLoaded(worker=worker, weight_version=version, checksum=checksum(version))


def exported(episode, version):
    columns = TokenColumns.of([7, int(episode.partition(".")[0]), 9], [-0.5, -0.25, -1.0], [version] * TOKENS)
    turn = Interaction(id=f"i{episode}", prompt_suffix=pack_ids([1, 2]), completion=columns, finish_reason="stop")
    trajectory = Trajectory(
        episode=episode, group=episode.partition(".")[0], attempt=1, task="t", reward=1.0, interactions=(turn,)
    )
    return TrajectoryExported(trajectory=trajectory)


def given_up(episode, attempts_left=0, attempt=1):
    task = {"task": Task(id="t", data={}), "sampling": SamplingParams()}
    work = RunEpisode(
        episode=episode, group=episode.partition(".")[0], attempt=attempt, attempts_left=attempts_left, **task
    )
    return EpisodeAbandoned(work=work, reason="agent", detail="ValueError")


class Log:
    """Events in order; what refers to places of others finds them there."""

    def __init__(self):
        self.events = []
        self.members = self.dropped = 0

    def add(self, *events):
        self.events += events
        return len(self.events)

    def place(self, episode):
        return next(
            number
            for number, event in enumerate(self.events, start=1)
            if isinstance(event, TrajectoryExported) and event.trajectory.episode == episode
        )

    def batch(self, step, *groups):
        """Form a batch of these episodes and take its step; returns the place of the batch."""
        members = tuple(
            tuple(TrajectoryRef(episode=name, sequence=self.place(name)) for name in group) for group in groups
        )
        self.members += sum(map(len, members))
        batch = BatchFormed(
            step=step,
            groups=members,
            oldest_version=step - 2,
            trained_trajectories=self.members,
            trained_tokens=self.members * TOKENS,
            dropped_trajectories=self.dropped,
            dropped_tokens=self.dropped * TOKENS,
        )
        place = self.add(batch)
        whole = [
            (index, self.events[member.sequence - 1].trajectory)
            for index, group in enumerate(members)
            for member in group
        ]
        rows = batch_sequences(batch, whole, EPISODE, SequenceLimits()).sequences
        self.add(
            StepCompleted(step=step + 1, metrics={"loss": 0.5}, sequences_checksum=sequences_checksum(rows)),
            published(step + 1),
        )
        return place

    def drop(self, *episodes):
        self.dropped += len(episodes)
        self.add(*(TrajectoryDropped(episode=name, group=name.partition(".")[0], reason="stale") for name in episodes))


def sound_log():
    """The whole run."""
    log = Log()
    log.add(STARTED, published(0), loaded(0), loaded(0, "inference_worker-1"))
    log.add(CapacityGranted(first_group=0, groups=4, weight_version=0))
    log.add(
        exported("0.0", 0),
        exported("1.0", 0),
        exported("1.1", 0),
        exported("0.1", 0),
        exported("2.0", 0),
        exported("2.1", 0),
    )
    cursor = log.batch(0, ("0.0", "0.1"), ("1.0", "1.1"))
    log.add(
        loaded(1),
        CheckpointStaged(folder="w", step=1, cursor=cursor),
        CheckpointCommitted(folder="c", step=1, cursor=cursor),
    )
    log.drop("2.0", "2.1")
    log.add(
        CapacityGranted(first_group=4, groups=2, weight_version=1),
        given_up("3.0", 1),
        exported("4.0", 1),
        given_up("3.0"),
    )
    log.add(given_up("3.1"), CapacityGranted(first_group=6, groups=2, weight_version=1))
    log.add(exported("5.0", 1), given_up("4.1"), exported("5.1", 1), exported("5.0", 1))
    log.batch(1, ("4.0",), ("5.0", "5.1"))
    log.add(RunResumed(recipe=RECIPE, reason="", folder="runs/a"), published(2), loaded(2))
    log.add(exported("6.0", 2), exported("7.0", 2), exported("6.1", 1), exported("7.1", 2))
    cursor = log.batch(2, ("6.0", "6.1"), ("7.0", "7.1"))
    log.add(
        loaded(3),
        CheckpointStaged(folder="w", step=3, cursor=cursor),
        CheckpointCommitted(folder="c", step=3, cursor=cursor),
    )
    log.add(RunFinished(steps=3))
    return log.events


def audited(events, *, numbers=None):
    """Fold events; their places count from 1, unless `numbers` is given."""
    audit, rows = Audit(), SequencesCheck(EPISODE)
    for sequence, event in zip(numbers or range(1, len(events) + 1), events, strict=True):
        audit.event(sequence, event)
        for check, sentence in rows.event(sequence, event):
            audit.fault(sequence, check, sentence)
        audit.sequences_checked = rows.checked
    return audit


def place(events, kind, number=0):
    """Index of the n-th event of a kind."""
    return [index for index, event in enumerate(events) if isinstance(event, kind)][number]


def changed(events, index, **fields):
    return [*events[:index], msgspec.structs.replace(events[index], **fields), *events[index + 1 :]]
