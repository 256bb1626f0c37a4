"""Each way to spoil a log is named by the audit, with its place."""

from __future__ import annotations

import msgspec
import pytest
from support.audit_logs import (
    STARTED,
    audited,
    changed,
    exported,
    given_up,
    loaded,
    place,
    published,
    sound_log,
)

from areal_actors.audit.fault import CHECKS
from areal_actors.core.values import WeightsLocation
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    EpisodeAbandoned,
    RunFinished,
    RunResumed,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    TrajectoryRef,
    WeightsLoaded,
    WeightsPublished,
)


def inserted(events, index, *more):
    """With more events, and the places in batches behind them as they are then."""
    return renumbered([*events[:index], *more, *events[index:]], index, len(more))


def without(events, index):
    return renumbered([*events[:index], *events[index + 1 :]], index, -1)


def renumbered(events, index, by):
    """Renumber the places from there on, with all references to them, so that only the change itself is at fault."""

    def moved(number):
        return number + by if number > index else number

    renamed = []
    for event in events:
        if isinstance(event, BatchFormed):
            groups = tuple(
                tuple(msgspec.structs.replace(member, sequence=moved(member.sequence)) for member in group)
                for group in event.groups
            )
            renamed.append(msgspec.structs.replace(event, groups=groups))
        elif hasattr(event, "cursor"):
            renamed.append(msgspec.structs.replace(event, cursor=moved(event.cursor)))
        else:
            renamed.append(event)
    return renamed


