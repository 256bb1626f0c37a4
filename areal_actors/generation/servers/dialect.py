"""Protocol of the servers that `HttpEngine` asks: what differs between SGLang and vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import EngineUnavailable, RequestError
from areal_actors.core.values import SamplingParams
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.servers.server_process import ServerClient, ServerProcess, free_port, interpreter
from areal_actors.generation.settings import GenerationSettings

USAGE_SECONDS = 5.0
"""Time limit of a server's report about its load."""


class Segment(NamedTuple):
    """One request to a server: a completion, or the rest of one after new weights."""

    request_id: str
    token_ids: Sequence[int]
    """Prompt, and the tokens sampled before."""
    sampling: SamplingParams
    max_tokens: int
    stop_ids: Sequence[int]
    streamed: bool
    adapter: str = ""
    """Name of the adapter that samples it; empty for the model itself."""


class SegmentPart(NamedTuple):
    """The next tokens of a segment."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]] = ()
    """The most likely (token id, log-probability) pairs at each position."""
    finish_reason: str = ""
    """`stop`, `length` or `abort` in the last part."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, in the last part."""


class ServerUsage(NamedTuple):
    """Load of a server."""

    waiting: int = 0
    """Requests that wait for a slot or for room in the KV cache."""
    kv_cache: float = 0.0
    """Used share of the KV cache, 0 to 1."""


class ServerDialect(Protocol):
    """One kind of server."""

    name: str
    """As in a recipe, and the name of the Python package."""
    title: str
    """As people write it."""
    abilities: frozenset[str]

    def altering(self, place: EnginePlace) -> frozenset[str]:
        """Returns the fields of `SamplingParams` after which log-probabilities are reported.

        Those of a completion that states one are computed again by `score`.
        """
        ...

    def command(
        self, python: str, model_folder: str, settings: GenerationSettings, place: EnginePlace, port: int
    ) -> tuple[list[str], dict[str, str]]:
        """Returns the command that starts a server, and its environment variables."""
        ...

    async def is_ready(self, server: ServerClient) -> bool:
        """True if the server samples.

        Raises:
            EngineUnavailable: it does not answer.
        """
        ...

    async def usage(self, server: ServerClient) -> ServerUsage:
        """Returns how busy the server is.

        Raises:
            EngineUnavailable: it does not answer.
            EngineError: it has no such report.
        """
        ...

    def sample(self, server: ServerClient, segment: Segment) -> AsyncGenerator[SegmentPart, None]:
        """Yield a segment, in one part or as it is sampled.

        Raises:
            RequestError: the server refused the request.
            EngineUnavailable: the server is gone.
            EngineError: the server failed.
        """
        ...

    async def score(self, server: ServerClient, segment: Segment, token_ids: Sequence[int], start: int) -> list[float]:
        """Returns log_softmax(logits) of the tokens from `start` on, given those before, under the weights of a segment."""
        ...

    async def abort(self, server: ServerClient, request_ids: Sequence[str]) -> None:
        """End these segments: each yields its tokens so far and the finish reason `abort`."""
        ...

    async def load(self, server: ServerClient, folder: str, weight_version: int, seconds: float) -> None:
        """Load weights and drop the prefix cache; nothing is being sampled.

        Raises:
            EngineUnavailable: the server refused them or is gone; its weights are unknown.
        """
        ...

    async def load_adapter(self, server: ServerClient, folder: str, name: str, replaced: str, seconds: float) -> None:
        """Load an adapter under a new name and unload the one that it replaces, if any; nothing is being sampled.

        Raises:
            EngineUnavailable: the server refused it or is gone.
        """
        ...


def server_of(dialect: ServerDialect, model_folder: str, settings: GenerationSettings, place: EnginePlace) -> ServerClient:
    """Returns a client of the worker's server, which is started unless it was started elsewhere.

    Raises:
        SetupError: there is no interpreter with the server's package.
    """
    if urls := settings.server.urls:
        return ServerClient(dialect.title, urls[place.number % len(urls)])
    port = free_port()
    python = interpreter(dialect.name, settings.server, Path.cwd())
    command, environment = dialect.command(python, model_folder, settings, place, port)
    process = ServerProcess(dialect.title, command, environment, place.logs / f"{dialect.name}-{place.number}.log")
    return ServerClient(dialect.title, f"http://127.0.0.1:{port}", process)


def adapter_lost(error: Exception, adapter: str) -> Exception:
    """Returns an `EngineUnavailable` if a server refused a request because it no longer has this adapter, else the error itself.

    A server that was started elsewhere may have been restarted: that is no fault of the client's request.
    """
    if adapter and isinstance(error, RequestError) and adapter in str(error):
        return EngineUnavailable(f"the server has lost the adapter {adapter}: {error}")
    return error


def on_cpu(settings: GenerationSettings) -> bool:
    """True if the server has no GPU."""
    return settings.device == "cpu" or (settings.device == "auto" and not detect_cuda().count)


def merged_flags(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of a server: those of the recipe replace the defaults of the same name, however its words are joined."""
    return {name.replace("_", "-"): value for name, value in (*defaults.items(), *options.items())}
