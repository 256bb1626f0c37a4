"""The five kinds of message on the bus, distinguished by type.

An `Event` is named in the past tense; every subscriber receives it, and it is kept in the run's durable log.
A `Work` item is named in the imperative; exactly one worker takes it, and it is redelivered if that worker dies.
A `Request` is answered by a `Reply` (or by several, if the reply is streamed).
`Telemetry` is a noun: progress and heartbeats, which may be lost.

The bus ignores unknown fields on receipt, so that an older monitor reads a newer run.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class FrozenMeta(msgspec.StructMeta):
    """Metaclass that makes every subclass a frozen, keyword-only struct."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        """Create the class; options of the class statement take precedence."""
        return super().__new__(mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, metaclass=FrozenMeta):
    """Base of all messages, addressed by type and not by receiver."""

    subject: ClassVar[str]

    def pack(self) -> Message:
        """Returns the message as it is encoded, if that takes fewer bytes; decoding it gives the message itself."""
        return self

    def is_equivalent(self, other: Message) -> bool:
        """True if a replay that emits the other message in place of this one does the same."""
        return self == other


class Event(Message):
    """A fact, logged and delivered to every subscriber, now or later."""


class MonitorEvent(Event):
    """An event for monitors, which no control state depends on.

    An actor that handles a message again may publish fewer or more of them.
    """


class Work(Message):
    """A task, leased by one worker while it is alive."""


class Telemetry(Message):
    """Progress or state, delivered live and not logged."""


class Reply(Message):
    """The reply to a `Request`, sent to its caller only."""

    def is_last(self) -> bool:
        """Returns False for a part of a streamed reply that is followed by others."""
        return True


R = TypeVar("R", bound=Reply)


class Request(Message, Generic[R]):
    """A request for a reply within a deadline."""

    reply: ClassVar[type[Reply]]
    compressed: ClassVar[bool] = False
    """True if it is compressed where it is long, as work is: sent once an episode or less."""
