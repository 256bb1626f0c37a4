"""Protocol of the servers that `HttpEngine` asks: what differs between SGLang and vLLM."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from areal_actors.core.devices import detect_cuda
from areal_actors.core.values import SamplingParams
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.servers.server_process import ServerClient
from areal_actors.generation.settings import GenerationSettings


class Segment(NamedTuple):
    """One request to a server: a completion, or the rest of one after new weights."""

    request_id: str
    token_ids: Sequence[int]
    """Prompt, and the tokens sampled before."""
    sampling: SamplingParams
    max_tokens: int
    stop_ids: Sequence[int]
    streamed: bool


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

    def sample(self, server: ServerClient, segment: Segment) -> AsyncGenerator[SegmentPart, None]:
        """Yield a segment, in one part or as it is sampled.

        Raises:
            RequestError: the server refused the request.
            EngineUnavailable: the server is gone.
            EngineError: the server failed.
        """
        ...

    async def score(self, server: ServerClient, request_id: str, token_ids: Sequence[int], start: int) -> list[float]:
        """Returns log_softmax(logits) of the tokens from `start` on, given those before."""
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


def server_address(settings: GenerationSettings, place: EnginePlace) -> str:
    """Address of the worker's server that was started elsewhere; empty if it starts one itself."""
    urls = settings.server.urls
    return urls[place.number % len(urls)] if urls else ""


def on_cpu(settings: GenerationSettings) -> bool:
    """True if the server has no GPU."""
    return settings.device == "cpu" or (settings.device == "auto" and not detect_cuda().count)


def merged_flags(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of a server: those of the recipe replace the defaults of the same name, however its words are joined."""
    return {name.replace("_", "-"): value for name, value in (*defaults.items(), *options.items())}
