"""Published weights as files, whole models and adapters: their checksum and shapes, read without torch.

A server that loads weights from a folder may end when a tensor has another shape or a file is cut short, so the folder
is verified before the server loads it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import xxhash

from areal_actors.core.errors import EngineError
from areal_actors.core.values import WeightsLocation

DTYPES = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",
    "I32": "torch.int32",
    "I16": "torch.int16",
    "I8": "torch.int8",
    "U8": "torch.uint8",
    "BOOL": "torch.bool",
    "F8_E4M3": "torch.float8_e4m3fn",
    "F8_E5M2": "torch.float8_e5m2",
}
"""Names that torch gives to the types of safetensors."""
SINGLE_FILE = "model.safetensors"
INDEX = f"{SINGLE_FILE}.index.json"
LENGTH_BYTES = 8
"""A file of safetensors begins with the length of its header, u64 little-endian."""
ADAPTER_PREFIX = "base_model.model."
"""peft's prefix of a tensor's name."""
FACTORS = (".lora_A.weight", ".lora_B.weight")
"""peft's suffixes of a tensor's name: A `[rank, in]` and B `[out, rank]`."""


class StoredTensor(NamedTuple):
    """Place of a tensor on disk."""

    file: Path
    dtype: str
    """Type, as torch names it."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    end: int


def stored_tensors(folder: str | Path) -> dict[str, StoredTensor]:
    """Returns the tensors in the `*.safetensors` of a folder that loaders read.

    They are those of its index, else of `model.safetensors`, else all. A published folder may have the same weights a
    second time under other names, as `consolidated.safetensors`.

    Raises:
        EngineError: there is no such file, or one is damaged or shorter than its header states.
    """
    place = Path(folder)
    tensors: dict[str, StoredTensor] = {}
    try:
        for file in _weight_files(place):
            tensors.update(_header(file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(f"the weights in {place} cannot be read ({error}): wait for the next version") from error
    if not tensors:
        present = ", ".join(sorted(path.name for path in place.glob("*"))) or "nothing"
        raise EngineError(f"the weights in {place} cannot be read: there is no *.safetensors; it holds {present}")
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    index, single = folder / INDEX, folder / SINGLE_FILE
    if index.is_file():
        return [
            folder / name for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        ]
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def parameter_count(folder: str | Path) -> int:
    """Returns the number of values in all tensors of a folder; 0 if it has no weights that can be read."""
    try:
        return sum(math.prod(tensor.shape) for tensor in stored_tensors(folder).values())
    except EngineError:
        return 0


def location_of(model_folder: str | Path) -> WeightsLocation:
    """Location of a Hugging Face folder's weights, for engines that serve a model without training.

    Raises:
        EngineError: a file is missing or damaged.
    """
    folder = Path(model_folder).absolute()
    return WeightsLocation(folder=str(folder), checksum=checksum_of(stored_tensors(folder)), model=str(folder))


def verify_weights(location: WeightsLocation, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Verify the shapes and the checksum of published weights; `shapes`: those of the model that is to load them.

    Raises:
        EngineError: a file is missing or damaged, a tensor is unknown, missing or of another shape, or the checksum
            differs.
    """
    tensors = stored_tensors(location.folder)
    differences = {
        "missing": sorted(shapes.keys() - tensors.keys()),
        "unknown": sorted(tensors.keys() - shapes.keys()),
        "of another shape": _of_another_shape(tensors, shapes),
    }
    _refuse(location, tensors, differences)


def verify_adapter(
    location: WeightsLocation, shapes: Mapping[str, tuple[int, ...]], model_folder: str, rank: int
) -> None:
    """Verify a published adapter: its base model, the shapes of its factors and their checksum.

    Args:
        location: the adapter.
        shapes: those of the base model's tensors.
        model_folder: the base model as it was loaded.
        rank: of all factors; 0 if adapters cannot be loaded.

    Raises:
        EngineError: adapters cannot be loaded or it belongs to another model, a file is missing or damaged, a tensor
            changes no weight of the model, has no partner or another shape, or the checksum differs.
    """
    if not rank:
        raise EngineError(
            f"the weights in {location.folder} are an adapter, and this server was started for whole models"
        )
    if Path(base := location.base or location.model).resolve() != Path(model_folder).resolve():
        raise EngineError(f"the adapter in {location.folder} belongs to {base}, but this server has {model_folder}")
    tensors = stored_tensors(location.folder)
    expected = {}
    for name, shape in shapes.items():
        if len(shape) == 2:
            layer = ADAPTER_PREFIX + name.removesuffix(".weight")
            expected[layer + FACTORS[0]], expected[layer + FACTORS[1]] = (rank, shape[1]), (shape[0], rank)
    layers = {name.removesuffix(factor) for factor in FACTORS for name in tensors if name.endswith(factor)}
    differences = {
        "missing": sorted({layer + factor for layer in layers for factor in FACTORS} - tensors.keys()),
        "unknown": sorted(tensors.keys() - expected.keys()),
        "of another shape": _of_another_shape(tensors, expected),
    }
    _refuse(location, tensors, differences)


def _of_another_shape(tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    return [
        f"{name} {list(tensors[name].shape)} for {list(shape)}"
        for name, shape in sorted(shapes.items())
        if name in tensors and tensors[name].shape != shape
    ]


def _refuse(
    location: WeightsLocation, tensors: Mapping[str, StoredTensor], differences_by_kind: Mapping[str, list[str]]
) -> None:
    """Raise EngineError if tensors differ from what the model needs, or their checksum from the published one."""
    if differences := "; ".join(
        f"{what}: {', '.join(names[:3])} ({len(names)} in all)" for what, names in differences_by_kind.items() if names
    ):
        raise EngineError(f"the weights in {location.folder} do not fit this model: {differences}")
    if (checksum := checksum_of(tensors)) != location.checksum:
        expected = f"expected {location.checksum}: wait for the next version"
        raise EngineError(f"the weights in {location.folder} have checksum {checksum}, {expected}")


def checksum_of(tensors: Mapping[str, StoredTensor]) -> str:
    """128-bit hash of names, types, shapes and bytes of all tensors in name order.

    Equal to `weights.transfer.checksum`.
    """
    digest = xxhash.xxh3_128()
    mapped: dict[Path, mmap] = {}
    try:
        for name in sorted(tensors):
            tensor = tensors[name]
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            if tensor.file not in mapped:
                with tensor.file.open("rb") as file:
                    mapped[tensor.file] = mmap(file.fileno(), 0, access=ACCESS_READ)
            with memoryview(mapped[tensor.file]) as view, view[tensor.start : tensor.end] as content:
                digest.update(content)
    finally:
        for memory in mapped.values():
            memory.close()
    return str(digest.hexdigest())


def _header(file: Path) -> dict[str, StoredTensor]:
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        size = file.stat().st_size
        if length > size:
            raise ValueError(f"{file.name} has {size:,} bytes, fewer than its header")
        header = json.loads(opened.read(length))
    offset = LENGTH_BYTES + length
    entries = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (offset + number for number in entry["data_offsets"])
        if end > size:
            raise ValueError(
                f"{file.name} has {size:,} bytes, but its tensor {name} ends at {end:,}: it was not written whole"
            )
        entries[name] = StoredTensor(file, DTYPES[entry["dtype"]], tuple(entry["shape"]), start, end)
    return entries