MUTATIONS = {
    "a number is missing": (
        lambda log: (log, [*range(1, 9), *range(10, len(log) + 2)]),
        "gap",
        "events 9 to 9 are missing",
    ),
    "events change places": (
        lambda log: (log, [1, 2, 4, 3, *range(5, len(log) + 1)]),
        "gap",
        "event 3 follows event 4",
    ),
    "a grant is lost": (
        lambda log: without(log, place(log, CapacityGranted, 1)),
        "grant",
        "group 4 was never granted",
    ),
    "groups are granted twice": (
        lambda log: inserted(
            log, place(log, CapacityGranted, 1), CapacityGranted(first_group=2, groups=1, weight_version=1)
        ),
        "grant",
        "had been granted already",
    ),
    "an episode of no group ends": (
        lambda log: inserted(log, 12, given_up("3.7")),
        "grant",
        "which no task source draws",
    ),
    "an export is lost": (
        lambda log: without(log, place(log, TrajectoryExported, 0)),
        "batch",
        "episode 0.0, which was never exported",
    ),
    "the end of an episode is lost": (
        lambda log: without(log, place(log, EpisodeAbandoned, -1)),
        "batch",
        "1 of 2 episodes have ended",
    ),
    "the last group never ends": (
        lambda log: without(without(log, place(log, EpisodeAbandoned, 2)), place(log, EpisodeAbandoned, 1)),
        "lost",
        "never ended: 3",
    ),
    "a drop is lost": (
        lambda log: without(log, place(log, TrajectoryDropped, 0)),
        "lost",
        "neither trained nor dropped: 2",
    ),
    "a trajectory is dropped twice": (
        lambda log: inserted(log, place(log, TrajectoryDropped, 1), log[place(log, TrajectoryDropped, 0)]),
        "twice",
        "episode 2.0 was dropped twice",
    ),
    "what was trained is dropped": (
        lambda log: inserted(
            log, place(log, WeightsPublished, 1), TrajectoryDropped(episode="0.0", group="0", reason="stale")
        ),
        "twice",
        "episode 0.0 was dropped (stale), but its group had ended already",
    ),
    "what is in a batch is dropped": (
        lambda log: inserted(
            log, place(log, StepCompleted), TrajectoryDropped(episode="0.0", group="0", reason="stale")
        ),
        "twice",
        "it is in the batch of step 1",
    ),
    "what was never exported is dropped": (
        lambda log: inserted(
            log, place(log, TrajectoryDropped), TrajectoryDropped(episode="3.0", group="3", reason="stale")
        ),
        "drop",
        "episode 3.0 was dropped (stale), but it was never exported",
    ),
    "a group is trained twice": (
        lambda log: with_group(log, 1, place(log, BatchFormed, 0)),
        "twice",
        "has group 0, which had ended already",
    ),
    "a group is in two batches at once": (
        lambda log: inserted(
            log, place(log, BatchFormed) + 1, msgspec.structs.replace(log[place(log, BatchFormed)], step=1)
        ),
        "twice",
        "which is also in the batch of step 1",
    ),
    "a trajectory is twice in a batch": (
        lambda log: with_members(log, lambda group: (*group, group[0])),
        "twice",
        "twice: 0.0, 0.1, 0.0",
    ),
    "a trajectory is left out of its group": (
        lambda log: with_members(log, lambda group: group[:1]),
        "lost",
        "group 0 without 0.1",
    ),
    "an episode exported twice counts twice": (
        lambda log: changed(log, place(log, BatchFormed, 2), trained_trajectories=12, trained_tokens=36),
        "count",
        "counts 12 trajectories in batches since the run began; the log has 11",
    ),
    "a batch names another place": (
        lambda log: with_members(log, lambda group: (TrajectoryRef(episode="0.0", sequence=7), *group[1:])),
        "batch",
        "names event 7 as the trajectory of episode 0.0, expected event 6",
    ),
    "a batch is lost": (
        lambda log: without(log, place(log, BatchFormed, 1)),
        "step",
        "step 2 was completed without a batch",
    ),
    "a batch is formed again": (
        lambda log: inserted(log, place(log, BatchFormed, 1), log[place(log, BatchFormed, 0)]),
        "batch",
        "for step 1, expected step 2",
    ),
    "an older group is passed over": (
        lambda log: changed(log, place(log, BatchFormed, 1), groups=log[place(log, BatchFormed, 1)].groups[1:]),
        "lost",
        "neither trained nor dropped: 4",
    ),
    "a step is missing": (
        lambda log: without(log, place(log, StepCompleted, 1)),
        "step",
        "step 3 was completed, but step 2 was not",
    ),
    "a step is taken twice": (
        lambda log: inserted(log, place(log, StepCompleted, 1), log[place(log, StepCompleted, 0)]),
        "step",
        "step 1 was completed a second time",
    ),
    "a step had other rows": (
        lambda log: changed(log, place(log, StepCompleted, 1), sequences_checksum="00000000"),
        "sequences",
        "step 2 was given sequences with checksum 00000000",
    ),
    "tokens of a trajectory are others": (
        lambda log: [*log[:5], exported_otherwise(log[5]), *log[6:]],
        "sequences",
        "step 1 was given sequences with checksum",
    ),
    "a version is lost": (
        lambda log: without(log, place(log, WeightsPublished, 1)),
        "version",
        "version 2 was published, expected",
    ),
    "a version has another checksum when it is published again": (
        lambda log: changed(
            log, place(log, WeightsPublished, 3), location=WeightsLocation(folder="w", checksum="ff", model="m")
        ),
        "checksum",
        "version 2 was published with ff, but first with",
    ),
    "an inference worker has loaded other weights": (
        lambda log: changed(log, place(log, WeightsLoaded, 1), checksum="ff"),
        "checksum",
        "inference_worker-1 loaded version 0 with ff",
    ),
    "weights are loaded that nobody published": (
        lambda log: inserted(log, 5, loaded(9)),
        "version",
        "loaded version 9, which was never published",
    ),
    "tokens have a version that nobody published": (
        lambda log: inserted(log, len(log) - 8, exported("7.1", 5)),
        "version",
        "has tokens of version 5, which was never published",
    ),
    "weights are published before their step": (
        lambda log: inserted(log, 5, published(1)),
        "version",
        "before step 1 was completed",
    ),
    "a checkpoint names another batch": (
        lambda log: changed(log, place(log, CheckpointCommitted), cursor=3),
        "checkpoint",
        "names event 3 as its last batch",
    ),
    "a checkpoint is ahead": (
        lambda log: changed(log, place(log, CheckpointCommitted), step=2),
        "checkpoint",
        "names step 2, but 1 steps",
    ),
    "the run counts other steps": (
        lambda log: changed(log, len(log) - 1, steps=4),
        "end",
        "reports 4 steps at its end; the log has 3",
    ),
    "the run ends before its steps": (
        lambda log: [*log[: place(log, RunResumed)], RunFinished(steps=2)],
        "end",
        "its recipe asks for 3",
    ),
    "the run is started twice": (lambda log: inserted(log, 3, STARTED), "end", "a second RunStarted event"),
}


def with_members(events, change):
    """With the first group of the first batch changed."""
    index = place(events, BatchFormed)
    first, *rest = events[index].groups
    return changed(events, index, groups=(tuple(change(first)), *rest))


def with_group(events, batch, other):
    """With the first group of another batch in this one, too."""
    index = place(events, BatchFormed, batch)
    return changed(events, index, groups=(*events[index].groups, events[other].groups[0]))


def exported_otherwise(event):
    turn = event.trajectory.interactions[0]
    columns = msgspec.structs.replace(
        turn.completion, token_ids=turn.completion.token_ids[4:] + turn.completion.token_ids[:4]
    )
    trajectory = msgspec.structs.replace(
        event.trajectory, interactions=(msgspec.structs.replace(turn, completion=columns),)
    )
    return TrajectoryExported(trajectory=trajectory)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_way_to_spoil_a_log_is_named_with_its_place(name):
    mutate, check, words = MUTATIONS[name]
    mutated = mutate(sound_log())
    events, numbers = mutated if isinstance(mutated, tuple) else (mutated, None)
    faults = audited(events, numbers=numbers).all_faults()
    assert any(fault.check == check and words in fault.sentence for fault in faults), "\n".join(map(str, faults))
    assert {fault.check for fault in faults} <= set(CHECKS)
    assert all(0 <= fault.sequence <= len(events) + 1 for fault in faults)
