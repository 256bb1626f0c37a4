"""The place of an inference worker's engine, from the recipe of its run."""

from __future__ import annotations

from pathlib import Path

from areal_actors.core.devices import memory_fraction
from areal_actors.folder.run_folder import RunFolder
from areal_actors.generation.engine import AdapterRoom, EnginePlace, SharedServer
from areal_actors.recipe.policies import main_folder, policy_recipe
from areal_actors.recipe.recipe import Recipe

SERVERS = "servers"
"""Folder, in that of a run, with the address of the server of each inference worker that policies share."""


def engine_place(recipe: Recipe, folder: RunFolder, worker: str) -> EnginePlace:
    """Returns the place of the engine of an inference worker, such as `inference_worker-0`."""
    temperature = None if recipe.gateway.temperature_policy == "as_asked" else recipe.sampling.temperature
    place = EnginePlace(worker=worker, logs=folder.path / "logs", temperature=temperature)
    adapted = recipe.staleness_gate.max_concurrent == "auto"
    place = place._replace(seed=recipe.seed + place.number, memory_fraction=memory_fraction(), watches_usage=adapted)
    place = place._replace(routes="off" if recipe.is_served() else recipe.trainer.routing_replay)
    if (lora := recipe.trainer.lora) is not None and lora.published == "adapter":
        place = place._replace(adapter_rank=lora.rank, adapter_targets=lora.targets)
    if (shared := _shared_server(recipe, folder.path, worker)) is not None:
        place = place._replace(shared=shared, temperature=None)  # each policy may have another
    return place


def _shared_server(recipe: Recipe, folder: Path, worker: str) -> SharedServer | None:
    """Returns the server that several policies use; None if the worker has one for itself."""
    if recipe.shares_engine() and recipe.policy is not None:
        address = main_folder(folder) / SERVERS / f"{worker}.json"
        return SharedServer(address, AdapterRoom(), recipe.policy.name)
    if not recipe.has_shared_engine():
        return None
    names = [name for name, policy in recipe.policies.items() if policy.shares_engine()]
    adapters = [each.trainer.lora for each in (recipe, *(policy_recipe(recipe, name) for name in names))]
    named = [lora.targets for lora in adapters if lora is not None]
    room = AdapterRoom(
        rank=max((lora.rank for lora in adapters if lora is not None), default=0),
        targets=tuple(sorted({target for targets in named for target in targets})) if all(named) else (),
        policies=len(adapters),
    )
    return SharedServer(folder / SERVERS / f"{worker}.json", room)
