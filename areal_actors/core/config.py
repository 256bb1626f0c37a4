"""Base of every table in a recipe: frozen, keyword-only, without unknown fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, dataclass_transform

import msgspec

from areal_bus.message import FrozenMeta

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Config(msgspec.Struct, metaclass=FrozenMeta, forbid_unknown_fields=True):
    """A table of a recipe, decoded into the object that it parametrises."""


def merge_tables(below: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge tables key by key; any other value of `over` replaces that of `below`."""
    both = {
        name: (
            merge_tables(below[name], value) if isinstance(value, dict) and isinstance(below.get(name), dict) else value
        )
        for name, value in over.items()
    }
    return {**below, **both}
