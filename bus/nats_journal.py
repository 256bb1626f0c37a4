"""What the server keeps for a run: the log of events, the queue of work, and a bucket of values.

One stream each, named after the run. The log and the queue refuse new messages when they are full, so that a publisher
hears of it; nothing is ever dropped in silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg

from bus.errors import LogUnavailable, NoReply, ServerUnavailable
from bus.message import Event, Message, Work
from bus.nats_inbox import Renewed
from bus.nats_link import Link, status
from bus.subjects import log_stream, values_bucket, work_stream

_API_TIMEOUT: Final = 5.0
_CONFIRM_TIMEOUT: Final = 5.0
_PAUSE_SECONDS: Final = 0.05
_RECOVERY_SECONDS: Final = 10.0
"""After its return a server may take this long to recover its streams."""
_NANOSECONDS: Final = 1_000_000_000
STREAM_NOT_FOUND: Final = 10059
_READS_AT_ONCE: Final = 64

Json = dict[str, Any]


class ApiError(LogUnavailable):
    """Raised when the server refuses a request about streams or consumers; `code` is the server's own."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Problem(msgspec.Struct):
    description: str = ""
    err_code: int = 0


class _Confirmation(msgspec.Struct):
    seq: int = 0
    error: _Problem | None = None


_confirmations = msgspec.json.Decoder(_Confirmation)


