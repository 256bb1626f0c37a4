"""Sends published weights to one inference server, as a process of its own.

A server that fails does not concern the trainer.
Run as `python -m areal_actors.weights.sender DEVICE`: a request of `sending` is a line of JSON on standard input, its
answer a line on standard output. It ends with its parent. It maps the files of a version, so that nothing is copied
before it is sent, and is rank 0 of a process group with the processes of the server.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed import distributed_c10d as c10d

from areal_actors.weights.buckets import Named, delta, to_buckets
from areal_actors.weights.sending import (
    Answer,
    Bucket,
    Held,
    Join,
    Prepare,
    PreparedVersion,
    Request,
    Send,
    SenderDone,
    SenderFailed,
    Share,
    Shared,
)


class Sender:
    """The state of the process: the version to be sent, the one that the server holds, and the group."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buckets: list[list[Named]] = []
        self._tensors: Mapping[str, Tensor] = {}
        self._checksum = ""
        self._base: Mapping[str, Tensor] = {}
        self._base_checksum = ""
        self._group: Any = None

    def answer(self, request: Request) -> Answer:
        """Fulfil a request; any error is an answer."""
        try:
            match request:
                case Prepare():
                    return self._prepare(request)
                case Join():
                    self._group = open_group(request)
                case Send():
                    self._send(request)
                case Share():
                    return Shared([handle_of(self._buckets[request.bucket]) for _ in range(request.ranks)])
                case Held():
                    self._base, self._base_checksum = self._tensors, self._checksum
        except Exception as error:  # noqa: BLE001 - the worker decides
            return SenderFailed(f"{type(error).__name__}: {error}")
        return SenderDone()

    def _prepare(self, request: Prepare) -> PreparedVersion:
        self._tensors, self._checksum = map_tensors(request.location.folder), request.location.checksum
        control: dict[str, Any] = {"kind": "whole", "keep": request.keep, "base": "", "checksum": self._checksum}
        weights: list[Named] = [(name, self._tensors[name]) for name in sorted(self._tensors)]
        whole = sum(tensor.nbytes for _, tensor in weights)
        if request.base and request.base == self._base_checksum:
            control |= {"kind": "delta", "base": request.base}
            weights = list(delta(self._base, self._tensors))
        self._buckets = to_buckets(weights, control, request.bucket_bytes)
        described = [
            Bucket(
                [name for name, _ in bucket],
                [str(tensor.dtype)[6:] for _, tensor in bucket],
                [list(tensor.shape) for _, tensor in bucket],
            )
            for bucket in self._buckets
        ]
        sent = sum(tensor.nbytes for bucket in self._buckets for _, tensor in bucket)
        return PreparedVersion(described, control["kind"], sent, whole)

    def _send(self, request: Send) -> None:
        flat = torch.cat([tensor.flatten().view(torch.uint8) for _, tensor in self._buckets[request.bucket]]).to(
            self._device
        )
        options = dist.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = timedelta(seconds=request.seconds)
        self._group.broadcast([flat], options).wait()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def map_tensors(folder: str) -> dict[str, Tensor]:
    """Returns the tensors of a version, mapped from its files."""
    return {
        name: tensor for file in sorted(Path(folder).glob("*.safetensors")) for name, tensor in load_file(file).items()
    }


def open_group(request: Join) -> Any:
    """Returns a process group besides the default one, as servers open theirs (SGLang's `init_custom_process_group`).

    Raises:
        RuntimeError: the other ranks have not come within the time limit.
    """
    limit = timedelta(seconds=request.seconds)
    store = TCPStore(request.address, request.port, request.ranks, is_master=True, timeout=limit)
    group, _ = c10d._new_process_group_helper(  # noqa: SLF001 - torch has no public way to a group across programs
        request.ranks,
        0,
        [],
        dist.Backend(request.backend),
        PrefixStore(request.name, store),
        group_name=cast("Any", request.name),
        timeout=limit,
    )
    return group


def handle_of(bucket: list[Named]) -> str:
    """Returns a handle by which another process on this host maps a copy of these tensors in shared memory."""
    buffer = io.BytesIO()
    shared = [(name, tensor.clone().share_memory_()) for name, tensor in bucket]  # type: ignore[no-untyped-call]
    ForkingPickler(buffer).dump(shared)
    return base64.b64encode(buffer.getvalue()).decode()


def serve(requests: TextIO, answers: TextIO, sender: Sender) -> None:
    """Answer requests until the parent closes them."""
    for line in requests:
        answer = sender.answer(msgspec.json.decode(line, type=Request))
        answers.write(msgspec.json.encode(answer).decode() + "\n")
        answers.flush()


def main(arguments: list[str]) -> None:
    """Serve over standard input and output; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    # A server can map files by their names, but not descriptors of a process that is not its parent.
    torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    with suppress(KeyboardInterrupt):
        serve(sys.stdin, answers, Sender(torch.device(arguments[0])))
