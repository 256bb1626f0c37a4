"""Answers of model calls: objects whose fields are attributes, with the names of the OpenAI SDK's.

An object has every field that the server sent, those that no class here names too. A field that the protocol has and
the server left out is None. Values are not validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec


class AnswerObject:
    """An object of an answer."""

    members: ClassVar[Mapping[str, type[AnswerObject]]] = {}
    """Classes of the fields that are objects, or lists of them."""
    _absent: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._absent = {name: None for name in cls.__annotations__ if name in vars(cls) and vars(cls)[name] is None}

    def __init__(self, fields: Mapping[str, Any]) -> None:
        own = self.__dict__
        own.update(fields)
        for name, kind in type(self).members.items():
            value = own.get(name)
            if isinstance(value, list):
                own[name] = [kind(member) if isinstance(member, dict) else member for member in value]
            elif isinstance(value, dict):
                own[name] = kind(value)

    def model_dump(
        self,
        *,
        mode: str = "python",  # noqa: ARG002 - as pydantic has it; values are those of JSON in either
        exclude_none: bool = False,
        exclude_unset: bool = False,
    ) -> dict[str, Any]:
        """Return the fields as plain values: of all, of those the server sent, or of those that are not None."""
        fields = self.__dict__ if exclude_unset else {**self._absent, **self.__dict__}
        return {
            name: _to_plain(value, exclude_none, exclude_unset)
            for name, value in fields.items()
            if not (exclude_none and value is None)
        }

    def model_dump_json(self, *, exclude_none: bool = False, exclude_unset: bool = False) -> str:
        """Return the fields as JSON."""
        return msgspec.json.encode(self.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)).decode()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that the server sent, as plain values."""
        return self.model_dump(exclude_unset=True)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


def _to_plain(value: Any, exclude_none: bool, exclude_unset: bool) -> Any:  # noqa: FBT001 - as in `model_dump`
    if isinstance(value, AnswerObject):
        return value.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)
    if isinstance(value, list):
        return [_to_plain(member, exclude_none, exclude_unset) for member in value]
    return value


class CalledFunction(AnswerObject):
    """Name and arguments of a function to call."""

    name: str
    arguments: str


class FunctionDelta(AnswerObject):
    """A piece of a function to call."""

    name: str | None = None
    arguments: str | None = None


class CustomInput(AnswerObject):
    """Name and input of a custom tool to call."""

    name: str
    input: str


class AnsweredToolCall(AnswerObject):
    """A tool call of a message, or a piece of one in a stream, which has the call's `index`."""

    members = {"function": CalledFunction, "custom": CustomInput}
    id: str
    type: str
    function: CalledFunction
    custom: CustomInput


class ToolCallDelta(AnswerObject):
    """A piece of a tool call; that of a custom tool has its input as plain values, as in the SDK."""

    members = {"function": FunctionDelta}
    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class AnsweredMessage(AnswerObject):
    """The message of a choice."""

    members = {"tool_calls": AnsweredToolCall, "function_call": CalledFunction}
    role: str
    content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: CalledFunction | None = None
    tool_calls: list[AnsweredToolCall] | None = None


class MessageDelta(AnswerObject):
    """A piece of a message."""

    members = {"tool_calls": ToolCallDelta, "function_call": FunctionDelta}
    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    audio: Any = None
    function_call: FunctionDelta | None = None
    tool_calls: list[ToolCallDelta] | None = None


