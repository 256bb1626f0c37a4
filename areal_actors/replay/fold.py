"""Replay of one actor that is a fold over events.

From a log alone, what it emits is known to the id, so the log can be compared.
A message's id follows from its sender, the id of the event that it answers, and its number in that handling. So an
event that the replayed actor emits has the same id as the event in the log, wherever in the log it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from areal_actors.core.values import Value
from areal_actors.runtime.actor import Actor
from areal_actors.runtime.log_context import LogContext
from areal_actors.runtime.message_ids import HandlingIds
from areal_bus.base import Envelope
from areal_bus.message import Event, FrozenMeta, Message, Work

NOTHING = "nothing"


class LogDifference(Value):
    """A message that the log has and the replayed actor does not emit, or the other way round, or with other fields."""

    actor: str
    cause: int
    """Sequence of the event whose handling emits the message; 0 if the replayed actor emits it for no event."""
    sequence: int
    """Sequence of the event of the log with the same id, or of the event that shows that there is none."""
    subject: str
    fields: dict[str, tuple[Any, Any]]
    """Recorded and replayed value of each field that differs; empty if only one side has the message."""
    recorded: str
    """The message as the log has it, in JSON, or `nothing`."""
    replayed: str
    """The message as the replayed actor emits it, in JSON, or `nothing`."""
    status: dict[str, float | str]
    """Figures of the replayed actor after the event of `cause`."""


class _Emitted(msgspec.Struct, metaclass=FrozenMeta):
    """An event that the replayed actor emitted, until the log is seen to hold it."""

    message: Event
    cause: int
    status: dict[str, float | str]


class FoldReplay:
    """A new actor that receives the events of a log in order."""

    def __init__(self, actor: Actor, instance: str, seed: int = 0) -> None:
        self.actor, self.instance, self.seed = actor, instance, seed
        self.received = self.equal = self.work = 0
        """Events received; emitted events that the log has with equal fields; emitted work items, which no log
        holds."""
        emitted = {kind for handler in actor.handlers.values() for kind in handler.emits}
        self._kinds = {kind.subject: kind for kind in emitted if issubclass(kind, Event)}
        self._pending: dict[str, _Emitted] = {}
        """Emitted events that the log has not shown yet, by id, in the order of their causes."""

    def handles(self, kind: type[Message]) -> bool:
        """Returns True if the actor receives events of this type."""
        return kind in self.actor.handlers

    async def receive(self, envelope: Envelope, message: Message, readable: Mapping[int, Envelope]) -> None:
        """Let the actor handle an event of the log."""
        self.received += 1
        ids = HandlingIds(self.instance, envelope.id)
        context = LogContext(envelope, readable, instance=self.instance, seed=self.seed)
        handled = [(ids.following(emitted), emitted) async for emitted in self.actor.receive(message, context)]
        self.work += sum(isinstance(emitted, Work) for _, emitted in handled)
        status = self.actor.status() if handled else {}
        for identity, emitted in handled:
            if isinstance(emitted, Event):
                self._pending[identity] = _Emitted(message=emitted, cause=envelope.sequence, status=status)

    def compare(self, envelope: Envelope) -> Iterator[LogDifference]:
        """Yields the differences that an event of the log reveals, if this actor published it.

        Emitted events with an earlier cause must have been in the log before it, since an actor publishes in the order
        of its events.
        """
        kind = self._kinds.get(envelope.subject)
        if envelope.sender != self.instance or kind is None:
            return
        emitted = self._pending.pop(envelope.id, None)
        if emitted is None:
            yield self._difference(envelope.sequence, envelope.open(kind), None)
            return
        for missing in [identity for identity, pending in self._pending.items() if pending.cause < emitted.cause]:
            yield self._difference(envelope.sequence, None, self._pending.pop(missing))
        recorded = envelope.open(kind)
        if recorded == emitted.message:
            self.equal += 1
        else:
            yield self._difference(envelope.sequence, recorded, emitted)

    def continue_with(self, actor: Actor) -> None:
        """Continue with another actor of this kind from the same state, as a run that resumes with other settings."""
        if self.actor.state_type is not None:
            state = msgspec.msgpack.decode(msgspec.msgpack.encode(self.actor.snapshot()), type=self.actor.state_type)
            actor.restore(state)
        self.actor = actor

    def _difference(self, sequence: int, recorded: Event | None, emitted: _Emitted | None) -> LogDifference:
        message = recorded or (emitted.message if emitted else None)
        assert message is not None
        return LogDifference(
            actor=self.instance,
            cause=emitted.cause if emitted else 0,
            sequence=sequence,
            subject=message.subject,
            fields=_different_fields(recorded, emitted.message) if recorded and emitted else {},
            recorded=to_json(recorded) if recorded else NOTHING,
            replayed=to_json(emitted.message) if emitted else NOTHING,
            status=emitted.status if emitted else self.actor.status(),
        )


def to_json(message: Message) -> str:
    """Returns a message as JSON, with bytes in hexadecimal digits."""
    return msgspec.json.encode(message, enc_hook=bytes.hex).decode()


def _different_fields(recorded: Message, replayed: Message) -> dict[str, tuple[Any, Any]]:
    before, now = (msgspec.to_builtins(one, builtin_types=(bytes,)) for one in (recorded, replayed))
    return {name: (before[name], now.get(name)) for name in before if before[name] != now.get(name)}
