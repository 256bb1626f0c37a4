"""Base class of actors: state, handlers that take one message and yield others, and lifecycle hooks.

A handler never publishes: it yields messages, and the runtime sends them. So a test can pass a message to an actor and
inspect the result, a tape replays exactly, and the flow of messages follows from signatures. Time, randomness and
replies of other actors come from the `Context`, the handling of one message.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, closing
from random import Random
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from areal_bus.base import Envelope, History
from areal_bus.message import FrozenMeta, Message, Reply, Request, Telemetry

R = TypeVar("R", bound=Reply)
H = TypeVar("H", bound=Callable[..., Any])

Emits = AsyncIterator
"""Return type of handlers that await, with the messages that they may emit:
`async def handler(self, event: A) -> Emits[B | C]`.

Handlers that await nothing are plain generators, `def handler(self, event: A) -> Iterator[B | C]`, and may use
`yield from`. A handler that emits nothing returns None in either form. A plain `def` may also return the asynchronous
generator of another object.
"""


class Tick(Telemetry):
    """Timer message to actors with `tick_seconds`; never sent over the bus."""

    subject: ClassVar[str] = "clock.tick"
    paused: float = 0.0
    """Seconds of a pause of this process that has just ended; 0 without one. It is recorded, so that a replay has it,
    too."""


class Context(Protocol):
    """Handling of one message: the context of a handler besides the message and the actor's state."""

    cause: str
    """Id of the message."""
    now: float
    """Time of receipt of the message, or of the last reply to the handler; seconds since the epoch."""
    sent: float
    """Time at which the message was published, by the clock of its sender; seconds since the epoch."""
    sequence: int
    """Position of the message in the run's log; 0 if it is not logged."""
    replayed: bool
    """True if the message was handled before a restart: the handler rebuilds state only, and all that it yields is
    discarded."""

    @property
    def random(self) -> Random:
        """Random generator, seeded by the run, the actor and the message."""
        ...

    async def ask(self, request: Request[R], *, timeout: float, to: str = "", retry_for_seconds: float = 0.0) -> R:
        """Send a request to another actor; while no process serves it, retry for `retry_for_seconds`.

        Raises:
            NoResponder: no process serves it.
            NoReply: `timeout` passed without a reply.
        """
        ...

    def stream(self, request: Request[R], *, timeout: float, to: str = "") -> AsyncGenerator[R, None]:
        """Send a request with a streamed reply; `timeout` bounds the wait for each part."""
        ...

    async def read(self, sequences: Sequence[int]) -> list[Envelope]:
        """Returns the events of the run's log at these positions."""
        ...

    def waiting(self, name: str, seconds: float) -> AbstractContextManager[None]:
        """Name a wait and give it a deadline; heartbeats and stall reports show it."""
        ...


class HandlerSpec(msgspec.Struct, metaclass=FrozenMeta):
    """Handler, as declared by its signature."""

    message_type: type[Message]
    emits: tuple[type[Message], ...]
    function: Callable[..., Any]
    takes_context: bool
    is_async_generator: bool


def on(handler: H) -> H:
    """Decorator: mark a method as the handler of the message type, or union, of its first parameter."""
    handler.is_handler = True  # type: ignore[attr-defined]
    return handler


