"""The device mesh of the ranks, and its process groups."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from areal_actors.core.errors import SetupError
from areal_actors.training.distributed.layout import Layout
from areal_actors.weights.torch_device import torch_device

STAGES, REPLICAS, SEQUENCE, TENSOR = "stages", "replicas", "sequence", "tensor"


def rank_device(name: str) -> torch.device:
    """This rank's device for `[trainer] device`: `auto` is cuda if available, and each rank of a host has its own.

    Raises:
        SetupError: this host has fewer CUDA devices than ranks.
    """
    return torch_device(name, "trainer.device", int(os.environ.get("LOCAL_RANK", "0")))


def join_process_group(device: torch.device, seconds: float) -> None:
    """Join the process group by torchrun's variables RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        device: device of the rank; CPU tensors use gloo, CUDA tensors NCCL.
        seconds: timeout of the rendezvous and of every collective.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))


def broadcast_bytes(body: bytes | None, length: int) -> bytes:
    """The bytes of the first rank, on every rank; the others pass None and the length. Call on every rank."""
    column = (
        torch.empty(length, dtype=torch.uint8) if body is None else torch.frombuffer(bytearray(body), dtype=torch.uint8)
    )
    dist.broadcast(column, src=0)
    return body or column.numpy().tobytes()


class Mesh:
    """Coordinates of this rank in the mesh, and its process groups."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Create the mesh; every rank must do so in the same order.

        Raises:
            SetupError: the number of ranks differs from the layout.
        """
        if dist.get_world_size() != layout.ranks:
            raise SetupError(
                f"{dist.get_world_size()} ranks joined, but trainer.ranks = {layout.ranks}; start the same number"
            )
        self.layout = layout
        self.device = device
        shape = (layout.pipeline, layout.replicas, layout.sequence, layout.tensor)
        grid = init_device_mesh(device.type, shape, mesh_dim_names=(STAGES, REPLICAS, SEQUENCE, TENSOR))
        self.stage: int = grid.get_local_rank(STAGES)
        self.forward_group = grid.get_group(STAGES)
        """Ranks at the same coordinates in every stage."""
        self.backward_group, _ = dist.new_subgroups_by_enumeration(grid.mesh.flatten(1).T.tolist())  # type: ignore[no-untyped-call]
        """A second group of the same ranks, so that gradients to the previous stage do not wait for activations to the
        next."""
        self.tensor: DeviceMesh = grid[TENSOR]
        # As in torchtitan; there is no public way
        self.blocks: DeviceMesh = grid[REPLICAS, SEQUENCE]._flatten("blocks")  # noqa: SLF001
        """Ranks over which the weights of a block (of one tensor part) are sharded."""
        self.all: DeviceMesh = grid[REPLICAS, SEQUENCE, TENSOR]._flatten("all")  # noqa: SLF001
        """Ranks of this stage, over which embeddings, last norm and head are sharded."""
        self.leads_stage: bool = self.all.get_local_rank() == 0
        """True on the first rank of a stage."""
        self.replica: int = grid.get_local_rank(REPLICAS)
        self.across = grid[STAGES, REPLICAS]._flatten("across").get_group()  # noqa: SLF001
        """Ranks at the same coordinates in every stage of every replica."""
        self.sequence_group = grid.get_group(SEQUENCE)
        self.parts_group = grid[SEQUENCE, TENSOR]._flatten("parts").get_group()  # noqa: SLF001
        """Ranks of this stage and replica."""
        self.part: int = dist.get_rank(self.parts_group)
