"""The engine argument of `arun_episode`.

It samples from the model being trained, through the episode's session at the gateway.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from types import TracebackType
from typing import Any, Self

from areal_actors.compat.areal.generation import TokenRequest, TokenResponse
from areal_actors.library.workflow import ArealOpenAI, InteractionColumns
from areal_actors.rollout.episode_context import workflow_context


class InferenceEngine:
    """Use it in an `async with`.

    `calls` has the tokens of every model call of the episode made through it, by interaction id.
    """

    def __init__(self, data: dict[str, Any], *, base_url: str, api_key: str) -> None:
        self.base_url = base_url
        self.api_key = api_key
        self.task = data
        self.client = ArealOpenAI(base_url=base_url, api_key=api_key)
        self.calls: dict[str, InteractionColumns] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.client.__aexit__(exc_type, exc, exc_tb)

    async def agenerate(self, req: TokenRequest) -> TokenResponse:
        """Continue token ids.

        Raises:
            ValueError: a sampling parameter has no counterpart here; the message names it.
            openai.APIStatusError: the gateway refuses the request; a trained call must have the recipe's temperature.
        """
        began = time.perf_counter()
        answer = await self.client.completions.create(model="default", **req.arguments())
        columns = await self.recorded_columns(answer.id)
        return response_of(columns, tokenizer=req.tokenizer, latency=time.perf_counter() - began)

    async def recorded_columns(self, interaction_id: str) -> InteractionColumns:
        """The tokens of a completed call, as they will be trained; raises like `ArealOpenAI.get_tokens`."""
        if interaction_id not in self.calls:
            self.calls[interaction_id] = await self.client.get_tokens(interaction_id)
        return self.calls[interaction_id]

    async def select_trained(self, interaction_ids: Collection[str]) -> None:
        """Train only these calls of the episode; raises like `ArealOpenAI.select_trained`."""
        call_ids = {call.id for call in await self.client.get_interactions()}
        if call_ids != set(interaction_ids):
            await self.client.select_trained(list(interaction_ids))

    def get_version(self) -> int:
        """Newest weight version served at the start of the episode; each token has the version that sampled it."""
        return workflow_context.get().weight_version


def response_of(columns: InteractionColumns, *, tokenizer: Any = None, latency: float = float("inf")) -> TokenResponse:
    """The tokens of a call as AReaL's response; `latency` in seconds."""
    return TokenResponse(
        input_tokens=columns.prompt_token_ids,
        output_tokens=columns.token_ids,
        output_logprobs=columns.logprobs,
        output_versions=columns.weight_versions,
        stop_reason=columns.finish_reason,
        tokenizer=tokenizer,
        latency=latency,
        ttft=latency,
    )
