"""The answer of OpenAI's Responses: output items, whole or as a stream of events.

Items stay open until the answer ends, so there is at most one message and one reasoning item, as in a whole answer, even
if the model writes text after a tool call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.responses_input import encode_reasoning
from areal_actors.messages import ModelResponsePart, TokenLogprob, ToolCallPart

Event = tuple[str, dict[str, Any]]
"""Type and fields of an event; the stream adds item id, output index and sequence number."""


class OutputItem(ABC):
    """An output item under construction."""

    def __init__(self, identifier: str) -> None:
        self.id = identifier
        self.text = ""

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """Return the item's current JSON."""

    @abstractmethod
    def opening(self) -> Sequence[Event]:
        """Return the events before the first delta."""

    @abstractmethod
    def closing(self) -> Sequence[Event]:
        """Return the events after the last delta."""


class ReasoningOutput(OutputItem):
    """Reasoning of the model."""

    def __init__(self, interaction: str, *, encrypted: bool) -> None:
        super().__init__(f"rs_{interaction}")
        self._encrypted = encrypted

    def item(self, status: str) -> dict[str, Any]:
        """See `OutputItem`."""
        content = [self._content()] if self.text else []
        encrypted = encode_reasoning(self.text) if self._encrypted and self.text else None
        return {"type": "reasoning", "id": self.id, "summary": [], "content": content, "encrypted_content": encrypted, "status": status}

    def push(self, delta: str) -> Event:
        """Append a delta and return its event."""
        self.text += delta
        return "response.reasoning_text.delta", {"content_index": 0, "delta": delta}

    def opening(self) -> Sequence[Event]:
        """See `OutputItem`."""
        return (("response.content_part.added", {"content_index": 0, "part": self._content()}),)

    def closing(self) -> Sequence[Event]:
        """See `OutputItem`."""
        return (
            ("response.reasoning_text.done", {"content_index": 0, "text": self.text}),
            ("response.content_part.done", {"content_index": 0, "part": self._content()}),
        )

    def _content(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class MessageOutput(OutputItem):
    """Text of the model."""

    def __init__(self, interaction: str) -> None:
        super().__init__(f"msg_{interaction}")
        self._logprobs: list[dict[str, Any]] = []
        self._begun = False

    def item(self, status: str) -> dict[str, Any]:
        """See `OutputItem`."""
        content = [self._content()] if self._begun else []
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": content}

    def push(self, delta: str, logprobs: Sequence[TokenLogprob]) -> Event:
        """Append a delta with the log-probabilities of its tokens and return its event."""
        found = openai.logprobs(logprobs)
        self.text += delta
        self._logprobs += found
        return "response.output_text.delta", {"content_index": 0, "delta": delta, "logprobs": found}

    def opening(self) -> Sequence[Event]:
        """See `OutputItem`."""
        self._begun = True
        return (("response.content_part.added", {"content_index": 0, "part": self._content()}),)

    def closing(self) -> Sequence[Event]:
        """See `OutputItem`."""
        return (
            ("response.output_text.done", {"content_index": 0, "text": self.text, "logprobs": self._logprobs}),
            ("response.content_part.done", {"content_index": 0, "part": self._content()}),
        )

    def _content(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}


class FunctionCallOutput(OutputItem):
    """A tool call of the model."""

    def __init__(self, call: ToolCallPart) -> None:
        super().__init__(f"fc_{call.id}")
        self._call_id, self._name = call.id, call.name

    def item(self, status: str) -> dict[str, Any]:
        """See `OutputItem`."""
        called = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"type": "function_call", "id": self.id, **called, "status": status}

    def push(self, delta: str) -> Event:
        """Append a delta of the arguments and return its event."""
        self.text += delta
        return "response.function_call_arguments.delta", {"delta": delta}

    def opening(self) -> Sequence[Event]:
        """See `OutputItem`."""
        return ()

    def closing(self) -> Sequence[Event]:
        """See `OutputItem`."""
        return (("response.function_call_arguments.done", {"name": self._name, "arguments": self.text}),)


