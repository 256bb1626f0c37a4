"""Converts a GGUF file to a Hugging Face folder.

transformers reads and dequantizes it; the folder is checked, and moved into place when it is whole.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers.utils import logging as transformers_logging

from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError
from areal_actors.models.folder_check import FolderCheck, check_folder, write_stop_ids
from areal_actors.models.gguf_file import ROPE_FACTORS, GgufFile, read_gguf
from areal_actors.models.places import BYTES, SMALL_FILES, Report, check_room, check_target, partial_folder

Dtype = Literal["float32", "bfloat16"]
LLAMA3_FACTORS = (8.0, 32.0, 16.0, 4.0)
"""Scaling factors of published Llama 3 models."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LIKENESS = 1e-4
"""Largest relative difference between rotary factors of one scaling."""


def convert_gguf(file: Path, folder: Path, *, dtype: Dtype = "float32", report: Report) -> FolderCheck:
    """Write the model of a GGUF file as a Hugging Face folder; returns the result of its check.

    Args:
        file: the GGUF file.
        folder: is made; must not exist.
        dtype: precision of the weights that are written.
        report: takes lines about what is done.

    Raises:
        SetupError: the file is no model that transformers reads whole, the folder exists, or the disk has no room for
            it.
    """
    gguf = read_gguf(file)
    _check_architecture(gguf)
    check_target(folder)
    needed = gguf.parameters * BYTES[dtype] + SMALL_FILES
    check_room(folder, needed, f"the converted model ({gguf.parameters:,} parameters in {dtype})")
    described = f"{gguf.title or 'a model'}, {gguf.architecture}, {gguf.parameters:,} parameters, {gguf.quantization}"
    report(f"{file}: {described}, license: {gguf.license or 'none stated'}")
    report(f"converting to {folder} ({needed // MEBIBYTE:,} MB in {dtype})")
    with partial_folder(folder) as partial:
        _write(gguf, partial, dtype)
        if added := write_stop_ids(partial):
            report(
                f"stop tokens: {', '.join(added)}, which end a turn of the chat template, are added to those of the"
                " file"
            )
        checked = check_folder(partial)
    return checked  # noqa: RET504 - the folder has its name by now


def _check_architecture(gguf: GgufFile) -> None:
    try:
        _config(gguf)
    except Exception as error:  # transformers raises what it happens to meet
        raise SetupError(
            f"{gguf.path}: transformers {transformers.__version__} cannot read the architecture '{gguf.architecture}'"
            f" from a GGUF file ({_first_line(error)}); take the model's folder from a hub instead"
            " (docs/bring-a-model.md)"
        ) from error


def _config(gguf: GgufFile) -> Any:
    """Returns the configuration of the file, with the size of a head, which transformers does not always read."""
    config = transformers.AutoConfig.from_pretrained(gguf.path.parent, gguf_file=gguf.path.name)
    if gguf.key_length and getattr(config, "head_dim", gguf.key_length) != gguf.key_length:
        config.head_dim = gguf.key_length
    return config


def _write(gguf: GgufFile, folder: Path, dtype: Dtype) -> None:
    with _quiet():
        tokenizer = _read(gguf, "tokenizer", transformers.AutoTokenizer)
        model, loading = _read(
            gguf,
            "model",
            transformers.AutoModelForCausalLM,
            config=_config(gguf),
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            low_cpu_mem_usage=True,
        )
        _check_all_read(gguf, model, loading)
        _clean_config(gguf, model)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read(gguf: GgufFile, what: str, reader: Any, **options: Any) -> Any:
    try:
        return reader.from_pretrained(gguf.path.parent, gguf_file=gguf.path.name, **options)
    except Exception as error:  # transformers and its converters raise what they happen to meet
        raise SetupError(
            f"{gguf.path}: transformers {transformers.__version__} cannot read the {what} of this {gguf.architecture}"
            f" file ({type(error).__name__}: {_first_line(error)}); copy the file again, or take the model's folder"
            " from a hub (docs/bring-a-model.md)"
        ) from error


def _check_all_read(gguf: GgufFile, model: Any, loading: dict[str, Any]) -> None:
    """Refuse a model with weights that the file lacks, or a file with weights that the model lacks.

    Both are silent in transformers.
    """
    remedy = "take the model's folder from a hub instead (docs/bring-a-model.md)"
    if missing := sorted(loading.get("missing_keys") or ()):
        raise SetupError(
            f"{gguf.path} lacks {len(missing)} weights of {type(model).__name__}, the first {missing[0]}; {remedy}"
        )
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != gguf.parameters:
        raise SetupError(
            f"{gguf.path} has {gguf.parameters:,} parameters, but transformers {transformers.__version__} reads"
            f" {count:,} of them into {type(model).__name__}; {remedy}"
        )


def _clean_config(gguf: GgufFile, model: Any) -> None:
    """Remove the traces of a GGUF file from the configuration, and restore the rotary scaling.

    transformers ignores the scaling that the file has.
    """
    config = model.config
    model.hf_quantizer = None  # the weights are dequantized; with it transformers refuses to write them
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""  # noqa: SLF001 - it would be written as the model's origin
    config.__dict__.pop("_model_name_or_path", None)
    if gguf.rope_factors:
        config.rope_parameters = _llama3_rope(gguf)
    elif gguf.rope_scaling and (config.rope_parameters or {}).get("rope_type", "default") == "default":
        raise SetupError(
            f"{gguf.path} scales its rotary embedding ({gguf.rope_scaling}), which transformers does not read from a"
            " GGUF file; take the model's folder from a hub instead (docs/bring-a-model.md)"
        )


def _llama3_rope(gguf: GgufFile) -> dict[str, Any]:
    """Returns the rotary parameters whose scaling is that of the file's factors.

    Raises:
        SetupError: it is not the scaling of a Llama 3 model.
    """
    for factor in LLAMA3_FACTORS:
        expected = llama3_factors(gguf.rope_base, gguf.head_dim, factor)
        if len(expected) == len(gguf.rope_factors) and all(map(_is_like, gguf.rope_factors, expected)):
            return {**LLAMA3_ROPE, "factor": factor, "rope_theta": gguf.rope_base}
    raise SetupError(
        f"{gguf.path} has {ROPE_FACTORS} with an unknown scaling of the rotary embedding, which transformers would"
        " ignore; take the model's folder from a hub instead (docs/bring-a-model.md)"
    )


def llama3_factors(base: float, head_dim: int, factor: float) -> list[float]:
    """Returns by what each rotary frequency of Llama 3 is divided, as llama.cpp writes it."""
    low, high, original = 1.0, 4.0, 8192.0
    factors = []
    for place in range(0, head_dim, 2):
        wavelength = 2 * math.pi * base ** (place / head_dim)
        smooth = (original / wavelength - low) / (high - low)
        factors.append(
            1.0
            if wavelength < original / high
            else factor
            if wavelength > original / low
            else 1 / ((1 - smooth) / factor + smooth)
        )
    return factors


def _is_like(value: float, expected: float) -> bool:
    return abs(value - expected) <= LIKENESS * expected


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off transformers' progress bars, except on a terminal, and its report of unread weights.

    Unread weights are refused here.
    """
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
            yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
