"""Training data and results of Tinker's forward passes, and samples.

They are arrays, from and to Protocol Buffers and JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from areal_actors.core.errors import RequestError
from areal_actors.tinker.protobuf import WireMessage, blob, double_map, integer, message_map, pack_integers

Array = NDArray[np.generic]
FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
"""Tinker's enumeration of types."""
NUMPY_TYPES: dict[int, np.dtype[Any]] = {FLOAT32: np.dtype("<f4"), INT64: np.dtype("<i8"), INT32: np.dtype("<i4")}
JSON_TYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "int64": np.dtype("<i8")}
STOP_REASONS = {"stop": 0, "length": 1}
EMPTY_TOP = -99999.0
"""Log-probability of an entry of top tokens that holds none."""
TEXT_ONLY = "model_input holds {what}: this server takes tokens only, so send chunks of encoded text"


class Datum(msgspec.Struct, frozen=True):
    """One sequence of a forward pass."""

    token_ids: NDArray[np.int64]
    """`[tokens]`: input of the model."""
    inputs: dict[str, Array]
    """`loss_fn_inputs` by name: `[tokens]`, or `[tokens, k]`; at position t they concern the token after input t."""


class ForwardRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A forward pass, with a backward pass or without."""

    data: list[Datum]
    loss: str
    """Name of the loss."""
    loss_config: dict[str, float | str]
    forward_only: bool


class ForwardOutput(msgspec.Struct, frozen=True):
    """Result of a forward pass."""

    outputs: list[dict[str, NDArray[np.float32]]]
    """For each datum the outputs by name, in the shape of its `target_tokens`."""
    metrics: dict[str, float]
    """By name; its suffix is the reduction of the values of several requests, as in `loss:sum`."""

    def to_json(self) -> dict[str, Any]:
        """The response for clients that do not read Protocol Buffers."""
        outputs = [{name: tensor_json(array, "float32") for name, array in arrays.items()} for arrays in self.outputs]
        return {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": self.metrics}

    def to_protobuf(self) -> bytes:
        """The response; datums in a row with equally wide outputs are one record."""
        runs = groupby(self.outputs, key=lambda arrays: next(iter(arrays.values())).shape[1:])
        records = b"".join(blob(2, _record(list(run), width)) for width, run in runs)
        return blob(1, "ArrayRecord") + records + double_map(3, self.metrics)


class TopLogprobs(msgspec.Struct, frozen=True):
    """The most likely tokens at each position, most likely first."""

    token_ids: NDArray[np.int32]
    """`[tokens, k]`."""
    logprobs: NDArray[np.float32]
    """Same shape; `EMPTY_TOP` where there is none."""

    def to_json(self) -> list[list[tuple[int, float]] | None]:
        """Pairs of each position; None without any."""
        rows = zip(self.token_ids.tolist(), self.logprobs.tolist(), strict=True)
        pairs = [[pair for pair in zip(ids, logprobs, strict=True) if pair[1] != EMPTY_TOP] for ids, logprobs in rows]
        return [row or None for row in pairs]

    def to_protobuf(self) -> bytes:
        """Two matrices."""
        length, k = self.token_ids.shape
        ids, logprobs = self.token_ids.astype("<i4").tobytes(), self.logprobs.astype("<f4").tobytes()
        return blob(1, ids) + blob(2, logprobs) + integer(3, k) + integer(4, length)


class TargetLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities of the tokens that a request named at positions of its prompt, in the request's layout."""

    values: NDArray[np.float32]
    """0 where the request named none."""
    shape: tuple[int, int]
    rows: tuple[int, ...] | None
    """Row pointers of a sparse layout; None for a dense one."""
    columns: tuple[int, ...] | None

    def to_json(self) -> dict[str, Any]:
        """The tensor in JSON."""
        tensor = {"data": self.values.tolist(), "dtype": "float32", "shape": list(self.shape)}
        return (
            tensor
            if self.rows is None
            else tensor | {"sparse_crow_indices": self.rows, "sparse_col_indices": self.columns}
        )

    def to_protobuf(self) -> bytes:
        """The tensor."""
        values = self.values.astype("<f4").tobytes()
        if self.rows is None:
            data = blob(1, values)
        else:
            indices = (np.array(column, dtype="<i8").tobytes() for column in (self.rows, self.columns or ()))
            data = blob(2, blob(1, values) + b"".join(blob(field, one) for field, one in enumerate(indices, 2)))
        return data + integer(3, FLOAT32) + pack_integers(4, self.shape)