class Actor:
    """Actor with one mailbox and private state.

    Messages are handled one at a time unless `concurrency` is above 1; even then events are handled one at a time, in
    log order. After a failure the actor is replaced by a new instance.
    """

    handlers: ClassVar[dict[type[Message], HandlerSpec]] = {}
    asks: ClassVar[tuple[type[Request[Any]], ...]] = ()
    """Requests that the actor may send."""
    history: ClassVar[History] = "all"
    """Past events received at start; "all" for state that is a fold over events."""
    state_type: ClassVar[Any] = None
    """Return type of `snapshot`, which msgspec must encode; None for an actor that folds all its events at every
    start."""
    state_version: ClassVar[int] = 1
    """Version of the state's format; increment it when older snapshots can no longer be restored."""
    tick_seconds: ClassVar[float] = 0.0
    """Interval between `Tick` messages, sent at its multiples; 0 sends none."""
    concurrency: int = 1
    """Maximum number of requests, and of work items of each kind, in progress at once."""
    serial: ClassVar[bool] = True
    """With a concurrency of 1: True if at most one message of any kind is handled at a time."""

    def __init_subclass__(cls) -> None:
        marked = [function for function in vars(cls).values() if getattr(function, "is_handler", False)]
        declared = [handler for function in marked for handler in _declare_handlers(function)]
        cls.handlers = {**cls.handlers, **{handler.message_type: handler for handler in declared}}

    @classmethod
    def kind(cls) -> str:
        """Returns the actor's name in recipes, logs and subjects: `staleness_gate` for `StalenessGate`."""
        return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).lstrip("_")

    async def start(self, submit: Submit) -> None:
        """Acquire resources. `submit` puts a request from outside the bus into the actor's own mailbox."""

    async def drain(self) -> None:
        """Accept nothing new from outside the bus, and finish what was accepted, while handlers still run.

        Called before an orderly stop only.
        """

    async def finish(self) -> None:
        """Take on nothing new, and return when what this process alone can finish is done; its time is limited.

        Called before a remote worker leaves in order.
        """

    def reconnected(self) -> None:
        """Note that requests and parts of their replies may have been lost in an outage between host and bus."""

    async def stop(self) -> None:
        """Release resources. Called exactly once, also after a failure."""

    def snapshot(self) -> Any:
        """Returns the fold of the events received so far, without changes made by requests and ticks."""
        return None

    def restore(self, state: Any) -> None:
        """Restore the state of a snapshot; called before `start`, followed by the events after the snapshot only."""

    def next_tick_seconds(self) -> float:
        """Returns the interval up to the next `Tick`: longer than `tick_seconds` while nothing is to be watched."""
        return self.tick_seconds

    def status(self) -> dict[str, float | str]:
        """Returns figures about the actor, included in its heartbeat and in stall reports."""
        return {}

    def receive(self, message: Message, context: Context) -> AsyncGenerator[Message, None]:
        """Run the handler of a message; yields the messages that it emits. Closing the generator ends the handler."""
        handler = self.handlers[type(message)]
        arguments = (self, message, context) if handler.takes_context else (self, message)
        if handler.is_async_generator:
            emitted: AsyncGenerator[Message, None] = handler.function(*arguments)
            return emitted
        return _run(handler.function, arguments)


async def _run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> AsyncGenerator[Message, None]:
    """Run a handler that is a plain generator, a plain function or a coroutine function."""
    emitted = function(*arguments)
    if inspect.iscoroutine(emitted):
        await emitted
    elif emitted is not None:
        with closing(emitted):
            for message in emitted:
                yield message


class Submit(Protocol):
    """Puts a request into an actor's own mailbox and yields the parts of the reply."""

    def __call__(self, request: Request[R]) -> AsyncGenerator[R, None]:
        """Submit a request; closing the iterator before the last part cancels it."""
        ...


def _declare_handlers(function: Callable[..., Any]) -> list[HandlerSpec]:
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters)[1:]
    returns = typing.get_args(hints.get("return"))
    emits = tuple(kind for entry in returns for kind in typing.get_args(entry) or (entry,))
    received = hints[parameters[0]]
    is_iterator = typing.get_origin(hints.get("return")) is AsyncIterator
    is_async_generator = is_iterator and not inspect.iscoroutinefunction(function)
    return [
        HandlerSpec(
            message_type=kind,
            emits=emits,
            function=function,
            takes_context=len(parameters) > 1,
            is_async_generator=is_async_generator,
        )
        for kind in typing.get_args(received) or (received,)
    ]
