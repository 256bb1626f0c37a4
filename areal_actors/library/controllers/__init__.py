"""Library API: the parts of a run for a hand-written training loop. See docs/library.md."""

from areal_actors.library.controllers.backends import in_process, joined, joined_folder, processes
from areal_actors.library.controllers.batch import RolloutBatch, Trajectories, batch_sequences
from areal_actors.library.controllers.blocking import RolloutController
from areal_actors.library.controllers.evaluation import Evaluation
from areal_actors.library.controllers.recipes import recipe
from areal_actors.library.controllers.rollout import AsyncRolloutController
from areal_actors.library.controllers.spmd import LogReader, broadcast, join_ranks
from areal_actors.library.controllers.train import TrainController

__all__ = [
    "AsyncRolloutController",
    "Evaluation",
    "LogReader",
    "RolloutBatch",
    "RolloutController",
    "TrainController",
    "Trajectories",
    "batch_sequences",
    "broadcast",
    "in_process",
    "join_ranks",
    "joined",
    "joined_folder",
    "processes",
    "recipe",
]