class SampledTokenSequence(msgspec.Struct, frozen=True):
    """One completion."""

    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    stop_reason: str
    """`stop` or `length`."""
    top: TopLogprobs | None = None

    def to_json(self) -> dict[str, Any]:
        """The sequence in a response as JSON."""
        fields = {
            "stop_reason": self.stop_reason,
            "tokens": self.token_ids.tolist(),
            "logprobs": self.logprobs.tolist(),
        }
        return fields if self.top is None else fields | {"topk_logprobs": self.top.to_json()}

    def to_protobuf(self) -> bytes:
        """The sequence in a response."""
        columns = blob(2, self.token_ids.astype("<i4").tobytes()) + blob(3, self.logprobs.astype("<f4").tobytes())
        return (
            integer(1, STOP_REASONS[self.stop_reason])
            + columns
            + (blob(4, self.top.to_protobuf()) if self.top else b"")
        )


class SampleOutput(msgspec.Struct, frozen=True):
    """Result of a sampling request."""

    sequences: list[SampledTokenSequence]
    prompt_logprobs: NDArray[np.float32] | None = None
    """`[prompt tokens]`; not a number where none was computed."""
    top_prompt: TopLogprobs | None = None
    targets: TargetLogprobs | None = None

    def to_json(self) -> dict[str, Any]:
        """The response for clients that do not read Protocol Buffers."""
        fields: dict[str, Any] = {"type": "sample", "sequences": [sequence.to_json() for sequence in self.sequences]}
        if self.prompt_logprobs is not None:
            fields["prompt_logprobs"] = [None if np.isnan(value) else float(value) for value in self.prompt_logprobs]
        if self.top_prompt is not None:
            fields["topk_prompt_logprobs"] = self.top_prompt.to_json()
        return fields if self.targets is None else fields | {"target_prompt_logprobs": self.targets.to_json()}

    def to_protobuf(self) -> bytes:
        """The response."""
        blobs = b"".join(blob(1, sequence.to_protobuf()) for sequence in self.sequences)
        if self.prompt_logprobs is not None:
            blobs += blob(2, self.prompt_logprobs.astype("<f4").tobytes())
        if self.top_prompt is not None:
            blobs += blob(3, self.top_prompt.to_protobuf())
        return blobs if self.targets is None else blobs + blob(5, self.targets.to_protobuf())


# ------------------------------------------------------------ requests


def forward_of_message(message: WireMessage) -> ForwardRequest:
    """Read the data of a `ForwardBackwardRequest`.

    Raises:
        RequestError: a datum has something other than tokens, or a tensor is damaged.
    """
    config: dict[str, float | str] = {**message.doubles(5)}
    for name, value in message.entries(7).items():
        config[name] = value.text(2) if 2 in value else value.double(1)
    data = [_datum_of_message(datum) for datum in message.messages(3)]
    return ForwardRequest(data=data, loss=message.text(4), loss_config=config, forward_only=bool(message.number(6)))


def forward_of_json(body: Mapping[str, Any], *, forward_only: bool) -> ForwardRequest:
    """Read the same request from JSON, as older clients send it.

    Raises:
        RequestError: a field is missing or damaged.
    """
    try:
        wanted = body.get("forward_backward_input") or body["forward_input"]
        data = [
            Datum(
                prompt_tokens(datum["model_input"]),
                {name: _tensor_of_json(name, value) for name, value in datum["loss_fn_inputs"].items()},
            )
            for datum in wanted["data"]
        ]
        config = dict(wanted.get("loss_fn_config") or {})
        return ForwardRequest(data=data, loss=wanted["loss_fn"], loss_config=config, forward_only=forward_only)
    except (KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"the request lacks a field, or has one of another type ({error}); send data and loss_fn"
        ) from error


def prompt_tokens(model_input: Mapping[str, Any]) -> NDArray[np.int64]:
    """Token ids of a `ModelInput` in JSON.

    Raises:
        RequestError: a chunk is an image or audio, or has no tokens.
    """
    ids: list[int] = []
    try:
        for chunk in model_input["chunks"]:
            if (kind := chunk.get("type", "encoded_text")) != "encoded_text":
                raise RequestError(TEXT_ONLY.format(what=f"a chunk of type {kind}"), "model_input")
            ids += chunk["tokens"]
        return np.array(ids, dtype=np.int64)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise RequestError(f"the input is no list of chunks with tokens ({error!r})", "model_input") from error


