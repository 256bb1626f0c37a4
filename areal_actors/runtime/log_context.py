"""Handling of an event that is read from a log again: no bus, no waits, and reads are answered from the log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from random import Random
from typing import Any

from areal_actors.runtime.message_ids import message_id
from areal_bus.base import Envelope
from areal_bus.errors import LogUnavailable
from areal_bus.message import Request


class LogContext:
    """Context for one event of the log, for an actor of this name and seed."""

    def __init__(
        self,
        envelope: Envelope,
        readable: Mapping[int, Envelope],
        *,
        instance: str = "",
        seed: int = 0,
        replayed: bool = False,
    ) -> None:
        """`readable` holds the events that the actor may read, by sequence."""
        self.cause, self.sequence, self.replayed = envelope.id, envelope.sequence, replayed
        self.now = self.sent = envelope.time
        self._readable, self._instance, self._seed = readable, instance, seed

    @cached_property
    def random(self) -> Random:
        """Random generator, seeded as in the run."""
        return Random(message_id(self._seed, self._instance, self.cause))

    async def ask(self, request: Request[Any], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> Any:  # noqa: ARG002
        """Refuse the request.

        Raises:
            LogUnavailable: always; a log holds no requests and replies.
        """
        raise LogUnavailable(
            f"{self._instance or 'the actor'} sent a {request.subject} request, which a log cannot answer"
        )

    async def stream(self, request: Request[Any], *, timeout: float, to: str = "") -> AsyncGenerator[Any, None]:
        """Refuse the request, as `ask`."""
        yield await self.ask(request, timeout=timeout, to=to)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the events with these sequences."""
        if missing := [sequence for sequence in sequences if sequence not in self._readable]:
            raise LogUnavailable(f"event {missing[0]} of the log is no trajectory or batch, or was already trained")
        return [self._readable[sequence] for sequence in sequences]

    @contextmanager
    def waiting(self, name: str, seconds: float) -> Iterator[None]:  # noqa: ARG002
        """Does nothing: there is no watchdog here."""
        yield
