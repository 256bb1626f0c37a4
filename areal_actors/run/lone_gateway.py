"""The recording gateway without a run.

Its actors are on an in-memory bus before an inference server that was started elsewhere. Nothing is trained. One
session with a fixed key is always open, so that any OpenAI or Anthropic client works as it is; further ones are opened
over HTTP.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop
from huggingface_hub import snapshot_download

from areal_actors.core.errors import SetupError
from areal_actors.core.model_config import context_of
from areal_actors.core.task_settings import TaskSettings
from areal_actors.core.values import SamplingParams, Value, WeightsLocation
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.call_record import RecordedCalls
from areal_actors.gateway.conversations.turns import ConversationTurn, text_of
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.capacity import ExternalCapacity
from areal_actors.gateway.sessions.keys import admin_key
from areal_actors.gateway.settings import GatewaySettings
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.inference_worker import InferenceWorker
from areal_actors.generation.servers.plain_server import DescribedServer, PlainServerEngine, describe_server
from areal_actors.messages import (
    DescribeGateway,
    EpisodeAbandoned,
    GatewayDescribed,
    StartSession,
    TrajectoryExported,
    WeightsPublished,
)
from areal_actors.privacy.redaction import load_redaction
from areal_actors.privacy.settings import RedactionSettings
from areal_actors.processes.actor_host import ActorHost
from areal_actors.recipe.recipe import Recipe
from areal_actors.supervision.run_session import on_interrupt
from areal_actors.tokenization.tokenizer import ChatTokenizer
from areal_actors.training.algorithms import Grpo
from areal_actors.weights.model_hub import UNAVAILABLE
from areal_bus.base import Stamp
from areal_bus.memory import MemoryBus

NAME = "gateway"
WORKER = "inference_worker-0"
TOKENIZER_FILES = ["*.json", "*.jinja"]
DEFAULT_CONTEXT = 4096
LEASE_SECONDS = 3600.0
POLL_SECONDS = 0.2
START_SECONDS = 600.0
ASK_SECONDS = 30.0
TRIM_SECONDS = 60.0
ENDED, FAILED = 0, 1

BANNER = """\
recording calls of {model} at {url} ({kind}) in {record}; Ctrl-C ends

    from openai import OpenAI
    client = OpenAI(base_url="{root}/v1", api_key="{key}")
    client.chat.completions.create(model="default", messages=[{{"role": "user", "content": "2 + 3 ="}}])

admin key, for sessions of their own (POST {root}/rl/start_session): {admin}
"""


class LoneGatewayOptions(Value):
    """Options of the command."""

    engine: str
    """URL of the inference server."""
    kind: str = ""
    """`vllm` or `sglang`; empty asks the server."""
    model: str = ""
    """Folder or hub id of the tokenizer; empty asks the server."""
    record: str = "calls.jsonl"
    host: str = "127.0.0.1"
    port: int = 0
    key: str = ""
    """Key of the session that is always open; empty generates one."""
    sessions: int = 256
    """Sessions at once."""
    redact: tuple[str, ...] = ()
    """Rules as in `log.redaction.rules`: calls in which one matches are recorded without tokens and texts."""


def serve_gateway(options: LoneGatewayOptions) -> int:
    """Serve until Ctrl-C; returns the exit status.

    Raises:
        SetupError: the server, the model's tokenizer or the file of calls cannot be used.
    """
    log_to_terminal()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        described = runner.run(describe_server(options.engine, options.kind))
        folder = tokenizer_folder(options.model or described.folder)
        ChatTokenizer.load(folder)  # one that cannot be read is refused before anything starts
        with tempfile.TemporaryDirectory(prefix="areal-gateway-") as place:
            return runner.run(_serve(options, described, folder, Path(place)))


def tokenizer_folder(model: str) -> str:
    """Returns the folder with a model's tokenizer and configuration, downloaded if it is on the hub.

    Its weights are never downloaded.

    Raises:
        SetupError: there is no such folder, and the hub does not have it or cannot be reached.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    try:
        return snapshot_download(model, allow_patterns=TOKENIZER_FILES)
    except UNAVAILABLE as error:
        raise SetupError(
            f"--model: the tokenizer of '{model}' is neither in a folder here nor available from the hub"
            f" ({type(error).__name__}); write --model FOLDER with a folder that has its tokenizer.json and config.json"
        ) from error


async def _serve(options: LoneGatewayOptions, described: DescribedServer, folder: str, place: Path) -> int:
    interrupted = asyncio.Event()
    on_interrupt(interrupted, lambda name: sys.stderr.write(f"{name}: open calls are finished\n"))
    gateway = LoneGateway(options, described, folder, place)
    try:
        await gateway.start()
        gateway.show()
        return await gateway.run(interrupted)
    finally:
        await gateway.stop()


