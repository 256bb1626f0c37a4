"""A generation engine that is an SGLang or vLLM server.

A completion is one or several *segments*, each a request to the server. New weights end all segments (`abort`); each
completion then continues with a segment whose prompt holds the tokens sampled so far. So all tokens of a segment have
one weight version, whatever the server reports. Completions that a server cannot continue exactly, since penalties and
constraints start anew with a segment, are waited for instead.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import structlog

from areal_actors.core.errors import EngineError, RequestError
from areal_actors.core.model_config import route_shape_of, vocabulary_of
from areal_actors.core.values import SamplingParams, TokenColumns, WeightsLocation
from areal_actors.generation.engine import (
    Arrival,
    BusyClock,
    EngineCounters,
    EnginePlace,
    PromptImages,
    TokenChunk,
    validate_prompt,
)
from areal_actors.generation.servers.dialect import Segment, SegmentPart, ServerDialect, adapter_lost, server_of
from areal_actors.generation.servers.server_completion import RunningSegment, ServerCompletion
from areal_actors.generation.servers.server_start import ServerStart
from areal_actors.generation.servers.usage_watch import UsageWatch
from areal_actors.generation.servers.weight_channels import LOAD_SECONDS, WeightChannel
from areal_actors.generation.settings import GenerationSettings
from areal_actors.tokenization.tokenizer import ChatTokenizer

ABORT_SECONDS = 0.2
"""Time between two orders to end the same segments: one that had not reached the server is ended by the next."""
RESTARTING = ("constraint", "frequency_penalty", "presence_penalty")  # a server forgets their state between segments
CLOSE_SECONDS = 5.0
"""Time for a server to acknowledge an abort of its requests, when the engine is closed."""
DEFAULTS = SamplingParams()

logger = structlog.get_logger(__name__)


class HttpEngine:
    """See `GenerationEngine` for the contract."""

    takes_arrays = True

    def __init__(
        self, dialect: ServerDialect, model_folder: str, settings: GenerationSettings, place: EnginePlace
    ) -> None:
        """Start the server, or take one that was started elsewhere; `load_weights` waits until it is ready.

        Raises:
            SetupError: the model's folder, or an interpreter with the server's package, is missing.
        """
        self.dialect, self.settings, self.place = dialect, settings, place
        self.abilities, self.title = dialect.abilities, dialect.title
        self.altering = sorted(dialect.altering(place))
        self.weight_version = 0
        self.tokenizer = ChatTokenizer.load(model_folder)
        self.context = settings.max_model_len
        self.vocabulary_size = vocabulary_of(model_folder) or self.tokenizer.largest_id + 1
        self._routes = None if place.routes == "off" else route_shape_of(model_folder)
        self._server = server_of(dialect, model_folder, settings, place)
        self._channel = WeightChannel(dialect, self._server, model_folder, settings, place)
        self._watch = UsageWatch(dialect, self._server)
        client = f"{place.shared.prefix if place.shared else ''}{place.worker}"
        self._start = ServerStart(dialect, self._server, settings.server.start_seconds, client)
        self._closed = False
        self._adapter = ""
        """Name of the adapter that samples; empty for the model itself."""
        self._asleep = False
        """True from `release_memory` until weights are loaded."""
        self._admitted = asyncio.Event()
        self._admitted.set()
        self._loading = asyncio.Lock()
        self._segments: dict[RunningSegment, None] = {}
        self._changed = asyncio.Event()
        self._numbers = count(1)
        self._life = secrets.token_hex(4)
        """In every request id: an order to end a segment must not end one of the next engine at the same server."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._counters = EngineCounters()
        self._busy = BusyClock()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        stream: bool = False,
        resumed_tokens: int = 0,
        routes_from: int | None = None,
        images: PromptImages | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield a completion in one chunk at its end, or as it is sampled when `stream` is set.

        See `RoutingEngine`, too.

        Raises:
            RequestError: a token id is out of range, prompt and max_tokens exceed the context, or the server cannot do
                what is asked.
            EngineUnavailable: the server is gone.
            EngineError: the engine failed or was closed; ImageLost: the file of an image is missing or damaged.
        """
        validate_prompt(prompt_ids, sampling, resumed_tokens, self.vocabulary_size, self.context)
        self._refuse_inexact(request_id, sampling, resumed_tokens)
        if images is not None:
            await asyncio.to_thread(images.verify)
        completion = ServerCompletion(
            list(prompt_ids),
            sampling,
            self.tokenizer,
            resumed_tokens,
            images=images,
            routes=self._routes,
            routes_from=routes_from,
        )
        if completion.has_ended():
            yield TokenChunk(columns=TokenColumns(), finish_reason=completion.finish_reason)
            return
        await self.until_ready()
        grown: asyncio.Queue[Exception | None] = asyncio.Queue()
        # Apart from the reader of the chunks: new weights wait for all segments, and must not wait for a slow reader.
        sampling_task = self._task(self._sample(request_id, completion, grown.put_nowait, stream=stream))
        try:
            while True:
                if (error := await grown.get()) is not None:
                    raise error
                if completion.has_ended():
                    break
                if stream and completion.undelivered:
                    yield completion.chunk()
            yield completion.chunk()
        finally:
            sampling_task.cancel()
            await asyncio.gather(sampling_task, return_exceptions=True)

    async def _sample(
        self, request_id: str, completion: ServerCompletion, grew: Callable[[Exception | None], None], *, stream: bool
    ) -> None:
        """Sample segments until the completion ends.

        `grew` is called after each part, and with the error that ends it.
        """
        try:
            while not completion.finish_reason:
                await self._segment(request_id, completion, grew, stream=stream)
        except asyncio.CancelledError:  # by the reader, or by `close`
            grew(EngineError(f"{request_id}: the generation engine is closed"))
            raise
        except Exception as error:  # noqa: BLE001 - raised where the chunks are read
            grew(adapter_lost(error, self._adapter))

    async def _segment(
        self, request_id: str, completion: ServerCompletion, grew: Callable[[Exception | None], None], *, stream: bool
    ) -> None:
        """Sample until the server ends the segment."""
        while not self._admitted.is_set():
            await self._admitted.wait()
        if self._closed:
            raise EngineError(f"{request_id}: the generation engine is closed")
        sampling = completion.sampling
        altered = bool(_stated_names(sampling, self.altering))
        drains = altered or bool(_stated_names(sampling, RESTARTING))
        # No id begins with another one: an order to end one ends all whose ids begin with its id (SGLang).
        running = RunningSegment(f"{self._life}.{next(self._numbers)}.{request_id}", drains=drains)
        segment = Segment(
            running.request_id,
            list(completion.token_ids),
            sampling,
            completion.remaining,
            sorted(self.tokenizer.stop_ids),
            streamed=(stream and not altered) or bool(sampling.stop),
            adapter=self._adapter,
            routes_from=completion.routed,
            images=completion.images,
        )
        version = self.weight_version
        self._enter(running)
        try:
            async with aclosing(self.dialect.sample(self._server, segment)) as parts:
                async for part in parts:
                    added = completion.add(part, version)
                    completion.add_routes(part.routes)
                    prefilled, cached = self._prompt_counts(segment, part)
                    self._counters = self._counters.plus(tokens=added, prefilled=prefilled, cached=cached)
                    running.ended = bool(part.finish_reason)
                    if part.finish_reason == "abort":
                        completion.check_abort(running, self.title)
                    if completion.finish_reason:
                        break
                    if not altered:
                        grew(None)
            if not (running.ended or completion.finish_reason):
                completion.check_abort(running, self.title)  # the stream ended without a reason
            if altered:
                await self._rescore(segment, completion)
            if completion.lacks_routes(since=len(segment.token_ids)):
                completion.add_routes(await self.dialect.routes(self._server, segment, completion.token_ids))
        finally:
            self._leave(running)
        grew(None)

    async def _rescore(self, segment: Segment, completion: ServerCompletion) -> None:
        """Replace the log-probabilities by those of the unaltered logits.

        The weights cannot change before this segment is left.
        """
        sampled_from = len(completion.token_ids) - len(completion.logprobs)
        completion.rescore(await self.dialect.score(self._server, segment, completion.token_ids, sampled_from))

    def _prompt_counts(self, segment: Segment, part: SegmentPart) -> tuple[int, int]:
        """Prompt tokens that the server computed, and those that its prefix cache held; known with the last part."""
        return (len(segment.token_ids) - part.cached_tokens, part.cached_tokens) if part.finish_reason else (0, 0)

    def _refuse_inexact(self, request_id: str, sampling: SamplingParams, resumed_tokens: int) -> None:
        """Refuse what this server would sample, score or continue in another way than the embedded engine.

        Raises:
            RequestError: names the field.
            EngineError: another worker began a completion that cannot be continued here.
        """
        title = self.dialect.title
        altering = _stated_names(sampling, self.altering)
        if altering and sampling.temperature not in (0.0, 1.0):
            fault = f"'{altering[0]}': {title} reports exact log-probabilities beside it at temperature 1 only"
            raise RequestError(f"{fault}, and the temperature is {sampling.temperature:g}; leave it out", altering[0])
        if altering and sampling.top_logprobs:
            raise RequestError(
                f"'top_logprobs': not supported by {title} beside '{altering[0]}'; leave one out", "top_logprobs"
            )
        if resumed_tokens and (restarting := _stated_names(sampling, RESTARTING)):
            raise EngineError(
                f"{request_id}: {title} cannot continue a completion with '{restarting[0]}' that another worker began"
            )

    def _enter(self, running: RunningSegment) -> None:
        self._busy.start()
        self._segments[running] = None

    def _leave(self, running: RunningSegment) -> None:
        """Forget a segment, and end it at the server if it has not ended: a server would go on without its client."""
        del self._segments[running]
        if not self._segments:
            self._busy.stop()
        self._changed.set()
        if not running.ended and not self._closed:
            self._task(self._abort(running.request_id))

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that ends with the engine at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _abort(self, request_id: str) -> None:
        with suppress(EngineError):
            await self.dialect.abort(self._server, [request_id])

    async def until_ready(self) -> None:
        """Wait until the server samples.

        Raises:
            SetupError: the server ended by itself while it started, or was not ready within
                `generation.server.start_seconds`.
            EngineUnavailable: it was killed.
        """
        if await self._start.until_ready() and self.place.watches_usage:
            self._task(self._watch.run())

    def phase(self) -> str:
        """Returns what the server does while it starts, with the last line of its output; empty once it is ready."""
        return self._start.phase()

    def describe_end(self) -> str:
        """Returns how a server that other policies use has ended, with the end of its output; empty while it runs.

        They cannot start it again, and this engine might send no request by which it would notice.
        """
        process = self._server.process
        return process.describe_end() if process is not None and self.place.shared is not None else ""

    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:
        """Verify the files while decoding continues, end or await all segments, load, and continue the completions.

        Raises:
            EngineError: the folder is incomplete, the checksum differs, or the tensors do not fit the model; the old
                weights stay.
            EngineUnavailable: the server is gone, or refused verified weights, so that those it holds are unknown.
            SetupError: the server could not be started.
        """
        async with self._loading:
            prepared = await self._channel.prepare(location)
            await self.until_ready()
            async with self._without_segments():
                if self._asleep:
                    await self.dialect.wake(self._server, LOAD_SECONDS)
                    self._asleep = False
                self._adapter = await self._channel.load(location, weight_version, prepared, self._adapter)
                self.weight_version = weight_version

    async def release_memory(self) -> int:
        """See `SleepingEngine`; the server does not report bytes."""
        async with self._loading:
            await self.until_ready()
            async with self._without_segments():
                partial = bool(self.place.adapter_rank) or self.settings.server.weights == "delta"
                await self.dialect.release(self._server, LOAD_SECONDS, keeps_weights=partial)
                self._asleep = True
        return 0

    @property
    def arrival(self) -> Arrival | None:
        """The last version that the server took; None if it has taken none."""
        return self._channel.arrival

    @asynccontextmanager
    async def _without_segments(self) -> AsyncGenerator[None, None]:
        """End or await all segments, and admit none within the context, nor after it while the engine sleeps."""
        self._admitted.clear()
        try:
            while self._segments:
                self._changed.clear()
                ending = [running for running in self._segments if not running.drains]
                for running in ending:
                    running.ordered = True
                if ending:
                    await self.dialect.abort(self._server, [running.request_id for running in ending])
                with suppress(TimeoutError):
                    async with asyncio.timeout(ABORT_SECONDS):
                        await self._changed.wait()
            yield
        finally:
            if not self._asleep:
                self._admitted.set()

    def take_counters(self) -> EngineCounters:
        """Counts since the last call."""
        counters, self._counters = self._counters, EngineCounters()
        waiting, kv_cache = self._watch.usage
        return msgspec.structs.replace(
            counters,
            busy_seconds=self._busy.take_seconds(),
            running=len(self._segments),
            waiting=waiting,
            kv_cache_usage=kv_cache,
        )

    async def close(self) -> None:
        """Abort everything and end the server, unless it was started elsewhere; may be called twice."""
        if self._closed:
            return
        self._closed = self._start.closed = True
        self._admitted.set()
        if self._server.process is None and self._segments:
            with suppress(EngineError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.dialect.abort(self._server, [running.request_id for running in self._segments])
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
        await self._server.close()


def engine_of(dialect: ServerDialect) -> Callable[[str, GenerationSettings, EnginePlace], HttpEngine]:
    """Returns the factory of engines that ask servers of this kind."""

    def make(model_folder: str, settings: GenerationSettings, place: EnginePlace) -> HttpEngine:
        return HttpEngine(dialect, model_folder, settings, place)

    return make


def _stated_names(sampling: SamplingParams, names: Sequence[str]) -> list[str]:
    return [name for name in names if getattr(sampling, name) != getattr(DEFAULTS, name)]
