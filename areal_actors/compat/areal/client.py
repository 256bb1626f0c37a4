"""AReaL's `ArealOpenAI`: an OpenAI client of one episode whose rewards are set at once, without `await`.

Calls go through the gateway like those of any client, which renders and parses them; the client keeps their tokens.
"""

from __future__ import annotations

from typing import Any

import openai
from openai._compat import cached_property
from openai.resources.chat import AsyncChat
from openai.resources.chat.completions import AsyncCompletions

from areal_actors.compat.areal.engine import InferenceEngine, response_of
from areal_actors.compat.areal.interactions import InteractionCache, TokenInteraction
from areal_actors.core.agent_host.agent_loader import keyed_url

CHAT, RESPONSES = "/chat/completions", "/responses"


class DefaultModelCompletions(AsyncCompletions):
    """Chat completions whose `model` may be left out."""

    async def create(self, *, model: str = "default", **options: Any) -> Any:
        """See `AsyncCompletions.create`."""
        return await super().create(model=model, **options)


class DefaultModelChat(AsyncChat):
    """The chat API with these completions."""

    @cached_property
    def completions(self) -> DefaultModelCompletions:
        """Chat completions."""
        return DefaultModelCompletions(self._client)


class RecordingOpenAI(openai.AsyncOpenAI):
    """Make one for each episode; it shares the engine's connections, and needs no `close`."""

    def __init__(
        self,
        engine: InferenceEngine,
        tokenizer: Any = None,
        tool_call_parser: str = "",
        reasoning_parser: str = "",
        engine_max_tokens: int | None = None,
        chat_template_type: str = "hf",
        **options: Any,
    ) -> None:
        """Connect to the model.

        Args:
            engine: the argument of `arun_episode`.
            tokenizer: added to the responses; the gateway has its own.
            tool_call_parser: accepted without effect: the gateway has the parser of the model's family.
            reasoning_parser: accepted without effect, too.
            engine_max_tokens: `max_completion_tokens` of chat calls that have none.
            chat_template_type: `hf`, or `concat`, which `export_interactions(style="concat")` needs; the gateway
                extends the tokens of an earlier call in both.
            options: of `openai.AsyncOpenAI`.
        """
        del tool_call_parser, reasoning_parser
        address = {
            "base_url": keyed_url(engine.base_url, engine.api_key),
            "api_key": engine.api_key,
        }  # a program may give a key of its own
        defaults = {**address, "http_client": engine.client._client}  # noqa: SLF001
        super().__init__(
            **{**defaults, "max_retries": engine.client.max_retries, "timeout": engine.client.timeout, **options}
        )
        self.engine = engine
        self.tokenizer = tokenizer
        self._engine_max_tokens = engine_max_tokens
        self._chat_template_type = chat_template_type
        self._cache = InteractionCache()

    @cached_property
    def chat(self) -> DefaultModelChat:
        """The chat API."""
        return DefaultModelChat(self)

    async def post(self, path: str, *, body: Any = None, stream: bool = False, **options: Any) -> Any:
        """Send a request, and keep the call that it completes.

        Raises:
            ValueError: it is streamed, or asks for several answers.
        """
        if path not in (CHAT, RESPONSES):
            return await super().post(path, body=body, stream=stream, **options)
        if stream or body.get("n") not in (None, 1):
            name = "stream=True" if stream else f"n={body['n']}"
            raise ValueError(
                f"{name}: this client keeps whole calls of one answer; leave it out, or use"
                " openai.AsyncOpenAI(base_url=…)"
            )
        limit = {"max_completion_tokens": self._engine_max_tokens} if self._engine_max_tokens and path == CHAT else {}
        answer: Any = await super().post(path, body={**limit, **body}, **options)
        await self._keep(answer, dict(body), is_chat=path == CHAT)
        return answer

    async def _keep(self, answer: Any, body: dict[str, Any], *, is_chat: bool) -> None:
        columns = await self.engine.recorded_columns(answer.id)
        output = [choice.message for choice in answer.choices[:1]] if is_chat else answer.output
        self._cache[answer.id] = TokenInteraction(
            model_response=response_of(columns, tokenizer=self.tokenizer),
            parent=self._cache.get(columns.parent),
            chat_template_type=self._chat_template_type,
            messages=list(body.get("messages", ())),
            output_message_list=[message.model_dump(exclude_none=True) for message in output],
            completion=answer if is_chat else None,
            response=None if is_chat else answer,
        )

    async def close(self) -> None:
        """Do nothing: the connections are those of the engine, which closes them at the end of the episode."""

    def get_interaction(self, id: str) -> TokenInteraction | None:  # noqa: A002 - AReaL's name
        """The call of this id; None if there is none."""
        return self._cache.get(id)

    def set_reward(self, id: str, reward: float) -> None:  # noqa: A002 - AReaL's name
        """Set the reward of a completed call; raises like `InteractionCache.set_reward`."""
        self._cache.set_reward(id, reward)

    def set_last_reward(self, reward: float) -> None:
        """Set the reward of the last completed call; raises like `InteractionCache.set_last_reward`."""
        self._cache.set_last_reward(reward)

    def apply_reward_discount(self, turn_discount: float = 1.0) -> dict[str, TokenInteraction]:
        """See `InteractionCache.apply_reward_discount`."""
        return self._cache.apply_reward_discount(turn_discount)

    def export_interactions(self, style: str) -> dict[str, TokenInteraction]:
        """See `InteractionCache.export_interactions`."""
        return self._cache.export_interactions(style)
