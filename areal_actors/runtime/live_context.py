"""Handling of one message on a real bus: the context that a runtime gives its actor's handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cached_property
from random import Random
from typing import Literal, Protocol, TypeVar

from areal_actors.messages import Wait
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.message_ids import HandlingIds, message_id
from areal_actors.runtime.named_wait import NamedWait, wait_name
from areal_actors.runtime.tape_recorder import TapeRecorder
from areal_bus.base import Bus, Envelope, Stamp
from areal_bus.errors import BusError, NoResponder
from areal_bus.message import Message, Reply, Request

R = TypeVar("R", bound=Reply)

RETRY_SECONDS = 0.1


class Surroundings(Protocol):
    """The runtime around a handler."""

    actor: Actor
    bus: Bus
    recorder: TapeRecorder
    waits: dict[object, Wait]
    now: Callable[[], float]
    instance: str
    seed: int


class LiveContext:
    """Handling of one message, on a real bus."""

    def __init__(self, runtime: Surroundings, envelope: Envelope, *, replayed: bool) -> None:
        self.runtime = runtime
        self.cause = envelope.id
        self.sequence, self.sent = envelope.sequence, envelope.time
        self.replayed = replayed
        self.now = envelope.time if replayed else runtime.now()
        self._ids = HandlingIds(runtime.instance, envelope.id)

    @cached_property
    def random(self) -> Random:
        """Random generator, created on first use, since most handlers need none."""
        return Random(message_id(self.runtime.seed, self.runtime.instance, self.cause))

    def stamp(self, message: Message) -> Stamp:
        """Returns the stamp of the next message that the handler emits."""
        return Stamp(
            id=self._ids.following(message),
            sender=self.runtime.instance,
            time=self.runtime.now(),
            cause=self.cause,
        )

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Send a request to another actor; while no process serves it, retry for `retry_for_seconds`."""
        stamp = self._begin_request(request)
        try:
            with self.waiting(wait_name(request, to), timeout + retry_for_seconds):
                reply = await self._request_with_retries(
                    request, stamp, timeout, to, self.runtime.now() + retry_for_seconds
                )
        except BusError as error:
            self._note_failure(error)
            raise
        self._note("answered", reply, stamp)
        return reply

    async def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Send a request with a streamed reply."""
        stamp = self._begin_request(request)
        try:
            with self.waiting(wait_name(request, to), timeout):
                parts = self.runtime.bus.request_stream(request, stamp, timeout=timeout, to=to)
                try:
                    async for part in parts:
                        self._note("answered", part, stamp)
                        yield part
                finally:
                    await parts.aclose()
        except BusError as error:
            self._note_failure(error)
            raise

    def _begin_request(self, request: Message) -> Stamp:
        if type(request) not in self.runtime.actor.asks:
            raise TypeError(
                f"{self.runtime.actor.kind()} sends {type(request).__name__} without declaring it in `asks`"
            )
        stamp = self.stamp(request)
        self._note("asked", request, stamp)
        return stamp

    def _note_failure(self, error: BusError) -> None:
        self.runtime.recorder.note("failed", self.cause, self.runtime.now(), error=error)

    def _note(self, kind: Literal["asked", "answered"], message: Message, stamp: Stamp) -> None:
        self.now = self.runtime.now()
        self.runtime.recorder.note_message(kind, self.cause, self.now, message, stamp)

    async def _request_with_retries(
        self, request: Request[R], stamp: Stamp, timeout: float, to: str, until: float
    ) -> R:
        while True:
            try:
                return await self.runtime.bus.request(request, stamp, timeout=timeout, to=to)
            except NoResponder:
                if self.runtime.now() >= until:
                    raise
                await asyncio.sleep(RETRY_SECONDS)

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the events of the run's log at these positions."""
        envelopes = await self.runtime.bus.read(sequences)
        for envelope in envelopes:
            self.runtime.recorder.note("answered", self.cause, self.runtime.now(), envelope)
        return envelopes

    def waiting(self, name: str, seconds: float) -> NamedWait:
        """Show this wait in heartbeats while the context lasts."""
        return NamedWait(self.runtime.waits, self.runtime.now, name, seconds)
