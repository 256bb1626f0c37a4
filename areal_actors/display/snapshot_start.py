"""Start of a reader of a run's log: the first event, or a snapshot of its state if the first events were trimmed."""

from __future__ import annotations

import structlog

from areal_actors.core.snapshots import Fold, SnapshotStore, restore
from areal_actors.display.run_state import RunState
from areal_bus.base import Bus
from areal_bus.errors import EventsTrimmed

RUN_STATE = "run_state"
AUDIT = "audit"
"""Names of the folds whose snapshots a run stores for its displays."""

logger = structlog.get_logger(__name__)


async def restore_fold(bus: Bus, store: SnapshotStore | None, fold: Fold, name: str = RUN_STATE) -> int:
    """Prepare a fold for reading the log; returns the sequence after which to read.

    A whole log is read from its first event. If its beginning was trimmed, the fold is restored from the run's newest
    snapshot, or, without one, starts at the first remaining event: `trimmed_notice` reports that.
    """
    if (await bus.span()).first == 1:
        return 0
    if store is not None:
        try:
            return (await restore(bus, store, name, fold)).after
        except EventsTrimmed as error:
            logger.warning("totals count only what is in the log", reason=str(error))
    return 0


async def trimmed_notice(bus: Bus, state: RunState) -> str:
    """Returns a notice about a trimmed log; empty for a whole one."""
    first = (await bus.span()).first
    if first == 1:
        return ""
    when = state.trimmed.occasion() if state.trimmed is not None else ""
    missing = (
        "" if state.started is not None else ", and no snapshot of the run was found: totals count only what came after"
    )
    return f"the log begins at event {first:,}; earlier events were trimmed{when}{missing}"
