"""Names settings of the model that is made here; its table has no other rules than its types."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems
from areal_actors.embedded.settings import EMBEDDED


def find_problems() -> Problems:
    """Yields nothing: every value that decodes is valid."""
    yield from ()


def unused_settings(model: str) -> Iterator[Key]:
    """Yields the table of the warm start for another model, else what concerns images, experts and pretraining."""
    if model == EMBEDDED:
        yield from (("gateway", "images"), ("trainer", "routing_replay"), ("trainer", "optimizer", "allow_high_lr"))
    else:
        yield ("warm_start",)
