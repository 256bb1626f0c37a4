"""A vLLM or SGLang server as it is usually started.

Its model stays as it is, and it needs neither a plug-in nor the development mode.
"""

from __future__ import annotations

import pkgutil
from typing import Any

from areal_actors.core.errors import EngineError, EngineUnavailable, SetupError
from areal_actors.core.values import Value, WeightsLocation
from areal_actors.generation.engine import EnginePlace
from areal_actors.generation.engines import describe_engine, server_engines
from areal_actors.generation.servers.http_engine import HttpEngine
from areal_actors.generation.servers.server_process import OK, ServerClient
from areal_actors.generation.settings import GenerationSettings, ServerSettings

ANSWER_SECONDS = 10.0


class DescribedServer(Value):
    """A server's own description of what it serves."""

    url: str
    kind: str
    """Name of the engine whose protocol it speaks."""
    model: str
    """Name of the model in requests."""
    folder: str
    """Folder or hub id from which the server loaded it."""
    context: int
    """Tokens of a prompt and its completion; 0 if the server does not state it."""


class PlainServerEngine(HttpEngine):
    """Samples from a server whose weights never change."""

    def __init__(self, described: DescribedServer, model_folder: str, context: int, place: EnginePlace) -> None:
        """`model_folder` has the tokenizer; `context` counts the tokens of a prompt and its completion."""
        make_dialect = pkgutil.resolve_name(describe_engine(described.kind).plain_dialect)
        settings = GenerationSettings(
            engine=described.kind, max_model_len=context, server=ServerSettings(urls=(described.url,))
        )
        super().__init__(make_dialect(described.model), model_folder, settings, place)

    # The server has its weights
    async def load_weights(self, location: WeightsLocation, weight_version: int) -> None:  # noqa: ARG002
        """Wait until the server samples; it has its weights."""
        await self.until_ready()
        self.weight_version = weight_version


async def describe_server(url: str, kind: str = "") -> DescribedServer:
    """Returns the server's description of its first model; `kind` is that of a server that does not state it.

    Raises:
        SetupError: it does not answer, has no model, or is of another kind.
    """
    server = ServerClient("the inference server", url.rstrip("/").removesuffix("/v1"))
    try:
        status, answer = await server.get("/v1/models", seconds=ANSWER_SECONDS)
    except EngineUnavailable as error:
        raise SetupError(f"--engine: {error}") from error
    except EngineError as error:
        raise SetupError(f"--engine: {error}") from error
    finally:
        await server.close()
    models = answer.get("data") if isinstance(answer, dict) else None
    if status != OK or not models:
        raise SetupError(
            f"--engine: {server.url}/v1/models answered {status} without a model; give the address of a vLLM or SGLang"
            " server"
        )
    return _described(server.url, models[0], kind)


def _described(url: str, model: dict[str, Any], kind: str) -> DescribedServer:
    owner = kind or str(model.get("owned_by", ""))
    if owner not in server_engines():
        kinds = " or ".join(f"--kind {name}" for name in reversed(server_engines()))
        raise SetupError(f"--engine: {url} is served by '{owner}'; write {kinds} if it speaks the protocol of one")
    name = str(model["id"])
    return DescribedServer(
        url=url,
        kind=owner,
        model=name,
        folder=str(model.get("root") or name),
        context=int(model.get("max_model_len") or 0),
    )
