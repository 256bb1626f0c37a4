"""Bus permissions of a run: one user per process, with the permissions that its actors declare."""

from __future__ import annotations

from typing import Any

from areal_actors.batching.batcher import Batcher
from areal_actors.core.errors import SetupError
from areal_actors.core.settings import ActorsSettings
from areal_actors.evaluation.evaluator import Evaluator
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.messages import ActorStarted, ActorStopped, Heartbeat, SnapshotRefused, SnapshotStored
from areal_actors.metrics.episode_log import EpisodeLog
from areal_actors.metrics.metrics_file import Metrics
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.supervision import processes_of
from areal_actors.rewards.reward_worker import RewardWorker
from areal_actors.rollout.rollout_worker import RolloutWorker
from areal_actors.run.process import placed
from areal_actors.runtime.actor import Actor, Tick
from areal_actors.staleness.staleness_gate import StalenessGate
from areal_actors.supervised.example_source import ExampleSource
from areal_actors.tasks.task_source import TaskSource
from areal_actors.training.checkpointer import Checkpointer
from areal_actors.training.trainer import Trainer
from bus.message import Message
from bus.permissions import Listener, permissions_of
from bus.users import BusUsers

ACTORS: dict[str, type[Actor]] = {
    actor.kind(): actor
    for actor in (
        *(StalenessGate, TaskSource, Batcher, ExampleSource, Evaluator, Checkpointer, Metrics, EpisodeLog),
        *(SessionManager, RolloutWorker, RewardWorker, InferenceWorker, Trainer),
    )
}
"""Actor class of every kind that a recipe can place."""
LIFECYCLE: tuple[type[Message], ...] = (ActorStarted, ActorStopped, Heartbeat, SnapshotRefused, SnapshotStored)
"""Messages that the runtime publishes for every actor."""


def users_of(recipe: Recipe) -> BusUsers:
    """Creates the users for a run of this recipe.

    Raises:
        SetupError: a process name is not a valid user name.
    """
    actors: dict[str, Any] = {name: getattr(recipe.actors, name) for name in ActorsSettings.__struct_fields__}
    names = dict.fromkeys(process for placement in actors.values() for process in processes_of(placement))
    processes = {name: [listener(instance, ACTORS[kind]) for instance, kind in placed(recipe, name).items()] for name in names}
    try:
        return BusUsers.make(recipe.run, permissions_of(recipe.run, processes))
    except ValueError as error:
        raise SetupError(f"actors: each process name is also its bus user name: {error}") from error


def listener(instance: str, actor: type[Actor]) -> Listener:
    """An actor's declarations: the first parameters of its handlers, the message types that they yield, and its `asks`."""
    sends = {kind for handler in actor.handlers.values() for kind in handler.emits}
    receives = tuple(kind for kind in actor.handlers if kind is not Tick)
    return Listener(instance=instance, receives=receives, sends=(*sends, *LIFECYCLE), asks=actor.asks)
