"""The answer of OpenAI's Responses: output items, whole or as events that build them up.

Items stay open until the answer ends: so there is one message and one item of reasoning at most, as in a whole answer, even
when the model goes back to speaking after a tool call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from areal_actors.dialects import openai_common as openai
from areal_actors.dialects.responses_input import sealed
from areal_actors.messages import ModelAnswered, TokenLogprob, ToolCallPart

Event = tuple[str, dict[str, Any]]
"""Type and fields of an event; the stream adds item, place and number."""


class Output(ABC):
    """An output item in the making."""

    def __init__(self, identifier: str) -> None:
        self.id = identifier
        self.text = ""

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    @abstractmethod
    def opening(self) -> Sequence[Event]:
        """Events before the first piece."""

    @abstractmethod
    def closing(self) -> Sequence[Event]:
        """Events after the last piece."""


class Reasoning(Output):
    """What the model thought."""

    def __init__(self, interaction: str, *, seal: bool) -> None:
        super().__init__(f"rs_{interaction}")
        self._seal = seal

    def item(self, status: str) -> dict[str, Any]:
        """See `Output`."""
        content = [self._content()] if self.text else []
        encrypted = sealed(self.text) if self._seal and self.text else None
        return {"type": "reasoning", "id": self.id, "summary": [], "content": content, "encrypted_content": encrypted, "status": status}

    def push(self, piece: str) -> Event:
        """Take the next piece."""
        self.text += piece
        return "response.reasoning_text.delta", {"content_index": 0, "delta": piece}

    def opening(self) -> Sequence[Event]:
        """See `Output`."""
        return (("response.content_part.added", {"content_index": 0, "part": self._content()}),)

    def closing(self) -> Sequence[Event]:
        """See `Output`."""
        return (
            ("response.reasoning_text.done", {"content_index": 0, "text": self.text}),
            ("response.content_part.done", {"content_index": 0, "part": self._content()}),
        )

    def _content(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}


class Message(Output):
    """What the model said."""

    def __init__(self, interaction: str) -> None:
        super().__init__(f"msg_{interaction}")
        self._logprobs: list[dict[str, Any]] = []
        self._begun = False

    def item(self, status: str) -> dict[str, Any]:
        """See `Output`."""
        content = [self._content()] if self._begun else []
        return {"type": "message", "id": self.id, "role": "assistant", "status": status, "content": content}

    def push(self, piece: str, logprobs: Sequence[TokenLogprob]) -> Event:
        """Take the next piece and the tokens it was sampled as."""
        found = openai.logprobs(logprobs)
        self.text += piece
        self._logprobs += found
        return "response.output_text.delta", {"content_index": 0, "delta": piece, "logprobs": found}

    def opening(self) -> Sequence[Event]:
        """See `Output`."""
        self._begun = True
        return (("response.content_part.added", {"content_index": 0, "part": self._content()}),)

    def closing(self) -> Sequence[Event]:
        """See `Output`."""
        return (
            ("response.output_text.done", {"content_index": 0, "text": self.text, "logprobs": self._logprobs}),
            ("response.content_part.done", {"content_index": 0, "part": self._content()}),
        )

    def _content(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": list(self._logprobs)}


class FunctionCall(Output):
    """A tool call of the model."""

    def __init__(self, call: ToolCallPart) -> None:
        super().__init__(f"fc_{call.id}")
        self._call_id, self._name = call.id, call.name

    def item(self, status: str) -> dict[str, Any]:
        """See `Output`."""
        called = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return {"type": "function_call", "id": self.id, **called, "status": status}

    def push(self, piece: str) -> Event:
        """Take the next piece of the arguments."""
        self.text += piece
        return "response.function_call_arguments.delta", {"delta": piece}

    def opening(self) -> Sequence[Event]:
        """See `Output`."""
        return ()

    def closing(self) -> Sequence[Event]:
        """See `Output`."""
        return (("response.function_call_arguments.done", {"name": self._name, "arguments": self.text}),)


class ResponseStream:
    """Events of one answer; what they have built up is the whole answer."""

    def __init__(self, head: Mapping[str, Any], *, seal: bool) -> None:
        self._response = {**head, "id": "", "status": "in_progress", "output": []}
        self._seal = seal
        self._number = 0
        self._outputs: list[Output] = []
        self._logprobs: list[TokenLogprob] = []
        """Of tokens that are not text; they go with the next text."""
        self._reasoning: Reasoning | None = None
        self._message: Message | None = None
        self._calls: dict[int, FunctionCall] = {}

    def part(self, part: ModelAnswered) -> bytes:
        """Events for a part of the answer."""
        if part.error:
            return self._failed(part)
        events: list[bytes] = []
        if not self._response["id"]:
            self._response["id"] = part.interaction
            events += [self._event(kind, response=self._response) for kind in ("response.created", "response.in_progress")]
        events += self._pieces(part)
        if part.finish_reason:
            events += self._closed(part)
        return b"".join(events)

    def _pieces(self, part: ModelAnswered) -> list[bytes]:
        events: list[bytes] = []
        if part.reasoning:
            if self._reasoning is None:
                self._reasoning = Reasoning(part.interaction, seal=self._seal)
                events += self._opened(self._reasoning)
            events.append(self._of(self._reasoning, *self._reasoning.push(part.reasoning)))
        self._logprobs += part.logprobs
        says_nothing = part.finish_reason and not self._calls and not part.tool_calls
        if self._message is None and (part.text or says_nothing):
            self._message = Message(part.interaction)
            events += self._opened(self._message)
        if self._message is not None and (part.text or (part.finish_reason and self._logprobs)):
            logprobs, self._logprobs = self._logprobs, []
            events.append(self._of(self._message, *self._message.push(part.text, logprobs)))
        for piece in part.tool_calls:
            call = self._calls.get(piece.index)
            if call is None:
                call = self._calls[piece.index] = FunctionCall(piece)
                events += self._opened(call)
            if piece.arguments:
                events.append(self._of(call, *call.push(piece.arguments)))
        return events

    def _opened(self, output: Output) -> list[bytes]:
        index = len(self._outputs)
        self._outputs.append(output)
        added = self._event("response.output_item.added", output_index=index, item=output.item("in_progress"))
        return [added, *[self._of(output, *event) for event in output.opening()]]

    def _closed(self, part: ModelAnswered) -> list[bytes]:
        status = "incomplete" if part.finish_reason == "length" else "completed"
        events: list[bytes] = []
        for index, output in enumerate(self._outputs):
            events += [self._of(output, *event) for event in output.closing()]
            events.append(self._event("response.output_item.done", output_index=index, item=output.item(status)))
        self._response |= ended([output.item(status) for output in self._outputs], part)
        return [*events, self._event(f"response.{status}", response=self._response)]

    def _failed(self, part: ModelAnswered) -> bytes:
        error = openai.error(part.error, part.error_status, part.error_field, part.error_code)["error"]
        problem = {"code": error["type"], "message": part.error, "param": error["param"], "error": error}
        said = self._event("error", **problem)
        if not self._response["id"]:
            return said
        code = "server_error" if part.error_status >= 500 else "invalid_prompt"
        self._response |= {"status": "failed", "error": {"code": code, "message": part.error}}
        return said + self._event("response.failed", response=self._response)

    def _of(self, output: Output, kind: str, fields: dict[str, Any]) -> bytes:
        return self._event(kind, item_id=output.id, output_index=self._outputs.index(output), **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._number
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), openai.JSON.encode({"type": kind, "sequence_number": number, **fields}))


def whole_response(head: Mapping[str, Any], part: ModelAnswered, *, seal: bool) -> dict[str, Any]:
    """The answer in one piece."""
    status = "incomplete" if part.finish_reason == "length" else "completed"
    outputs: list[Output] = []
    if part.reasoning:
        reasoning = Reasoning(part.interaction, seal=seal)
        reasoning.push(part.reasoning)
        outputs.append(reasoning)
    if part.text or not part.tool_calls:
        message = Message(part.interaction)
        message.opening()
        message.push(part.text, part.logprobs)
        outputs.append(message)
    for piece in part.tool_calls:
        call = FunctionCall(piece)
        call.push(piece.arguments)
        outputs.append(call)
    return {**head, "id": part.interaction, **ended([output.item(status) for output in outputs], part)}


def ended(output: list[dict[str, Any]], part: ModelAnswered) -> dict[str, Any]:
    """What a response says when it is over."""
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
