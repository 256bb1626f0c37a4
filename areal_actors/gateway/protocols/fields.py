"""Field types and errors that the requests of all dialects share.

Structs are strict, and errors name the field and a remedy. A field of a request is one of three things. Supported: it
has its type. Ignored: accepted because clients send it, without effect, and named in the response header
`x-areal-ignored`. Unsupported: only null is accepted. An unknown field is an error too: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter, is_
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform

import msgspec

from areal_actors.core.errors import RequestError
from areal_bus.message import FrozenMeta

W = TypeVar("W", bound="RequestStruct")

Ignored = Annotated[Any, msgspec.Meta(description="Accepted without effect.")]
Unsupported = Annotated[None, msgspec.Meta(description="Not supported: only null is accepted.")]
UnsupportedList = Annotated[
    list[Any], msgspec.Meta(max_length=0, description="Not supported: only an empty list or null is accepted.")
]

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

FIELD_PROBLEMS = {
    "Object contains unknown": "is not a known field; leave it out",
    "Object missing required": "is missing; this request requires it",
}
"""By the beginning of msgspec's message."""


class RequestMeta(FrozenMeta):
    """Metaclass of request structs: adds the fields that are ignored or unsupported."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        ignored: tuple[str, ...] = (),
        unsupported: tuple[str, ...] = (),
        **options: Any,
    ) -> Any:
        """Create the class; both are names of fields."""
        added = dict.fromkeys(ignored, Ignored) | dict.fromkeys(unsupported, Unsupported)
        namespace["__annotations__"] = namespace.get("__annotations__", {}) | added
        inherited = [field for base in bases for field in getattr(base, "ignored_names", ())]
        names = {"ignored_names": (*inherited, *ignored)}
        return super().__new__(mcls, name, bases, namespace | names | dict.fromkeys(added), **options)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class RequestStruct(msgspec.Struct, metaclass=RequestMeta, frozen=True, forbid_unknown_fields=True):
    """An object of a request; an unknown field is an error."""

    ignored_names: ClassVar[tuple[str, ...]] = ()
    """Names of the ignored fields."""


def ignored_fields(struct: RequestStruct | None, where: str = "") -> list[str]:
    """Return the ignored fields that the client sent in this object of the request, whose path is `where`."""
    if struct is None:
        return []
    names = struct.ignored_names
    if not names or all(map(_is_none, _getter_of(names)(struct))):
        return []
    return [_join(where, name) for name in names if getattr(struct, name) is not None]


@cache
def _getter_of(names: tuple[str, ...]) -> Callable[[RequestStruct], tuple[Any, ...]]:
    """Returns the function that reads these fields."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda struct: (get(struct),)


_is_none = partial(is_, None)


def decode(body: bytes, kind: type[W]) -> W:
    """Decode a request's body.

    Raises:
        RequestError: the body is not JSON, or a field is unknown or has the wrong type; it names the field.
    """
    try:
        decoded: W = _decoder_of(kind).decode(body)
    except msgspec.ValidationError as error:
        raise validation_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}; send one JSON object in UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply; flatten it") from None
    return decoded


@cache
def _decoder_of(kind: type[W]) -> msgspec.json.Decoder[W]:
    return msgspec.json.Decoder(kind)


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
    if problem_of_field := FIELD_PROBLEMS.get(kind):
        field = _join(field, quoted.rstrip("`"))
        return RequestError(f"'{field}' {problem_of_field}", field)
    if what.startswith("Expected `null`") or "of length <= 0" in what:
        return unsupported_error(field)
    return RequestError(f"'{field or 'body'}' is wrong: {what[:1].lower()}{what[1:300]}", field)


def _join(path: str, name: str) -> str:
    separator = "." if path and name and not name.startswith("[") else ""
    return f"{path}{separator}{name}"


def unsupported_error(field: str, remedy: str = "leave it out") -> RequestError:
    """Return the error of a field or value that is not supported."""
    return RequestError(f"'{field}' is not supported by this gateway; {remedy}", field)
