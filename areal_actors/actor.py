"""What every actor is: state, handlers that take one message and yield others, and the hooks of its life.

A handler never publishes: it yields what it wants to say, and whoever runs the actor sends it. So a test can hand an
actor a message and look at the answer, a tape replays exactly, and who says what to whom is read from signatures.
Time, randomness and answers from elsewhere come in through the `Turn`, the handling of one message.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from random import Random
from types import AsyncGeneratorType
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from bus.base import Envelope, History
from bus.message import FrozenMeta, Message, Reply, Request, Telemetry

R = TypeVar("R", bound=Reply)
H = TypeVar("H", bound=Callable[..., Any])

Emits = AsyncIterator
"""`async def handler(self, event: Heard) -> Emits[Said | OtherSaid]`: what a handler may say."""


class Tick(Telemetry):
    """Time has passed; heard by actors with `tick_seconds`, never sent."""

    subject: ClassVar[str] = "clock.tick"


class Turn(Protocol):
    """The handling of one message: everything a handler may use besides the message and the actor's own state."""

    cause: str
    """Id of the message."""
    now: float
    """When the message, or the last answer to what its handler asked, was heard; seconds since the epoch."""
    sequence: int
    """Position of the message in the run's log; 0 for what is not logged."""
    replayed: bool
    """The message was already answered in an earlier life: rebuild state only, whatever is yielded is discarded."""

    @property
    def random(self) -> Random:
        """Seeded by the run, the actor and the message."""
        ...

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Ask another actor; while nobody serves the question, ask again for `retry_for_seconds` seconds.

        Raises:
            NoResponder: nobody serves it.
            NoReply: `timeout` passed without an answer.
        """
        ...

    def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Ask for an answer in parts; `timeout` bounds the wait for each part."""
        ...

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Events of the run's log at these positions."""
        ...

    def waiting(self, name: str, seconds: float) -> AbstractContextManager[None]:
        """Give a wait a name and a deadline, so that a stall is reported by it."""
        ...


class HandlerOf(msgspec.Struct, metaclass=FrozenMeta):
    """One handler, as its signature declares it."""

    heard: type[Message]
    says: tuple[type[Message], ...]
    function: Callable[..., Any]
    takes_turn: bool


def on(handler: H) -> H:
    """Mark a method as the handler of the message type that its first parameter is annotated with."""
    handler.is_handler = True  # type: ignore[attr-defined]
    return handler


class Actor:
    """One mailbox; nothing outside touches its state.

    Messages are handled one at a time unless `concurrency` says otherwise; even then events are handled one at a
    time, in log order. After a failure a fresh instance takes over; nothing is mended.
    """

    handlers: ClassVar[dict[type[Message], HandlerOf]] = {}
    asks: ClassVar[tuple[type[Request[Any]], ...]] = ()
    """Every question the actor may ask."""
    history: ClassVar[History] = "all"
    """What it hears of the past when it starts: "all" for state that is a fold over events."""
    state_type: ClassVar[Any] = None
    """What `snapshot` returns, a type that msgspec encodes; None for an actor that folds all its events at every start."""
    state_version: ClassVar[int] = 1
    """To be counted up when the state's format changes so that an older snapshot would be restored wrongly."""
    tick_seconds: ClassVar[float] = 0.0
    """How often it hears a `Tick`; 0 for never."""
    concurrency: int = 1
    """Work items in hand at once of each kind, and questions."""
    serial: ClassVar[bool] = True
    """With a concurrency of 1: whether one kind of work waits for the other, and events for both."""

    def __init_subclass__(cls) -> None:
        marked = [function for function in vars(cls).values() if getattr(function, "is_handler", False)]
        declared = [_declared(function) for function in marked]
        cls.handlers = {**cls.handlers, **{handler.heard: handler for handler in declared}}

    @classmethod
    def kind(cls) -> str:
        """The actor's name in recipes, logs and subjects: `StalenessGate` is `staleness_gate`."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).lstrip("_")

    async def start(self, submit: Submit) -> None:
        """Acquire what the actor owns. `submit` hands a question from outside the bus to the actor's own mailbox."""

    async def drain(self) -> None:
        """Take nothing new from outside the bus, and let what was taken end while the handlers still run.

        Comes before an orderly stop only.
        """

    async def stop(self) -> None:
        """Release it. Runs exactly once, also after a failure."""

    def snapshot(self) -> Any:
        """The state that follows from the events heard so far, and nothing else: what questions and ticks changed does not count."""
        return None

    def restore(self, state: Any) -> None:
        """Begin with the state of a snapshot; called before `start`, and only the events after the snapshot are heard then."""

    def status(self) -> dict[str, float | str]:
        """What the actor would say of itself now; part of its heartbeat and of the watchdog's sentence."""
        return {}

    def receive(self, message: Message, turn: Turn) -> AsyncGenerator[Message, None]:
        """Hand one message to its handler; yields what the handler says, and closing ends the handler."""
        handler = self.handlers[type(message)]
        answer = handler.function(self, message, turn) if handler.takes_turn else handler.function(self, message)
        return answer if isinstance(answer, AsyncGeneratorType) else _saying_nothing(answer)


async def _saying_nothing(handling: Awaitable[None]) -> AsyncGenerator[Message, None]:
    await handling
    for nothing in tuple[Message, ...]():
        yield nothing


class Submit(Protocol):
    """Puts a question into an actor's own mailbox and yields the parts of the answer."""

    def __call__(self, request: Request[R]) -> AsyncGenerator[R, None]:
        """Closing the iterator before the last part abandons the question."""
        ...


def _declared(function: Callable[..., Any]) -> HandlerOf:
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)[1:]
    returns = typing.get_args(hints.get("return"))
    says = tuple(kind for entry in returns for kind in (typing.get_args(entry) or (entry,)))
    return HandlerOf(heard=hints[parameters[0]], says=says, function=function, takes_turn=len(parameters) > 1)
