"""Describes the embedded engine, without loading torch."""

from areal_actors.core.extras import EMBEDDED
from areal_actors.generation.abilities import ABILITIES
from areal_actors.generation.engines import EngineDescription

DESCRIPTION = EngineDescription(
    name="transformers",
    title="the embedded engine",
    factory="areal_actors.embedded.transformers:TransformersEngine",
    abilities=ABILITIES,
    loads_torch=True,
    can_sleep=True,
    extra=EMBEDDED,
    settings=frozenset({"start_check", "batch_invariant"}),
)
