"""What the requests of every dialect have in common: strict structs, and errors that name the field and the remedy.

A field of a request is one of three things. Honoured: it has its type. `Unused`: clients send it, and here it changes
nothing. `Refused`: it asks for what cannot be had, so only null passes. A field that stands nowhere is an error too: nothing
is dropped in silence.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, dataclass_transform

import msgspec

from areal_actors.errors import RequestError
from bus.message import FrozenMeta

W = TypeVar("W", bound="Wire")

Unused = Annotated[Any, msgspec.Meta(description="Accepted; changes nothing here.")]
Refused = Annotated[None, msgspec.Meta(description="Cannot be had here: only null is accepted.")]
RefusedList = Annotated[list[Any], msgspec.Meta(max_length=0, description="Cannot be had here: only an empty list or null is accepted.")]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Flag = bool | None
TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
"""0 and -1 consider every token."""
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
LogitBias = dict[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
Stop = str | list[Text]

PACK = msgspec.msgpack.Encoder()
DEEPEST = 100
"""Levels of free JSON: templates, grammars and encoders go down them one call each, and Python ends at a thousand calls."""
TEMPLATE_OWN = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict"}
)
"""What the gateway itself hands to a chat template."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Wire(msgspec.Struct, metaclass=FrozenMeta, forbid_unknown_fields=True):
    """An object of a request; what it does not know is an error."""


def decode(decoder: msgspec.json.Decoder[W], body: bytes) -> W:
    """The request in this body.

    Raises:
        RequestError: the body is no JSON, or a field has the wrong type or is not known; it names the field.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is no JSON: {error}; send one JSON object in UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply; flatten it") from None


def convert(value: Any, kind: type[W], where: str) -> W:
    """An object that has been decoded already, at this place in the request, as a struct.

    Raises:
        RequestError: it has the wrong type or a field that is not known.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error), where) from None


def invalid(problem: str, where: str = "") -> RequestError:
    """What msgspec says about a request, with the field's name and a remedy; `where` is the place of what it looked at."""
    what, _, path = problem.rpartition(" - at `")
    what = what or path
    field = _join(where, path.rpartition("$")[2].strip("`.") if "$" in path else "")
    kind, _, quoted = what.partition(" field `")
    if kind == "Object contains unknown":
        field = _join(field, quoted.rstrip("`"))
        return RequestError(f"'{field}' is not known to this gateway; leave it out", field)
    if kind == "Object missing required":
        field = _join(field, quoted.rstrip("`"))
        return RequestError(f"'{field}' is missing; this request needs it", field)
    if what.startswith("Expected `null`") or "of length <= 0" in what:
        return refused(field)
    return RequestError(f"'{field or 'body'}' is wrong: {what[:1].lower()}{what[1:300]}", field)


def _join(place: str, name: str) -> str:
    separator = "." if place and name and not name.startswith("[") else ""
    return f"{place}{separator}{name}"


def refused(field: str, remedy: str = "leave it out") -> RequestError:
    """This field asks for what cannot be had."""
    return RequestError(f"'{field}' cannot be honoured by this gateway; {remedy}", field)


def check_sendable(value: Any, field: str) -> None:
    """Free JSON travels on as msgpack, whose integers have 64 bits, to readers that do not go to any depth.

    Raises:
        RequestError: it has a greater integer, or is nested too deeply.
    """
    if is_deep(value):
        raise RequestError(f"'{field}' is nested more than {DEEPEST} levels deep; flatten it", field)
    try:
        PACK.encode(value)
    except OverflowError:
        raise RequestError(f"'{field}' has an integer of more than 64 bits; write it as a string or a float", field) from None


def is_deep(value: Any) -> bool:
    """Whether JSON is nested more than `DEEPEST` levels deep."""
    level = [value]
    for _ in range(DEEPEST):
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


def template_kwargs(stated: dict[str, Any] | None, **implied: Any) -> dict[str, Any]:
    """What goes to the chat template: what other fields imply, unless `chat_template_kwargs` says otherwise.

    Raises:
        RequestError: a name is the gateway's own.
    """
    kwargs = {name: value for name, value in implied.items() if value is not None}
    if stated:
        if own := sorted(TEMPLATE_OWN & stated.keys()):
            raise refused(f"chat_template_kwargs.{own[0]}", "the gateway states it itself, leave it out")
        check_sendable(stated, "chat_template_kwargs")
        kwargs.update(stated)
    return kwargs


def effort_kwargs(effort: str | None) -> dict[str, Any]:
    """What a stated reasoning effort means to chat templates: `none` turns thinking off, all else is handed on by name."""
    if effort == "none":
        return {"enable_thinking": False}
    return {"reasoning_effort": effort} if effort else {}


def stop_strings(stop: Stop | None, field: str = "stop") -> tuple[str, ...]:
    """The strings that end the answer.

    Raises:
        RequestError: one is empty.
    """
    if stop is None:
        return ()
    if not isinstance(stop, str):
        return tuple(stop)
    if not stop:
        raise RequestError(f"'{field}' is empty; give a non-empty string or leave it out", field)
    return (stop,)
