"""A checkpoint is verified by whatever begins with it: a run, what is served, a loop of one's own."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from support.tiny_trainer import make_trainer, sequences_of, write_model

from areal_actors.core.errors import CheckpointError, SetupError
from areal_actors.weights.manifest import CURSOR, MANIFEST, PROOF, FileDigest, Manifest, verify, write_manifest
from areal_actors.weights.model_hub import model_folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A real checkpoint, and the trainer that wrote it."""
    trainer = make_trainer(write_model(tmp_path_factory.mktemp("model")))
    trainer.step(sequences_of(trainer))
    folder = tmp_path_factory.mktemp("checkpoints") / "step-1"
    trainer.save(str(folder))
    return folder, write_manifest(folder, step=1, cursor=7), trainer


@pytest.fixture
def checkpoint(saved, tmp_path):
    return shutil.copytree(saved[0], tmp_path / "step-1")


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_manifest_has_every_file_and_what_was_not_changed_is_sound(saved, checkpoint):
    _, digest, _ = saved
    manifest = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    assert (manifest.step, manifest.cursor) == (1, 7)
    assert {*manifest.files, MANIFEST} == {
        path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()
    }
    assert len(digest) == 64
    verify(checkpoint, digest)
    verify(checkpoint)


def test_a_checkpoint_of_a_run_that_began_with_a_checkpoint_has_no_proof_and_no_cursor_of_that_one(
    checkpoint, tmp_path
):
    (checkpoint / PROOF).write_text('{"run": "first"}')
    (checkpoint / CURSOR).write_text("7")
    trainer = make_trainer(str(checkpoint))
    trainer.save(str(later := tmp_path / "later"))
    digest = write_manifest(later, step=1, cursor=9)
    assert not any((later / name).exists() for name in (PROOF, CURSOR))
    (later / PROOF).write_text('{"run": "second", "step": 1}')
    verify(later, digest)


def test_a_proof_that_an_earlier_version_has_listed_may_have_been_replaced(checkpoint):
    (checkpoint / PROOF).write_text("{}")
    manifest = msgspec.json.decode((checkpoint / MANIFEST).read_bytes(), type=Manifest)
    listed = {**manifest.files, PROOF: FileDigest(size=7, sha256="0" * 64)}
    (checkpoint / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, files=listed)))
    verify(checkpoint)


def test_one_flipped_byte_in_any_file_is_found_by_name(saved, checkpoint):
    _, digest, _ = saved
    for path in sorted(checkpoint.iterdir()):
        before = path.read_bytes()
        flip(path)
        with pytest.raises(CheckpointError, match=path.name.replace(".", r"\.")):
            verify(checkpoint, digest)
        path.write_bytes(before)
    verify(checkpoint, digest)


def test_files_replaced_together_with_the_manifest_are_found_by_the_log(saved, checkpoint):
    _, digest, _ = saved
    flip(checkpoint / "model.safetensors")
    write_manifest(checkpoint, step=1, cursor=7)
    verify(checkpoint)
    with pytest.raises(
        CheckpointError,
        match=r"manifest.json has digest [0-9a-f]{16}…, expected [0-9a-f]{16}… as recorded when it was saved",
    ):
        verify(checkpoint, digest)


def test_a_run_and_a_server_refuse_a_damaged_checkpoint_with_a_remedy(checkpoint):
    assert model_folder(str(checkpoint)) == str(checkpoint)
    flip(checkpoint / "model.safetensors")
    with pytest.raises(
        SetupError,
        match=r"model.safetensors has digest .* content has changed; choose another one, for example model=.*/step-N",
    ):
        model_folder(str(checkpoint))
    (checkpoint / MANIFEST).unlink()
    assert model_folder(str(checkpoint)) == str(checkpoint), "whoever has changed it says so by deleting the manifest"


def test_a_damaged_manifest_is_damage_and_one_of_another_program_is_nothing_to_us(checkpoint):
    (checkpoint / MANIFEST).write_text('{"name": "of another program"}')
    assert model_folder(str(checkpoint)) == str(checkpoint)
    (checkpoint / MANIFEST).write_text('{"format": "areal-actors check')
    with pytest.raises(SetupError, match="cannot be read"):
        model_folder(str(checkpoint))


def test_the_checksum_of_the_weights_is_that_of_what_is_published(saved, tmp_path):
    _, _, trainer = saved
    assert trainer.checksum() == trainer.publish(str(tmp_path / "v1")).checksum
