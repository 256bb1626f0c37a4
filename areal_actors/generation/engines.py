"""Descriptions of generation engines: facts that recipes, checks and `doctor` need without loading an engine.

An engine of ours has a module `engine_description.py` in its folder; nothing else names it. An engine of another
distribution, or of a file, has no description: it counts as able to do whatever it is asked for until it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

from areal_actors.core.errors import RequestError
from areal_actors.core.own_modules import own_modules
from areal_actors.generation.abilities import ABILITIES, GRAMMAR, IMAGES, JSON_SCHEMA, REGEX, ROUTES
from areal_actors.generation.settings import Channel

MODULE = "engine_description"
FIELD_OF = {IMAGES: "messages", JSON_SCHEMA: "response_format", REGEX: "response_format", GRAMMAR: "tool_choice"}
"""Fields of the client API whose name is not that of the ability."""
GRAMMAR_USES = (
    "`required` and a named function need it, and so does 'response_format' beside tools or reasoning; send `auto`"
)


class EngineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an engine; `DESCRIPTION` of its module."""

    name: str
    """Value of `generation.engine`."""
    title: str
    """Name in sentences."""
    factory: str
    """`module:attribute` of what makes an engine, see `GenerationEngineFactory`."""
    abilities: frozenset[str]
    weight_channels: tuple[Channel, ...] = ("folder",)
    """Ways of new weights to it; see `generation.server.weights`."""
    loads_torch: bool = False
    """It computes in the process of its worker, on one device."""
    is_server: bool = False
    """It is a server of its own, asked over HTTP."""
    plain_dialect: str = ""
    """`module:attribute` of the requests of a server as it is usually started, made with its model's name."""
    has_model: bool = True
    """It computes a model, and so uses devices and their memory."""
    can_sleep: bool = False
    """It releases its memory during an optimizer step."""
    largest_adapter_rank: int | None = None
    """Largest rank of an adapter that it loads; None for any."""
    settings: frozenset[str] = frozenset()
    """Settings of `[generation]` that only such engines use."""
    extra: str = ""
    """Extra of this distribution that brings its packages."""
    implied: Mapping[str, Any] = {}
    """Tables of the recipe that hold with it where nothing else is stated."""


@cache
def engine_descriptions() -> Mapping[str, EngineDescription]:
    """Returns the descriptions of our engines by name: those of a worker's own process first, then servers."""
    described: Iterable[EngineDescription] = (module.DESCRIPTION for module in own_modules(MODULE))
    ordered = sorted(described, key=lambda engine: (not engine.loads_torch, not engine.is_server, engine.name))
    return {engine.name: engine for engine in ordered}


def describe_engine(name: str) -> EngineDescription:
    """Returns the description of the engine that a recipe names; of one that is not ours what is assumed of it."""
    assumed = EngineDescription(name=name, title=name, factory="", abilities=ABILITIES)
    return engine_descriptions().get(name, assumed)


def engines_with(ability: str) -> list[str]:
    """Returns the names of our engines that have an ability."""
    return [name for name, engine in engine_descriptions().items() if ability in engine.abilities]


def server_engines() -> list[str]:
    """Returns the names of our engines that are servers."""
    return [name for name, engine in engine_descriptions().items() if engine.is_server]


def engine_abilities(name: str) -> frozenset[str]:
    """Returns the abilities of an engine of ours, with its ways of new weights as `weights:NAME`."""
    engine = engine_descriptions()[name]
    return engine.abilities | {f"weights:{channel}" for channel in engine.weight_channels}


def ability_rows() -> list[tuple[str, ...]]:
    """Returns the table of abilities.

    A row of column titles, then one row for each ability, with `yes` or `no` for each engine.
    """
    able = {name: engine_abilities(name) for name in engine_descriptions()}
    abilities = sorted({ability for has in able.values() for ability in has})
    return [
        ("ability", *able),
        *((ability, *("yes" if ability in has else "no" for has in able.values())) for ability in abilities),
    ]


def missing_ability_error(ability: str, title: str) -> RequestError:
    """Returns the error for a request that needs an ability which the engine with this title does not have."""
    field, kind = FIELD_OF.get(ability, ability), ability.partition(":")[2]
    fault = (
        f"'{field}': {f'a constraint of kind {kind} is ' if kind else ''}not supported by {title}, the engine of"
        " this run"
    )
    if ability == IMAGES:
        fault = f"'messages' has images, which are not seen by {title}, the engine of this run"
    remedy = (
        f"{GRAMMAR_USES} and leave the latter out"
        if ability == GRAMMAR
        else f"leave {'them' if ability == IMAGES else 'it'} out"
    )
    able = " or ".join(engines_with(ability))
    return RequestError(f"{fault}; {remedy}, or set generation.engine to {able}", field)


def no_routes_complaint(engine: str) -> str:
    """Returns a complaint about `trainer.routing_replay = "on"` with an engine that does not report experts."""
    able = " or ".join(engines_with(ROUTES))
    return f'the engine {engine} reports no experts; set generation.engine to {able}, or write "auto"'
