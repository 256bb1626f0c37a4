"""Inference worker: owns one generation engine and its loaded weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

import structlog

from areal_actors.core.errors import (
    EngineError,
    EngineUnavailable,
    ImageLost,
    RequestError,
    SetupError,
    WeightsSuperseded,
)
from areal_actors.core.values import ImageRef, WeightsLocation
from areal_actors.generation.abilities import ROUTES
from areal_actors.generation.engine import (
    NO_SLEEP,
    RESTING_SECONDS,
    GenerationEngine,
    PromptImages,
    SleepingEngine,
    refuse_unable,
)
from areal_actors.generation.engine_load import LoadReporter, ThroughputReporter
from areal_actors.generation.engine_reports import (
    LoadReport,
    end_of_shared_server,
    parts_of,
    report_loaded,
    starting_phase,
)
from areal_actors.generation.held_prompts import HELD_MB, HeldPrompts, PrefixLost
from areal_actors.generation.stream_pace import pace_chunks
from areal_actors.messages import (
    EngineInexact,
    EngineLoad,
    EngineLost,
    EngineMismatch,
    EngineStarting,
    Generate,
    Generated,
    MemoryReleased,
    ReleaseMemory,
    Throughput,
    WeightsPublished,
)
from areal_actors.runtime.actor import Actor, Context, Emits, Tick, on
from areal_actors.vision.files import ImageFolder
from areal_actors.weights.folders import is_superseded

MakeEngine = Callable[[str], GenerationEngine]
"""Creates an engine for the model in a folder, with the weights of that folder; slow, runs in a thread."""
Locate = Callable[[WeightsLocation, int], Awaitable[WeightsLocation]]
"""Returns the location on this host of a published version."""
PullImages = Callable[[Sequence[ImageRef], ImageFolder], Awaitable[None]]
"""Brings images to a folder of this host."""

RECYCLE_SECONDS = 300.0
"""Time limit for a new engine to start and load weights; a request that waits longer gets an error."""
RETRY_SECONDS = (1.0, 5.0)
"""Waits between attempts to reach an inference server that is gone, or to start another."""
SHOWN_SECONDS = 10.0
"""Time between two reports of a server that is starting."""
MAX_STARTS = 3
"""Consecutive starts of an inference server that may fail; some end themselves with SIGKILL if they cannot start."""
IMAGES_SECONDS = 180.0
"""Expected time for images to come from the run's host; each request for one has limits of its own."""
MAX_FAILURES = 3
"""Consecutive failed completions after which the engine counts as broken: the worker fails and is restarted."""

logger = structlog.get_logger(__name__)


