"""vLLM as it is usually started: under a name of its own, and without the development mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from areal_actors.generation.servers.dialect import Segment, SegmentPart
from areal_actors.generation.servers.server_process import OK, ServerClient
from areal_actors.generation.servers.vllm.dialect import VLLM

ANSWER_SECONDS = 10.0


class PlainVLLM(VLLM):
    """vLLM's completions for a model of any name."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def is_ready(self, server: ServerClient) -> bool:
        """True if the server samples; raises EngineUnavailable if it does not answer."""
        status, _ = await server.get("/health", seconds=ANSWER_SECONDS)
        return status == OK

    async def sample(self, server: ServerClient, segment: Segment) -> AsyncGenerator[SegmentPart, None]:
        """Yield a segment, in one part or as it is sampled."""
        async for part in super().sample(server, segment._replace(adapter=self.model)):
            yield part

    async def score(self, server: ServerClient, segment: Segment, token_ids: Sequence[int], start: int) -> list[float]:
        """Returns log_softmax(logits) of the tokens from `start` on, given those before."""
        return await super().score(server, segment._replace(adapter=self.model), token_ids, start)

    async def abort(self, server: ServerClient, request_ids: Sequence[str]) -> None:
        """Do nothing: the server ends a completion whose connection is closed."""
