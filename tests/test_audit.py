"""The audit of a log: a sound one has no fault, and each way to spoil one is named, with its place."""

from __future__ import annotations

import msgspec
import pytest
from support.audit_logs import (
    RECIPE,
    STARTED,
    audited,
    changed,
    checksum,
    exported,
    place,
    published,
    sound_log,
)

from areal_actors.audit.audit import FAULTS_KEPT, Audit
from areal_actors.audit.fold import AuditFold
from areal_actors.audit.recomputation import RecomputeProgress
from areal_actors.display.summary import write_summary
from areal_actors.messages import (
    BatchFormed,
    CheckpointCommitted,
    EpisodeAbandoned,
    ExamplesDrawn,
    RunFinished,
    StepCompleted,
    WeightsLoaded,
)
from areal_bus.base import Envelope, Stamp
from areal_bus.memory import MemoryBus


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
