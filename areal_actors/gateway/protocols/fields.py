"""Field types and errors that the requests of all dialects share: strict structs, and errors that name the field and a remedy.

A field of a request is one of three things. Supported: it has its type. `Ignored`: accepted because clients send it, without
effect. `Unsupported`: not supported, so only null is accepted. An unknown field is an error too: nothing is dropped silently.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar, dataclass_transform

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.values import Constraint
from bus.message import FrozenMeta

W = TypeVar("W", bound="RequestStruct")

Ignored = Annotated[Any, msgspec.Meta(description="Accepted without effect.")]
Unsupported = Annotated[None, msgspec.Meta(description="Not supported: only null is accepted.")]
UnsupportedList = Annotated[list[Any], msgspec.Meta(max_length=0, description="Not supported: only an empty list or null is accepted.")]

Text = Annotated[str, msgspec.Meta(min_length=1)]
Flag = bool | None
TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
"""0 and -1 disable top-k sampling."""
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
LogitBias = dict[TokenId, Annotated[float, msgspec.Meta(ge=-100, le=100)]]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=20)]
Stop = str | list[Text]
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "logit_bias", "seed")

PACK = msgspec.msgpack.Encoder()
MAX_DEPTH = 100
"""Maximum nesting of free JSON: templates, grammars and encoders recurse once per level, and Python allows a thousand calls."""
RESERVED_TEMPLATE_KWARGS = frozenset(
    {"messages", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict"}
)
"""Arguments that the gateway itself passes to a chat template."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class RequestStruct(msgspec.Struct, metaclass=FrozenMeta, forbid_unknown_fields=True):
    """An object of a request; an unknown field is an error."""


def decode(body: bytes, kind: type[W]) -> W:
    """Decode a request's body.

    Raises:
        RequestError: the body is not JSON, or a field is unknown or has the wrong type; it names the field.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}; send one JSON object in UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply; flatten it") from None


def convert(value: Any, kind: type[W], where: str) -> W:
    """Convert a decoded object, at the path `where` of the request, to a struct.

    Raises:
        RequestError: it has the wrong type or an unknown field.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise validation_error(str(error), where) from None


def validation_error(problem: str, where: str = "") -> RequestError:
    """Convert a msgspec error to one that names the field and a remedy; `where` is the path of the validated object."""
    what, _, path = problem.rpartition(" - at `")
    what = what or path
    field = _join(where, path.rpartition("$")[2].strip("`.") if "$" in path else "")
    kind, _, quoted = what.partition(" field `")
    if kind == "Object contains unknown":
        field = _join(field, quoted.rstrip("`"))
        return RequestError(f"'{field}' is not a known field; leave it out", field)
    if kind == "Object missing required":
        field = _join(field, quoted.rstrip("`"))
        return RequestError(f"'{field}' is missing; this request requires it", field)
    if what.startswith("Expected `null`") or "of length <= 0" in what:
        return unsupported(field)
    return RequestError(f"'{field or 'body'}' is wrong: {what[:1].lower()}{what[1:300]}", field)


def _join(path: str, name: str) -> str:
    separator = "." if path and name and not name.startswith("[") else ""
    return f"{path}{separator}{name}"


def unsupported(field: str, remedy: str = "leave it out") -> RequestError:
    """Return the error of a field or value that is not supported."""
    return RequestError(f"'{field}' is not supported by this gateway; {remedy}", field)


def check_encodable(value: Any, field: str) -> None:
    """Check that free JSON can be forwarded as msgpack, whose integers have 64 bits, to recursive decoders.

    Raises:
        RequestError: it has a larger integer, or is nested too deeply.
    """
    if exceeds_depth(value):
        raise RequestError(f"'{field}' is nested more than {MAX_DEPTH} levels deep; flatten it", field)
    try:
        PACK.encode(value)
    except OverflowError:
        raise RequestError(f"'{field}' has an integer of more than 64 bits; write it as a string or a float", field) from None


def exceeds_depth(value: Any) -> bool:
    """True if JSON is nested more than `MAX_DEPTH` levels deep."""
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


def template_kwargs(explicit: dict[str, Any] | None, effort: str | None, *, thinks: bool | None = None) -> dict[str, Any]:
    """Return the chat template's arguments: those of other fields, overridden by `chat_template_kwargs`.

    The effort `none` disables thinking, others are passed as `reasoning_effort`.

    Raises:
        RequestError: a name is reserved for the gateway.
    """
    explicit = explicit or {}
    if reserved := sorted(RESERVED_TEMPLATE_KWARGS & explicit.keys()):
        raise unsupported(f"chat_template_kwargs.{reserved[0]}", "the gateway sets it itself, leave it out")
    check_encodable(explicit, "chat_template_kwargs")
    implied = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort, "enable_thinking": thinks}
    return {name: value for name, value in implied.items() if value is not None} | explicit


def sampling(request: RequestStruct, *, max_tokens: int | None, stop: Stop | None, top_logprobs: int | None = None) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the request sets; those in `SAMPLING` have the same name in all dialects.

    Raises:
        RequestError: the stop string is empty.
    """
    if stop == "":
        raise RequestError("'stop' is empty; send a non-empty string or leave it out", "stop")
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    params = {name: getattr(request, name, None) for name in SAMPLING}
    params |= {"max_tokens": max_tokens, "stop": stops or None, "top_logprobs": top_logprobs}
    if params["top_k"] == -1:
        params["top_k"] = 0
    return {name: value for name, value in params.items() if value is not None}
