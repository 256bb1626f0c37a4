"""AReaL's device specifications, `sglang:d4p1t1`: read by programs, without effect on where processes run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LETTERS = {
    "d": "data_parallel_size",
    "p": "pipeline_parallel_size",
    "t": "tensor_parallel_size",
    "c": "context_parallel_size",
    "e": "expert_parallel_size",
}
SERVERS = ("sglang", "vllm")


@dataclass
class ParallelStrategy:
    """Numbers of ranks by kind of parallelism."""

    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    tensor_parallel_size: int = 1
    context_parallel_size: int = 1
    expert_parallel_size: int = 1

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks."""
        return self.data_parallel_size

    @property
    def pp_size(self) -> int:
        """Pipeline stages."""
        return self.pipeline_parallel_size

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks."""
        return self.tensor_parallel_size

    @property
    def world_size(self) -> int:
        """Devices of a model; experts share those of the others."""
        return self.dp_size * self.pp_size * self.tp_size * self.context_parallel_size


@dataclass
class ModelAllocation:
    """Backend and parallelism of one model."""

    backend: str
    name: str | None = None
    parallel: ParallelStrategy = field(default_factory=ParallelStrategy)

    @classmethod
    def from_str(cls, spec: str, name: str | None = None) -> ModelAllocation:
        """Read `BACKEND:d4p1t1`; of `BACKEND:(attn:…|ffn:…)` the part of attention.

        Raises:
            ValueError: it has another form.
        """
        backend, colon, sizes = spec.partition(":")
        sizes = sizes.removeprefix("(attn:").partition("|")[0]
        if not colon or not backend.isalnum() or not re.fullmatch(r"(?:[dptce]\d+)+", sizes):
            raise ValueError(f"{spec!r} is no allocation; write one such as sglang:d4p1t1")
        parallel = ParallelStrategy(**{LETTERS[letter]: int(n) for letter, n in re.findall(r"([dptce])(\d+)", sizes)})
        return cls(backend, name, parallel)


@dataclass
class AllocationMode:
    """Allocations of a file with `allocation_mode`: that of the engine, and that of training."""

    gen: ModelAllocation | None = None
    train: ModelAllocation | None = None

    @classmethod
    def from_str(cls, mode: str) -> AllocationMode:
        """Read `sglang:d4p1t1+d4p1t1`; training without a name is `fsdp`.

        Raises:
            ValueError: a part has another form.
        """
        parts = [
            ModelAllocation.from_str(part if ":" in part else f"fsdp:{part}")
            for part in mode.replace("|", "+").split("+")
        ]
        servers = [part for part in parts if part.backend in SERVERS]
        trainers = [part for part in parts if part.backend not in SERVERS]
        return cls(next(iter(servers), None), next(iter(trainers), None))
