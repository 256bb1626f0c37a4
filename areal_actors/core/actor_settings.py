"""The table `[actors]` of a recipe: number and placement of the instances of each actor."""

from __future__ import annotations

from areal_actors.core.config import Config, NonNegativeInt, PositiveInt


class Placement(Config):
    """One line of `[actors]`: number and placement of an actor's instances."""

    count: NonNegativeInt = 1
    """Number of instances. Unstated, inference workers take the CUDA devices that the trainer leaves. Several session
    managers are several gateways, which share the episodes out by their groups. 0 starts none: an online run has no
    rollout workers, a supervised run no gateway, `areal-actors serve` no trainer; with `bus.host` all workers may be
    those of other hosts."""
    concurrency: PositiveInt = 1
    """Maximum number of messages that one instance handles at once. Unset, `staleness_gate.max_concurrent` is divided
    among the rollout workers, and gateway and inference workers accept as many calls; `areal-actors check` prints the
    effective limit."""
    process: str
    """Name of the process; actors with the same name share one. With a count above 1 each instance has its own."""


def processes_of(placement: Placement) -> list[str]:
    """Returns the process names of an actor: none, one, or one for each of a count above 1."""
    if placement.count == 1:
        return [placement.process]
    return [f"{placement.process}-{index}" for index in range(placement.count)]


class ActorsSettings(Config):
    """`[actors]`: every actor of a run, with its default placement."""

    staleness_gate: Placement = Placement(process="control")
    task_source: Placement = Placement(process="control")
    batcher: Placement = Placement(process="control")
    example_source: Placement = Placement(process="control", count=0)
    evaluator: Placement = Placement(process="control")
    checkpointer: Placement = Placement(process="control")
    metrics: Placement = Placement(process="control")
    session_manager: Placement = Placement(process="gateway", concurrency=256)
    rollout_worker: Placement = Placement(process="rollout_worker", concurrency=64)
    reward_worker: Placement = Placement(process="reward_worker", concurrency=8)
    inference_worker: Placement = Placement(process="inference_worker", concurrency=256)
    trainer: Placement = Placement(process="trainer")
