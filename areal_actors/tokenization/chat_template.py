"""Chat templates: renders messages to prompt text with jinja2, without loading transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser

from areal_actors.core.errors import RequestError, SetupError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send a message's reasoning; templates read the first."""
_REASONING = frozenset(REASONING_FIELDS)
METHODS = frozenset(dir(dict))
"""In templates `message.items` is the method, even if there is an entry of that name."""


NAMED_ID = re.compile(r"functions\..+:\d+", re.DOTALL)
"""Id of a call for templates that write ids in place of names."""


class ToolDialect(NamedTuple):
    """Form in which a template takes tools and tool calls, where it is not the usual one."""

    text_arguments: bool = False
    """A call's arguments are JSON text; the template would print an object as Python does."""
    null_content: bool = False
    """An answer without text has null as its content; the template would render no calls beside an empty text."""
    named_ids: bool = False
    """The template writes the id of a call instead of its name, so it has to contain the name."""
    flat_tools: bool = False
    """Tools are the functions themselves."""
    tools_entry: str = ""
    """Entry of the system message in which the template takes the list of tools as JSON text; empty if it is its
    variable `tools`."""
    result_role: str = "tool"
    """Role of messages with the results of tools."""
    write_calls: Callable[[Sequence[tuple[str, str]]], str] | None = None
    """Writes calls (names, and arguments as JSON) into the text of their message, for a template that renders no
    calls."""


class ChatTemplate:
    """Compiled chat template of one model."""

    dialect = ToolDialect()

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.special_tokens = dict(special_tokens)
        self._template = compile_template(source) if source else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Render messages and tools to prompt text; `kwargs` are variables of the template.

        Raises:
            SetupError: the model has no chat template.
            RequestError: the template rejects these messages or fails on them; includes its error.
        """
        if self._template is None:
            raise SetupError("the model has no chat template: add chat_template.jinja to its folder")
        variables = {
            **self.special_tokens,
            "documents": None,
            **kwargs,
            "tools": self._tools(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            messages = self._with_tools(messages, tools)
            prepared = [
                self._with_calls(message) if message.get("tool_calls") else with_reasoning(message)
                for message in messages
            ]
            return self._template.render({**variables, "messages": prepared})
        except Exception as error:  # template code may raise anything; the cause is these messages
            if any(message.get("tool_calls") for message in messages):
                # A few templates insert a call's arguments as they are, and need them as text.
                with suppress(Exception):
                    return self._template.render(
                        {**variables, "messages": [with_reasoning(message) for message in messages]}
                    )
            raise RequestError(
                f"the model's chat template rejects these messages: {error}", field="messages"
            ) from error

    def _tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [tool["function"] for tool in tools] if self.dialect.flat_tools else list(tools)

    def _with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> Sequence[Mapping[str, Any]]:
        """Messages with the list of tools and their results where this template takes them."""
        role, entry = self.dialect.result_role, self.dialect.tools_entry
        if role != "tool":
            messages = [{**message, "role": role} if message.get("role") == "tool" else message for message in messages]
        if not entry or not tools:
            return messages
        has_system = bool(messages) and messages[0].get("role") == "system"
        system = messages[0] if has_system else {"role": "system", "content": ""}
        return [{**system, entry: to_json(self._tools(tools))}, *messages[has_system:]]

    def _with_calls(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """A message with tool calls as this template expects it."""
        dialect = self.dialect
        if dialect.named_ids:
            message = {
                **message,
                "tool_calls": [_named_id(call, place) for place, call in enumerate(message["tool_calls"])],
            }
        if dialect.write_calls is not None:
            calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
            text = f"{message.get('content') or ''}{dialect.write_calls(calls)}"
            message = {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": text}
        if dialect.null_content and message.get("tool_calls") and not message.get("content"):
            message = {**message, "content": None}
        return with_reasoning(message) if dialect.text_arguments else normalize_message(message)


class GenerationBlock(jinja2.ext.Extension):
    """Accepts `{% generation %}`, which marks an assistant's text for training; renders the enclosed text."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the statements between the tags."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Sandbox for template code.

    `message.role` reads the entry first: the usual order raises an exception per access.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See `jinja2.Environment.getattr`; the result is the same."""
        if type(obj) is dict and attribute in obj and attribute not in METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)


@lru_cache(maxsize=64)
def compile_template(source: str) -> jinja2.Template:
    """Compile a chat template in the environment that templates on the Hub expect; equal sources share one."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationBlock])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    template = environment.from_string(source)
    template.globals = dict(template.globals)  # a chain of mappings, which each rendering would walk through
    return template


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates may give it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON without HTML escapes, which jinja2's own filter adds."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: str) -> None:
    """Template function that rejects unsupported messages."""
    raise jinja2.TemplateError(message)


def strftime_now(pattern: str) -> str:
    """Local time, for templates that write the date."""
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - local date, as other renderers of these templates use it


def normalize_message(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as templates expect it: reasoning under their field names, tool call arguments as objects."""
    message = with_reasoning(message)
    if message.get("tool_calls"):
        message = {**message, "tool_calls": [_parse_arguments(call) for call in message["tool_calls"]]}
    return message


def with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy reasoning from any field name that clients use to those that templates read."""
    if _REASONING.isdisjoint(message):
        return message
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _named_id(call: Any, place: int) -> Any:
    """Give a call an id with its name, unless it has one: it comes from another model, or from the client."""
    if NAMED_ID.fullmatch(str(call.get("id") or "")):
        return call
    return {**call, "id": f"functions.{call['function']['name']}:{place}"}


def _parse_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except msgspec.DecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
