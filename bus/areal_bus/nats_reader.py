"""Reads the log in order, across lost connections and server restarts.

A reader creates an ephemeral consumer at the server and fetches from it in bounded batches. After any disturbance (a
gap, a timeout, a reconnection, a consumer that the server has removed) it creates a new consumer that starts after the
last event received.

nats-py's own readers do not fit. Its ordered consumer drops messages when its pending limit overflows, may miss that
gap, and after a reset starts by sequence instead of `last_per_subject`; its `fetch` has no limit in bytes.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Final

import msgspec
import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from areal_bus.base import Envelope, History
from areal_bus.claims import check_out
from areal_bus.errors import BusError, LogDamaged, LogUnavailable, ServerUnavailable
from areal_bus.nats_client import status
from areal_bus.nats_streams import STREAM_NOT_FOUND, ApiError, Json, Streams
from areal_bus.payload import unpack

_BATCH: Final = 64
"""Events per fetch request."""
_BATCH_BYTES: Final = 4 << 20
"""Bytes per fetch request: the server drops a connection with 64 MB pending, and a process may have many readers on
one."""
_FETCH_SECONDS: Final = 30.0
"""Seconds that one fetch request waits at the server for events."""
_CLUSTER_FETCH_SECONDS: Final = 3.0
"""The same in a cluster, where a consumer may end unnoticed with another server than the connected one."""
_COMPLETED: Final = "Batch Completed"
"""Description with which the server ends a fetch request, limited in bytes, that has returned all its events."""
_GRACE_SECONDS: Final = 2.0
_MISSING_SECONDS: Final = 1.0
"""Seconds without an expected event after which the reader checks if the server has it."""
_INACTIVE_SECONDS: Final = 60
"""Seconds without a fetch after which the server removes a consumer, so that those of killed processes do not stay. A
reader that was only slow or paused creates another, which continues after the last event received."""

_logger = structlog.get_logger(__name__)


class DeliveryInfo:
    """Metadata of a JetStream delivery, parsed from its reply subject."""

    __slots__ = ("consumer", "consumer_sequence", "deliveries", "pending", "sequence")

    def __init__(self, reply: str) -> None:
        tokens = reply.split(".")
        first = 4 if len(tokens) == 9 else 6
        self.consumer = tokens[first - 1]
        self.deliveries = int(tokens[first])
        self.sequence = int(tokens[first + 1])
        self.consumer_sequence = int(tokens[first + 2])
        self.pending = int(tokens[first + 4])


def _open(streams: Streams, message: Msg) -> Envelope:
    sequence = DeliveryInfo(message.reply).sequence
    return check_out(unpack(message.data, where=f"sequence {sequence} of the log", sequence=sequence), streams.blobs)


def missing_error(streams: Streams, sequence: int) -> LogDamaged:
    """Returns the error for an event that the server no longer has."""
    return LogDamaged(
        f"event {sequence} is missing in the log of run {streams.run}: the server's store is damaged; the events before"
        " it are intact: resume the run to continue from there, or export it"
    )


class LogTruncated(LogUnavailable):
    """Raised when the log ends before the last event that was read from it."""


class NatsLogReader:
    """Reads the log's events of some subjects, in order, each once."""

    def __init__(self, streams: Streams, subjects: list[str], name: str) -> None:
        self._streams = streams
        self._connection = streams.connection
        self._subjects = subjects
        self._name = name
        self.backlog = 0
        """Number of events to read that were in the log when the reader was opened."""
        self._last_only = False
        self._end = 0
        """Last sequence of the log when the reader was opened."""
        self._after = 0
        self._expected = 1
        """Consumer sequence of the next message; any other indicates a gap."""
        self._outstanding = 0
        """Number of events that the open fetch request may still return."""
        self._received: asyncio.Queue[Msg | BusError] = asyncio.Queue()
        self._consumer = ""
        self._address = ""
        self._generation = 0
        self._subscription: NatsSubscription | None = None
        self._must_restart = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._restarter: asyncio.Task[None] | None = None
        self._hook = ExitStack()

    async def open(self, history: History = "all", after: int = 0) -> int:
        """Start reading, after which no event is missed; returns the log's last sequence.

        Raises:
            LogUnavailable: the run has no log.
        """
        self._end = await self._streams.last_sequence()
        self._last_only = history == "last"
        self._after = self._end if history == "new" else after
        self._address = self._connection.new_address()
        self._subscription = await self._connection.subscribe(self._address + ".*", self._on_message)
        self._hook.enter_context(self._connection.on_reconnect(self._must_restart.set))
        await self._create_consumer()
        self._restarter = asyncio.create_task(self._restart_on_demand())
        return self._end

    async def next(self) -> Envelope:
        """Wait for the next event, with its body.

        Raises:
            CorruptMessage: the event is damaged.
            LogUnavailable: the log no longer exists.
            ServerUnavailable: the connection is lost permanently.
        """
        return _open(self._streams, await self._take())

    async def next_raw(self, wanted: int) -> tuple[int, bytes]:
        """Wait for the next event, which should be `wanted`; returns its sequence and payload.

        Raises:
            As `next`, without `CorruptMessage`; `LogDamaged` if the server cannot read the wanted event and sends no
            later one.
        """
        item = await self._take_wanted(wanted)
        return DeliveryInfo(item.reply).sequence, bytes(item.data)

    async def next_wanted(self, wanted: int) -> Envelope:
        """Wait for the event `wanted`, which is known to have been in the log.

        Raises:
            As `next`; `LogDamaged` if the server no longer has it.
        """
        envelope = _open(self._streams, await self._take_wanted(wanted))
        if envelope.sequence != wanted:
            raise missing_error(self._streams, wanted)
        return envelope

    async def next_following(self, wanted: int) -> Envelope:
        """Wait for the event `wanted`, which may not exist yet.

        Raises:
            As `next`; `LogDamaged` if a later one arrives instead.
        """
        envelope = _open(self._streams, await self._take())
        if envelope.sequence != wanted:
            raise missing_error(self._streams, wanted)
        return envelope

    async def _take_wanted(self, wanted: int) -> Msg:
        """Wait for the next message; for an event that it cannot read the server sends neither message nor error."""
        while True:
            if not self._received.empty():
                return await self._take()
            try:
                async with asyncio.timeout(_MISSING_SECONDS):
                    return await self._take()
            except TimeoutError:
                if self._received.empty() and not await self._streams.has_event(wanted):
                    raise missing_error(self._streams, wanted) from None

    async def _take(self) -> Msg:
        if self._outstanding <= 0:
            await self._fetch_if_room()
        item = await self._received.get()
        if isinstance(item, BusError):
            self._received.put_nowait(item)
            raise item
        return item

    async def close(self) -> None:
        """Stop reading."""
        self._hook.close()
        if self._timer is not None:
            self._timer.cancel()
        if self._restarter is not None:
            self._restarter.cancel()
            with suppress(asyncio.CancelledError):
                await self._restarter
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        with suppress(BusError):
            await self._delete_consumer()

    # ------------------------------------------------------------ consumers

    async def _restart_on_demand(self) -> None:
        """Recreate the consumer after every disturbance, until the connection is lost permanently."""
        while True:
            await self._must_restart.wait()
            self._must_restart.clear()
            try:
                await self._recreate_consumer()
            except BusError as error:
                self._received.put_nowait(error)
                return

    async def _recreate_consumer(self) -> None:
        pause = 0.05
        while not self._connection.lost:
            try:
                return await self._create_consumer()
            except LogUnavailable as error:
                if isinstance(error, LogTruncated) or (isinstance(error, ApiError) and error.code == STREAM_NOT_FOUND):
                    raise
                _logger.info("cannot continue reading the log yet", consumer=self._name, error=str(error))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)
        raise ServerUnavailable(self._connection.lost)

    async def _create_consumer(self) -> None:
        """Create a consumer that starts after the last event received, and fetch from it."""
        if self._generation:
            await self._check_not_truncated()
            await self._delete_consumer()
        # From here on status messages about an earlier consumer, such as its end, are ignored.
        self._generation += 1
        self._expected = 1
        created = await self._streams.api(
            f"CONSUMER.CREATE.{self._streams.log}", {"stream_name": self._streams.log, "config": self._config()}
        )
        if self._generation == 1:
            self.backlog = created["num_pending"]
        self._consumer = created["name"]
        await self._fetch()

    def _config(self) -> Json:
        if self._last_only and self._after < self._end:
            start: Json = {"deliver_policy": "last_per_subject"}
        else:
            start = {"deliver_policy": "by_start_sequence", "opt_start_seq": self._after + 1}
        return {
            **start,
            "ack_policy": "none",
            "replay_policy": "instant",
            "filter_subjects": self._subjects,
            "inactive_threshold": _INACTIVE_SECONDS * 1_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            "metadata": {"listener": self._name},
        }

    async def _check_not_truncated(self) -> None:
        read = self._after
        last = await self._streams.last_sequence()
        if last < read:
            raise LogTruncated(
                f"{self._name} has read event {read} of the log, but the log now ends at {last}: "
                "the server's machine lost events that were not synced to disk; resume from the last checkpoint"
            )

    async def _delete_consumer(self) -> None:
        if self._consumer and self._connection.is_up:
            consumer, self._consumer = self._consumer, ""
            await self._connection.publish(f"$JS.API.CONSUMER.DELETE.{self._streams.log}.{consumer}", b"")

    # ------------------------------------------------------------ fetching

    async def _fetch(self) -> None:
        """Request the next batch; the request stays open at the server until events arrive."""
        self._outstanding = _BATCH
        if self._timer is not None:
            self._timer.cancel()
        seconds = _CLUSTER_FETCH_SECONDS if self._connection.in_cluster else _FETCH_SECONDS
        self._timer = asyncio.get_running_loop().call_later(seconds + _GRACE_SECONDS, self._must_restart.set)
        request = {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "expires": int(seconds * 1_000_000_000)}
        with suppress(ServerUnavailable):
            await self._connection.publish(
                f"$JS.API.CONSUMER.MSG.NEXT.{self._streams.log}.{self._consumer}",
                msgspec.json.encode(request),
                reply=f"{self._address}.{self._generation}",
            )

    async def _on_message(self, message: Msg) -> None:
        if (code := status(message)) != "":
            await self._on_fetch_ended(message, code)
            return
        info = DeliveryInfo(message.reply)
        if info.consumer != self._consumer:
            return
        if info.consumer_sequence != self._expected:
            self._must_restart.set()
            return
        self._expected += 1
        self._outstanding -= 1
        if self._outstanding == 0 and self._timer is not None:
            self._timer.cancel()
        if info.sequence > self._after:
            self._after = info.sequence
            self._received.put_nowait(message)
        elif self._outstanding == 0:
            await self._fetch_if_room()

    async def _on_fetch_ended(self, message: Msg, code: str) -> None:
        """Handle the end of a fetch request: it is complete, expired, reached its byte limit, or failed."""
        if message.subject != f"{self._address}.{self._generation}" or message.headers is None:
            return
        reason = message.headers.get("Description", "")
        if reason == _COMPLETED:
            return  # its events were counted, and the next request may be open already
        if code == "408" or "MaxBytes" in reason:
            self._outstanding = 0
            await self._fetch_if_room()
        else:
            self._must_restart.set()

    async def _fetch_if_room(self) -> None:
        """Fetch unless enough events are buffered; without a consumer, its creation will fetch."""
        if not self._consumer:
            return
        if self._received.qsize() <= _BATCH // 2:
            await self._fetch()
        elif self._timer is not None:
            self._timer.cancel()
