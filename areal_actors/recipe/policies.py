"""The recipe of each policy of `[policies]`: that of the run, with the changes of its table, for a run beside it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.chaos.settings import ChaosSettings
from areal_actors.core.autopilot_settings import AutopilotSettings
from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.config import merge_tables
from areal_actors.core.host_settings import HostsSettings
from areal_actors.core.policy_settings import PolicyRole
from areal_actors.core.task_settings import TaskSettings
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import NOT_ONLINE, ONLINE, SERVING
from areal_actors.recipe.run_settings import TrackSettings

STEPS = 1_000_000
"""Steps of a policy's run, which ends with the run that calls it."""
POLICIES = "policies"
"""Folder, in that of a run, of the runs of its policies."""


def main_folder(folder: Path) -> Path:
    """Returns the folder of the run whose agents call a policy, by that of the policy's run."""
    return folder.parent.parent


def policy_recipe(recipe: Recipe, name: str) -> Recipe:
    """Returns the recipe of a policy with processes, for a run of its own on the bus of the run that calls it.

    Raises:
        ValidationError: `settings` has a setting that a recipe lacks, or another type.
    """
    settings = recipe.policies[name]
    changed = msgspec.convert(merge_tables(msgspec.to_builtins(recipe), settings.settings), Recipe, str_keys=True)
    present = SERVING if settings.kind != "trained" else frozenset(recipe.actors.__struct_fields__) - NOT_ONLINE
    placements = {
        actor: placement if actor in present else msgspec.structs.replace(placement, count=0)
        for actor, placement in msgspec.structs.asdict(changed.actors).items()
    }
    return msgspec.structs.replace(
        changed,
        run=f"{recipe.run}-{name}",
        folder=str(Path(recipe.folder) / recipe.run / POLICIES),
        steps=STEPS,
        model=settings.model or changed.model,
        task=TaskSettings(
            agent=ONLINE,
            timeout_seconds=recipe.task.timeout_seconds,
            reward_timeout_seconds=recipe.task.reward_timeout_seconds,
            retries=recipe.task.retries,
        ),
        evaluation=msgspec.structs.replace(changed.evaluation, tasks=0),
        checkpoint=msgspec.structs.replace(changed.checkpoint, keep_best=""),
        gateway=msgspec.structs.replace(
            changed.gateway, host="127.0.0.1", port=0, certificate="", certificate_key="", advertise="", joined=0
        ),
        actors=msgspec.structs.replace(changed.actors, **placements),
        bus=msgspec.structs.replace(recipe.bus, host="") if recipe.bus.url else BusSettings(sync=recipe.bus.sync),
        chaos=ChaosSettings(),
        hosts=HostsSettings(),
        autoscale=AutoscaleSettings(),
        autopilot=AutopilotSettings(),
        track=TrackSettings(),
        policies={},
        policy=PolicyRole(name=name, run=recipe.run, settings=settings),
    )
