"""Validates the engine of a recipe: its name, its options, its servers, and the ways of new weights to it."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.installed_parts import installed_parts
from areal_actors.core.layers import Key
from areal_actors.core.named_code import named_code_problems
from areal_actors.core.part_problems import part_problems
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.generation.engines import EngineDescription, engine_descriptions
from areal_actors.generation.settings import GenerationSettings, ServerSettings, is_here


def find_problems(generation: GenerationSettings, actors: ActorsSettings, recipe: object) -> Problems:
    """Yields what keeps the engines from being made."""
    engine, scripted = engine_descriptions().get(generation.engine), generation.scripted
    if engine is None:
        yield from _other_engine(generation, recipe)
    else:
        yield from (
            _server_problems(generation, engine, actors) if engine.is_server else _find_unused(generation, engine)
        )
        if generation.sleep == "on" and not engine.can_sleep:
            fault = f'found "on", but generation.engine = {toml_value(engine.name)} holds no memory to release'
            yield ("generation", "sleep"), f'{fault}; write "off"'
    if generation.sleep == "on" and generation.server.urls:
        remedy = 'write "off", or leave generation.server.urls out'
        yield (
            ("generation", "sleep"),
            f'found "on", but servers that were started elsewhere keep their memory; {remedy}',
        )
    if scripted.longest < (least := scripted.shortest):
        fault = f"found {scripted.longest}, but generation.scripted.shortest is {least}"
        yield ("generation", "scripted", "longest"), f"{fault}; write at least {least}"


def _other_engine(generation: GenerationSettings, recipe: object) -> Problems:
    """Check an engine that is not ours: one of another distribution, or a class in a file."""
    key, engine, installed = ("generation", "engine"), generation.engine, installed_parts("engine")
    if engine in installed:
        yield from part_problems(installed[engine], recipe, generation.options, key, ("generation", "options"))
    elif ":" not in engine:
        names = (*engine_descriptions(), *installed)
        yield key, f"found {toml_value(engine)}; {nearest(engine, names)}, or write `path.py:Class`"
    else:
        yield from named_code_problems(key, engine, "class", "engines/mine.py:MyEngine")


def _server_problems(generation: GenerationSettings, engine: EngineDescription, actors: ActorsSettings) -> Problems:
    key, urls, workers = ("generation", "server", "urls"), generation.server.urls, actors.inference_worker.count
    for url in urls:
        if not url.startswith(("http://", "https://")):
            yield key, f"found {toml_value(url)}; write `http://host:port`"
    if urls and len(urls) != workers:
        own = "and each worker has one of its own"
        fault = f"found {len(urls)} servers for actors.inference_worker.count = {workers}, {own}"
        yield key, f"{fault}; write {workers}, or actors.inference_worker.count = {len(urls)}"
    channel, key = generation.server.weights, ("generation", "server", "weights")
    if channel not in (able := engine.weight_channels):
        yield key, f"found {toml_value(channel)}, but {engine.name} takes {', '.join(able)}; write one of them"
    if channel == "tensors" and (far := [url for url in urls if not is_here(url)]):
        fault = f"found {toml_value(channel)}, but {far[0]} is on another host, which does not have this one's memory"
        yield key, f'{fault}; write "broadcast" or "delta"'


def _find_unused(generation: GenerationSettings, engine: EngineDescription) -> Problems:
    """Yields settings of servers for an engine that is none."""
    for name, stated in (("server", generation.server != ServerSettings()), ("options", bool(generation.options))):
        if stated:
            fault = f"found a table, but generation.engine = {toml_value(engine.name)} has no use for it"
            yield ("generation", name), f"{fault}; leave it out"
    if (width := generation.tensor_parallel) > 1 and engine.loads_torch:
        fault = f"found {width}, but generation.engine = {toml_value(engine.name)} uses one device"
        yield ("generation", "tensor_parallel"), f"{fault}; write 1, or an engine that is a server"


def unused_settings(generation: GenerationSettings) -> Iterator[Key]:
    """Yields settings of other engines; a class in a file, or of another distribution, may read all of them."""
    if (engine := engine_descriptions().get(generation.engine)) is None:
        return
    theirs = frozenset[str]().union(*(other.settings for other in engine_descriptions().values())) - engine.settings
    yield from (("generation", name) for name in sorted(theirs))