class ResponseStream:
    """Events of one answer; together they build the whole answer."""

    def __init__(self, head: Mapping[str, Any], *, encrypted: bool) -> None:
        self._response = {**head, "id": "", "status": "in_progress", "output": []}
        self._encrypted = encrypted
        self._number = 0
        self._outputs: list[OutputItem] = []
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of tokens without text so far; sent with the next text."""
        self._reasoning: ReasoningOutput | None = None
        self._message: MessageOutput | None = None
        self._calls: dict[int, FunctionCallOutput] = {}

    def part(self, part: ModelResponsePart) -> bytes:
        """Return the events for a part of the answer."""
        if part.error:
            return self._failed(part)
        events: list[bytes] = []
        if not self._response["id"]:
            self._response["id"] = part.interaction
            events += [self._event(kind, response=self._response) for kind in ("response.created", "response.in_progress")]
        events += self._deltas(part)
        if part.finish_reason:
            events += self._close_items(part)
        return b"".join(events)

    def _deltas(self, part: ModelResponsePart) -> list[bytes]:
        events: list[bytes] = []
        if part.reasoning:
            if self._reasoning is None:
                self._reasoning = ReasoningOutput(part.interaction, encrypted=self._encrypted)
                events += self._open_item(self._reasoning)
            events.append(self._item_event(self._reasoning, *self._reasoning.push(part.reasoning)))
        self._logprobs += part.logprobs
        is_empty = part.finish_reason and not self._calls and not part.tool_calls
        if self._message is None and (part.text or is_empty):
            self._message = MessageOutput(part.interaction)
            events += self._open_item(self._message)
        if self._message is not None and (part.text or (part.finish_reason and self._logprobs)):
            logprobs, self._logprobs = self._logprobs, []
            events.append(self._item_event(self._message, *self._message.push(part.text, logprobs)))
        for delta in part.tool_calls:
            call = self._calls.get(delta.index)
            if call is None:
                call = self._calls[delta.index] = FunctionCallOutput(delta)
                events += self._open_item(call)
            if delta.arguments:
                events.append(self._item_event(call, *call.push(delta.arguments)))
        return events

    def _open_item(self, output: OutputItem) -> list[bytes]:
        index = len(self._outputs)
        self._outputs.append(output)
        added = self._event("response.output_item.added", output_index=index, item=output.item("in_progress"))
        return [added, *[self._item_event(output, *event) for event in output.opening()]]

    def _close_items(self, part: ModelResponsePart) -> list[bytes]:
        status = "incomplete" if part.finish_reason == "length" else "completed"
        events: list[bytes] = []
        for index, output in enumerate(self._outputs):
            events += [self._item_event(output, *event) for event in output.closing()]
            events.append(self._event("response.output_item.done", output_index=index, item=output.item(status)))
        self._response |= final_fields([output.item(status) for output in self._outputs], part)
        return [*events, self._event(f"response.{status}", response=self._response)]

    def _failed(self, part: ModelResponsePart) -> bytes:
        error = openai.error(part.error, part.error_status, part.error_field, part.error_code)["error"]
        problem = {"code": error["type"], "message": part.error, "param": error["param"], "error": error}
        event = self._event("error", **problem)
        if not self._response["id"]:
            return event
        code = "server_error" if part.error_status >= 500 else "invalid_prompt"
        self._response |= {"status": "failed", "error": {"code": code, "message": part.error}}
        return event + self._event("response.failed", response=self._response)

    def _item_event(self, output: OutputItem, kind: str, fields: dict[str, Any]) -> bytes:
        return self._event(kind, item_id=output.id, output_index=self._outputs.index(output), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), openai.JSON.encode({"type": kind, "sequence_number": number, **fields}))


def build_response(head: Mapping[str, Any], part: ModelResponsePart, *, encrypted: bool) -> dict[str, Any]:
    """Return the whole answer."""
    status = "incomplete" if part.finish_reason == "length" else "completed"
    outputs: list[OutputItem] = []
    if part.reasoning:
        reasoning = ReasoningOutput(part.interaction, encrypted=encrypted)
        reasoning.push(part.reasoning)
        outputs.append(reasoning)
    if part.text or not part.tool_calls:
        message = MessageOutput(part.interaction)
        message.opening()
        message.push(part.text, part.logprobs)
        outputs.append(message)
    for tool_call in part.tool_calls:
        call = FunctionCallOutput(tool_call)
        call.push(tool_call.arguments)
        outputs.append(call)
    return {**head, "id": part.interaction, **final_fields([output.item(status) for output in outputs], part)}


def final_fields(output: list[dict[str, Any]], part: ModelResponsePart) -> dict[str, Any]:
    """Return the fields that a response sets at its end."""
    cut = part.finish_reason == "length"
    counts = openai.usage([part])
    return {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": counts["completion_tokens_details"],
            "total_tokens": counts["total_tokens"],
        },
    }