class Journal:
    """The run's streams, over one link."""

    def __init__(self, link: Link, run: str, *, patience: float, blobs: Path | None = None) -> None:
        self.log = log_stream(run)
        self.queue = work_stream(run)
        self._bucket = values_bucket(run)
        self.values = f"KV_{self._bucket}"
        self.prefix = f"areal.{run}."
        self.link = link
        self.blobs = blobs
        """Folder of the bodies that are too large for the wire."""
        self.run = run
        self._patience = patience

    # ------------------------------------------------------------ making the streams

    async def provision(self, kinds: Iterable[type[Message]], *, replicas: int, duplicate_seconds: float) -> None:
        """Create what is missing and add new subjects to what is there; may be called by everybody, any time.

        Raises:
            LogUnavailable: the server has no JetStream, or refuses.
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
            await self._ensure({"name": self.log, "subjects": events, "retention": "limits", "deny_delete": True, **kept})
        if work:
            await self._ensure({"name": self.queue, "subjects": work, "retention": "workqueue", **kept})
        values = {"max_msgs_per_subject": 1, "allow_rollup_hdrs": True, "deny_delete": True}
        await self._ensure({"name": self.values, "subjects": [f"$KV.{self._bucket}.>"], **values, **kept})

    async def _ensure(self, config: Json) -> None:
        """Create the stream, or let it take the subjects that it does not take yet."""
        try:
            present = (await self.api(f"STREAM.INFO.{config['name']}", {}))["config"]
        except ApiError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
            try:
                await self.api(f"STREAM.CREATE.{config['name']}", config)
            except ApiError:
                # Somebody created it meanwhile, with other subjects.
                present = (await self.api(f"STREAM.INFO.{config['name']}", {}))["config"]
            else:
                return
        missing = [subject for subject in config["subjects"] if subject not in present["subjects"]]
        if missing:
            await self.api(f"STREAM.UPDATE.{config['name']}", {**present, "subjects": [*present["subjects"], *missing]})

    async def remember_ids(self, seconds: float) -> None:
        """Let the server recognise messages of the last so many seconds, if they are said again after its next start.

        Raises:
            LogUnavailable: it refuses.
        """
        for stream in (self.log, self.queue):
            present = (await self.api(f"STREAM.INFO.{stream}", {}))["config"]
            await self.api(f"STREAM.UPDATE.{stream}", {**present, "duplicate_window": int(seconds * _NANOSECONDS)})

    async def api(self, verb: str, body: Json) -> Json:
        """A request about streams and consumers, made again while the server is away or has just started.

        Raises:
            ApiError: the server refuses.
            LogUnavailable: it has no JetStream, or does not answer for as long as patience lasts.
        """
        deadline = monotonic() + self._patience
        while True:
            try:
                answer = await self._ask_api(verb, body)
            except NoReply as error:
                if self.link.is_up or monotonic() >= deadline:
                    raise LogUnavailable(f"run {self.run}: {error}; is the disk full?") from error
                continue
            if answer is not None and not status(answer):
                break
            if answer is not None and not self._is_starting(deadline):
                raise LogUnavailable(
                    f"run {self.run}: the NATS server keeps no streams; JetStream is off or still starting: "
                    "start it with a `jetstream` block"
                )
            await asyncio.sleep(_PAUSE_SECONDS)
        decoded: Json = msgspec.json.decode(answer.data)
        if "error" in decoded:
            problem = decoded["error"]
            raise ApiError(f"run {self.run}: {verb}: {problem.get('description')}", problem.get("err_code", 0))
        return decoded

    async def _ask_api(self, verb: str, body: Json) -> Msg | None:
        """The server's answer; None when the connection was renewed meanwhile, and the question may be lost."""
        with self.link.inbox(until_return=True) as inbox:
            await self.link.publish(f"$JS.API.{verb}", msgspec.json.encode(body) if body else b"", reply=inbox.address)
            try:
                return await inbox.next(_API_TIMEOUT)
            except Renewed:
                return None
            except TimeoutError:
                raise NoReply(f"$JS.API.{verb}: the server did not answer within {_API_TIMEOUT:g} s") from None

    def _is_starting(self, deadline: float) -> bool:
        """Whether a server that keeps no streams may have started a moment ago, and recover them still."""
        returned = asyncio.get_running_loop().time() - self.link.returned_at
        return returned < _RECOVERY_SECONDS and monotonic() < deadline and not self.link.lost

    async def last_sequence(self) -> int:
        """Of the log."""
        return int((await self.api(f"STREAM.INFO.{self.log}", {}))["state"]["last_seq"])

    # ------------------------------------------------------------ writing

    async def append(self, subject: str, payload: bytes, message_id: str = "") -> int:
        """Write to a stream and return the place in it: of the first, if this id was written before.

        Raises:
            LogUnavailable: the server refuses for a reason that stays, or did not confirm for as long as patience lasts.
        """
        deadline = monotonic() + self._patience
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        pause = 0.05
        while True:
            try:
                answer = await self._append_once(subject, payload, headers, min(_CONFIRM_TIMEOUT, self._patience))
            except (TimeoutError, ServerUnavailable) as error:
                if self.link.lost:
                    raise LogUnavailable(f"{subject} was not written: {self.link.lost}") from error
                answer = None
            if answer is not None and not status(answer):
                confirmation = _confirmations.decode(answer.data)
                if confirmation.error is None:
                    return confirmation.seq
                raise LogUnavailable(_refusal(subject, confirmation.error))
            if monotonic() >= deadline:
                raise LogUnavailable(self._silence(subject, answer))
            await asyncio.sleep(pause)
            pause = min(2 * pause, 1.0)

    async def _append_once(self, subject: str, payload: bytes, headers: dict[str, str] | None, timeout: float) -> Msg | None:
        """The server's confirmation; None when the connection was renewed meanwhile: said again, it is kept once."""
        with self.link.inbox(until_return=True) as inbox:
            await self.link.publish(subject, payload, reply=inbox.address, headers=headers)
            try:
                return await inbox.next(timeout)
            except Renewed:
                return None

    def _silence(self, subject: str, answer: Msg | None) -> str:
        if answer is not None:
            reason = f"no stream of run {self.run} takes it; was the run provisioned with this kind of message?"
        elif self.link.is_up:
            reason = "the server is there and does not confirm; its disk may be full: see the server's log and free space"
        else:
            reason = "the server is gone; see its log, and whether its process runs"
        return f"{subject} was not written within {self._patience:g} s: {reason}"

    # ------------------------------------------------------------ reading

    async def read(self, sequences: Sequence[int]) -> list[Msg]:
        """The log's messages at these places."""
        messages: list[Msg] = []
        for start in range(0, len(sequences), _READS_AT_ONCE):
            messages += await asyncio.gather(*map(self._read_one, sequences[start : start + _READS_AT_ONCE]))
        return messages

    async def _read_one(self, sequence: int) -> Msg:
        message = await self._direct(self.log, {"seq": sequence}, f"sequence {sequence}") if sequence > 0 else None
        if message is None:
            raise LogUnavailable(f"sequence {sequence} is not in the log of run {self.run}")
        return message

    async def has(self, sequence: int) -> bool:
        """Whether the log has an event at this place that the server can read."""
        return await self._direct(self.log, {"seq": sequence}, f"sequence {sequence}") is not None

    async def next_from(self, stream: str, sequence: int) -> Msg | None:
        """The first message of a stream at this place or behind it; None when there is none."""
        return await self._direct(stream, {"seq": sequence, "next_by_subj": ">"}, f"what follows {sequence} in {stream}")

    async def newest(self, stream: str) -> Msg | None:
        """The last message of a stream; None when there is none."""
        return await self._direct(stream, {"last_by_subj": ">"}, f"the last of {stream}")

    async def put(self, key: str, value: bytes) -> None:
        """Keep a value under a key."""
        await self.append(f"$KV.{self._bucket}.{key}", value)

    async def get(self, key: str) -> bytes | None:
        """The value under a key, or None."""
        message = await self._direct(self.values, {"last_by_subj": f"$KV.{self._bucket}.{key}"}, f"key {key}")
        return None if message is None else bytes(message.data)

    async def _direct(self, stream: str, what: Json, name: str) -> Msg | None:
        """Read one message; waits for a server that is restarting."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while True:
            try:
                message = await self.link.ask(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(what), timeout=_API_TIMEOUT)
            except (NoReply, ServerUnavailable) as error:
                if self.link.lost or asyncio.get_running_loop().time() >= deadline:
                    raise LogUnavailable(f"run {self.run}: {name} cannot be read: {error}") from error
            else:
                if status(message) == "404":
                    return None
                if not status(message):
                    return message
                if asyncio.get_running_loop().time() >= deadline:
                    raise LogUnavailable(f"run {self.run}: {name} cannot be read; was the run provisioned?")
            await asyncio.sleep(0.1)


def _refusal(subject: str, problem: _Problem) -> str:
    """What the server's own words mean, and what to do."""
    said = problem.description
    if "resource" in said:
        remedy = "the server's store is at its limit; free disk space or raise jetstream.max_file_store"
    elif "maximum" in said or "too large" in said or "exceed" in said:
        remedy = "the stream is at its limit; raise it, or start a new run"
    else:
        remedy = "see the server's log"
    return f"{subject} was refused by the server: {said}; {remedy}"
