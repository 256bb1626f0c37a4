"""Weights that arrive at a server in buckets: their checksum, and the copy to which deltas are applied.

Nothing of this project is imported. The first tensor of each bucket, `areal.control`, is JSON as bytes: the number of
the bucket (`part`) and of all buckets (`parts`), and what they hold. Tensors arrive in the order of their names. Those
of a delta replace whole tensors, or (`NAME#at`, `NAME#to`) single values of a tensor; they reach the model only after
the checksum of the whole copy has been found right.
"""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

CONTROL, PAD, AT, TO = "areal.control", "areal.pad", "#at", "#to"


class ReceivedWeights:
    """Weights that one process of a server was sent."""

    def __init__(self, *, loads_all: bool = False) -> None:
        """`loads_all`: a delta has the model load every tensor, not the changed ones alone."""
        self.held: dict[str, torch.Tensor] = {}
        """Copy of the weights by their published names, on the CPU, if deltas are sent."""
        self.held_checksum = ""
        self.report: dict[str, Any] = {}
        """`checksum` and `tensors` of the last complete version; empty in the middle of one."""
        self._loads_all = loads_all
        self._digest: Any = None
        self._changed: dict[str, None] = {}
        self._places: dict[str, torch.Tensor] = {}

    def take(self, weights: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
        """Returns the tensors of a bucket that the model has to load now.

        Raises:
            ValueError: the bucket has no control tensor, a delta has another base than the copy, or the checksum is
                wrong.
        """
        name, encoded = weights[0]
        if name != CONTROL:
            raise ValueError(f"the first tensor is {name}, expected {CONTROL}")
        control = json.loads(bytes(encoded.cpu().tolist()))
        if control["part"] == 0:
            self._begin(control)
        bucket = [(name, tensor) for name, tensor in weights[1:] if name != PAD]
        loaded = bucket if control["kind"] == "whole" else []
        for name, tensor in bucket:
            if control["kind"] == "whole":
                self._add(name, tensor, keep=control["keep"])
            else:
                self._apply(name, tensor.cpu())
        if control["part"] + 1 == control["parts"]:
            self._end(control)
            if control["kind"] == "delta":
                loaded = [(name, self.held[name]) for name in (sorted(self.held) if self._loads_all else self._changed)]
        return loaded

    def _begin(self, control: dict[str, Any]) -> None:
        self.report, self._changed = {}, {}
        if control["kind"] == "delta" and control["base"] != self.held_checksum:
            held = f"the copy here has checksum {self.held_checksum or 'none'}"
            raise ValueError(f"the delta is one of weights with checksum {control['base']}, and {held}")
        if control["kind"] == "whole":
            self.held = {}
            self._digest = _new_digest()
        self.held_checksum = ""

    def _add(self, name: str, tensor: torch.Tensor, *, keep: bool) -> None:
        _update(self._digest, name, tensor)
        self._changed[name] = None
        if keep:
            self.held[name] = tensor.detach().cpu().clone()

    def _apply(self, name: str, tensor: torch.Tensor) -> None:
        target = name.removesuffix(AT).removesuffix(TO)
        self._changed[target] = None
        if name.endswith(AT):
            self._places[target] = tensor
        elif name.endswith(TO):
            self.held[target].view(-1)[self._places.pop(target).long()] = tensor
        else:
            self.held[target].copy_(tensor)

    def _end(self, control: dict[str, Any]) -> None:
        if control["kind"] == "delta":
            self._digest = _new_digest()
            for name in sorted(self.held):
                _update(self._digest, name, self.held[name])
        digest = str(self._digest.hexdigest())
        if digest != control["checksum"]:
            self.held = {}
            raise ValueError(f"the weights that arrived have checksum {digest}, expected {control['checksum']}")
        self.held_checksum = digest if self.held else ""
        self.report = {"checksum": digest, "tensors": len(self._changed)}


def join_group(address: str, port: int, rank: int, ranks: int, name: str, backend: str, seconds: float) -> Any:
    """Returns a process group besides the default one; its rank 0 is the sender (`weights/sender.py`)."""
    limit = timedelta(seconds=seconds)
    store = dist.PrefixStore(name, dist.TCPStore(address, port, ranks, is_master=False, timeout=limit))
    return c10d._new_process_group_helper(
        ranks, rank, [], dist.Backend(backend), store, group_name=name, timeout=limit
    )[0]


def receive_bucket(
    group: Any, names: list[str], dtypes: list[str], shapes: list[list[int]], device: torch.device
) -> list[tuple[str, torch.Tensor]]:
    """Returns the tensors of a bucket that rank 0 broadcasts as bytes."""
    kinds = [getattr(torch, dtype) for dtype in dtypes]
    sizes = [math.prod(shape) * kind.itemsize for shape, kind in zip(shapes, kinds, strict=True)]
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    options = dist.BroadcastOptions()
    options.rootRank = options.rootTensor = 0
    group.broadcast([flat], options).wait()
    pieces = zip(names, flat.split(sizes), kinds, shapes, strict=True)
    return [(name, piece.view(kind).reshape(shape)) for name, piece, kind, shape in pieces]


def _new_digest() -> Any:
    import xxhash

    return xxhash.xxh3_128()


def _update(digest: Any, name: str, tensor: torch.Tensor) -> None:
    """Add a tensor as `areal_actors.weights.transfer.checksum` does."""
    content = tensor.detach().cpu().contiguous()
    digest.update(f"{name} {content.dtype} {list(content.shape)}\n".encode())
    digest.update(content.flatten().view(torch.uint8).numpy().data)
