"""Checkpoints of `areal-actors serve tinker` in its state folder."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from areal_actors.core.errors import CheckpointError, RequestError
from areal_actors.tinker import checkpoints
from areal_actors.tinker.checkpoints import TinkerCheckpoints, TrainingRunRecord
from areal_actors.tinker.requests import LoraRequest

RUN = "5f3c8a52:train:0"


def run_record(name=RUN, minutes=0):
    time = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    lora = LoraRequest(rank=8)
    return TrainingRunRecord(
        training_run_id=name, base_model="m", folder="/m", lora=lora, user_metadata={"a": "b"}, last_request_time=time
    )


@pytest.fixture
def store(tmp_path):
    made = TinkerCheckpoints(tmp_path)
    made.add_run(run_record())
    return made


def write(folder):
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"12345")
    (folder / "tokenizer.json").write_text("{}")


def saved(store, kind="weights", name="000020", ttl=None, run=RUN, write=write, **options):
    return store.save(store.run(run), kind, name, write, ttl_seconds=ttl, **options)


def test_a_checkpoint_is_found_by_its_path(store):
    record = saved(store)
    assert (record.tinker_path, record.checkpoint_id) == (f"tinker://{RUN}/weights/000020", "weights/000020")
    assert (record.checkpoint_type, record.size_bytes, record.expires_at) == ("training", 7, None)
    run, kind, folder = store.folder(record.tinker_path)
    assert (run.base_model, run.lora.rank, kind, (folder / "model.safetensors").read_bytes()) == (
        "m",
        8,
        "weights",
        b"12345",
    )


def test_names_of_checkpoints_are_file_names_and_are_taken_once(store):
    saved(store)
    with pytest.raises(RequestError, match="exists already"):
        saved(store)
    saved(store, overwrite=True)
    saved(store, kind="sampler_weights")
    for name in ("", "../up", "a/b", ".hidden", "x" * 129):
        with pytest.raises(RequestError, match="is no name of a checkpoint"):
            saved(store, name=name)


def names(store):
    return sorted(path.name for path in (store._run_folder(RUN) / "weights").iterdir())


def test_a_save_that_fails_leaves_the_checkpoint_that_it_was_to_replace(store):
    record = saved(store)

    def fail(folder):
        write(folder)
        raise ValueError("broken")

    before = names(store)
    with pytest.raises(ValueError, match="broken"):
        saved(store, write=fail, overwrite=True)
    assert names(store) == before
    store.verify(store.folder(record.tinker_path)[2])


@pytest.mark.parametrize("point", ["before the manifest", "before the rename", "before the link", "before the removal"])
def test_what_a_killed_server_leaves_is_the_old_checkpoint_or_the_new_one(store, monkeypatch, point):
    record = saved(store)

    class Killed(BaseException):
        """Passes through all handlers, as a kill does."""

    def kill(*arguments, **_):
        if point != "before the removal" or "000020" in arguments[0].name:
            raise Killed

    def write_new(folder):
        write(folder)
        (folder / "model.safetensors").write_bytes(b"54321")

    step = {
        "before the manifest": (checkpoints, "write_manifest"),
        "before the rename": (Path, "rename"),
        "before the link": (Path, "replace"),
        "before the removal": (checkpoints.shutil, "rmtree"),
    }[point]
    with monkeypatch.context() as patch:
        if point == "before the link":
            patch.setattr(checkpoints, "atomic_write", lambda path, content: path.write_bytes(content))
            patch.setattr("areal_actors.weights.manifest.atomic_write", lambda path, content: path.write_bytes(content))
        patch.setattr(*step, kill)
        with pytest.raises(Killed):
            saved(store, write=write_new, overwrite=True)
    store.remove_unfinished()
    _, _, folder = store.folder(record.tinker_path)
    store.verify(folder)
    expected = b"54321" if point == "before the removal" else b"12345"
    assert (folder / "model.safetensors").read_bytes() == expected
    assert names(store) == [folder.name, "000020"]


@pytest.mark.parametrize("file", ["model.safetensors", "tokenizer.json", "tinker.json", "manifest.json"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.99])
def test_a_flipped_bit_of_any_file_is_refused_by_its_name(store, file, place):
    record = saved(store)
    path = store.folder(record.tinker_path)[2] / file
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
        store.verify(store.folder(record.tinker_path)[2])
    assert len(store.checkpoints()) == (file in ("model.safetensors", "tokenizer.json"))
    with pytest.raises(RequestError, match="exists already"):
        saved(store)
    saved(store, overwrite=True)
    store.verify(store.folder(record.tinker_path)[2])


def test_a_damaged_checkpoint_can_be_deleted_and_a_damaged_run_is_named(store):
    record = saved(store)
    (store.folder(record.tinker_path)[2] / "manifest.json").write_text("{")
    store.delete(record.tinker_path)
    assert names(store) == []
    (store._run_folder(RUN) / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"run\.json is damaged"):
        store.run(RUN)
    assert store.runs() == []


@pytest.mark.parametrize(
    "path", ["weights/a", "tinker://a/b", f"tinker://{RUN}/weights/..", f"tinker://{RUN}/other/a", "tinker://a/b/c/d"]
)
def test_a_path_of_another_form_is_refused(store, path):
    with pytest.raises(RequestError, match="is no path of a checkpoint"):
        store.folder(path)


def test_unknown_checkpoints_and_runs_are_not_found(store):
    incomplete = store._run_folder(RUN) / "weights" / "half"
    incomplete.mkdir(parents=True)
    (incomplete / "tinker.json").write_text("{}")
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
    assert store.checkpoints(RUN) == [kept]
    assert {name.partition("0")[0] for name in names(store)} == {"", "."}
    assert len(names(store)) == 2
    saved(store, name="000040")


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