def tensor_json(array: NDArray[np.generic], dtype: str) -> dict[str, Any]:
    """A tensor in JSON."""
    return {"data": array.flatten().tolist(), "dtype": dtype, "shape": list(array.shape)}


def _datum_of_message(datum: WireMessage) -> Datum:
    ids: list[NDArray[np.int64]] = []
    for chunk in datum.messages(1):
        if 1 not in chunk:
            raise RequestError(TEXT_ONLY.format(what="an image" if 2 in chunk else "audio"), "model_input")
        (text,) = chunk.messages(1)
        ids.append(_from_bytes(text.payload(1), NUMPY_TYPES[INT32], "model_input").astype(np.int64))
    inputs = {name: _tensor_of_message(name, tensor) for name, tensor in datum.entries(2).items()}
    return Datum(np.concatenate(ids) if ids else np.zeros(0, dtype=np.int64), inputs)


def _tensor_of_message(name: str, tensor: WireMessage) -> Array:
    if (kind := tensor.number(3)) not in NUMPY_TYPES:
        raise RequestError(f"loss_fn_inputs.{name}: type {kind} is not supported; send float32 or int64", name)
    shape = tensor.numbers(4)
    if 2 not in tensor:
        values = _from_bytes(tensor.payload(1), NUMPY_TYPES[kind], name)
        return _reshape(name, values, shape or [len(values)])
    (sparse,) = tensor.messages(2)
    values = _from_bytes(sparse.payload(1), NUMPY_TYPES[kind], name)
    rows, columns = (_from_bytes(sparse.payload(field), NUMPY_TYPES[INT64], name) for field in (2, 3))
    return _dense(name, values, rows, columns, shape)


def _tensor_of_json(name: str, tensor: Mapping[str, Any]) -> Array:
    if (dtype := tensor["dtype"]) not in JSON_TYPES:
        raise RequestError(f"loss_fn_inputs.{name}: type {dtype} is not supported; send float32 or int64", name)
    values = np.array(tensor["data"], dtype=JSON_TYPES[dtype])
    if tensor.get("sparse_crow_indices") is None:
        return _reshape(name, values, tensor.get("shape") or [len(values)])
    rows, columns = (np.array(tensor[key], dtype=np.int64) for key in ("sparse_crow_indices", "sparse_col_indices"))
    return _dense(name, values, rows, columns, tensor["shape"])


def _from_bytes(data: bytes, dtype: np.dtype[Any], name: str) -> Array:
    if len(data) % dtype.itemsize:
        raise RequestError(f"{name}: {len(data)} bytes are not a whole number of {dtype.name} values", name)
    return np.frombuffer(data, dtype=dtype)


def _reshape(name: str, values: Array, shape: Sequence[int]) -> Array:
    if int(np.prod(shape)) != values.size or any(size < 0 for size in shape):
        raise RequestError(f"loss_fn_inputs.{name}: {values.size} values do not have the shape {list(shape)}", name)
    return values.reshape(shape)


def _dense(name: str, values: Array, rows: Array, columns: Array, shape: Sequence[int]) -> Array:
    """A matrix of compressed sparse rows, 0 where it lists nothing."""
    starts = rows.astype(np.int64)
    counts = starts[1:] - starts[:-1]
    fits = (
        len(shape) == 2
        and len(counts) == shape[0]
        and bool((counts >= 0).all())
        and counts.sum() == len(values) == len(columns)
    )
    if not fits or (len(columns) and not 0 <= int(columns.min()) <= int(columns.max()) < shape[1]):
        raise RequestError(f"loss_fn_inputs.{name}: the sparse indices do not fit the shape {list(shape)}", name)
    dense = np.zeros(shape, dtype=values.dtype)
    dense[np.repeat(np.arange(shape[0]), counts), columns] = values
    return dense


def _record(outputs: Sequence[Mapping[str, NDArray[np.float32]]], width: Sequence[int]) -> bytes:
    """An `ArrayRecord`: for each output name the arrays of all datums, one after another."""
    fields = {}
    for name in outputs[0]:
        arrays = [output[name] for output in outputs]
        ends = np.cumsum([0, *(array.size * 4 for array in arrays)], dtype="<i8")
        data = b"".join(array.astype("<f4").tobytes() for array in arrays)
        fields[name] = blob(1, data) + blob(2, ends.tobytes()) + integer(3, FLOAT32) + pack_integers(4, list(width))
    return blob(1, "ArrayRecord") + message_map(2, fields) + integer(3, len(outputs))
