"""The grid of ranks as torch's device mesh, and the process groups that lie in it."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from areal_actors.engines.rank_group.layout import Layout
from areal_actors.errors import SetupError

STAGES, REPLICAS, SEQUENCE, TENSOR = "stages", "replicas", "sequence", "tensor"


def rank_device(name: str) -> torch.device:
    """This rank's device for `[trainer] device`: `auto` is cuda where there is one, and each rank of a host has its own.

    Raises:
        SetupError: there are fewer CUDA devices than ranks on this host.
    """
    kind = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
    if kind.type != "cuda":
        return kind
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if local >= torch.cuda.device_count():
        raise SetupError(
            f"rank {local} of this host has no CUDA device: there are {torch.cuda.device_count()}; lower trainer.ranks, "
            'or set trainer.device = "cpu"'
        )
    return torch.device("cuda", local)


def join_process_group(device: torch.device, seconds: float) -> None:
    """Meet the other ranks as `torchrun` has them meet: by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Args:
        device: tensors on the CPU travel by gloo, those on CUDA devices by NCCL.
        seconds: how long any rank waits for any other, now and in every collective.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=seconds))


class Mesh:
    """This rank's place in the grid, and the groups it belongs to."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        """Make the grid; every rank does so, in the same order.

        Raises:
            SetupError: another number of ranks has met than the layout wants.
        """
        if dist.get_world_size() != layout.ranks:
            raise SetupError(f"{dist.get_world_size()} ranks have met, but trainer.ranks = {layout.ranks}; start as many")
        self.layout = layout
        self.device = device
        shape = (layout.pipeline, layout.replicas, layout.sequence, layout.tensor)
        grid = init_device_mesh(device.type, shape, mesh_dim_names=(STAGES, REPLICAS, SEQUENCE, TENSOR))
        self.stage: int = grid.get_local_rank(STAGES)
        self.forward_group = grid.get_group(STAGES)
        """The ranks at this place of every stage."""
        self.backward_group, _ = dist.new_subgroups_by_enumeration(grid.mesh.flatten(1).T.tolist())  # type: ignore[no-untyped-call]
        """The same ranks once more, so that what goes to the stage before waits for nothing that goes to the next."""
        self.tensor: DeviceMesh = grid[TENSOR]
        self.blocks: DeviceMesh = grid[REPLICAS, SEQUENCE]._flatten("blocks")  # noqa: SLF001 - as torchtitan does; there is no other way
        """Ranks that share out the weights of a block (of one tensor part)."""
        self.all: DeviceMesh = grid[REPLICAS, SEQUENCE, TENSOR]._flatten("all")  # noqa: SLF001
        """Ranks of this stage, which share out embeddings, last norm and head."""
        self.leads_stage: bool = self.all.get_local_rank() == 0
        """Whether this is its stage's first rank."""
        self.replica: int = grid.get_local_rank(REPLICAS)
        self.across = grid[STAGES, REPLICAS]._flatten("across").get_group()  # noqa: SLF001
        """The ranks at this place of every stage of every replica."""
        self.sequence_group = grid.get_group(SEQUENCE)
        self.sequence_part: int = grid.get_local_rank(SEQUENCE)
        self.parts_group = grid[SEQUENCE, TENSOR]._flatten("parts").get_group()  # noqa: SLF001
        """The ranks of this replica."""
        self.part: int = dist.get_rank(self.parts_group)
