"""Streams of a run on the server: the log of events, the work queue, and a bucket of values.

One stream each, named after the run. A full log or queue rejects new messages, so that the publisher gets an error:
none is dropped silently.

nats-py's JetStream classes do not fit. Its `publish` does not retry, its requests wait for their timeout when the
connection breaks, and its key-value bucket requests stream info, for which the users of processes have no permission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, Final

import msgspec
import structlog
from nats.aio.msg import Msg

from areal_bus.claims import Blobs
from areal_bus.errors import LogUnavailable, NoReply, ServerUnavailable
from areal_bus.message import Event, Message, Work
from areal_bus.nats_client import status
from areal_bus.nats_cluster import is_passing, lacks_leader, message_of
from areal_bus.nats_connection import Connection
from areal_bus.nats_inbox import Reconnected
from areal_bus.retry_time import RetryTime
from areal_bus.subjects import log_stream, subject_of, values_bucket, work_stream

_API_TIMEOUT: Final = 5.0
_CONFIRM_TIMEOUT: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_RECOVERY_SECONDS: Final = 10.0
"""Time for a restarted server to recover its streams."""
_NANOSECONDS: Final = 1_000_000_000
_ELECTION_PAUSE_SECONDS: Final = 0.25
_WARN_EVERY_SECONDS: Final = 5.0
RETRY_SECONDS: Final = 30.0
"""Default time for which a message waits for an unavailable server."""
STREAM_NOT_FOUND: Final = 10059
_MESSAGE_NOT_FOUND: Final = 10037
_READS_AT_ONCE: Final = 64
_MOST_READERS: Final = 1_000_000
"""Consumers that a log may have, at most one for each actor that reads it: unstated, nats-server 2.15 allows 1,000."""

_NO_LEADER: Final = "the stream has no leader"
_NO_QUORUM: Final = "does a majority of the cluster's servers run, with room on their disks? see their logs"

Json = dict[str, Any]
_logger = structlog.get_logger(__name__)


class ApiError(LogUnavailable):
    """Raised when the server rejects a JetStream API request; `code` is the server's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _ApiErrorBody(msgspec.Struct):
    description: str = ""
    err_code: int = 0


class _Confirmation(msgspec.Struct):
    seq: int = 0
    error: _ApiErrorBody | None = None


_confirmations = msgspec.json.Decoder(_Confirmation)