class LoneGateway:
    """A session manager and an inference worker in this event loop."""

    def __init__(self, options: LoneGatewayOptions, described: DescribedServer, folder: str, place: Path) -> None:
        """`folder` has the tokenizer, `place` takes images.

        Raises:
            SetupError: the file of calls cannot be written, or the folder has no tokenizer.
        """
        self.options, self.described, self.folder = options, described, folder
        self.redaction = load_redaction(RedactionSettings(rules=options.redact), Path.cwd())
        self.key = options.key or f"sk-{secrets.token_urlsafe(24)}"
        self.secret = secrets.token_bytes(32)
        context = described.context or context_of(folder) or DEFAULT_CONTEXT
        sampling = SamplingParams(max_tokens=max(1, context // 2))
        recipe = Recipe(run=NAME, steps=1, model=folder, algorithm=Grpo(), task=TaskSettings(), sampling=sampling)
        self.bus = MemoryBus(NAME, lease_seconds=LEASE_SECONDS)
        self.host = ActorHost(self.bus, recipe, RunFolder(place))
        self.manager = SessionManager(
            GatewaySettings(host=options.host, port=options.port),
            ChatTokenizer.load,
            secret=self.secret,
            max_model_len=context,
            capacity=ExternalCapacity(1, slots=options.sessions),
            sampling=sampling,
            run_folder=place,
        )
        try:
            search = self._search if self.redaction is not None else None
            self.calls = RecordedCalls(self.manager.registry, Path(options.record), search)
        except OSError as error:
            raise SetupError(f"--record: {options.record} cannot be written: {error.strerror}") from error
        self.manager.calls.unreported = self.calls
        engine_place = EnginePlace(worker=WORKER, logs=place)
        self.worker = InferenceWorker(
            lambda _: PlainServerEngine(described, folder, context, engine_place),
            name=WORKER,
            concurrency=options.sessions,
        )

    def _search(self, path: Sequence[ConversationTurn]) -> Mapping[str, int]:
        assert self.redaction is not None
        chat = self.manager.calls.chat
        return self.redaction.count(text_of(path, chat)) if chat is not None else {}

    async def start(self) -> None:
        """Serve the actors, and open the session that is always open.

        Raises:
            SetupError: the engine cannot sample, or the address is in use.
        """
        await self.host.serve(WORKER, self.worker)
        await self.host.serve("session_manager-0", self.manager)
        location = WeightsLocation(folder=self.folder, checksum="", model=self.folder)
        await self.host.publish(WeightsPublished(weight_version=0, location=location))
        end = time.monotonic() + START_SECONDS
        while missing := (await self._state()).missing:
            if self.host.failed.done():
                raise SetupError(f"--engine: {self.host.failed.result()}")
            if time.monotonic() > end:
                raise SetupError(
                    f"--engine: after {START_SECONDS:g} s the gateway still waits for {missing}; look at the server's"
                    " output"
                )
            await asyncio.sleep(POLL_SECONDS)
        await self._open()

    async def _state(self) -> GatewayDescribed:
        return await self.bus.request(DescribeGateway(), self._stamp(), timeout=ASK_SECONDS)

    async def _open(self) -> None:
        """Open the session of the fixed key, unless it is open."""
        await self.bus.request(StartSession(task=NAME, api_key=self.key), self._stamp(), timeout=ASK_SECONDS)

    def _stamp(self) -> Stamp:
        return Stamp(id=uuid.uuid4().hex, sender=NAME, time=time.time())

    @property
    def root(self) -> str:
        """Address of the gateway."""
        assert self.manager.gateway is not None
        return self.manager.gateway.root

    def show(self) -> None:
        """Print how to reach it."""
        served, admin = self.described, admin_key(self.secret, "")
        sys.stdout.write(
            BANNER.format(
                model=served.model,
                url=served.url,
                kind=served.kind,
                record=self.options.record,
                root=self.root,
                key=self.key,
                admin=admin,
            )
        )
        sys.stdout.flush()

    async def run(self, interrupted: asyncio.Event) -> int:
        """Serve until interrupted; returns the exit status."""
        tasks = [asyncio.create_task(work) for work in (self._keep_open(), self._trim())]
        ending = asyncio.create_task(interrupted.wait())
        try:
            awaited: set[asyncio.Future[Any]] = {ending, self.host.failed, *tasks}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ending, *tasks):
                task.cancel()
            await asyncio.gather(ending, *tasks, return_exceptions=True)
        if not self.host.failed.done():
            return ENDED
        sys.stderr.write(f"the gateway ended: {self.host.failed.result()}\n")
        return FAILED

    async def _keep_open(self) -> None:
        """Open the session of the fixed key again whenever one has ended, as after ten minutes without use."""
        async with self.bus.events(EpisodeAbandoned, TrajectoryExported, consumer=NAME, history="new") as ended:
            async for delivery in ended:
                await delivery.acknowledge()
                await self._open()

    async def _trim(self) -> None:
        """Forget events that all actors have."""
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            await self.bus.trim((await self.bus.span()).last)

    async def stop(self) -> None:
        """Let open calls end, and stop."""
        with suppress(Exception):
            await self.host.stop()
        self.calls.close()
        await self.bus.close()
