"""Sleep of generation engines.

Before an optimizer step they release their memory to the trainer on the same devices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from areal_actors.core.errors import EngineError
from areal_actors.messages import EngineSlept, ReleaseMemory
from areal_actors.runtime.actor import Context
from areal_bus.errors import NoReply, NoResponder

logger = structlog.get_logger(__name__)


class EngineSleep:
    """Asks inference workers for their memory. In synchronous training they have nothing to sample during a step."""

    def __init__(self, workers: Sequence[str], seconds: float, clock: Callable[[], float]) -> None:
        """Each of `workers` has `seconds` to answer."""
        self.workers = workers
        self.seconds = seconds
        self._clock = clock

    async def before_step(self, step: int, context: Context) -> AsyncIterator[EngineSlept]:
        """Wait until no worker holds its memory; one whose process is gone holds none.

        Raises:
            EngineError: a worker did not answer in time, or could not release its memory.
        """
        for worker in self.workers:
            began = self._clock()
            try:
                answer = await context.ask(ReleaseMemory(weight_version=step), timeout=self.seconds, to=worker)
            except NoResponder:
                logger.info("no process serves this inference worker, so it holds no memory", worker=worker, step=step)
                continue
            except NoReply as error:
                late = (
                    f"{worker} has not released its memory for step {step} within watchdog.load_seconds ="
                    f" {self.seconds:g}"
                )
                raise EngineError(f'{late}; raise it, or write generation.sleep = "off"') from error
            if answer.error:
                raise EngineError(f"{worker} holds its memory during step {step}: {answer.error}")
            yield EngineSlept(
                worker=worker, step=step, released_bytes=answer.released_bytes, seconds=self._clock() - began
            )
