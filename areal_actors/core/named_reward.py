"""One of several rewards by name."""

from __future__ import annotations

import msgspec

from areal_bus.message import FrozenMeta


class NamedReward(msgspec.Struct, array_like=True, metaclass=FrozenMeta):
    """One of the rewards whose weighted sum is the reward of a call."""

    name: str
    reward: float
    """R_k(call), without its weight; NaN if the episode does not have it."""
    weight: float
