"""The description of requests with `gateway.unknown_fields = "list"`.

What is unknown is accepted, unless it changes what is sampled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from areal_actors.gateway.protocols.lenient import CONTENT
from areal_actors.gateway.protocols.neutral_values import NESTED, REQUEST

REFERENCE = "#/components/schemas/"
NOTE = "Other fields are left out and listed in the header x-areal-ignored."
Schemas = dict[str, dict[str, Any]]


def allow_unknown(components: Schemas, requests: Collection[str]) -> None:
    """Describe unknown fields and elements of lists as accepted, in place; `requests` are the names of whole requests.

    Fields that change what is sampled are described with their values without effect (`neutral_values.py`).
    """
    kinds = {
        name: kind["enum"]
        for name, schema in components.items()
        if "enum" in (kind := schema.get("properties", {}).get("type", {}))
    }
    for name, schema in components.items():
        if schema.get("additionalProperties") is not False:
            continue
        neutral = REQUEST if name in requests else NESTED
        own = schema.setdefault("properties", {})
        _relax_lists(own, kinds)
        own |= {field: {"enum": [*values, None]} for field, values in neutral.items() if field not in own}
        schema["additionalProperties"] = True
        schema["description"] = f"{schema.get('description', '')} {NOTE}".strip()


def _relax_lists(schema: Any, kinds: Mapping[str, list[str]]) -> None:
    """Allow elements of unknown types in every list of objects that have a `type`."""
    if isinstance(schema, list):
        for inner in schema:
            _relax_lists(inner, kinds)
    if not isinstance(schema, dict):
        return
    for inner in schema.values():
        _relax_lists(inner, kinds)
    items = schema.get("items")
    if schema.get("type") != "array" or not isinstance(items, dict):
        return
    names = [str(item.get("$ref", "")).removeprefix(REFERENCE) for item in items.get("anyOf", [items])]
    if names and all(name in kinds for name in names):
        known_kinds = sorted({kind for name in names for kind in kinds[name]})
        schema["items"] = {"anyOf": [items, _unknown_element(known_kinds)]}


def _unknown_element(known_kinds: list[str]) -> dict[str, Any]:
    """Return the schema of an element of another type, which is left out.

    The model would have to read content, which is refused.
    """
    content = {"pattern": f"^({CONTENT.pattern})$"}
    kind = {"type": "string", "minLength": 1, "not": {"anyOf": [{"enum": known_kinds}, content]}}
    return {"type": "object", "properties": {"type": kind}, "required": ["type"]}
