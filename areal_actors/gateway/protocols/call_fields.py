"""Fields of a `ModelRequest` that all dialects set in the same way.

They are its constraint, arguments of the chat template, sampling parameters and tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from areal_actors.gateway.protocols.fields import RequestStruct, Stop, unsupported_error

NAMED_TOOL = "function:"
"""Prefix of a `tool_choice` of a `ModelRequest` that names its tool."""
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed")

PACK = msgspec.msgpack.Encoder()
MAX_DEPTH = 100
"""Maximum nesting of free JSON: templates, grammars and encoders recurse once per level, and Python allows a thousand
calls."""
RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "return_dict",
    }
)
"""Arguments that the gateway itself passes to a chat template."""


def check_encodable(value: Any, field: str) -> None:
    """Check that free JSON can be forwarded as msgpack, whose integers have 64 bits, to recursive decoders.

    Raises:
        RequestError: it has a larger integer, or is nested too deeply.
    """
    if _exceeds_depth(value):
        raise RequestError(f"'{field}' is nested more than {MAX_DEPTH} levels deep; flatten it", field)
    try:
        PACK.encode(value)
    except OverflowError:
        raise RequestError(
            f"'{field}' has an integer of more than 64 bits; write it as a string or a float", field
        ) from None


def _exceeds_depth(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for outer in level:
            if isinstance(outer, dict):
                below += outer.values()
            elif isinstance(outer, list | tuple):
                below += outer
        if not below:
            return False
        level = below
    return True


def json_constraint(schema: dict[str, Any], field: str) -> Constraint:
    """Return the constraint of an answer to JSON of this schema; errors name `field`.

    Raises:
        RequestError: the schema is nested too deeply, or has an integer of more than 64 bits.
    """
    check_encodable(schema, field)
    return Constraint(kind="json_schema", text=msgspec.json.encode(schema).decode())


def template_kwargs(
    explicit: dict[str, Any] | None, effort: str | None, *, thinks: bool | None = None
) -> dict[str, Any]:
    """Return the chat template's arguments: those of other fields, overridden by `chat_template_kwargs`.

    The effort `none` disables thinking, others are passed as `reasoning_effort`.

    Raises:
        RequestError: a name is reserved for the gateway.
    """
    implied = (
        {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort, "enable_thinking": thinks}
    )
    kwargs = {name: value for name, value in implied.items() if value is not None}
    if not explicit:
        return kwargs
    if reserved := sorted(RESERVED_TEMPLATE_KWARGS & explicit.keys()):
        raise unsupported_error(f"chat_template_kwargs.{reserved[0]}", "the gateway sets it itself, leave it out")
    check_encodable(explicit, "chat_template_kwargs")
    return kwargs | explicit


@cache
def _sampling_fields(kind: type[RequestStruct]) -> tuple[str, ...]:
    """Names in `SAMPLING` that a dialect's requests have."""
    return tuple(name for name in SAMPLING if name in kind.__struct_fields__)


def sampling(
    request: RequestStruct, *, max_tokens: int | None, stop: Stop | None, top_logprobs: int | None = None
) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the request sets.

    Those in `SAMPLING` have the same name in all dialects.

    Raises:
        RequestError: the stop string is empty, or the repetition penalty has an effect.
    """
    if (penalty := getattr(request, "repetition_penalty", None)) is not None and penalty != 1:
        raise unsupported_error("repetition_penalty", "use frequency_penalty or presence_penalty")
    if stop == "":
        raise RequestError("'stop' is empty; send a non-empty string or leave it out", "stop")
    params: dict[str, Any] = {}
    for name in _sampling_fields(type(request)):
        if (value := getattr(request, name)) is not None:
            params[name] = value
    if params.get("top_k") == -1:
        params["top_k"] = 0
    if stop:
        params["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    if max_tokens is not None:
        params["max_tokens"] = max_tokens
    if top_logprobs is not None:
        params["top_logprobs"] = top_logprobs
    return params


def tool_definition(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return a tool's definition in the form that chat templates take."""
    function: dict[str, Any] = {"name": name}
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def tool_fields(
    definitions: Iterable[dict[str, Any]], choice: str, *, allowed: Sequence[str] | None = None, continued: bool = False
) -> dict[str, Any]:
    """Return the fields of a `ModelRequest` about tools.

    A call that continues another may omit its tools and inherit the other's.
    `allowed` are the names of the tools that may be called; None for all.

    Raises:
        RequestError: two tools have the same name, or the choice names a missing tool.
    """
    tools = tuple(definitions)
    if not tools and choice in {"auto", "none"} and not allowed:
        return {"tool_choice": choice}
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in names:
            raise RequestError(
                f"'tools[{index}]' has the same name {name!r:.80} as an earlier tool; rename one", f"tools[{index}]"
            )
        names.add(name)
    if names:
        check_encodable(tools, "tools")
    if names or not continued:
        _check_choice(choice, names)
    for name in allowed or ():
        if name not in names:
            raise _unknown_tool(name)
    return {"tools": tools, "tool_choice": choice, "allowed_tools": tuple(dict.fromkeys(allowed or ()))}


def _check_choice(choice: str, names: set[str]) -> None:
    field = "tool_choice"
    if choice == "required" and not names:
        raise RequestError(
            f"'{field}' requires a tool call, but there are no tools; send 'tools' or leave it out", field
        )
    if choice.startswith(NAMED_TOOL) and choice.removeprefix(NAMED_TOOL) not in names:
        raise _unknown_tool(choice.removeprefix(NAMED_TOOL))


def _unknown_tool(name: str) -> RequestError:
    return RequestError(f"'tool_choice' names {name!r:.80}, which is not among 'tools'", "tool_choice")
