"""States of the actors of a recorded run after the beginning that a fork shares, folded under the run's settings.

A fork with other settings of capacity, batches or tasks continues from these states: its own actors would decide
otherwise on the events of the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping

from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import Snapshot
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.fold_actors import FOLDS
from areal_actors.replay.control import ControlReplay
from areal_bus.base import Bus


async def fold_beginning(bus: Bus, run: RunFolder, positions: Mapping[str, int]) -> list[Snapshot]:
    """Returns a snapshot of each actor that is a fold over the log alone, at its position.

    Raises:
        SetupError: an actor cannot be built here.
        RecipeError: the recorded recipe is invalid.
        BusError: the log cannot be read.
    """
    wanted = {
        actor: position for actor, position in positions.items() if actor.rpartition("-")[0] in FOLDS and position
    }
    last = max(wanted.values(), default=0)
    if not last:
        return []
    control, snapshots = ControlReplay(run), list[Snapshot]()
    async for envelope in bus.log():
        await control.receive(envelope)
        for actor, replayed in control.actors.items():
            if wanted.get(actor) == envelope.sequence:
                snapshots.append(Snapshot.of(actor, replayed.actor, envelope.sequence, envelope.id))
        if envelope.sequence >= last:
            break
    if control.left_out:
        reasons = "; ".join(f"{actor}: {reason}" for actor, reason in control.left_out.items())
        raise SetupError(f"the state of the run at the checkpoint cannot be restored here: {reasons}")
    return snapshots
