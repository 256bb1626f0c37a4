"""Weight transfer: one folder of safetensors per version, which appears atomically, with one checksum.

The checksum covers names, types, shapes and bytes of all tensors in name order. It does not depend on the sharding, and
a recovered trainer proves with it that it reproduces the same weights.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from areal_actors.core.errors import EngineError
from areal_actors.core.values import WeightsLocation
from areal_actors.weights.weight_files import INDEX, SINGLE_FILE
from areal_actors.weights.write_tensors import SHARD_BYTES, hash_tensors, write_tensors


def write_weights(
    tensors: Mapping[str, Tensor],
    folder: str | Path,
    model_folder: str | Path,
    shard_bytes: int = SHARD_BYTES,
    dtype: torch.dtype | None = None,
) -> WeightsLocation:
    """Write tensors as a Hugging Face checkpoint of one or several shards; `folder` appears atomically.

    An existing folder is replaced: a recovered trainer publishes a version again. `dtype` is that of floating-point
    tensors; None keeps theirs. Of names that share one tensor the last in name order remains, which keeps embeddings
    rather than tied heads.
    """
    folder = Path(folder).absolute()
    with atomic_folder(folder) as partial:
        checksum = write_tensors(without_ties(tensors), partial, shard_bytes, dtype)
    return WeightsLocation(folder=str(folder), checksum=checksum, model=str(model_folder))


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces `folder` when the block succeeds and is removed when it fails."""
    partial = folder.with_name(f"{folder.name}.partial-{uuid.uuid4().hex[:8]}")
    partial.mkdir(parents=True)
    try:
        yield partial
        if folder.exists():
            folder.rename(replaced := folder.with_name(f"{folder.name}.partial-{uuid.uuid4().hex[:8]}"))
            partial.rename(folder)
            shutil.rmtree(replaced)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def read_weights(location: WeightsLocation) -> dict[str, Tensor]:
    """Returns all tensors of a version, verified, on the CPU.

    Raises:
        EngineError: a file is missing or damaged, or the checksum differs.
    """
    folder = Path(location.folder)
    tensors = read_tensors(folder)
    if (actual_checksum := checksum(tensors)) != location.checksum:
        raise EngineError(
            f"the weights in {folder} have checksum {actual_checksum}, expected {location.checksum}: wait for the next"
            " version"
        )
    return tensors


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Returns all tensors of a folder, mapped into memory and not verified.

    Raises:
        EngineError: a file is missing or damaged.
    """
    index = folder / INDEX
    try:
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {SINGLE_FILE}
        return {name: tensor for file in sorted(files) for name, tensor in load_file(folder / file).items()}
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        present = ", ".join(sorted(path.name for path in folder.glob("*"))) or "nothing"
        raise EngineError(
            f"the weights in {folder} cannot be read ({error}); it holds {present}: wait for the next version"
        ) from error


def check_fit(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> None:
    """Check that tensors match a model's names and shapes (of tied weights one name is enough).

    Raises:
        EngineError: names the missing, unknown and differently shaped tensors.
    """
    # As in torch
    places = {name: (target.untyped_storage()._cdata, target.storage_offset()) for name, target in targets.items()}  # noqa: SLF001
    covered = {place for name, place in places.items() if name in tensors}
    missing = [name for name, place in places.items() if place not in covered]
    unknown = [name for name in tensors if name not in targets]
    shaped = [
        f"{name} {list(tensors[name].shape)} for {list(target.shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    differences_by_kind = {"missing": missing, "unknown": unknown, "of another shape": shaped}
    differences = "; ".join(
        f"{what}: {', '.join(names[:3])} ({len(names)} in all)" for what, names in differences_by_kind.items() if names
    )
    if differences:
        raise EngineError(f"the weights in {source} do not fit this model: {differences}")


def checksum(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """128-bit hash of names, types, shapes and bytes of all tensors in name order, floating-point ones as `dtype`.

    Without `dtype` they keep their own.
    """
    return hash_tensors({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, dtype)


def without_ties(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors in name order; tensors that share memory only under the last of their names."""
    last = {(tensors[name].data_ptr(), tensors[name].shape, tensors[name].stride()): name for name in sorted(tensors)}
    return {name: tensors[name].detach().contiguous() for name in sorted(last.values())}
