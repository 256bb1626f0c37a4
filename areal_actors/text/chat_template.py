"""Messages to the text of a prompt, as a model's chat template writes it: jinja2, without loading transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec
from jinja2 import nodes
from jinja2.parser import Parser

from areal_actors.errors import RequestError, SetupError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names under which clients send a message's reasoning; templates read the first."""
METHODS = frozenset(dir(dict))
"""What `message.items` means is the method, even where there is an entry of that name."""


class ChatTemplate:
    """One model's template, compiled."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._template = compiled(source) if source else None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt that the template makes of messages and tools; `kwargs` are the template's own.

        Raises:
            SetupError: the model has no chat template.
            RequestError: the template refuses these messages, or cannot cope with them; its own words say why.
        """
        if self._template is None:
            raise SetupError("the model has no chat template: add chat_template.jinja to its folder")
        variables = {
            **self._special_tokens,
            "documents": None,
            **kwargs,
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render({**variables, "messages": [for_template(message) for message in messages]})
        except Exception as error:  # a template is somebody's program; whatever it raises, it is about these messages
            if any(message.get("tool_calls") for message in messages):
                # A few templates put a call's arguments into the text as they are, and want them as text.
                with suppress(Exception):
                    return self._template.render({**variables, "messages": [with_reasoning(message) for message in messages]})
            raise RequestError(f"the model's chat template refuses these messages: {error}", field="messages") from error


class GenerationBlock(jinja2.ext.Extension):
    """Accepts `{% generation %}`, which marks an assistant's text for training and renders as what it encloses."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Keep what stands between the tags."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Others' code runs here. `message.role` looks into the message first: the usual order costs an exception per look."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """See `jinja2.Environment.getattr`; says the same."""
        if type(obj) is dict and attribute in obj and attribute not in METHODS:
            return obj[attribute]
        return super().getattr(obj, attribute)


def compiled(source: str) -> jinja2.Template:
    """A chat template in the environment that templates on the Hub are written for."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationBlock])
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates may give it by position
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON as models are trained on it: jinja2's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(message: str) -> None:
    """What a template calls for messages that its model was not trained on."""
    raise jinja2.TemplateError(message)


def strftime_now(pattern: str) -> str:
    """The local time, for templates that tell the model the date."""
    return datetime.now().strftime(pattern)  # noqa: DTZ005 - the reader's date, as everybody renders these templates


def for_template(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message as templates read it: reasoning under the names that they know, a tool call's arguments as an object."""
    message = with_reasoning(message)
    if message.get("tool_calls"):
        message = {**message, "tool_calls": [_with_arguments(call) for call in message["tool_calls"]]}
    return message


def with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message whose reasoning, under whatever name a client sends it, bears the names that templates read."""
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _with_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}")
    except msgspec.DecodeError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}
