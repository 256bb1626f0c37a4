"""The answer of OpenAI's Responses: output items, whole or as a stream of events.

An item ends when the next one begins, as clients expect that put a message together from its events in order. There is
at most one message and one reasoning item: if the model writes text after a tool call, the message goes on, and its
last events are sent again. A whole answer is what the events of its only part add up to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from areal_actors.gateway.protocols import openai_common as openai
from areal_actors.gateway.protocols.base import named_event
from areal_actors.gateway.protocols.client_tools import ClientRunTool
from areal_actors.gateway.protocols.custom_tools import custom_input
from areal_actors.gateway.protocols.responses_input import encode_reasoning
from areal_actors.gateway.protocols.responses_tools import ClientTool
from areal_actors.messages import ModelResponsePart, TokenLogprob, ToolCallPart

Event = tuple[str, dict[str, Any]]
"""Type and fields of an event; the stream adds the sequence number."""


class OutputItem:
    """An output item under construction: reasoning and a message have one content part, a tool call has arguments."""

    def __init__(
        self,
        index: int,
        event: str,
        fields: dict[str, Any],
        part: dict[str, Any] | None = None,
        *,
        is_summary: bool = False,
    ) -> None:
        """`event` begins the names of its own events; `part` is the part of its content or summary, still empty."""
        self.fields = fields
        self.part = part
        self.is_open = True
        """False once its last events are sent."""
        self._index = index
        self._event = f"response.{event}"
        self._parts, self._part_event = (
            ("summary", "reasoning_summary_part") if is_summary else ("content", "content_part")
        )
        self._place: dict[str, Any] = {"item_id": fields["id"], "output_index": index}
        if part is not None:
            self._place[f"{self._parts}_index"] = 0

    def opening_events(self) -> Iterator[Event]:
        """Yield the events before the first delta."""
        yield "response.output_item.added", self._item("in_progress")
        if self.part is not None:
            self.fields[self._parts] = [self.part]
            yield f"response.{self._part_event}.added", {**self._place, "part": self.part}

    def delta(self, text: str, **more: list[dict[str, Any]]) -> Event:
        """Append a delta of the text, which may have log-probabilities, or of the arguments, and return its event."""
        self.is_open = True
        if self.part is None:
            self.fields["arguments"] += text
        else:
            self.part["text"] += text
            for name, values in more.items():
                self.part[name] += values
        return f"{self._event}.delta", {**self._place, "delta": text, **more}

    def add_arguments(self, arguments: str) -> Iterator[Event]:
        """Append arguments of a tool call, and yield the event for them."""
        yield self.delta(arguments)

    def done(self, status: str) -> Iterator[Event]:
        """Yield the events after the last delta."""
        if self.part is not None:
            own = {name: value for name, value in self.part.items() if name in {"text", "logprobs"}}
            yield f"{self._event}.done", {**self._place, **own}
            yield f"response.{self._part_event}.done", {**self._place, "part": self.part}
        else:
            yield (
                f"{self._event}.done",
                {**self._place, "name": self.fields["name"], "arguments": self.fields["arguments"]},
            )
        yield "response.output_item.done", self._item(status)

    def _item(self, status: str) -> dict[str, Any]:
        self.fields["status"] = status
        return {"output_index": self._index, "item": self.fields}


class CustomCall(OutputItem):
    """The call of a custom tool: its text is sent when the arguments are complete, since they are JSON around it."""

    def __init__(self, index: int, fields: dict[str, Any]) -> None:
        super().__init__(index, "custom_tool_call_input", fields | {"input": ""})
        self._arguments = ""

    def add_arguments(self, arguments: str) -> Iterator[Event]:
        """See `OutputItem`."""
        self.is_open = True
        self._arguments += arguments
        yield from ()

    def done(self, status: str) -> Iterator[Event]:
        """See `OutputItem`."""
        self.fields["input"] = text = custom_input(self._arguments)
        yield f"{self._event}.delta", {**self._place, "delta": text}
        yield f"{self._event}.done", {**self._place, "input": text}
        yield "response.output_item.done", self._item(status)


class ProviderCall(OutputItem):
    """The call of a tool whose schema the provider knows: an item of its own type, with the arguments in one field."""

    def __init__(self, index: int, fields: dict[str, Any], tool: ClientRunTool) -> None:
        super().__init__(index, tool.item, {**fields, tool.field: [] if tool.is_list else {}, **tool.extra})
        self._arguments, self._tool = "", tool

    def add_arguments(self, arguments: str) -> Iterator[Event]:
        """See `OutputItem`."""
        self.is_open = True
        self._arguments += arguments
        yield from ()

    def done(self, status: str) -> Iterator[Event]:
        """See `OutputItem`."""
        self.fields[self._tool.field] = self._tool.from_arguments(self._arguments)
        yield "response.output_item.done", self._item(status)


class ResponseAnswer:
    """One answer; its events build the whole answer."""

    def __init__(
        self, head: Mapping[str, Any], tools: Mapping[str, ClientTool], *, encrypted: bool, summarized: bool = False
    ) -> None:
        """`tools` are those that the client knows otherwise than the model does.

        `summarized` shows the reasoning as its summary.
        """
        self._response = {**head, "output": []}
        self._tools = tools
        self._encrypted, self._summarized = encrypted, summarized
        self._number = 0
        self._items: dict[str | int, OutputItem] = {}
        """By `reasoning`, `message`, or the index of a tool call."""
        self._logprobs: list[TokenLogprob] = []
        """Log-probabilities of tokens without text so far; sent with the next text."""

    def part(self, part: ModelResponsePart) -> bytes:
        """See `AnswerWriter`."""
        events = []
        for kind, fields in self._failure_events(part) if part.error else self._answer_events(part):
            events.append(named_event(kind, sequence_number=self._number, **fields))
            self._number += 1
        return b"".join(events)

    def whole(self, parts: Sequence[ModelResponsePart]) -> dict[str, Any]:
        """See `AnswerWriter`."""
        for _ in self._answer_events(parts[0]):
            pass
        return self._response

    def _answer_events(self, part: ModelResponsePart) -> Iterator[Event]:
        if not self._response["id"]:
            self._response["id"] = part.interaction
            yield "response.created", {"response": self._response}
            yield "response.in_progress", {"response": self._response}
        if part.reasoning:
            yield from self._reasoning(part)
        yield from self._text(part)
        for call in part.tool_calls:
            if call.index not in self._items:
                yield from self._call(call)
            if call.arguments:
                yield from self._items[call.index].add_arguments(call.arguments)
        if part.finish_reason:
            yield from self._end_events(part)

    def _call(self, call: ToolCallPart) -> Iterator[Event]:
        tool = self._tools.get(call.name) or ClientTool(call.name)
        fields = {"call_id": call.id, "name": tool.name} | ({"namespace": tool.namespace} if tool.namespace else {})
        if tool.provider is not None:
            yield from self._end("completed")
            own = {"type": tool.provider.item, "id": f"ptc_{call.id}", "call_id": call.id}
            self._items[call.index] = provided = ProviderCall(len(self._items), own, tool.provider)
            yield from provided.opening_events()
            return
        if tool.is_custom:
            yield from self._end("completed")
            self._items[call.index] = item = CustomCall(
                len(self._items), {"type": "custom_tool_call", "id": f"ctc_{call.id}", **fields}
            )
            yield from item.opening_events()
            return
        fields = {"type": "function_call", "id": f"fc_{call.id}", **fields, "arguments": ""}
        yield from self._add(call.index, "function_call_arguments", fields)

    def _reasoning(self, part: ModelResponsePart) -> Iterator[Event]:
        if "reasoning" not in self._items:
            fields: dict[str, Any] = {
                "id": f"rs_{part.interaction}",
                "summary": [],
                "content": [],
                "encrypted_content": None,
            }
            kind, event = (
                ("summary_text", "reasoning_summary_text") if self._summarized else ("reasoning_text", "reasoning_text")
            )
            empty = {"type": kind, "text": ""}
            yield from self._add("reasoning", event, {"type": "reasoning", **fields}, empty)
        yield self._items["reasoning"].delta(part.reasoning)

    def _text(self, part: ModelResponsePart) -> Iterator[Event]:
        self._logprobs += part.logprobs
        has_calls = part.tool_calls or any(isinstance(key, int) for key in self._items)
        if "message" not in self._items and (part.text or (part.finish_reason and not has_calls)):
            fields: dict[str, Any] = {"id": f"msg_{part.interaction}", "role": "assistant", "content": []}
            empty = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            yield from self._add("message", "output_text", {"type": "message", **fields}, empty)
        if "message" in self._items and (part.text or (part.finish_reason and self._logprobs)):
            logprobs, self._logprobs = openai.logprobs(self._logprobs), []
            yield self._items["message"].delta(part.text, logprobs=logprobs)

    def _add(
        self, key: str | int, event: str, fields: dict[str, Any], part: dict[str, Any] | None = None
    ) -> Iterator[Event]:
        yield from self._end("completed")
        is_summary = key == "reasoning" and self._summarized
        self._items[key] = item = OutputItem(len(self._items), event, fields, part, is_summary=is_summary)
        yield from item.opening_events()

    def _end(self, status: str) -> Iterator[Event]:
        """End the items that are open."""
        for key, item in self._items.items():
            if not item.is_open:
                continue
            item.is_open = False
            if key == "reasoning" and self._encrypted and item.part:
                item.fields["encrypted_content"] = encode_reasoning(item.part["text"])
            yield from item.done(status)

    def _end_events(self, part: ModelResponsePart) -> Iterator[Event]:
        is_cut = part.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        yield from self._end(status)
        counts = openai.usage([part])
        self._response |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": [item.fields for item in self._items.values()],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {**counts["prompt_tokens_details"], "cache_write_tokens": 0},
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
            },
        }
        yield f"response.{status}", {"response": self._response}

    def _failure_events(self, part: ModelResponsePart) -> Iterator[Event]:
        error = openai.error(part.error, part.error_status, part.error_field, part.error_code)["error"]
        yield "error", {"code": error["type"], "message": part.error, "param": error["param"], "error": error}
        if self._response["id"]:
            code = "server_error" if part.error_status >= 500 else "invalid_prompt"
            self._response |= {"status": "failed", "error": {"code": code, "message": part.error}}
            yield "response.failed", {"response": self._response}
