"""Describes the engine without a model."""

from areal_actors.generation.abilities import CONSTRAINT_ABILITIES, SAMPLING_ABILITIES
from areal_actors.generation.engines import EngineDescription

DESCRIPTION = EngineDescription(
    name="scripted",
    title="the scripted engine",
    factory="areal_actors.generation.scripted.engine:scripted_engine",
    abilities=SAMPLING_ABILITIES - {*CONSTRAINT_ABILITIES.values(), "top_logprobs"},
    has_model=False,
    settings=frozenset({"scripted"}),
)