class Streams:
    """Streams of a run, over one connection."""

    def __init__(
        self,
        connection: Connection,
        run: str,
        *,
        retry_for_seconds: float,
        blobs: Blobs | None = None,
        monitors: bool = False,
    ) -> None:
        self.log = log_stream(run)
        self.queue = work_stream(run)
        self._bucket = values_bucket(run)
        self.values = f"KV_{self._bucket}"
        self.prefix = subject_of(run, "")
        self.connection = connection
        self.blobs = blobs
        """Folder for bodies beyond the inline limit."""
        self.run = run
        self._retry_for_seconds = retry_for_seconds
        self._monitors = monitors
        self._next_warning = 0.0

    # ------------------------------------------------------------ stream management

    async def provision(
        self, kinds: Iterable[type[Message]], *, replicas: int, duplicate_seconds: float, compress: bool = False
    ) -> None:
        """Create missing streams and add new subjects to existing ones; idempotent, and safe in concurrent processes.

        `compress` has a new log's complete blocks compressed.

        Raises:
            LogUnavailable: the server has no JetStream, or rejects a stream.
        """
        kinds = tuple(kinds)
        kept: Json = {
            "storage": "file",
            "discard": "new",
            "num_replicas": replicas,
            "duplicate_window": int(duplicate_seconds * _NANOSECONDS),
            "allow_direct": True,
        }
        events = [self.prefix + kind.subject for kind in kinds if issubclass(kind, Event)]
        work = [self.prefix + kind.subject for kind in kinds if issubclass(kind, Work)]
        if events:
            limits: Json = {"retention": "limits", "deny_delete": True, "max_consumers": _MOST_READERS}
            limits["compression"] = "s2" if compress else "none"
            await self._ensure({"name": self.log, "subjects": events, **limits, **kept})
        if work:
            await self._ensure({"name": self.queue, "subjects": work, "retention": "workqueue", **kept})
        values = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True}
        await self._ensure({"name": self.values, "subjects": [f"$KV.{self._bucket}.>"], **values, **kept})

    async def _ensure(self, config: Json) -> None:
        """Create the stream, or add missing subjects to it."""
        try:
            present = (await self.api(f"STREAM.INFO.{config['name']}", {}))["config"]
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            try:
                await self.api(f"STREAM.CREATE.{config['name']}", config)
            except ApiError:
                # Another process created it meanwhile, possibly with other subjects.
                present = (await self.api(f"STREAM.INFO.{config['name']}", {}))["config"]
            else:
                return
        subjects = list(dict.fromkeys([*present["subjects"], *config["subjects"]]))
        if subjects != present["subjects"] or config["num_replicas"] != present["num_replicas"]:
            await self.api(
                f"STREAM.UPDATE.{config['name']}",
                {**present, "subjects": subjects, "num_replicas": config["num_replicas"]},
            )

    async def set_dedup_window(self, seconds: float) -> None:
        """Set the dedup window of log and work queue, in effect from the server's next start on.

        Raises:
            LogUnavailable: the server rejects it.
        """
        for stream in (self.log, self.queue):
            present = (await self.api(f"STREAM.INFO.{stream}", {}))["config"]
            await self.api(f"STREAM.UPDATE.{stream}", {**present, "duplicate_window": int(seconds * _NANOSECONDS)})

    async def api(self, verb: str, body: Json) -> Json:
        """Send a JetStream API request.

        It is retried while the server is unavailable or has just started, or a cluster elects a leader.

        Raises:
            ApiError: the server rejects the request.
            LogUnavailable: it has no JetStream, or does not answer within `retry_for_seconds`.
        """
        time = RetryTime(self._retry_for_seconds, _API_TIMEOUT)
        while True:
            try:
                answer = await self._request_api(verb, body)
            except NoReply as error:
                is_over = time.is_over()
                if is_over or (self.connection.is_up and not self.connection.in_cluster and not time.was_paused):
                    raise LogUnavailable(f"run {self.run}: {error}; {self._silence()}") from error
                self._warn_waiting(verb)
                continue
            if answer is not None and not status(answer):
                decoded: Json = msgspec.json.decode(answer.data)
                problem = decoded.get("error", {})
                if not (is_passing(problem.get("err_code", 0)) or lacks_leader(verb, decoded)):
                    break
                if time.is_over():
                    raise LogUnavailable(
                        f"run {self.run}: {verb}: {problem.get('description', _NO_LEADER)}; {_NO_QUORUM}"
                    )
                self._warn_waiting(verb)
                await asyncio.sleep(_ELECTION_PAUSE_SECONDS)
                continue
            if answer is not None and not self._is_starting(time):
                raise LogUnavailable(
                    f"run {self.run}: the NATS server has no streams, since JetStream is off or still starting: "
                    "start it with a `jetstream` block"
                )
            await asyncio.sleep(_PAUSE_SECONDS)
        if problem:
            raise ApiError(f"run {self.run}: {verb}: {problem.get('description')}", problem.get("err_code", 0))
        return decoded

    async def _request_api(self, verb: str, body: Json) -> Msg | None:
        """Returns the server's answer; None after a reconnection, since the request may be lost."""
        with self.connection.inbox(notify_reconnect=True) as inbox:
            await self.connection.publish(
                f"$JS.API.{verb}", msgspec.json.encode(body) if body else b"", reply=inbox.address
            )
            try:
                return await inbox.next(_API_TIMEOUT)
            except Reconnected:
                return None
            except TimeoutError:
                raise NoReply(f"$JS.API.{verb}: the server did not answer within {_API_TIMEOUT:g} s") from None

    def _silence(self) -> str:
        return _NO_QUORUM if self.connection.in_cluster else "is the disk full?"

    def _warn_waiting(self, what: str) -> None:
        if self.connection.in_cluster and (now := monotonic()) >= self._next_warning:
            self._next_warning = now + _WARN_EVERY_SECONDS
            _logger.warning(
                "waiting for the NATS cluster, which has no leader for a stream", run=self.run, request=what
            )

    def _is_starting(self, time: RetryTime) -> bool:
        """True if a server without streams may still be recovering them after a restart."""
        since = asyncio.get_running_loop().time() - self.connection.reconnected_at
        return since < _RECOVERY_SECONDS and not time.is_over() and not self.connection.lost

    async def check_replicas(self, replicas: int) -> None:
        """Check that the cluster has a server for each replica of a stream, by creating one and deleting it.

        Raises:
            LogUnavailable: it has too few, or the server is not of a cluster.
        """
        probe = f"{self.log}_CHECK"
        config = {"name": probe, "subjects": [f"{self.prefix}_check"], "storage": "memory", "num_replicas": replicas}
        try:
            await self.api(f"STREAM.CREATE.{probe}", config)
        except ApiError as error:
            raise LogUnavailable(f"{replicas} replicas are refused: {error}") from error
        await self.api(f"STREAM.DELETE.{probe}", {})

    async def last_sequence(self) -> int:
        """Returns the sequence of the last event of the log."""
        return int((await self.api(f"STREAM.INFO.{self.log}", {}))["state"]["last_seq"])

    # ------------------------------------------------------------ writing

    async def append(self, subject: str, payload: bytes, message_id: str = "") -> int:
        """Write to a stream and return the sequence: the first one's, if this id was written before.

        Raises:
            LogUnavailable: the server rejects the message permanently, or did not confirm it within
                `retry_for_seconds`.
        """
        time = RetryTime(self._retry_for_seconds, _CONFIRM_TIMEOUT)
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        pause = 0.05
        while True:
            try:
                answer = await self._append_once(
                    subject, payload, headers, min(_CONFIRM_TIMEOUT, self._retry_for_seconds)
                )
            except (TimeoutError, ServerUnavailable) as error:
                if self.connection.lost:
                    raise LogUnavailable(f"{subject} was not written: {self.connection.lost}") from error
                answer = None
            if answer is not None and not status(answer):
                confirmation = _confirmations.decode(answer.data)
                if confirmation.error is None:
                    return confirmation.seq
                if not is_passing(confirmation.error.err_code):
                    raise LogUnavailable(_rejection(subject, confirmation.error))
            if time.is_over():
                raise LogUnavailable(self._unconfirmed_text(subject, answer))
            self._warn_waiting(subject)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _append_once(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, timeout: float
    ) -> Msg | None:
        """Returns the server's confirmation; None after a reconnection: the retry is deduplicated."""
        with self.connection.inbox(notify_reconnect=True) as inbox:
            await self.connection.publish(subject, payload, reply=inbox.address, headers=headers)
            try:
                return await inbox.next(timeout)
            except Reconnected:
                return None

    def _unconfirmed_text(self, subject: str, answer: Msg | None) -> str:
        if self.connection.is_up and self.connection.in_cluster:
            reason = f"no server of the cluster leads a stream of run {self.run} for it; {_NO_QUORUM}"
        elif answer is not None:
            reason = (
                f"no stream of run {self.run} accepts this subject; was the run provisioned with this kind of message?"
            )
        elif self.connection.is_up:
            reason = (
                "the server is connected but does not confirm; its disk may be full: see the server's log and free"
                " space"
            )
        else:
            reason = "the server is unavailable; check its process and its log"
        return f"{subject} was not written within {self._retry_for_seconds:g} s: {reason}"

    # ------------------------------------------------------------ reading

    async def read(self, sequences: Sequence[int]) -> list[Msg]:
        """Returns the log's messages at these sequences."""
        messages: list[Msg] = []
        for start in range(0, len(sequences), _READS_AT_ONCE):
            messages += await asyncio.gather(*map(self._read_one, sequences[start : start + _READS_AT_ONCE]))
        return messages

    async def _read_one(self, sequence: int) -> Msg:
        message = await self._direct(self.log, {"seq": sequence}, f"sequence {sequence}") if sequence > 0 else None
        if message is None:
            raise LogUnavailable(f"sequence {sequence} is not in the log of run {self.run}")
        return message

    async def has_event(self, sequence: int) -> bool:
        """True if the log has a readable event at this sequence."""
        return await self._direct(self.log, {"seq": sequence}, f"sequence {sequence}") is not None

    async def next_from(self, stream: str, sequence: int) -> Msg | None:
        """Returns the first message of a stream at or after this sequence; None if there is none."""
        return await self._direct(
            stream, {"seq": sequence, "next_by_subj": ">"}, f"the message after {sequence} in {stream}"
        )

    async def newest(self, stream: str) -> Msg | None:
        """Returns the last message of a stream; None if there is none."""
        return await self._direct(stream, {"last_by_subj": ">"}, f"the last message of {stream}")

    async def put(self, key: str, value: bytes) -> None:
        """Set the value of a key."""
        await self.append(f"$KV.{self._bucket}.{key}", value)

    async def get(self, key: str) -> bytes | None:
        """Returns the value of a key, or None."""
        message = await self._direct(self.values, {"last_by_subj": f"$KV.{self._bucket}.{key}"}, f"key {key}")
        return None if message is None else bytes(message.data)

    async def _direct(self, stream: str, query: Json, name: str) -> Msg | None:
        """Read one message; retried while the server restarts. In a cluster, where others lag, its leader is asked."""
        if self.connection.in_cluster and not self._monitors:
            return await self._of_leader(stream, query)
        time = RetryTime(self._retry_for_seconds, _API_TIMEOUT)
        while True:
            try:
                message = await self.connection.request(
                    f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(query), timeout=_API_TIMEOUT
                )
            except (NoReply, ServerUnavailable) as error:
                if self.connection.lost or time.is_over():
                    raise LogUnavailable(f"run {self.run}: {name} cannot be read: {error}") from error
            else:
                if status(message) == "404":
                    return None
                if not status(message):
                    return message
                if time.is_over():
                    raise LogUnavailable(f"run {self.run}: {name} cannot be read; was the run provisioned?")
            await asyncio.sleep(0.1)

    async def _of_leader(self, stream: str, query: Json) -> Msg | None:
        try:
            return message_of((await self.api(f"STREAM.MSG.GET.{stream}", query))["message"])
        except ApiError as error:
            if error.code != _MESSAGE_NOT_FOUND:
                raise
            return None


def _rejection(subject: str, problem: _ApiErrorBody) -> str:
    """Returns the error text for the server's error, with a remedy."""
    description = problem.description
    if "resource" in description:
        remedy = "the server's store is at its limit; free disk space or raise jetstream.max_file_store"
    elif "maximum" in description or "too large" in description or "exceed" in description:
        remedy = "the stream is at its limit; raise it, or start a new run"
    else:
        remedy = "see the server's log"
    return f"{subject} was rejected by the server: {description}; {remedy}"
