"""Sampling parameters, requests and responses of AReaL's low-level API (`engine.agenerate`)."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any, Self

ANY_TOP_K = int(1e8)
"""Default of `top_k`: every token is considered."""
LENGTH_NAMES = {"completions": "max_completion_tokens", "responses": "max_output_tokens", "openai-agents": "max_tokens"}
"""Name of the maximum length of an answer, by API."""
OPENAI_FIELDS = ("n_samples", "max_new_tokens", "top_p", "temperature", "stop", "frequency_penalty")


@dataclass
class GenerationHyperparameters:
    """`gconfig`: sampling parameters; field names and defaults are AReaL's."""

    n_samples: int = 1
    max_new_tokens: int = 16384
    min_new_tokens: int = 0
    max_tokens: int = 32768
    """Maximum number of tokens of prompt and answer together."""
    greedy: bool = False
    top_p: float = 1.0
    top_k: int = ANY_TOP_K
    temperature: float = 1.0
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    stop: list[str] | None = None
    frequency_penalty: float = 0.0
    lora_name: str = "default_lora"
    use_beam_search: bool = False

    def new(self, **changes: Any) -> Self:
        """Returns a copy with these changes."""
        return type(self)(**{**asdict(self), **changes})

    def new_with_stop_and_pad_token_ids(self, tokenizer: Any) -> Self:
        """Returns a copy that also stops at the tokenizer's end and padding tokens."""
        stop_ids = list(self.stop_token_ids)
        stop_ids += [token for token in (tokenizer.pad_token_id, tokenizer.eos_token_id) if token not in stop_ids]
        return self.new(stop_token_ids=stop_ids)

    def to_openai_args_dict(
        self, exclude_args: Collection[str] | None = None, api_format: str = "completions"
    ) -> dict[str, Any]:
        """Returns the parameters as arguments of an OpenAI client; those that its API does not have are left out.

        Raises:
            ValueError: `api_format` is not `completions`, `responses` or `openai-agents`.
        """
        if api_format not in LENGTH_NAMES:
            raise ValueError(f"api_format is {api_format!r}; write one of {', '.join(LENGTH_NAMES)}")
        names = {"n_samples": "n", "max_new_tokens": LENGTH_NAMES[api_format]}
        kept = [name for name in OPENAI_FIELDS if name not in (exclude_args or ())]
        return {names.get(name, name): getattr(self, name) for name in kept}

    def to_openai_completions_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Returns `to_openai_args_dict` for chat completions."""
        return self.to_openai_args_dict(exclude_args, "completions")

    def to_openai_responses_args_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Returns `to_openai_args_dict` for the responses API."""
        return self.to_openai_args_dict(exclude_args, "responses")

    def to_openai_agents_model_settings_dict(self, exclude_args: Collection[str] | None = None) -> dict[str, Any]:
        """Returns `to_openai_args_dict` for `ModelSettings` of the OpenAI Agents SDK."""
        return self.to_openai_args_dict(exclude_args, "openai-agents")


@dataclass
class TokenRequest:
    """AReaL's `ModelRequest`: token ids to continue."""

    rid: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Accepted without effect: calls of an episode go to the same inference worker anyway."""
    input_ids: list[int] = field(default_factory=list)
    gconfig: GenerationHyperparameters = field(default_factory=GenerationHyperparameters)
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    image_data: list[str] | None = field(default_factory=list)
    processor: Any = None
    vision_msg_vllm: list[Any] | None = None

    def copy(self) -> Self:
        """Returns a copy whose lists can be changed."""
        return type(self)(
            rid=self.rid,
            input_ids=list(self.input_ids),
            gconfig=self.gconfig.new(),
            metadata=dict(self.metadata),
            tokenizer=self.tokenizer,
            image_data=list(self.image_data) if self.image_data is not None else None,
            processor=self.processor,
            vision_msg_vllm=list(self.vision_msg_vllm) if self.vision_msg_vllm is not None else None,
        )

    def arguments(self) -> dict[str, Any]:
        """Returns the request as arguments of `completions.create`.

        Raises:
            ValueError: a parameter has no counterpart and would change what is sampled; the message names it.
        """
        own = self.gconfig
        room = min(own.max_new_tokens, own.max_tokens - len(self.input_ids))
        if problem := self._problem(room):
            raise ValueError(problem)
        arguments: dict[str, Any] = {
            "prompt": list(self.input_ids),
            "max_tokens": room,
            "temperature": 0.0 if own.greedy else own.temperature,
            "top_p": own.top_p,
            "stop": own.stop,
            "frequency_penalty": own.frequency_penalty,
        }
        return arguments | ({"extra_body": {"top_k": own.top_k}} if 0 < own.top_k < ANY_TOP_K else {})

    def _problem(self, room: int) -> str:
        own, tokenizer = self.gconfig, self.tokenizer
        if own.n_samples != 1:
            return f"gconfig.n_samples is {own.n_samples}; call agenerate once for each sample, with n_samples=1"
        if room < 1:
            return (
                f"the prompt has {len(self.input_ids)} tokens, and gconfig.max_tokens = {own.max_tokens} leaves no"
                " room; shorten it"
            )
        if own.min_new_tokens or own.ignore_eos or own.use_beam_search:
            name = "min_new_tokens" if own.min_new_tokens else "ignore_eos" if own.ignore_eos else "use_beam_search"
            return f"gconfig.{name} is {getattr(own, name)}, which the engines here do not have; leave it out"
        if self.image_data or self.vision_msg_vllm:
            return (
                "the request has images, which agenerate does not take here; send them through the gateway"
                " (docs/vision.md)"
            )
        ends = {None} if tokenizer is None else {tokenizer.eos_token_id, tokenizer.pad_token_id}
        if unsupported := [token for token in own.stop_token_ids if token not in ends]:
            return (
                f"gconfig.stop_token_ids has {unsupported[0]}, which is not the tokenizer's end or padding token; use"
                " gconfig.stop, a text"
            )
        return ""


@dataclass
class TokenResponse:
    """AReaL's `ModelResponse`: a completion as the engine sampled it."""

    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)
    stop_reason: str = "stop"
    """`stop`, `length` or `tool_calls`."""
    tokenizer: Any = None
    input_images: list[Any] = field(default_factory=list)
    processor: Any = None
    latency: float = float("inf")
    """Seconds."""
    ttft: float = float("inf")
    """Seconds; completions are not streamed, so it is the latency."""

    @property
    def input_len(self) -> int:
        """Number of prompt tokens."""
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        """Number of sampled tokens."""
        return len(self.output_tokens)

    @property
    def output_tokens_without_stop(self) -> list[int]:
        """The sampled tokens without end and padding tokens at their end.

        Raises:
            ValueError: the response has no tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError("the response has no tokenizer; pass ModelRequest(tokenizer=…)")
        ends = {self.tokenizer.eos_token_id, self.tokenizer.pad_token_id}
        length = len(self.output_tokens)
        while self.stop_reason == "stop" and length and self.output_tokens[length - 1] in ends:
            length -= 1
        return self.output_tokens[:length]
