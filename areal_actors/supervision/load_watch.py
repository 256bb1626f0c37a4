"""Measures the load of a live run, and decides on its workers (`[autoscale]`) and limits (`[autopilot]`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from areal_actors.messages import LimitDecided, LoadMeasured, ScaleDecided
from areal_actors.recipe.recipe import Recipe
from areal_actors.scaling.autopilot import Autopilot
from areal_actors.scaling.decisions import Decider
from areal_actors.scaling.load import load_fold
from areal_actors.supervision.machine_meter import MachineMeter
from areal_bus.errors import BusError
from areal_bus.message import Event, Message
from areal_bus.shared_times import seconds_to_next

TICK_SECONDS = 1.0
"""Heartbeats arrive as often."""

logger = structlog.get_logger(__name__)


class LoadWatch:
    """Folds the messages of a run into its load, publishes it once for each window, and what is decided from it."""

    def __init__(self, recipe: Recipe, publish: Callable[[Event], Awaitable[None]]) -> None:
        self.publish = publish
        self.decider = Decider(recipe.autoscale)
        self.autopilot = Autopilot(recipe)
        self.decision: ScaleDecided | LimitDecided | None = None
        """Decision to be published."""
        self.fold = (
            None
            if recipe.is_online() or recipe.learns_from_examples()
            else load_fold(recipe, recipe.autoscale.window_seconds)
        )

    def receive(self, message: Message, sent: float) -> None:
        """Fold a message; `sent` is in seconds since the epoch."""
        if self.fold is not None:
            self.fold.receive(message)
            self.decision = decide(self.autopilot, self.decider, message, sent) or self.decision

    async def watch(self) -> None:
        """Publish until cancelled; a load that the bus does not take is of no use later."""
        meter = MachineMeter()
        while self.fold is not None:
            await asyncio.sleep(seconds_to_next(TICK_SECONDS))
            decision, self.decision = (self.decision, self.fold.tick(time.monotonic(), meter.measure)), None
            for event in decision:
                try:
                    if event is not None:
                        await self.publish(event)
                except BusError as error:
                    logger.warning("the load of a window was not published", error=str(error))


def decide(autopilot: Autopilot, decider: Decider, message: Message, time: float) -> ScaleDecided | LimitDecided | None:
    """Fold a message, sent at `time` in seconds, into both.

    They change one thing at a time, so that its effect can be measured.
    """
    if not isinstance(message, LoadMeasured):
        return autopilot.receive(message) or decider.receive(message, time)
    limit = None if decider.is_trying() else autopilot.receive(message)
    return limit if limit is not None or autopilot.is_trying() else decider.receive(message, time)
