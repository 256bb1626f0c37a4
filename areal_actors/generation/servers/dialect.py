"""Protocol of the servers that `HttpEngine` asks: what differs between SGLang and vLLM."""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from areal_actors.core.devices import detect_cuda
from areal_actors.core.errors import EngineUnavailable, RequestError, WeightTransferFailed
from areal_actors.core.free_ports import find_free_ports
from areal_actors.core.values import SamplingParams
from areal_actors.generation.engine import EnginePlace, PromptImages
from areal_actors.generation.servers.server_process import ServerClient, ServerProcess, interpreter
from areal_actors.generation.servers.shared_server import SharedServerClient, write_address
from areal_actors.generation.settings import GenerationSettings
from areal_actors.weights.sending import Bucket

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
    routes_from: int | None = None
    """First position whose experts are wanted; None if none are."""
    images: PromptImages | None = None
    """Images of the prompt, whose ids have a placeholder for each of their tokens."""


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
    routes: bytes = b""
    """int32 `[positions, blocks, top_k]`: experts of the positions from `Segment.routes_from` to that before the last
    token, in the last part."""


class ServerUsage(NamedTuple):
    """Load of a server."""

    waiting: int = 0
    """Requests that wait for a slot or for room in the KV cache."""
    kv_cache: float = 0.0
    """Used share of the KV cache, 0 to 1."""


class Group(NamedTuple):
    """A process group of the sender of weights, its rank 0, and the processes of a server."""

    name: str
    address: str
    """Address of the sender, as the server reaches it."""
    port: int
    ranks: int
    backend: str
    """`gloo` or `nccl`."""


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
        """Returns log_softmax(logits) of the tokens from `start` on, under the weights of a segment."""
        ...

    async def routes(self, server: ServerClient, segment: Segment, token_ids: Sequence[int]) -> bytes:
        """Returns `SegmentPart.routes` of these tokens, for a segment that ended without them, under its weights.

        Raises:
            EngineError: the server does not report experts.
        """
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

    async def load_adapter(
        self, server: ServerClient, folder: str, name: str, replaced: Sequence[str], seconds: float
    ) -> None:
        """Load an adapter under a new name and unload those that it replaces; under them nothing is being sampled.

        Raises:
            EngineUnavailable: the server refused it or is gone.
        """
        ...

    # Weights in buckets, for `WeightChannel`: each raises WeightTransferFailed if the server refuses, EngineUnavailable
    # if it is gone.

    async def join_group(self, server: ServerClient, group: Group, seconds: float) -> Mapping[str, Any]:
        """Have the processes of the server join a group; returns when they have."""
        ...

    async def leave_group(self, server: ServerClient, name: str, seconds: float) -> None:
        """Have the processes of the server leave a group."""
        ...

    async def begin_update(self, server: ServerClient, seconds: float) -> None:
        """Prepare the server for buckets of a version; nothing is being sampled."""
        ...

    async def receive(
        self, server: ServerClient, group: str, bucket: Bucket, weight_version: int, seconds: float
    ) -> Mapping[str, Any]:
        """Have the server take a bucket that is broadcast to a group.

        Returns its report, with a `checksum` after the last bucket.
        """
        ...

    async def receive_handles(
        self, server: ServerClient, handles: Sequence[str], weight_version: int, seconds: float
    ) -> Mapping[str, Any]:
        """Have the server take a bucket in shared memory; returns its report, as `receive` does."""
        ...

    async def end_update(self, server: ServerClient, weight_version: int, seconds: float) -> None:
        """Drop the prefix cache after the last bucket."""
        ...

    async def release(self, server: ServerClient, seconds: float, *, keeps_weights: bool) -> None:
        """Release the memory of KV cache and weights until `wake`; nothing is being sampled.

        Args:
            server: the server.
            seconds: time limit of each request.
            keeps_weights: copy the weights to the host's memory, since no others will be loaded after `wake`.

        Raises:
            EngineUnavailable: the server is gone.
            EngineError: it refused.
        """
        ...

    async def wake(self, server: ServerClient, seconds: float) -> None:
        """Allocate the memory again; weights that were not kept have arbitrary values until others are loaded.

        Raises:
            EngineUnavailable: the server refused or is gone.
        """
        ...


def server_of(
    dialect: ServerDialect, model_folder: str, settings: GenerationSettings, place: EnginePlace
) -> ServerClient:
    """Returns a client of the worker's server, which is started unless it was started elsewhere or has another owner.

    Raises:
        SetupError: there is no interpreter with the server's package.
    """
    if urls := settings.server.urls:
        return ServerClient(dialect.title, urls[place.number % len(urls)])
    if (shared := place.shared) is not None and place.is_guest:
        return SharedServerClient(dialect.title, shared.address, model_folder)
    port = find_free_ports()
    python = interpreter(dialect.name, settings.server, Path.cwd())
    command, environment = dialect.command(python, model_folder, settings, place, port)
    process = ServerProcess(dialect.title, command, environment, place.logs / f"{dialect.name}-{place.number}.log")
    url = f"http://127.0.0.1:{port}"
    if shared is not None:
        write_address(shared.address, url, model_folder, process.pid)
    return ServerClient(dialect.title, url, process)


def adapter_lost(error: Exception, adapter: str) -> Exception:
    """Returns an `EngineUnavailable` if a server no longer has this adapter, else the error itself.

    A server that was started elsewhere may have been restarted: that is no fault of the client's request.
    """
    if adapter and isinstance(error, RequestError) and adapter in str(error):
        return EngineUnavailable(f"the server has lost the adapter {adapter}: {error}")
    return error


def own_address(url: str) -> str:
    """Returns the address of this host as the server at this address reaches it.

    Raises:
        WeightTransferFailed: there is no way to it.
    """
    parts = urlsplit(url)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((parts.hostname, parts.port or 80))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise WeightTransferFailed(f"there is no way to the server at {url} ({error})") from error


def on_cpu(settings: GenerationSettings) -> bool:
    """True if the server has no GPU."""
    return settings.device == "cpu" or (settings.device == "auto" and not detect_cuda().count)


def merged_flags(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of a server: those of the recipe replace the defaults of the same name, however its words are joined."""
    return {name.replace("_", "-"): value for name, value in (*defaults.items(), *options.items())}