class InferenceWorker(Actor):
    """Serves completions. Every token carries its weight version; weights change between two tokens."""

    history = "last"
    tick_seconds = 0.2

    def __init__(
        self,
        make_engine: MakeEngine,
        *,
        name: str,
        concurrency: int,
        load_seconds: float = RECYCLE_SECONDS,
        start_seconds: float = 0.0,
        run_folder: Path = Path(),
        reports_load: bool = False,
        locate: Locate | None = None,
        pull_images: PullImages | None = None,
        held_mb: int = HELD_MB,
    ) -> None:
        """Loading weights, creation of the engine included, may take `load_seconds`; then the worker fails.

        An engine that is a server has `start_seconds` more to start. Paths in events are relative to `run_folder`.
        With `reports_load` the worker publishes an `EngineLoad` for each change of its engine's load. `locate` and
        `pull_images` bring published weights and images of prompts to a host that does not share the run's folders.
        The tokens of the last conversations are held, `held_mb` of them.
        """
        self.held = HeldPrompts(held_mb << 20)
        self.locate, self.pull_images = locate, pull_images
        self.run_folder = run_folder
        self.make_engine = make_engine
        self.name = name
        self.concurrency = concurrency
        self.load_seconds = load_seconds
        self.load_reporter = LoadReporter(name) if reports_load else None
        self.start_seconds = start_seconds
        self.engine: GenerationEngine | None = None
        self.weight_version = -1
        self.location: WeightsLocation | None = None
        """Location of the loaded weights."""
        self.serving = asyncio.Event()
        """Set except while the engine is being recycled, or was created for weights that were removed meanwhile."""
        self.serving.set()
        self.lost: GenerationEngine | None = None
        """The engine whose loss was reported last."""
        self.dropped: GenerationEngine | None = None
        """The engine that was closed last because its server was gone when weights were to be loaded."""
        self.asleep = False
        """True while the engine's memory is released, for an optimizer step on the same device."""
        self.last_tick = self.last_shown = 0.0
        self.throughput = ThroughputReporter(name)
        self.is_resting, self.starting_since = False, 0.0
        """Time at which the inference server was first seen to start."""
        self.reported_warning = ""
        """The engine's finding that was reported last."""
        self.failures = 0
        """Failed completions since the last successful one."""

    @on
    async def weights_published(self, event: WeightsPublished, context: Context) -> Emits[LoadReport | EngineInexact]:
        if event.weight_version <= self.weight_version:
            return
        location = event.location.resolve(self.run_folder)
        if not await self._load(location, event.weight_version, context):
            if self.weight_version < 0:
                self.serving.clear()
            return
        self.weight_version, self.location, self.asleep = event.weight_version, location, False
        self.serving.set()
        for message in self._report_loaded(location):
            yield message
        if (finding := getattr(self.engine, "warning", "")) not in ("", self.reported_warning):
            self.reported_warning = finding
            yield EngineInexact(worker=self.name, finding=finding)

    @on
    async def engine_mismatch(self, event: EngineMismatch, context: Context) -> Emits[LoadReport]:
        """Close the engine, create another, and load the current weights, with their checksum, as published.

        Completions in flight end here without a last part; the gateway receives the same event and continues them on
        other workers. If the weights were removed meanwhile, the next ones are loaded. If the new engine fails to start
        or load, the worker fails and the supervisor restarts it.
        """
        if not event.recycle or event.worker not in ("", self.name) or self.engine is None or self.location is None:
            return
        if await self._recycle(self.location, context):
            for message in self._report_loaded(self.location):
                yield message

    @on
    async def release_memory(self, request: ReleaseMemory) -> Emits[MemoryReleased]:
        """Release the engine's memory; completions in progress continue with the next weights, as after any update."""
        engine = self.engine
        if engine is None or request.weight_version != self.weight_version:
            yield MemoryReleased()
            return
        if not hasattr(engine, "release_memory"):
            yield MemoryReleased(error=f"{type(engine).__name__} has no `release_memory`; implement it, or {NO_SLEEP}")
            return
        try:
            released = await cast(SleepingEngine, engine).release_memory()
        except EngineUnavailable as error:
            logger.warning("the inference server is gone, and started again with the next weights", error=str(error))
            released = 0
        except EngineError as error:
            yield MemoryReleased(error=str(error))
            return
        self.asleep = True
        yield MemoryReleased(released_bytes=released)

    @on
    async def engine_lost(self, event: EngineLost, context: Context) -> Emits[LoadReport]:
        """Start or reach the server again and load the current weights, unless new ones have been loaded already."""
        if event.worker != self.name or self.location is None:
            return
        if self.engine is not None and self.engine is not self.lost:
            serves = self.serving.is_set()
        else:
            serves = await self._recycle(self.location, context)
        if serves:
            for message in self._report_loaded(self.location):
                yield message

    def _report_loaded(self, location: WeightsLocation) -> Iterator[LoadReport]:
        return report_loaded(self.name, self.weight_version, location, self.engine)

    def loaded_weights(self) -> list[LoadReport]:
        """Returns the report of the weights that it serves, to be repeated; empty while it serves none."""
        return list(self._report_loaded(self.location)) if self.location is not None and self.serving.is_set() else []

    async def _recycle(self, location: WeightsLocation, context: Context) -> bool:
        """Replace the engine by a new one with the current weights.

        Returns False if newer ones have replaced them on disk, or its memory is released: then the next weights make a
        new one.
        """
        self.serving.clear()
        faulty, self.engine = self.engine, None
        if faulty is not None:
            await faulty.close()
        if self.asleep or not await self._load(location, self.weight_version, context):
            return False
        self.serving.set()
        return True

    @on
    async def generate(self, request: Generate, context: Context) -> Emits[Generated | EngineLost]:
        if not self.serving.is_set():
            with context.waiting("the engine that is being recycled", RECYCLE_SECONDS), suppress(TimeoutError):
                await asyncio.wait_for(self.serving.wait(), RECYCLE_SECONDS)
        if (engine := self.engine) is None or not self.serving.is_set():
            yield Generated(error=f"{self.name} has no weights yet")
            return
        try:
            async with aclosing(self._completion(engine, request, context)) as parts:
                async for part in parts:
                    yield part
        except (RequestError, ImageLost) as error:
            yield Generated(error=str(error), error_field=getattr(error, "field", "messages") or "request")
        except Exception as error:
            if isinstance(error, EngineUnavailable) or engine is self.dropped:
                # The gateway continues this completion, on this or on another worker: it has no last part.
                for lost in self._report_lost_engine(engine, error):
                    yield lost
                return
            if self.engine is not engine:
                return
            # A user's engine may raise anything: fail this completion, not the worker with all others.
            self.failures += 1
            reason = isinstance(error, EngineError) and str(error)
            yield Generated(error=reason or f"{type(error).__name__}: {error}")
            if self.failures >= MAX_FAILURES:
                raise

    def _report_lost_engine(self, engine: GenerationEngine, error: Exception) -> Iterator[EngineLost]:
        """Report the loss of an engine, once."""
        if self.lost is not engine:
            self.lost = engine
            if self.engine is engine:
                self.serving.clear()
            yield EngineLost(worker=self.name, reason=str(error))

    async def _completion(
        self, engine: GenerationEngine, request: Generate, context: Context
    ) -> AsyncGenerator[Generated, None]:
        refuse_unable(engine, request.sampling, request.images)
        try:
            prompt, sampled = self.held.take_prompt(request), list[bytes]()
        except PrefixLost as error:
            yield Generated(prefix_problem=error.problem)
            return
        asked = request.routes_from if ROUTES in engine.abilities else None
        options: dict[str, Any] = {} if asked is None else {"routes_from": asked}
        if request.images:
            options["images"] = await self._load_images(request.images, context)
        chunks = engine.generate(
            context.cause,
            prompt if getattr(engine, "takes_arrays", False) else prompt.tolist(),
            request.sampling,
            stream=request.stream,
            resumed_tokens=request.resumed_tokens,
            **options,
        )
        async with aclosing(chunks):
            async for chunk in pace_chunks(chunks) if request.stream else chunks:
                sampled.append(chunk.columns.token_ids)
                if chunk.finish_reason:
                    self.failures = 0
                    self.held.add_completion(request.digest, b"".join(sampled))
                for part in parts_of(chunk):
                    yield part
                if chunk.finish_reason:
                    return
        raise EngineError("the engine ended the completion without a chunk that has a finish reason")

    async def _load_images(self, images: tuple[ImageRef, ...], context: Context) -> PromptImages:
        """Returns a prompt's images, once this host has them."""
        folder = ImageFolder.of_run(self.run_folder)
        if self.pull_images is not None:
            with context.waiting("images of a prompt", IMAGES_SECONDS):
                await self.pull_images(images, folder)
        return PromptImages(images, folder)

    def next_tick_seconds(self) -> float:
        """Look less often at an engine that has nothing to do."""
        return RESTING_SECONDS if self.is_resting else self.tick_seconds

    @on
    def tick(self, _: Tick, context: Context) -> Iterator[Throughput | EngineStarting | EngineLoad | EngineLost]:
        since, self.last_tick = self.last_tick or context.now, context.now
        if self.engine is None:
            return
        if self.serving.is_set() and (end := end_of_shared_server(self.engine)):
            yield from self._report_lost_engine(self.engine, EngineUnavailable(end))
            return
        if phase := starting_phase(self.engine):
            self.starting_since = self.starting_since or context.now
            if context.now - self.last_shown >= SHOWN_SECONDS:
                self.last_shown = context.now
                yield EngineStarting(worker=self.name, phase=phase, seconds=context.now - self.starting_since)
            return
        self.starting_since = 0.0
        counters = self.engine.take_counters()
        self.is_resting = counters.is_idle()
        if self.load_reporter is not None and (load := self.load_reporter.take_change(counters, context.now)):
            yield load
        if counters.tokens or counters.busy_seconds:
            yield self.throughput.take(counters, since, context.now)

    async def _load(self, location: WeightsLocation, weight_version: int, context: Context) -> bool:
        """Load weights into the engine, which is created if there is none.

        Returns False if newer ones have replaced them on disk.

        Raises:
            EngineError: loading exceeded its time limit, or the engine rejected the weights.
        """
        seconds = self.load_seconds + (self.start_seconds if self.engine is None or self.engine is self.lost else 0.0)
        try:
            with context.waiting(f"loading weight version {weight_version}", seconds):
                async with asyncio.timeout(seconds) as deadline:
                    if self.locate is not None:
                        location = await self.locate(location, weight_version)
                    await self._load_until_held(location, weight_version)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            serves = f"it serves version {self.weight_version}" if self.weight_version >= 0 else "it serves none yet"
            late = (
                f"{self.name} has not loaded weight version {weight_version} within watchdog.load_seconds ="
                f" {self.load_seconds:g}"
            )
            raise EngineError(f"{late}; {serves}") from error
        except Exception as error:
            if not (isinstance(error, WeightsSuperseded) or is_superseded(location.folder)):
                raise
            logger.info(
                "these weights were removed while they were loaded: the next version is loaded",
                weight_version=weight_version,
            )
            return False
        return True

    async def _load_until_held(self, location: WeightsLocation, weight_version: int) -> None:
        """Load weights; a server that is gone is closed, and reached or started again with growing pauses.

        Raises:
            SetupError: `MAX_STARTS` attempts have failed.
        """
        for attempt in count(1):
            engine = self.engine
            try:
                if engine is None:
                    engine = self.engine = await asyncio.to_thread(self.make_engine, location.base or location.model)
                await engine.load_weights(location, weight_version)
            except EngineUnavailable as error:
                logger.warning("the inference server is gone", error=str(error), attempt=attempt)
                self.serving.clear()
                self.engine = None
                if engine is not None:
                    self.dropped = engine
                    await engine.close()
                if attempt == MAX_STARTS:
                    raise SetupError(f"{MAX_STARTS} starts in a row failed: {error}") from error
                await asyncio.sleep(RETRY_SECONDS[attempt - 1])
            else:
                return

    def status(self) -> dict[str, float | str]:
        """Current weight version, held prompts, and if the engine is asleep or what its server does while it starts."""
        starting = starting_phase(self.engine)
        engine = "asleep" if self.asleep else starting
        state: dict[str, float | str] = {"engine": engine} if engine else {}
        return {"weight_version": self.weight_version, **self.held.counts(), **state}

    async def stop(self) -> None:
        """Free the model."""
        if self.engine is not None:
            await self.engine.close()
