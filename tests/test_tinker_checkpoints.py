"""Checkpoints of `areal tinker` in its state folder."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from areal_actors.core.errors import RequestError
from areal_actors.tinker import checkpoints
from areal_actors.tinker.checkpoints import TinkerCheckpoints, TrainingRunRecord
from areal_actors.tinker.requests import LoraRequest

RUN = "5f3c8a52:train:0"


def run_record(name=RUN, minutes=0):
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    lora = LoraRequest(rank=8)
    return TrainingRunRecord(training_run_id=name, base_model="m", folder="/m", lora=lora, user_metadata={"a": "b"}, last_request_time=time)


@pytest.fixture
def store(tmp_path):
    made = TinkerCheckpoints(tmp_path)
    made.add_run(run_record())
    return made


def saved(store, kind="weights", name="000020", ttl=None, run=RUN):
    folder = store.new_folder(run, kind, name)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"12345")
    return store.commit(run, kind, folder, ttl, None)


def test_a_checkpoint_is_found_by_its_path(store):
    record = saved(store)
    assert (record.tinker_path, record.checkpoint_id) == (f"tinker://{RUN}/weights/000020", "weights/000020")
    assert (record.checkpoint_type, record.size_bytes, record.expires_at) == ("training", 5, None)
    run, kind, folder = store.folder(record.tinker_path)
    assert (run.base_model, run.lora.rank, kind, (folder / "model.safetensors").read_bytes()) == ("m", 8, "weights", b"12345")


def test_names_of_checkpoints_are_file_names_and_are_taken_once(store):
    saved(store)
    with pytest.raises(RequestError, match="exists already"):
        store.new_folder(RUN, "weights", "000020")
    store.new_folder(RUN, "weights", "000020", overwrite=True)
    store.new_folder(RUN, "sampler_weights", "000020")
    for name in ("", "../up", "a/b", ".hidden", "x" * 129):
        with pytest.raises(RequestError, match="is no name of a checkpoint"):
            store.new_folder(RUN, "weights", name)


@pytest.mark.parametrize("path", ["weights/a", "tinker://a/b", f"tinker://{RUN}/weights/..", f"tinker://{RUN}/other/a", "tinker://a/b/c/d"])
def test_a_path_of_another_form_is_refused(store, path):
    with pytest.raises(RequestError, match="is no path of a checkpoint"):
        store.folder(path)


def test_unknown_checkpoints_and_runs_are_not_found(store):
    incomplete = store.new_folder(RUN, "weights", "half")
    incomplete.mkdir(parents=True)
    for path in (f"tinker://{RUN}/weights/half", f"tinker://{RUN}/weights/never", "tinker://other/weights/a"):
        with pytest.raises(RequestError, match="there is no") as error:
            store.folder(path)
        assert error.value.code == "not_found"
    assert store.checkpoints() == []


def test_an_expired_checkpoint_is_gone(store, monkeypatch):
    kept, expiring = saved(store), saved(store, name="000040", ttl=3600)
    assert expiring.expires_at - expiring.time == timedelta(seconds=3600)
    assert {record.checkpoint_id for record in store.checkpoints(RUN)} == {"weights/000020", "weights/000040"}

    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=3601)

    monkeypatch.setattr(checkpoints, "datetime", Later)
    with pytest.raises(RequestError, match="has expired"):
        store.folder(expiring.tinker_path)
    assert store.new_folder(RUN, "weights", "000040").exists()
    assert store.checkpoints(RUN) == [kept]
    assert not store.new_folder(RUN, "weights", "000040").exists()


def test_runs_are_listed_newest_first_with_their_last_checkpoints(store):
    store.add_run(run_record("other:train:1", minutes=5))
    saved(store)
    newest, sampler = saved(store, name="000040"), saved(store, kind="sampler_weights")
    assert [run.training_run_id for run in store.runs()] == ["other:train:1", RUN]
    described = store.describe_run(store.run(RUN))
    assert (described["last_checkpoint"], described["last_sampler_checkpoint"]) == (newest, sampler)
    assert (described["is_lora"], described["lora_rank"], described["user_metadata"]) == (True, 8, {"a": "b"})
    assert msgspec.json.encode(described)
    assert len(store.checkpoints()) == 3
    assert store.checkpoints("other:train:1") == []


def test_a_deleted_checkpoint_is_gone(store):
    record = saved(store)
    store.delete(record.tinker_path)
    with pytest.raises(RequestError, match="there is no checkpoint"):
        store.delete(record.tinker_path)
