"""Inference workers by the version of their weights: a session's calls go only to those that have its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from areal_actors.core.errors import EngineError
from areal_actors.gateway.worker_pool import MARGIN_CALLS, MARGIN_SHARE, WorkerPool

SHADOW = "shadow of "
"""Before the name of a session, in the name under which the candidate answers beside."""


class VersionedWorkerPool(WorkerPool):
    """A pool in which a session has the weights of its start, also when workers are lost and come back."""

    def __init__(self, version_of: Callable[[str], int]) -> None:
        """`version_of` returns the version of a session; -1 for one that any worker may answer."""
        super().__init__()
        self.version_of = version_of

    async def choose(self, seconds: float, session: str = "") -> str:
        """The session's last worker, or the least busy one, of those with its version; waits until there is one.

        Raises:
            EngineError: no such worker came up within `seconds`.
        """
        version = self.version_of(session)
        if version < 0:
            return await super().choose(seconds, session)
        try:
            async with asyncio.timeout(seconds):
                while (worker := self.find_free(session)) is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            reason = f"no inference worker has version {version}, that of session {session}, within {seconds:g} s"
            raise EngineError(f"{reason}; end the session, and start another") from None
        return worker

    def find_free(self, session: str) -> str | None:
        """The session's last worker, or the least busy one, of those with its version; None if there is none."""
        version = self.version_of(session)
        if version < 0:
            return super().find_free(session)
        if not (workers := self.workers_with(version)):
            return None
        idle = min(workers, key=lambda worker: (self.in_flight[worker], worker))
        last, loads = self._last_worker.get(session, (idle, self._loads[idle]))
        if last not in workers or loads != self._loads[last]:
            return idle
        fewest = self.in_flight[idle]
        return last if self.in_flight[last] <= fewest + MARGIN_CALLS + fewest * MARGIN_SHARE else idle

    def workers_with(self, version: int) -> list[str]:
        """Returns the workers that generate with a version."""
        return [worker for worker, loaded in self.versions.items() if loaded == version]
