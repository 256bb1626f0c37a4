"""Base of every table in a recipe: frozen, keyword-only, without unknown fields."""

from __future__ import annotations

from typing import Annotated, dataclass_transform

import msgspec

from bus.message import FrozenMeta

PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0)]
NonNegativeFloat = Annotated[float, msgspec.Meta(ge=0)]
Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Config(msgspec.Struct, metaclass=FrozenMeta, forbid_unknown_fields=True):
    """A table of a recipe, decoded into the object that it parametrises."""
