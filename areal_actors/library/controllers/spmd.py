"""SPMD loops under torchrun.

Every process runs the same script, rank 0 drives the rollouts, and all ranks train its batches.
Only the batch, a list of references, is broadcast; each rank reads the trajectories from the log itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

import msgspec
import torch.distributed as dist

from areal_actors.core.errors import SetupError
from areal_actors.core.values import Trajectory
from areal_actors.folder.run_folder import RunFolder
from areal_actors.library.controllers.batch import RolloutBatch
from areal_actors.library.controllers.blocking import LoopThread
from areal_actors.messages import TrajectoryExported
from areal_actors.recipe.recipe import Recipe
from areal_actors.training.distributed.sharded import ShardedRanks
from areal_actors.training.ranks import Ranks
from areal_bus.nats import NatsBus

MEET_SECONDS = 600.0


def join_ranks(recipe: Recipe, *, seconds: float = MEET_SECONDS) -> Ranks:
    """Join the processes that `torchrun` has started, in the layout of `trainer.ranks` and the parallelism settings.

    Args:
        recipe: `[trainer]` is used.
        seconds: timeout of all collective operations.

    Raises:
        SetupError: the number of processes differs from `trainer.ranks`, or there are too few devices.
    """
    return ShardedRanks.meet(recipe.trainer, seconds)


def broadcast(batch: RolloutBatch | None) -> RolloutBatch:
    """Broadcast the batch of rank 0 to every rank; the others pass None."""
    encoded = [None if batch is None else msgspec.msgpack.encode(batch)]
    dist.broadcast_object_list(encoded, src=0)
    assert encoded[0] is not None, "rank 0 must pass the batch"
    return msgspec.msgpack.decode(encoded[0], type=RolloutBatch)


class LogReader:
    """Reads trajectories from the log of a run on a NATS server, for a process without rollouts.

    Close it, or use a `with`.
    """

    def __init__(self, url: str, run: str, *, token: str = "", blobs: Path | None = None) -> None:
        """Join the bus; arguments as for `joined`.

        Raises:
            ServerUnavailable: no server answers.
        """
        self._thread = LoopThread()
        try:
            self._bus = self._thread.run(NatsBus.connect(url, run, name="log_reader", token=token, blobs=blobs))
        except BaseException:
            self._thread.close()
            raise

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """Open the log of the loop with this recipe and `processes` backend, by its folder, which must be accessible.

        Raises:
            SetupError: no such loop runs.
        """
        folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
        try:
            server = folder.monitor()
        except OSError as error:
            raise SetupError(
                f"{folder.path} has no monitor.json: start RolloutController(recipe, processes) on rank 0 first"
            ) from error
        return cls(server.url, server.run, token=server.token, blobs=folder.blobs)

    def trajectories(self, batch: RolloutBatch) -> list[Trajectory]:
        """See `Trajectories`."""
        envelopes = self._thread.run(self._bus.read([reference.sequence for reference in batch.references()]))
        return [envelope.open(TrajectoryExported).trajectory for envelope in envelopes]

    def close(self) -> None:
        """Leave the bus."""
        self._thread.run(self._bus.close())
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
