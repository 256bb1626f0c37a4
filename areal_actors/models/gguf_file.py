"""Reads the header of a GGUF file, and refuses what is no whole model of one file.

Loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from areal_actors.core.errors import SetupError

MAGIC = b"GGUF"
INSTALL = "pip install 'areal-actors[gguf]' (in a clone: .venv/bin/pip install -e '.[gguf]')"
ROPE_FACTORS = "rope_freqs.weight"
"""Tensor of factors that scale the rotary frequencies; not a weight of the model."""


class GgufFile(NamedTuple):
    """Contents of the header of a GGUF file."""

    path: Path
    architecture: str
    """As in `general.architecture`, such as `llama` or `qwen2`."""
    title: str
    """As in `general.name`; empty if there is none."""
    license: str
    """As in `general.license`; empty if there is none."""
    parameters: int
    """Elements of all tensors but `rope_factors`."""
    quantization: str
    """Type of most of the elements, such as `Q4_1`."""
    rope_factors: tuple[float, ...]
    """Factors of the rotary frequencies; empty if the file has none."""
    rope_base: float
    head_dim: int
    """Dimensions of a head that are rotated; 0 if unknown."""
    key_length: int
    """Dimensions of a head; 0 if the file does not state it."""
    rope_scaling: str
    """As in `rope.scaling.type`; empty for none."""


def read_gguf(path: Path) -> GgufFile:
    """Read the header.

    Raises:
        SetupError: the file is missing, no GGUF, cut short, or no whole model; or the `gguf` package is missing.
    """
    _check_start(path)
    gguf = gguf_library()
    try:
        reader = gguf.GGUFReader(path)
    except Exception as error:  # of numpy, for an offset beyond the end, or of the reader, for an unknown version
        size = path.stat().st_size
        raise SetupError(
            f"{path}: this GGUF file of {size:,} bytes is cut short or damaged ({error}); compare its size with that of"
            " the source, and copy it again"
        ) from error
    values = {name: field.contents() for name, field in reader.fields.items()}
    _check_whole(path, values, [tensor.name for tensor in reader.tensors])
    return _describe(path, values, reader.tensors)


def gguf_library() -> ModuleType:
    """Returns the `gguf` package.

    Raises:
        SetupError: it is not installed.
    """
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        raise SetupError(f"reading a GGUF file needs the `gguf` package: {INSTALL}") from error


def is_gguf(path: Path) -> bool:
    """True if the file begins as a GGUF file does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _check_start(path: Path) -> None:
    if not path.is_file():
        cause = "is a folder" if path.is_dir() else f"does not exist (looked in {Path.cwd()})"
        raise SetupError(f"{path} {cause}; name a .gguf file")
    try:
        if not is_gguf(path):
            raise SetupError(f"{path} is no GGUF file: it does not begin with the letters GGUF; name a .gguf file")
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from error


def _check_whole(path: Path, values: dict[str, Any], tensors: list[str]) -> None:
    if (parts := int(values.get("split.count") or 0)) > 1:
        command = f"llama-gguf-split --merge {path.name} whole.gguf"
        raise SetupError(
            f"{path} is one of {parts} parts of a model; merge them first, with the program of llama.cpp: {command}"
        )
    if (kind := values.get("general.type") or "model") != "model":
        raise SetupError(
            f"{path} holds no model but one of its parts (general.type = {kind}); name the file of the model itself"
        )
    if "general.architecture" not in values or "token_embd.weight" not in tensors:
        raise SetupError(
            f"{path} holds no language model: it has {len(tensors)} tensors and no token_embd.weight; name another file"
        )


def _describe(path: Path, values: dict[str, Any], tensors: list[Any]) -> GgufFile:
    architecture = str(values["general.architecture"])
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.name != ROPE_FACTORS:
            sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + math.prod(map(int, tensor.shape))
    factors = next((tensor.data for tensor in tensors if tensor.name == ROPE_FACTORS), ())
    return GgufFile(
        path=path,
        architecture=architecture,
        title=str(values.get("general.name") or ""),
        license=str(values.get("general.license") or ""),
        parameters=sum(sizes.values()),
        quantization=max(sizes, key=lambda name: sizes[name]),
        rope_factors=tuple(float(factor) for factor in factors),
        rope_base=float(values.get(f"{architecture}.rope.freq_base") or 10_000.0),
        head_dim=_head_dim(architecture, values),
        key_length=int(values.get(f"{architecture}.attention.key_length") or 0),
        rope_scaling=_scaling(architecture, values),
    )


def _head_dim(architecture: str, values: dict[str, Any]) -> int:
    heads = values.get(f"{architecture}.attention.head_count")
    if rotated := values.get(f"{architecture}.rope.dimension_count") or values.get(
        f"{architecture}.attention.key_length"
    ):
        return int(rotated)
    return int(values.get(f"{architecture}.embedding_length") or 0) // heads if isinstance(heads, int) and heads else 0


def _scaling(architecture: str, values: dict[str, Any]) -> str:
    kind = str(values.get(f"{architecture}.rope.scaling.type") or "")
    return "" if kind == "none" else kind
