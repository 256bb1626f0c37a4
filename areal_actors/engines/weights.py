"""How weights travel: a folder of safetensors per version, named in full or not at all, with one checksum.

The checksum covers names, types, shapes and bytes of all tensors in name order, so it says the same of the same weights
however they are sharded, and a trainer that recovered proves with it that it computes what it computed before.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from areal_actors.errors import EngineError
from areal_actors.values import WeightsLocation

SHARD_BYTES = 2 * 1024**3
INDEX = "model.safetensors.index.json"


def write_weights(
    tensors: Mapping[str, Tensor], folder: str | Path, model_folder: str | Path, shard_bytes: int = SHARD_BYTES
) -> WeightsLocation:
    """Write tensors as a Hugging Face checkpoint of one or several shards; `folder` appears complete, or not at all.

    Of names that share one tensor the last in name order is written, which keeps embeddings rather than tied heads.
    A folder of that name is replaced: a recovered trainer publishes a version again.
    """
    folder = Path(folder).absolute()
    unique = without_ties(tensors)
    with appearing(folder) as partial:
        shards = sharded(unique, shard_bytes)
        files = [shard_name(index, len(shards)) for index in range(len(shards))]
        for file, shard in zip(files, shards, strict=True):
            save_file(shard, partial / file, metadata={"format": "pt"})
        if len(shards) > 1:
            weight_map = {name: file for file, shard in zip(files, shards, strict=True) for name in shard}
            total = sum(tensor.nbytes for tensor in unique.values())
            (partial / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))
    return WeightsLocation(folder=str(folder), checksum=checksum(unique), model=str(model_folder))


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `folder` when all is written, and is removed when that fails."""
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
    """All tensors of a version, on the CPU, verified.

    Raises:
        EngineError: a file is missing or damaged, or the checksum differs.
    """
    folder = Path(location.folder)
    tensors = _read(folder)
    found = checksum(tensors)
    if found != location.checksum:
        raise EngineError(f"the weights in {folder} have checksum {found}, published was {location.checksum}: wait for the next version")
    return tensors


def location_of(model_folder: str | Path) -> WeightsLocation:
    """The weights of a Hugging Face folder as they lie there, for engines that serve what nobody trains.

    Raises:
        EngineError: a file is missing or damaged.
    """
    folder = Path(model_folder).absolute()
    return WeightsLocation(folder=str(folder), checksum=checksum(_read(folder)), model=str(folder))


def _read(folder: Path) -> dict[str, Tensor]:
    index = folder / INDEX
    try:
        files = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {shard_name(0, 1)}
        return {name: tensor for file in sorted(files) for name, tensor in load_file(folder / file).items()}
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        present = ", ".join(sorted(path.name for path in folder.glob("*"))) or "nothing"
        raise EngineError(f"the weights in {folder} cannot be read ({error}); it holds {present}: wait for the next version") from error


def check_fit(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], source: str) -> None:
    """Check that tensors cover a model's own (one name of those that share memory is enough), with its shapes and no others.

    Raises:
        EngineError: names what is missing, unknown or shaped differently.
    """
    covered = {target.data_ptr() for name, target in targets.items() if name in tensors}
    missing = [name for name, target in targets.items() if target.data_ptr() not in covered]
    unknown = [name for name in tensors if name not in targets]
    shaped = [
        f"{name} {list(tensors[name].shape)} for {list(target.shape)}"
        for name, target in targets.items()
        if name in tensors and tensors[name].shape != target.shape
    ]
    found = {"missing": missing, "unknown": unknown, "of another shape": shaped}
    differences = "; ".join(f"{what}: {', '.join(names[:3])} ({len(names)} in all)" for what, names in found.items() if names)
    if differences:
        raise EngineError(f"the weights in {source} are not this model's: {differences}")


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """128 bits over names, types, shapes and bytes of all tensors in name order."""
    digest = xxhash.xxh3_128()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def without_ties(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name in name order, contiguous, each memory once: under the last of its names."""
    last = {(tensors[name].data_ptr(), tensors[name].shape, tensors[name].stride()): name for name in sorted(tensors)}
    return {name: tensors[name].detach().contiguous() for name in sorted(last.values())}


def sharded(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[dict[str, Tensor]]:
    """Tensors in their order, split where a shard would exceed this size."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def shard_name(index: int, count: int) -> str:
    """File name of one of `count` shards, as Hugging Face names them."""
    return "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"