class TokenAlternative(AnswerObject):
    """A token that could have been sampled, with its log-probability."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class SampledLogprob(AnswerObject):
    """A token with its log-probability."""

    members = {"top_logprobs": TokenAlternative}
    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TokenAlternative]


class ChoiceLogprobs(AnswerObject):
    """Log-probabilities of a choice."""

    members = {"content": SampledLogprob, "refusal": SampledLogprob}
    content: list[SampledLogprob] | None = None
    refusal: list[SampledLogprob] | None = None


class AnsweredChoice(AnswerObject):
    """One of the answers to a call."""

    members = {"message": AnsweredMessage, "logprobs": ChoiceLogprobs}
    index: int
    message: AnsweredMessage
    finish_reason: str
    logprobs: ChoiceLogprobs | None = None


class ChoiceDelta(AnswerObject):
    """A piece of one of the answers to a call."""

    members = {"delta": MessageDelta, "logprobs": ChoiceLogprobs}
    index: int
    delta: MessageDelta
    finish_reason: str | None = None
    logprobs: ChoiceLogprobs | None = None


class CompletionTokens(AnswerObject):
    """Kinds of sampled tokens."""

    accepted_prediction_tokens: int | None = None
    audio_tokens: int | None = None
    reasoning_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    text_tokens: int | None = None


class PromptTokens(AnswerObject):
    """Kinds of tokens of a prompt."""

    audio_tokens: int | None = None
    cache_write_tokens: int | None = None
    cached_tokens: int | None = None
    image_tokens: int | None = None
    text_tokens: int | None = None


class CompletionUsage(AnswerObject):
    """Tokens of a call."""

    members = {"completion_tokens_details": CompletionTokens, "prompt_tokens_details": PromptTokens}
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokens | None = None
    prompt_tokens_details: PromptTokens | None = None


class ChatCompletion(AnswerObject):
    """The answer to a call of chat completions."""

    members = {"choices": AnsweredChoice, "usage": CompletionUsage}
    id: str
    created: int
    model: str
    object: str
    choices: list[AnsweredChoice]
    metadata: dict[str, str] | None = None
    moderation: Any = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None


class ChatCompletionChunk(AnswerObject):
    """A piece of a streamed answer to a call of chat completions."""

    members = {"choices": ChoiceDelta, "usage": CompletionUsage}
    id: str
    created: int
    model: str
    object: str
    choices: list[ChoiceDelta]
    moderation: Any = None
    obfuscation: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: CompletionUsage | None = None


class ItemContent(AnswerObject):
    """A part of an output item: a text, a refusal, a summary of reasoning; its `type` names it."""

    type: str
    text: str
    refusal: str


class ResponseItem(AnswerObject):
    """An output item of responses: a message, a tool call, reasoning; its `type` names it."""

    members = {"content": ItemContent, "summary": ItemContent}
    type: str
    id: str
    status: str | None = None
    role: str
    content: list[ItemContent] | None = None
    summary: list[ItemContent]
    name: str
    call_id: str
    arguments: str
    input: str


class TokenDetails(AnswerObject):
    """Kinds of tokens of a response."""

    cached_tokens: int
    reasoning_tokens: int


class ResponseTokens(AnswerObject):
    """Tokens of a response."""

    members = {"input_tokens_details": TokenDetails, "output_tokens_details": TokenDetails}
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: TokenDetails
    output_tokens_details: TokenDetails


class ResponseProblem(AnswerObject):
    """The error of a response, or the reason for which it is incomplete."""

    code: str
    message: str
    reason: str | None = None


class ModelResponse(AnswerObject):
    """The answer to a call of responses."""

    members = {
        "output": ResponseItem,
        "usage": ResponseTokens,
        "error": ResponseProblem,
        "incomplete_details": ResponseProblem,
    }
    id: str
    created_at: float
    model: str
    object: str
    output: list[ResponseItem]
    status: str | None = None
    error: ResponseProblem | None = None
    incomplete_details: ResponseProblem | None = None
    instructions: Any = None
    metadata: dict[str, str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    background: bool | None = None
    completed_at: float | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    reasoning: Any = None
    service_tier: str | None = None
    text: Any = None
    truncation: str | None = None
    user: str | None = None
    usage: ResponseTokens | None = None

    @property
    def output_text(self) -> str:
        """All texts of the output's messages, in one."""
        contents = [item.content or () for item in self.output if item.type == "message"]
        return "".join(part.text for parts in contents for part in parts if part.type == "output_text" and part.text)


class ResponseEvent(AnswerObject):
    """An event of a streamed response; its `type` names it, and which of the other fields it has."""

    members = {"response": ModelResponse, "item": ResponseItem, "part": ItemContent}
    type: str
    sequence_number: int
    response: ModelResponse
    item: ResponseItem
    part: ItemContent
    output_index: int
    content_index: int
    item_id: str
    delta: str
    text: str
    arguments: str
