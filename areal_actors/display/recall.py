"""Where a reader of a run begins: with the first event, or with a snapshot of its state where the first events were trimmed."""

from __future__ import annotations

import structlog

from areal_actors.display.run_state import RunState
from areal_actors.snapshots import Fold, SnapshotStore, restore
from bus.base import Bus
from bus.errors import EventsTrimmed

RUN_STATE = "run_state"
AUDIT = "audit"
"""Names of the folds whose snapshots the run keeps for those who show it."""

logger = structlog.get_logger(__name__)


async def recalled(bus: Bus, store: SnapshotStore | None, fold: Fold, name: str = RUN_STATE) -> int:
    """Let a fold begin where the log does; returns the sequence after which the log is to be read.

    A log that is whole is read from its first event. Where its beginning was trimmed, the fold begins with the run's newest
    snapshot of it, or, if there is none to be had, with the first event that there is: `beginning` says so then.
    """
    if (await bus.span()).first == 1:
        return 0
    if store is not None:
        try:
            return (await restore(bus, store, name, fold)).after
        except EventsTrimmed as error:
            logger.warning("totals count only what is in the log", reason=str(error))
    return 0


async def beginning(bus: Bus, state: RunState) -> str:
    """What is to be said of a log that is not whole; empty for one that is."""
    first = (await bus.span()).first
    if first == 1:
        return ""
    when = f" at step {state.trimmed.step}" if state.trimmed is not None else ""
    missing = "" if state.started is not None else ", and no snapshot of the run was found: totals count only what came after"
    return f"the log begins at event {first:,}; earlier events were trimmed{when}{missing}"
