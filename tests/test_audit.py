"""The audit of a log: a sound one has no fault, and each way to spoil one is named, with its place."""

from __future__ import annotations

import msgspec
import pytest
from support.audit_logs import RECIPE, STARTED, checksum, exported, given_up, loaded, published, sound_log

from areal_actors.audit.audit import CHECKS, FAULTS_KEPT, Audit, RecomputeProgress
from areal_actors.audit.fold import AuditFold
from areal_actors.audit.sequences import SequencesCheck
from areal_actors.core.values import WeightsLocation
from areal_actors.display.summary import write_summary
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    CheckpointCommitted,
    EpisodeAbandoned,
    ExamplesDrawn,
    RunFinished,
    RunResumed,
    StepCompleted,
    TrajectoryDropped,
    TrajectoryExported,
    TrajectoryRef,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.sequences.build import EPISODE
from areal_bus.base import Envelope, Stamp
from areal_bus.memory import MemoryBus


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


def test_a_sound_log_has_no_fault_and_every_fate_is_counted():
    audit = audited(sound_log())
    assert audit.all_faults() == []
    groups = audit.groups
    assert (groups.granted, groups.trained_groups, groups.dropped_groups, groups.abandoned_groups) == (8, 6, 1, 1)
    assert (groups.exported, groups.trained, groups.dropped, groups.repeated) == (13, 11, 2, 1)
    assert groups.dropped_for == {"stale": 2}
    assert (audit.steps, audit.sequences_checked, audit.lives) == (3, 3, 2)
    assert not groups.under_way
    assert (groups.ended, groups.ended_below) == (set(), 8)
    assert audit.verdict() == "0 lost, 0 twice, 4 of 4 versions compared"


@pytest.mark.parametrize("cut", range(1, len(sound_log()), 3))
def test_the_fold_continues_from_its_encoded_state(cut):
    events = sound_log()
    audit = Audit()
    for sequence, event in enumerate(events, start=1):
        if sequence == cut:
            audit = msgspec.msgpack.decode(msgspec.msgpack.encode(audit), type=Audit)
        audit.event(sequence, event)
    whole = audited(events)
    whole.sequences_checked = 0
    assert audit == whole


@pytest.mark.parametrize("end", range(5, len(sound_log())))
def test_a_run_that_is_live_or_was_killed_at_any_moment_has_no_fault(end):
    audit = audited(sound_log()[:end])
    assert audit.all_faults() == []
    assert audit.groups.granted == sum(
        (
            audit.groups.trained_groups,
            audit.groups.dropped_groups,
            audit.groups.abandoned_groups,
            len(audit.groups.under_way),
        )
    )


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


@pytest.mark.parametrize("index", range(len(sound_log())))
def test_an_event_that_is_dropped_from_the_log_is_a_gap_at_its_place(index):
    log = sound_log()
    numbers = [number for number in range(1, len(log) + 1) if number != index + 1]
    faults = audited([*log[:index], *log[index + 1 :]], numbers=numbers).all_faults()
    if index < len(log) - 1:
        assert (faults[0].sequence, faults[0].check) == (index + 2, "gap")
    else:
        assert faults == [], "a log that ends before its run is over is that of a killed run"


def test_a_group_that_the_batcher_forgot_is_lost_once_younger_ones_are_trained():
    log = sound_log()
    batch = place(log, BatchFormed, 1)
    late = [*log[:batch], exported("3.0", 0)]
    assert audited(late).all_faults() == [], "its episode was permanently abandoned before"
    forgotten = [event for event in log if not (isinstance(event, EpisodeAbandoned) and event.work.episode == "3.0")]
    forgotten.insert(12, exported("3.0", 0))
    faults = audited(forgotten).all_faults()
    assert any(fault.check == "lost" and "left out group 3" in fault.sentence for fault in faults), faults


def test_more_faults_than_are_kept_are_counted():
    audit = Audit()
    for number in range(FAULTS_KEPT + 5):
        audit.event(2 * number + 1, None)
    assert (len(audit.faults), audit.more_faults) == (FAULTS_KEPT, 4)


