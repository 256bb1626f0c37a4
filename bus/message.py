"""What travels on the bus: five kinds of message, told apart by their type.

An `Event` is named in the past tense; everybody hears it, and it is kept in the run's durable log.
A `Work` item is named in the imperative; exactly one worker takes it, and takes it again elsewhere if that worker dies.
A `Request` is a question, answered by a `Reply` (or by several, when the answer is streamed).
`Telemetry` is a noun: progress and heartbeats, which may be lost.

The bus ignores unknown fields on receipt, so that an older monitor reads a newer run.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform

import msgspec


@dataclass_transform(frozen_default=True, kw_only_default=True)
class FrozenMeta(msgspec.StructMeta):
    """Makes every subclass a frozen, keyword-only struct without repeating it in each class line."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        """Make the class; options that the class line states win."""
        return super().__new__(mcls, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Message(msgspec.Struct, metaclass=FrozenMeta):
    """A fact, a task or a question, addressed by its type and not by its receiver."""

    subject: ClassVar[str]


class Event(Message):
    """Something happened; everybody may hear of it, now or later."""


class Work(Message):
    """Something to do; one worker takes it and keeps it while it is alive."""


class Telemetry(Message):
    """How it goes; worth hearing, not worth keeping."""


class Reply(Message):
    """The answer to a `Request`; it travels back to the asker only."""

    def is_last(self) -> bool:
        """False for a part of a streamed answer that others follow."""
        return True


R = TypeVar("R", bound=Reply)


class Request(Message, Generic[R]):
    """A question, always asked with a deadline."""

    reply: ClassVar[type[Reply]]
