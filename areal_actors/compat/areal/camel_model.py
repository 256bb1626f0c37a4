"""AReaL's `AReaLOpenAICompatibleModel`: CAMEL's agents call the model through the client of an episode.

It needs `camel-ai`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from camel.models import BaseModelBackend
from camel.utils import BaseTokenCounter

from areal_actors.compat.areal.client import RecordingOpenAI


class EpisodeTokenCounter(BaseTokenCounter):  # type: ignore[misc, unused-ignore]
    """Counts the tokens of the texts of messages; CAMEL trims its memory by it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def count_tokens_from_messages(self, messages: Sequence[Any]) -> int:
        """Number of tokens of the contents and tool calls."""
        return sum(
            len(self.encode(f"{message.get('content') or ''}{message.get('tool_calls') or ''}")) for message in messages
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(self.tokenizer.encode(text))

    def decode(self, token_ids: list[int]) -> str:
        """Text of token ids."""
        return str(self.tokenizer.decode(token_ids))


class CamelModel(BaseModelBackend):  # type: ignore[misc, unused-ignore]
    """A CAMEL model whose calls are those of one episode."""

    def __init__(
        self,
        openai_client: RecordingOpenAI,
        tokenizer: Any,
        model_type: str = "areal",
        model_config_dict: dict[str, Any] | None = None,
    ) -> None:
        """Take the client of the episode.

        Args:
            openai_client: the `ArealOpenAI` of the episode.
            tokenizer: counts tokens.
            model_type: accepted without effect: the model is the run's.
            model_config_dict: further fields of each request.
        """
        super().__init__(model_type, model_config_dict, token_counter=EpisodeTokenCounter(tokenizer))
        self._client = openai_client

    @property
    def token_counter(self) -> BaseTokenCounter:
        """Counter of the tokenizer."""
        return self._token_counter

    def _run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("this model is asynchronous; call `await agent.astep(…)` instead of `agent.step(…)`")

    async def _arun(
        self, messages: list[Any], response_format: Any = None, tools: list[dict[str, Any]] | None = None
    ) -> Any:
        if response_format is not None:
            raise ValueError("response_format: this model answers in text; leave it out, or use recipes/camel.toml")
        fields: dict[str, Any] = {**self.model_config_dict, "messages": messages}
        if tools:
            fields["tools"] = tools
        return await self._client.chat.completions.create(**fields)