def test_versions_computed_again_are_proved_and_a_difference_is_a_fault():
    audit = audited(sound_log())
    for version in range(3):
        assert audit.compare_computed(RecomputeProgress(version=version, checksum=checksum(version)), None)
    assert audit.verdict() == "0 lost, 0 twice, 3 of 4 versions proved"
    assert not audit.compare_computed(RecomputeProgress(version=3, checksum="ff"), None)
    (fault,) = audit.all_faults()
    assert fault.check == "checksum"
    assert "version 3 was published with" in fault.sentence
    assert "recomputed from the log it has ff" in fault.sentence
    audit = audited(sound_log())
    audit.all_computed()
    assert "not recomputed: 0, 1, 2, 3" in audit.all_faults()[0].sentence


EXAMPLES = {**RECIPE, "actors": {"trainer": {"count": 1}, "example_source": {"count": 1}}}


def examples_log(*, second=(2, 3)):
    metrics = {"loss": 0.5}
    return [
        msgspec.structs.replace(STARTED, recipe={**EXAMPLES, "steps": 2}),
        published(0),
        ExamplesDrawn(step=0, numbers=(0, 1), epoch=0),
        StepCompleted(step=1, metrics=metrics, sequences_checksum="aa"),
        ExamplesDrawn(step=1, numbers=(2, 3), epoch=0),
        ExamplesDrawn(step=1, numbers=second, epoch=0),
        StepCompleted(step=2, metrics=metrics, sequences_checksum="bb"),
        CheckpointCommitted(folder="c", step=2, cursor=5),
        RunFinished(steps=2),
    ]


def test_a_run_that_learns_from_examples_is_audited_by_its_steps():
    audit = audited(examples_log())
    assert audit.all_faults() == []
    assert audit.verdict() == "0 lost, 0 twice, 2 steps once"
    steps = {event.step: event for event in examples_log() if isinstance(event, StepCompleted)}
    assert audit.compare_computed(RecomputeProgress(step=1, sequences_checksum="aa", metrics={"loss": 0.5}), steps[1])
    assert audit.verdict() == "0 lost, 0 twice, 1 of 2 steps proved"
    assert not audit.compare_computed(
        RecomputeProgress(step=2, sequences_checksum="bb", metrics={"loss": 0.25}), steps[2]
    )
    assert "step 2 reported loss = 0.5; recomputed from the log it is 0.25" in audit.all_faults()[0].sentence


def test_a_draw_may_be_repeated_but_not_be_another():
    (fault,) = audited(examples_log(second=(3, 4))).all_faults()
    assert (fault.sequence, fault.check) == (6, "batch")
    assert "other examples were drawn for step 2" in fault.sentence


@pytest.mark.parametrize("spoilt", [False, True])
async def test_the_verdict_is_the_last_line_of_the_summary(tmp_path, spoilt):
    events = sound_log()
    if spoilt:
        events = changed(events, place(events, WeightsLoaded, 1), checksum="ff")
    bus = MemoryBus("a")
    for number, event in enumerate(events):
        await bus.publish(event, Stamp(id=f"m{number}", sender="somebody", time=1.7e9 + number))
    await write_summary(bus, tmp_path)
    lines = (tmp_path / "summary.txt").read_text().strip().splitlines()
    if spoilt:
        assert lines[-1] == "audit: 1 fault, 0 lost, 0 twice, 4 of 4 versions compared; see `areal-actors audit a`"
        assert any(
            line.startswith("FAULT  event 4: checksum: inference_worker-1 loaded version 0 with ff") for line in lines
        )
    else:
        assert lines[-1] == "audit: 0 lost, 0 twice, 4 of 4 versions compared"


def test_an_envelope_that_is_damaged_is_a_fault_and_the_audit_continues_behind_it():
    fold, events = AuditFold(), sound_log()
    for number, event in enumerate(events, start=1):
        sealed = Envelope.seal(event, Stamp(id=str(number), sender="s", time=0.0), "a")
        damaged = {"body": sealed.body[:-1] + b"x"} if isinstance(event, WeightsLoaded) and number == 3 else {}
        fold.receive(msgspec.structs.replace(sealed, sequence=number, **damaged))
        kept = msgspec.msgpack.decode(msgspec.msgpack.encode(fold.snapshot()), type=fold.state_type)
        fold = AuditFold()
        fold.restore(kept)
    (fault,) = fold.audit.all_faults()
    assert (fault.sequence, fault.check) == (3, "gap")
    assert "the checksum does not match" in fault.sentence


def test_a_log_without_a_start_is_no_run():
    assert [fault.check for fault in Audit().all_faults()] == ["end"]
    assert audited(sound_log()[1:6]).all_faults()[-1].sentence == "the log has no start of a run"
