"""Snapshots of a fold: written whole, restored when sound, refused by name when not; and an actor that begins with
one."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest
from support.runtime_harness import Happened, RuntimeHarness, Summer

from areal_actors.core.snapshots import KEPT, Snapshot, SnapshotStore, UnusableSnapshot, oldest, restore
from areal_actors.core.values import Value
from areal_actors.messages import CheckpointCommitted, SnapshotRefused, SnapshotStored
from areal_actors.runtime.runtime import Identity, Runtime
from areal_bus import MemoryBus, Stamp
from areal_bus.errors import EventsTrimmed


class Total(Value):
    total: int


class Summing:
    """The least that keeps snapshots."""

    state_type: ClassVar = Total
    state_version: ClassVar[int] = 1

    def __init__(self, total=0):
        self.total = total

    def snapshot(self):
        return Total(total=self.total)

    def restore(self, state):
        self.total = state.total


class SecondVersion(Summing):
    state_version = 2


class OtherFields(Summing):
    class Different(Value):
        names: list[str]

    state_type = Different


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(tmp_path / "snapshots")


async def log_of(count):
    bus = MemoryBus()
    for n in range(1, count + 1):
        await bus.publish(Happened(n=n), Stamp(id=f"e{n}", sender="test", time=0.0))
    return bus


def write(store, total, sequence, name="summing", event="", fold=None):
    store.write(Snapshot.of(name, fold or Summing(total), sequence, event or f"e{sequence}"))


async def test_the_newest_snapshot_is_restored_and_no_more_are_kept_than_one_can_fall_back_to(store):
    for sequence in (2, 4, 6):
        write(store, sequence * 10, sequence)
    assert store.sequences("summing") == [4, 6]
    fold = Summing()
    restored = await restore(await log_of(9), store, "summing", fold)
    assert (restored.after, restored.refused, fold.total) == (6, (), 60)


async def test_folds_whose_names_begin_alike_do_not_share_snapshots(store):
    write(store, 1, 2, name="worker-1")
    write(store, 2, 3, name="worker-11")
    assert store.sequences("worker-1") == [2]
    assert store.sequences("worker") == []


@pytest.mark.parametrize("damage", ["flipped", "short", "empty", "foreign"])
async def test_a_damaged_snapshot_is_refused_by_name_and_the_one_before_it_is_used(store, damage):
    write(store, 20, 2)
    write(store, 40, 4)
    path = store.folder / "summing-4.msgpack"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    content = {"flipped": flipped, "short": whole[:-3], "empty": b"", "foreign": b"not a snapshot"}
    path.write_bytes(content[damage])
    fold = Summing()
    restored = await restore(await log_of(9), store, "summing", fold)
    assert (restored.after, fold.total) == (2, 20)
    assert len(restored.refused) == 1
    assert "summing-4.msgpack" in restored.refused[0]


@pytest.mark.parametrize("fold", [SecondVersion(), OtherFields()])
async def test_a_snapshot_of_another_version_is_refused_and_the_fold_begins_with_the_first_event(store, fold):
    write(store, 20, 2)
    restored = await restore(await log_of(9), store, "summing", fold)
    assert restored.after == 0
    assert "version" in restored.refused[0] or "cannot be decoded" in restored.refused[0]


async def test_a_snapshot_of_another_log_is_refused(store):
    write(store, 20, 2, event="an event of another run")
    write(store, 90, 12)
    restored = await restore(await log_of(9), store, "summing", fold := Summing())
    assert (restored.after, fold.total) == (0, 0)
    assert "this log of events 1 to 9" in restored.refused[0]
    assert "taken after event an event of another run" in restored.refused[1]


async def test_where_neither_the_beginning_nor_a_snapshot_is_left_the_error_has_a_remedy(store):
    bus = await log_of(9)
    write(store, 20, 2)
    await bus.trim(6)
    with pytest.raises(
        EventsTrimmed, match=r"begins at event 6.*event 2 does not belong to this log.*restore the run folder"
    ):
        await restore(bus, store, "summing", Summing())
    write(store, 50, 5)
    assert (await restore(bus, store, "summing", fold := Summing())).after == 5
    assert fold.total == 50


def test_a_fold_protects_the_log_only_when_it_has_a_snapshot_to_fall_back_to(store):
    write(store, 1, 4, name="a")
    assert oldest(store, ["a"]) == 0
    write(store, 1, 8, name="a")
    write(store, 1, 6, name="b")
    assert oldest(store, ["a", "b"]) == 0
    write(store, 1, 8, name="b")
    assert oldest(store, ["a", "b"]) == 4
    assert len(store.sequences("a")) == KEPT


def test_a_file_that_is_moved_to_another_name_is_no_snapshot(store):
    write(store, 1, 4)
    (store.folder / "summing-4.msgpack").rename(store.folder / "summing-5.msgpack")
    with pytest.raises(UnusableSnapshot, match="is a snapshot of summing after event 4"):
        store.read("summing", 5)


# ---------------------------------------------------------------- an actor that begins with one


class SummerState(Value):
    sum: int


class Keeping(Summer):
    """Emits each sum, and keeps it."""

    state_type = SummerState

    def snapshot(self):
        return SummerState(sum=self.sum)

    def restore(self, state):
        self.sum = state.sum


@pytest.fixture
async def harness():
    made = RuntimeHarness()
    yield made
    for name in list(made.tasks):
        await made.kill(name)


SAVED = CheckpointCommitted(folder="checkpoints/step-1", step=1, cursor=1)


async def keep_going(harness, store, *ns, actor=None):
    """Publish these and a checkpoint to a fresh actor, and wait for its snapshot."""
    actor = actor or Keeping()
    await harness.serve(actor, "summer-0", snapshots=store)
    for n in ns:
        await harness.publish(Happened(n=n))
    known = len(harness.log(SnapshotStored))
    place = await harness.publish(SAVED)
    await harness.until(lambda: len(harness.log(SnapshotStored)) > known)
    return actor, place


async def test_an_actor_begins_with_its_snapshot_and_receives_only_later_events(harness, store):
    _, place = await keep_going(harness, store, 1, 2, 3)
    assert harness.log(SnapshotStored)[0].after == place
    assert store.sequences("summer-0") == [place]
    await harness.publish(Happened(n=4))
    await harness.until(lambda: len(harness.log()) == 4)
    await harness.kill("summer-0")
    await harness.publish(Happened(n=5))
    fresh = Keeping()
    await harness.serve(fresh, "summer-0", snapshots=store)
    await harness.until(lambda: fresh.sum == 15)
    assert [(n, replayed) for n, replayed, _ in fresh.received] == [(4, True), (5, False)]
    await harness.until(lambda: len(harness.log()) == 5)
    assert [event.n for event in harness.log()] == [1, 3, 6, 10, 15]


async def test_an_actor_that_died_before_its_position_was_kept_emits_nothing_for_events_in_its_snapshot(harness, store):
    _, place = await keep_going(harness, store, 1, 2)
    await harness.kill("summer-0")
    harness.bus._positions["summer-0"] = 1
    fresh = Keeping()
    await harness.serve(fresh, "summer-0", snapshots=store)
    await harness.publish(Happened(n=3))
    await harness.until(lambda: fresh.sum == 6)
    assert [event.n for event in harness.log()] == [1, 3, 6]
    assert all(sequence > place for _, _, sequence in fresh.received)


async def test_an_actor_continues_where_the_beginning_of_the_log_is_gone(harness, store):
    _, place = await keep_going(harness, store, 1, 2, 3)
    await harness.bus.trim(place)
    await harness.kill("summer-0")
    fresh = Keeping()
    await harness.serve(fresh, "summer-0", snapshots=store)
    await harness.publish(Happened(n=4))
    await harness.until(lambda: fresh.sum == 10)
    await harness.kill("summer-0")
    with pytest.raises(ExceptionGroup) as caught:
        await Runtime(Keeping(), harness.bus, Identity(instance="summer-0", process="here")).serve()
    assert caught.group_contains(EventsTrimmed)


async def test_a_refused_snapshot_is_an_event_and_the_actor_folds_from_the_one_before(harness, store):
    await keep_going(harness, store, 1, 2)
    await harness.kill("summer-0")
    actor, newest = await keep_going(harness, store, 3)
    await harness.kill("summer-0")
    path = store.folder / f"summer-0-{newest}.msgpack"
    path.write_bytes(path.read_bytes()[:-1])
    fresh = Keeping()
    await harness.serve(fresh, "summer-0", snapshots=store)
    await harness.until(lambda: fresh.sum == 6)
    (refused,) = harness.log(SnapshotRefused)
    assert refused.fold == "summer-0"
    assert path.name in refused.reason
    assert refused.restored == store.sequences("summer-0")[0] > 0
    assert actor.sum == fresh.sum
    assert [event.n for event in harness.log()] == [1, 3, 6]


async def test_a_disk_that_refuses_snapshots_stops_no_actor(harness, store, monkeypatch):
    def refuses(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", refuses)
    actor = Keeping()
    await harness.serve(actor, "summer-0", snapshots=store)
    await harness.publish(Happened(n=1))
    await harness.publish(SAVED)
    await harness.publish(Happened(n=2))
    await harness.until(lambda: len(harness.log()) == 2)
    assert harness.log(SnapshotStored) == []


async def test_an_actor_without_snapshot_receives_everything(harness, store):
    await harness.serve(Summer(), snapshots=store)
    await harness.publish(Happened(n=1))
    await harness.publish(SAVED)
    await harness.kill("summer-0")
    fresh = Summer()
    await harness.serve(fresh, snapshots=store)
    await harness.until(lambda: fresh.sum == 1)
    assert not store.folder.exists()


def test_a_snapshot_survives_the_way_through_a_file(store):
    snapshot = Snapshot.of("summing", Summing(7), 3, "e3")
    store.write(snapshot)
    found = store.read("summing", 3)
    assert found == snapshot
    assert msgspec.msgpack.decode(found.state, type=Total) == Total(total=7)


def test_nothing_is_left_of_a_snapshot_that_could_not_be_written(store, monkeypatch):
    def refuses(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("areal_actors.core.durable_files.os.fsync", refuses)
    with pytest.raises(OSError, match="No space"):
        write(store, 1, 4)
    assert list(store.folder.iterdir()) == []
