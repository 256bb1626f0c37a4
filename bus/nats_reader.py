"""Reading the log in order, over lost connections and server restarts.

A reader asks the server for a consumer of its own, which the server forgets when the reader is gone, and draws from
it by bounded requests. Whatever disturbs the reading (a gap, silence, a new connection, a consumer that the server has
forgotten) has one remedy: a new consumer that starts after the last event received.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Final

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from bus.base import Envelope, History
from bus.claims import check_out
from bus.errors import BusError, CorruptMessage, LogDamaged, LogUnavailable, ServerUnavailable
from bus.nats_journal import STREAM_NOT_FOUND, ApiError, Journal, Json
from bus.nats_link import status

_BATCH: Final = 64
"""Events drawn by one request."""
_BATCH_BYTES: Final = 4 << 20
"""And bytes: the server drops a connection that has 64 MB waiting, and a process may have many readers on one."""
_DRAW_SECONDS: Final = 10.0
"""How long one request waits for events at the server."""
_GRACE_SECONDS: Final = 2.0
_MISSING_SECONDS: Final = 1.0
"""After so long without an event that should be there, the server is asked whether it has it."""
_FORGET_SECONDS: Final = 30
"""A consumer that nobody draws from for this long is removed by the server, so that those of killed processes do not stay. A reader
that was only slow or paused finds its consumer gone, and makes another that goes on after the last event received."""

_logger = structlog.get_logger(__name__)
_envelopes = msgspec.msgpack.Decoder(Envelope)


def unpack(payload: bytes, *, where: str, sequence: int = 0) -> Envelope:
    """The envelope that the wire brought.

    Raises:
        CorruptMessage: it is none.
    """
    try:
        envelope = _envelopes.decode(payload)
    except msgspec.MsgspecError as error:
        raise CorruptMessage(f"{where}: not an envelope: {error}") from error
    if sequence:
        msgspec.structs.force_setattr(envelope, "sequence", sequence)
    return envelope


class Place:
    """What the server says of a delivered message in its reply subject."""

    __slots__ = ("consumer", "consumer_sequence", "deliveries", "pending", "sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        self.consumer = tokens[first - 1]
        self.deliveries = int(tokens[first])
        self.sequence = int(tokens[first + 1])
        self.consumer_sequence = int(tokens[first + 2])
        self.pending = int(tokens[first + 4])


def _opened(journal: Journal, message: Msg) -> Envelope:
    sequence = Place(message.reply).sequence
    return check_out(unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence), journal.blobs)


def _missing(journal: Journal, sequence: int) -> LogDamaged:
    return LogDamaged(
        f"event {sequence} is missing in the log of run {journal.run}: the server's store is damaged; what comes before is whole: "
        "resume the run to go on from there, or export it"
    )


class LogShortened(LogUnavailable):
    """Raised when the log ends before what was already read from it."""


class LogReader:
    """The log's events of some subjects, in order, each once."""

    def __init__(self, journal: Journal, subjects: list[str], name: str) -> None:
        self._journal = journal
        self._link = journal.link
        self._subjects = subjects
        self._name = name
        self.earlier = 0
        """Events that it had before it when the reading began."""
        self._last_only = False
        self._through = 0
        """The log's end when the reading began."""
        self._after = 0
        self._expected = 1
        """Consumer sequence of the next message; anything else is a gap."""
        self._awaited = 0
        """What the open request may still bring."""
        self._waiting: asyncio.Queue[Msg | BusError] = asyncio.Queue()
        self._consumer = ""
        self._address = ""
        self._generation = 0
        self._subscription: Subscription | None = None
        self._disturbed = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._hook = ExitStack()

    async def open(self, history: History = "all", after: int = 0) -> int:
        """Begin; returns the log's last sequence. From then on nothing is missed.

        Raises:
            LogUnavailable: the run has no log.
        """
        self._through = await self._journal.last_sequence()
        self._last_only = history == "last"
        self._after = self._through if history == "new" else after
        self._address = self._link.new_address()
        self._subscription = await self._link.subscribe(self._address + ".*", self._arrive)
        self._hook.enter_context(self._link.on_return(self._disturbed.set))
        await self._begin()
        self._keeper = asyncio.create_task(self._keep_reading())
        return self._through

    async def next(self) -> Envelope:
        """The next event, body in place.

        Raises:
            CorruptMessage: the event is damaged.
            LogUnavailable: the log is gone.
            ServerUnavailable: the connection is lost for good.
        """
        return _opened(self._journal, await self._take())

    async def next_raw(self, wanted: int) -> tuple[int, bytes]:
        """The sequence and the payload of the next event, which should be `wanted`.

        Raises:
            As `next`, but for damage; `LogDamaged` when the server cannot read the wanted event and brings no later one.
        """
        item = await self._take_wanted(wanted)
        return Place(item.reply).sequence, bytes(item.data)

    async def next_wanted(self, wanted: int) -> Envelope:
        """The next event, which is `wanted`, and is known to have been in the log.

        Raises:
            As `next`; `LogDamaged` when the server has it no more.
        """
        envelope = _opened(self._journal, await self._take_wanted(wanted))
        if envelope.sequence != wanted:
            raise _missing(self._journal, wanted)
        return envelope

    async def next_following(self, wanted: int) -> Envelope:
        """The event `wanted`, whenever it comes.

        Raises:
            As `next`; `LogDamaged` when a later one comes.
        """
        envelope = _opened(self._journal, await self._take())
        if envelope.sequence != wanted:
            raise _missing(self._journal, wanted)
        return envelope

    async def _take_wanted(self, wanted: int) -> Msg:
        """The next message; the server does not report an event that it cannot read, it brings nothing."""
        while True:
            if not self._waiting.empty():
                return await self._take()
            try:
                async with asyncio.timeout(_MISSING_SECONDS):
                    return await self._take()
            except TimeoutError:
                if self._waiting.empty() and not await self._journal.has(wanted):
                    raise _missing(self._journal, wanted) from None

    async def _take(self) -> Msg:
        if self._awaited <= 0:
            await self._draw_if_room()
        item = await self._waiting.get()
        if isinstance(item, BusError):
            self._waiting.put_nowait(item)
            raise item
        return item

    async def close(self) -> None:
        """Stop reading."""
        self._hook.close()
        if self._silence is not None:
            self._silence.cancel()
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        if self._subscription is not None:
            await self._link.unsubscribe(self._subscription)
        with suppress(BusError):
            await self._forget_consumer()

    # ------------------------------------------------------------ one consumer after the other

    async def _keep_reading(self) -> None:
        """Begin again after every disturbance, for as long as there is hope."""
        while True:
            await self._disturbed.wait()
            self._disturbed.clear()
            try:
                await self._begin_again()
            except BusError as error:
                self._waiting.put_nowait(error)
                return

    async def _begin_again(self) -> None:
        pause = 0.05
        while not self._link.lost:
            try:
                return await self._begin()
            except LogUnavailable as error:
                if isinstance(error, LogShortened) or (isinstance(error, ApiError) and error.code == STREAM_NOT_FOUND):
                    raise
                _logger.info("cannot go on reading the log yet", consumer=self._name, error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
        raise ServerUnavailable(self._link.lost)

    async def _begin(self) -> None:
        """Let the server make a consumer that starts after the last event received, and draw from it."""
        if self._generation:
            await self._check_log_is_whole()
            await self._forget_consumer()
        # From here on what the server still says of an earlier consumer, such as its end, is nobody's.
        self._generation += 1
        self._expected = 1
        created = await self._journal.api(
            f"CONSUMER.CREATE.{self._journal.log}", {"stream_name": self._journal.log, "config": self._config()}
        )
        if self._generation == 1:
            self.earlier = created["num_pending"]
        self._consumer = created["name"]
        await self._draw()

    def _config(self) -> Json:
        if self._last_only and self._after < self._through:
            start: Json = {"deliver_policy": "last_per_subject"}
        else:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": self._after + 1}
        return {
            **start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subjects": self._subjects,
            "inactive_threshold": _FORGET_SECONDS * 1_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            "metadata": {"listener": self._name},
        }

    async def _check_log_is_whole(self) -> None:
        read = self._after
        last = await self._journal.last_sequence()
        if last < read:
            raise LogShortened(
                f"{self._name} has read event {read} of the log, and now the log ends at {last}: "
                "the server's machine lost what was not yet on disk; go on from the last checkpoint"
            )

    async def _forget_consumer(self) -> None:
        if self._consumer and self._link.is_up:
            consumer, self._consumer = self._consumer, ""
            await self._link.publish(f"$JS.API.CONSUMER.DELETE.{self._journal.log}.{consumer}", b"")

    # ------------------------------------------------------------ drawing from it

    async def _draw(self) -> None:
        """Ask for the next batch; the request stays open at the server until events come."""
        self._awaited = _BATCH
        if self._silence is not None:
            self._silence.cancel()
        self._silence = asyncio.get_running_loop().call_later(_DRAW_SECONDS + _GRACE_SECONDS, self._disturbed.set)
        request = {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "expires": int(_DRAW_SECONDS * 1_000_000_000)}
        with suppress(ServerUnavailable):
            await self._link.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._journal.log}.{self._consumer}",
                msgspec.json.encode(request),
                reply=f"{self._address}.{self._generation}",
            )

    async def _arrive(self, message: Msg) -> None:
        if (said := status(message)) != "":
            await self._draw_ended(message, said)
            return
        place = Place(message.reply)
        if place.consumer != self._consumer:
            return
        if place.consumer_sequence != self._expected:
            self._disturbed.set()
            return
        self._expected += 1
        self._awaited -= 1
        if self._awaited == 0 and self._silence is not None:
            self._silence.cancel()
        if place.sequence > self._after:
            self._after = place.sequence
            self._waiting.put_nowait(message)
        elif self._awaited == 0:
            await self._draw_if_room()

    async def _draw_ended(self, message: Msg, said: str) -> None:
        """The server ended our request: nothing came, or as many bytes as it may bring, or something is wrong."""
        if message.subject != f"{self._address}.{self._generation}" or message.headers is None:
            return
        if said == "408" or "MaxBytes" in message.headers.get("Description", ""):
            self._awaited = 0
            await self._draw_if_room()
        else:
            self._disturbed.set()

    async def _draw_if_room(self) -> None:
        """What already waits here is read first; without a consumer, whoever makes the next one draws."""
        if not self._consumer:
            return
        if self._waiting.qsize() <= _BATCH // 2:
            await self._draw()
        elif self._silence is not None:
            self._silence.cancel()
