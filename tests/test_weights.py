"""Weights travel complete and verified, or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save

from areal_actors.core.errors import EngineError, SetupError
from areal_actors.core.values import WeightsLocation
from areal_actors.weights import folders as weight_folders
from areal_actors.weights import write_tensors as writing
from areal_actors.weights.folders import named_path, prune, remove_all, version_folder, versions_folder
from areal_actors.weights.transfer import check_fit, checksum, read_weights, write_weights


def some_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "b.weight": torch.randn(5, 7),
        "a.weight": torch.randn(4, 6).t(),
        "half": torch.randn(9).bfloat16(),
        "scalar": torch.tensor(3.0),
        "ids": torch.arange(4),
    }


@pytest.mark.parametrize("shard_bytes", [10**9, 100, 1])
def test_what_was_written_is_read_back_however_it_is_sharded(tmp_path: Path, shard_bytes: int) -> None:
    tensors = some_tensors()
    location = write_weights(tensors, tmp_path / "v3", "model", shard_bytes)
    back = read_weights(location)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)
    assert location == WeightsLocation(folder=str(tmp_path / "v3"), checksum=checksum(tensors), model="model")
    assert [path.name for path in tmp_path.iterdir()] == ["v3"]


def test_floating_point_tensors_are_published_in_another_dtype_and_the_rest_as_they_are(tmp_path: Path) -> None:
    tensors = some_tensors()
    location = write_weights(tensors, tmp_path / "v3", "model", 100, torch.bfloat16)
    back = read_weights(location)
    assert {name: tensor.dtype for name, tensor in back.items() if tensor.dtype != torch.bfloat16} == {
        "ids": torch.int64
    }
    assert all(torch.equal(back[name], tensors[name].to(back[name].dtype)) for name in tensors)
    assert location.checksum == checksum(back) == checksum(tensors, torch.bfloat16) != checksum(tensors)


def test_the_library_reads_tensors_of_every_type_and_size_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PIECE_BYTES", 64)
    kinds = (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
    tensors = {f"t{number}": torch.arange(41).to(kind) for number, kind in enumerate(kinds)}
    tensors |= some_tensors() | {
        "a.weight": torch.randn(6, 4),
        "none": torch.zeros(0, 3),
        "odd": torch.ones(3, dtype=torch.uint8),
    }
    location = write_weights(tensors, tmp_path / "v1", "model")
    assert location.checksum == checksum(tensors) == checksum(read_weights(location))
    written = tmp_path / "v1" / "model.safetensors"
    assert written.stat().st_size == len(save(tensors, metadata={"format": "pt"}))
    assert {name: tensor.tolist() for name, tensor in load_file(written).items()} == {
        name: each.tolist() for name, each in tensors.items()
    }


def test_tensors_that_are_mapped_from_a_file_are_written_into_it(tmp_path: Path) -> None:
    large = {"a": torch.randn(300, 1000)}
    writing.write_tensors(large, tmp_path)
    mapped = load_file(tmp_path / "model.safetensors")
    assert writing.write_tensors(mapped, tmp_path) == checksum(large)
    assert torch.equal(load_file(tmp_path / "model.safetensors")["a"], large["a"])
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_the_checksum_distinguishes_values_names_shapes_and_types_and_ignores_order() -> None:
    tensors = some_tensors()
    assert checksum(dict(reversed(tensors.items()))) == checksum(tensors)
    changed = tensors["half"].clone()
    changed[3] += 1
    variants = [
        {**tensors, "half": changed},
        {**tensors, "b.weight": tensors["b.weight"].view(7, 5)},
        {**tensors, "ids": tensors["ids"].view(torch.float64)},
        {("c.weight" if name == "b.weight" else name): tensor for name, tensor in tensors.items()},
    ]
    assert len({checksum(variant) for variant in [tensors, *variants]}) == 5


def test_tied_tensors_are_written_once_under_the_embedding(tmp_path: Path) -> None:
    shared = torch.randn(6, 2)
    location = write_weights({"lm_head.weight": shared, "model.embed_tokens.weight": shared}, tmp_path / "v0", "model")
    assert list(read_weights(location)) == ["model.embed_tokens.weight"]
    model = {"lm_head.weight": shared, "model.embed_tokens.weight": shared}
    check_fit(model, read_weights(location), "v0")


def test_views_of_one_fused_tensor_are_written_each_as_itself(tmp_path: Path) -> None:
    fused = torch.randn(6, 2)
    location = write_weights({"q": fused[:4], "k": fused[4:]}, tmp_path / "v0", "model")
    assert {name: tuple(tensor.shape) for name, tensor in read_weights(location).items()} == {"k": (2, 2), "q": (4, 2)}


def test_damage_and_gaps_are_refused_by_name(tmp_path: Path) -> None:
    location = write_weights(some_tensors(), tmp_path / "v1", "model", 100)
    shard = sorted(Path(location.folder).glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(EngineError, match="checksum"):
        read_weights(location)
    shard.write_bytes(whole[:-3])
    with pytest.raises(EngineError, match="cannot be read"):
        read_weights(location)
    shard.unlink()
    with pytest.raises(EngineError, match=shard.name):
        read_weights(location)
    with pytest.raises(EngineError, match="holds nothing"):
        read_weights(WeightsLocation(folder=str(tmp_path / "v2"), checksum="", model=""))


def test_a_write_that_fails_leaves_neither_a_folder_nor_a_trace(tmp_path: Path) -> None:
    first = write_weights(some_tensors(), tmp_path / "v1", "model")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        for version in ("v1", "v2"):
            with pytest.raises(OSError, match="File too large"):
                write_weights(some_tensors() | {"z": torch.zeros(2000)}, tmp_path / version, "model")
        with pytest.raises(OSError, match="File too large"):
            writing.write_tensors({"z": torch.zeros(2000)}, tmp_path / "v1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == ["v1", "v1/model.safetensors"]
    assert read_weights(first).keys() == some_tensors().keys()


def test_a_version_published_again_replaces_the_first(tmp_path: Path) -> None:
    write_weights({"a": torch.zeros(3)}, tmp_path / "v1", "model")
    again = write_weights({"a": torch.ones(3)}, tmp_path / "v1", "model")
    assert torch.equal(read_weights(again)["a"], torch.ones(3))
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]


def test_files_are_in_the_form_that_other_engines_read(tmp_path: Path) -> None:
    location = write_weights(some_tensors(), tmp_path / "v1", "model")
    with safe_open(Path(location.folder) / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_tensors_of_another_model_are_refused_with_every_kind_of_difference_named() -> None:
    model = {"a": torch.zeros(2, 3), "b": torch.zeros(4), "c": torch.zeros(1)}
    check_fit(model, {name: tensor.half() for name, tensor in model.items()}, "v1")
    with pytest.raises(EngineError, match=r"missing: c .*unknown: d .*another shape: a \[3, 2\] for \[2, 3\]"):
        check_fit(model, {"a": torch.zeros(3, 2), "b": torch.zeros(4), "d": torch.zeros(1)}, "v1")


def test_pruning_keeps_the_newest_versions_by_number(tmp_path: Path) -> None:
    for name in ("v2", "v9", "v10", "v11", "v12.partial-abc", "notes"):
        (tmp_path / name).mkdir()
    prune(tmp_path, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "v10", "v11"]
    assert version_folder(tmp_path, 10) == tmp_path / "v10"


def test_shared_memory_is_used_where_it_has_room_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_folders, "SHARED_MEMORY", tmp_path / "shm")
    for name in ("shm", "run", "other", "big"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "secret").write_bytes(bytes(32))
    folder = versions_folder("my run", tmp_path / "run", needed_bytes=1000)
    assert folder.is_dir()
    assert folder == versions_folder("my run", tmp_path / "run", needed_bytes=2**70)
    assert folder.parent == tmp_path / "shm"
    assert folder.name.startswith("areal-my-run-")
    assert folder != versions_folder("my run", tmp_path / "other")
    with pytest.raises(
        SetupError,
        match=r"no room for the published weights in .*, nor is there in .*: .* MiB are free, .* take 1,125,",
    ):
        versions_folder("my run", tmp_path / "big", needed_bytes=2**70)
    monkeypatch.setattr(weight_folders, "SHARED_MEMORY", tmp_path / "nowhere")
    assert versions_folder("my run", tmp_path / "run") == tmp_path / "run" / "weights"


def test_versions_are_in_the_named_folder_and_leave_it_with_the_run(tmp_path: Path) -> None:
    named = str(tmp_path / "shared")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "secret").write_bytes(bytes(32))
    folder = versions_folder("my run", tmp_path / "run", 1000, named)
    assert folder == named_path(named, "my run", tmp_path / "run")
    assert versions_folder("my run", tmp_path / "run", 1000) != folder
    with pytest.raises(
        SetupError, match=r"no room for the published weights in .*: .* set trainer.weights_folder to another disk"
    ):
        versions_folder("my run", tmp_path / "run", 2**70, named)
    version_folder(folder, 3).mkdir(parents=True)
    (tmp_path / "shared" / "another").mkdir()
    remove_all("my run", tmp_path / "run", named)
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["another"]
