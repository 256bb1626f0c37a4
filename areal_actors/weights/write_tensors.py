"""Tensors to files of safetensors in one pass: no second copy of a model in memory, hashed while it is written.

The library's `save_file` takes tensors on the CPU and copies them twice more. A model that is published after every
step is copied from its device in pieces through one page-locked buffer, and converted there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
import xxhash
from huggingface_hub import split_state_dict_into_shards_factory
from torch import Tensor

from areal_actors.weights.weight_files import DTYPES, INDEX, LENGTH_BYTES

SHARD_BYTES = 2 * 1024**3
PIECE_BYTES = 64 * 1024**2
"""Bytes that are copied, hashed and written together."""
FILE_PATTERN = "model{suffix}.safetensors"
PARTIAL = ".partial"
"""Suffix of a file while it is written: a model may be mapped from the file that its new weights replace."""
FORMAT_NAMES = {dtype: name for name, dtype in DTYPES.items()}
HEADER_ALIGNMENT = 8


class TensorPlace(NamedTuple):
    """Place of a tensor in a file that is written."""

    file: BinaryIO
    start: int
    """First byte in the file."""


def write_tensors(
    tensors: Mapping[str, Tensor], folder: Path, shard_bytes: int = SHARD_BYTES, dtype: torch.dtype | None = None
) -> str:
    """Write tensors into a folder, in files of about this size as Hugging Face names them; a larger tensor has its own.

    Args:
        tensors: contiguous, on any device.
        folder: exists.
        shard_bytes: size of a file.
        dtype: of floating-point tensors in the files; None keeps theirs.

    Returns:
        `weights.transfer.checksum` of what was written.

    Raises:
        OSError: writing failed, for example on a full disk.
    """
    dtypes = {name: dtype if dtype and tensor.is_floating_point() else tensor.dtype for name, tensor in tensors.items()}
    sizes = {name: tensor.numel() * dtypes[name].itemsize for name, tensor in tensors.items()}
    split = split_state_dict_into_shards_factory(
        sizes, get_storage_size=lambda size: size, filename_pattern=FILE_PATTERN, max_shard_size=shard_bytes
    )
    partials = {name: folder / f"{name}{PARTIAL}" for name in split.filename_to_tensors}
    try:
        with ExitStack() as stack:
            places: dict[str, TensorPlace] = {}
            for name, names in split.filename_to_tensors.items():
                file = stack.enter_context(partials[name].open("wb"))
                places |= _write_header(file, {each: (tensors[each], dtypes[each]) for each in names})
            checksum = _write_contents(tensors, dtypes, places)
        for name, partial in partials.items():
            partial.replace(folder / name)
    finally:
        for partial in partials.values():
            partial.unlink(missing_ok=True)
    if split.is_sharded:
        (folder / INDEX).write_text(
            json.dumps({"metadata": split.metadata, "weight_map": split.tensor_to_filename}, indent=1)
        )
    return checksum


def _write_header(file: BinaryIO, tensors: Mapping[str, tuple[Tensor, torch.dtype]]) -> dict[str, TensorPlace]:
    """Write the header of a file; returns the places of its tensors.

    Those with the largest elements come first, so that each is aligned.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ends: dict[str, int] = {}
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name][1].itemsize, name)):
        tensor, dtype = tensors[name]
        ends[name], end = end, end + tensor.numel() * dtype.itemsize
        header[name] = {
            "dtype": FORMAT_NAMES[str(dtype)],
            "shape": list(tensor.shape),
            "data_offsets": [ends[name], end],
        }
    content = json.dumps(header, separators=(",", ":")).encode()
    content += b" " * (-len(content) % HEADER_ALIGNMENT)
    file.write(len(content).to_bytes(LENGTH_BYTES, "little") + content)
    return {name: TensorPlace(file, LENGTH_BYTES + len(content) + start) for name, start in ends.items()}


def _write_contents(
    tensors: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype], places: Mapping[str, TensorPlace]
) -> str:
    """Write the bytes of tensors, in name order, and hash them in a second thread meanwhile; returns their checksum."""
    digest = xxhash.xxh3_128()
    buffer = _transfer_buffer(tensors)
    with ThreadPoolExecutor(1) as hashing:
        for name in sorted(tensors):
            digest.update(_describe(name, tensors[name], dtypes[name]))
            file, start = places[name]
            file.seek(start)
            for piece in _pieces(tensors[name], dtypes[name], buffer):
                hashed = hashing.submit(digest.update, piece)
                file.write(piece)
                hashed.result()
    return str(digest.hexdigest())


def hash_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """128-bit hash of names, types, shapes and bytes of contiguous tensors in name order.

    Floating-point tensors are hashed as `dtype`, if given. It depends neither on the device nor on the sharding, and
    needs no copy of the model.
    """
    digest = xxhash.xxh3_128()
    buffer = _transfer_buffer(tensors)
    for name in sorted(tensors):
        kind = dtype if dtype and tensors[name].is_floating_point() else tensors[name].dtype
        digest.update(_describe(name, tensors[name], kind))
        for piece in _pieces(tensors[name], kind, buffer):
            digest.update(piece)
    return str(digest.hexdigest())


def _describe(name: str, tensor: Tensor, dtype: torch.dtype) -> bytes:
    return f"{name} {dtype} {list(tensor.shape)}\n".encode()


def _transfer_buffer(tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Memory of the host for a piece from another device; None if all tensors are on the CPU."""
    if all(tensor.device.type == "cpu" for tensor in tensors.values()):
        return None
    return torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=any(tensor.is_cuda for tensor in tensors.values()))


def _pieces(tensor: Tensor, dtype: torch.dtype, buffer: Tensor | None) -> Iterator[memoryview]:
    """The bytes of a tensor in order, as `dtype`; a piece is valid until the next."""
    for part in torch.split(tensor.detach().reshape(-1), PIECE_BYTES // dtype.itemsize):
        copied = part.to(dtype)
        if tensor.device.type != "cpu" and buffer is not None:
            copied = buffer[: part.numel() * dtype.itemsize].view(dtype).copy_(copied)
        yield copied.view(torch.uint8).numpy().data
