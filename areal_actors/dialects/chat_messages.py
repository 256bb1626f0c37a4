"""The messages of OpenAI chat completions, and the same in our own words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from areal_actors.dialects.content import Content, content, image_part, text_part
from areal_actors.dialects.fields import Refused, Text, Unused, Wire
from areal_actors.dialects.tools import OpenCalls, tool_call


class TextPart(Wire, tag_field="type", tag="text"):
    """Text."""

    text: str
    cache_control: Unused = None
    prompt_cache_breakpoint: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return text_part(self.text)


class ImageUrl(Wire):
    """Where an image is."""

    url: Text
    detail: Unused = None


class ImagePart(Wire, tag_field="type", tag="image_url"):
    """An image."""

    image_url: ImageUrl
    cache_control: Unused = None
    prompt_cache_breakpoint: Unused = None

    def part(self) -> dict[str, Any]:
        """In our words."""
        return image_part(self.image_url.url)


class ChatFunctionCall(Wire):
    """Which function an assistant called."""

    name: Text
    arguments: str
    parsed_arguments: Unused = None


class ChatToolCall(Wire):
    """A tool call of an assistant message."""

    id: Text
    function: ChatFunctionCall
    type: Literal["function"] = "function"
    index: Unused = None


class SystemMessage(Wire, tag_field="role", tag="system"):
    """What holds for the whole conversation."""

    content: str | list[TextPart] | None
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """In our words."""
        return _message("system", self.content, self.name)


class DeveloperMessage(SystemMessage, tag_field="role", tag="developer"):
    """The newer name of the same."""


class UserMessage(Wire, tag_field="role", tag="user"):
    """What the user says."""

    content: str | list[TextPart | ImagePart] | None
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """In our words."""
        return _message("user", self.content, self.name)


class ToolMessage(Wire, tag_field="role", tag="tool"):
    """The result of a tool call."""

    content: str | list[TextPart | ImagePart] | None
    tool_call_id: Text
    name: str | None = None

    def message(self) -> dict[str, Any]:
        """In our words."""
        return {**_message("tool", self.content, self.name), "tool_call_id": self.tool_call_id}


class AssistantMessage(Wire, tag_field="role", tag="assistant"):
    """What the model said, as clients send it back."""

    content: str | list[TextPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    name: str | None = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Unused = None
    parsed: Unused = None
    provider_specific_fields: Unused = None
    thinking_blocks: Unused = None

    def message(self) -> dict[str, Any]:
        """In our words."""
        message = _message("assistant", self.content, self.name)
        if reasoning := self.reasoning_content or self.reasoning:
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = [tool_call(call.id, call.function.name, call.function.arguments) for call in self.tool_calls]
        return message


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def chat_messages(messages: Sequence[ChatMessage]) -> tuple[dict[str, Any], ...]:
    """The conversation in our words.

    Raises:
        RequestError: a tool call's id is not its own, or a result belongs to no call.
    """
    calls = OpenCalls()
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            calls.answered(message.tool_call_id, f"messages[{index}].tool_call_id")
        elif isinstance(message, AssistantMessage) and message.tool_calls:
            for number, call in enumerate(message.tool_calls):
                calls.called(call.id, f"messages[{index}].tool_calls[{number}].id")
    return tuple([message.message() for message in messages])


def _message(role: str, said: str | Sequence[TextPart | ImagePart] | None, name: str | None) -> dict[str, Any]:
    text: Content = said if isinstance(said, str) else content(part.part() for part in said or ())
    return {"role": role, "content": text, "name": name} if name else {"role": role, "content": text}
