"""Requests with fields, items and tools that this gateway does not know.

They are accepted without these, and what was left out is listed. Protocols grow: clients send new metadata, hints and
items of hosted tools long before a server knows them. A request that its types accept is taken as it is. Of another
one, unknown fields are left out, and unknown elements of lists that carry a `type`; what is known to change what is
sampled is refused by name (`neutral_values.py`), and so is content that the model would have to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from areal_actors.core.errors import RequestError
from areal_actors.gateway.protocols.base import JSON, Dialect
from areal_actors.gateway.protocols.fields import RequestStruct
from areal_actors.gateway.protocols.neutral_values import check_neutral
from areal_actors.messages import ModelRequest

R = TypeVar("R", bound=RequestStruct)

CONTENT = re.compile(r"(?:input_)?(?:file|audio|video|document|image)(?:_url)?|search_result", re.ASCII)
"""Types of content that the model would have to read: these are never left out."""
UNUSUAL = re.compile(r"[^\w.$-]", re.ASCII)
LONGEST_NAME = 64


def accept(dialect: Dialect[R], body: bytes, session: str) -> tuple[R, ModelRequest, Sequence[str]]:
    """Return a request, its model call, and the paths of what was left out of it.

    Raises:
        RequestError: the request is invalid, or has something unknown that changes what is sampled.
    """
    try:
        asked = dialect.decode(body)
        return asked, dialect.call(asked, session), ()
    except RequestError:
        accepted, left_out = leave_out_unknown(dialect, body)
        if accepted is body:
            raise
    asked = dialect.decode(accepted)
    return asked, dialect.call(asked, session), left_out


def leave_out_unknown(dialect: Dialect[R], body: bytes) -> tuple[bytes, Sequence[str]]:
    """Return the body without what its dialect does not know, and the paths of that.

    Raises:
        RequestError: it changes what is sampled.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body, ()
    if not isinstance(value, dict):
        return body, ()
    filters = _Filter(dialect)
    filters.object(value, dialect.request_type, "")
    return (JSON.encode(value) if filters.is_changed else body), tuple(filters.left_out)


class _Filter:
    """Removes what is unknown from a decoded request, in place."""

    def __init__(self, dialect: Dialect[Any]) -> None:
        self._dialect = dialect
        self.left_out: dict[str, None] = {}
        self.is_changed = False
        """True if something was removed; what is null is not listed."""

    def object(self, value: dict[str, Any], kind: type, where: str) -> None:
        """Filter an object of this type."""
        fields, tag = _fields(kind)
        for name in [name for name in value if name not in fields and name != tag]:
            check_neutral(name, value[name], where)
            self.is_changed = True
            if value.pop(name) is not None:
                shown = UNUSUAL.sub("?", name)[:LONGEST_NAME]
                self.left_out[f"{where}.{shown}" if where else shown] = None
        for name, inner in value.items():
            path = f"{where}.{name}" if where else name
            if (type_of := self._dialect.element_types.get(path)) is not None and isinstance(inner, list):
                value[name] = self._elements(inner, type_of, path)
            elif name != tag:
                value[name] = self._inner(inner, fields[name], path)

    def _elements(self, elements: list[Any], type_of: Callable[[Any], type | None], where: str) -> list[Any]:
        """Filter a list of objects, whose types a function returns."""
        kept = []
        for element in elements:
            if isinstance(element, dict):
                if (kind := type_of(element)) is not None:
                    self.object(element, kind, f"{where}[]")
                elif self._leave_out(element, where):
                    continue
            kept.append(element)
        return kept

    def _inner(self, value: Any, kind: inspect.Type, where: str) -> Any:
        kinds = _alternatives(kind)
        if isinstance(value, dict):
            if (struct := _struct_of(value, kinds)) is not None:
                self.object(value, struct.cls, where)
        elif isinstance(value, list):
            for candidate in kinds:
                if isinstance(candidate, inspect.ListType):
                    value = [
                        self._inner(item, candidate.item_type, f"{where}[]")
                        for item in value
                        if self._is_kept(item, candidate.item_type, where)
                    ]
                    break
        return value

    def _is_kept(self, item: Any, kind: inspect.Type, where: str) -> bool:
        """Leave out elements of a list whose `type` is none of those that it may have."""
        structs = [alternative for alternative in _alternatives(kind) if isinstance(alternative, inspect.StructType)]
        is_tagged = bool(structs) and all(one.tag_field == "type" for one in structs)
        if not is_tagged or not isinstance(item, dict) or _struct_of(item, structs) is not None:
            return True
        return not self._leave_out(item, where)

    def _leave_out(self, item: Mapping[str, Any], where: str) -> bool:
        kind = item.get("type")
        if not isinstance(kind, str) or not kind or CONTENT.fullmatch(kind):
            return False
        self.is_changed = True
        self.left_out[f"{where}[] ({UNUSUAL.sub('?', kind)[:LONGEST_NAME]})"] = None
        return True


@cache
def _fields(kind: type) -> tuple[Mapping[str, inspect.Type], str | None]:
    """Return the types of a struct's fields, and its tag's field."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type for field in info.fields}, info.tag_field


def _alternatives(kind: inspect.Type) -> Sequence[inspect.Type]:
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    return (
        [alternative for inner in kind.types for alternative in _alternatives(inner)]
        if isinstance(kind, inspect.UnionType)
        else (kind,)
    )


def _struct_of(value: Mapping[str, Any], kinds: Sequence[inspect.Type]) -> inspect.StructType | None:
    """Return the struct among these types that an object is by its tag."""
    for kind in kinds:
        if isinstance(kind, inspect.StructType) and (kind.tag_field is None or value.get(kind.tag_field) == kind.tag):
            return kind
    return None
