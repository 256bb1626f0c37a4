"""Validates `[gateway]`, and the ports and addresses of several gateways."""

from __future__ import annotations

from pathlib import Path

import msgspec

from areal_actors.core.gateways import GATEWAY
from areal_actors.core.settings import TEMPLATE_WORDS
from areal_actors.gateway.sessions.keys import weakness
from areal_actors.recipe.errors import Problems, nearest, toml_value
from areal_actors.recipe.recipe import Recipe
from areal_actors.tokenization.tool_parsers.families import format_names

LAST_PORT = 65_535


def gateway_problems(recipe: Recipe) -> Problems:
    """Yields what keeps the gateways of a recipe from being started."""
    if problem := weakness(recipe.gateway.admin_key, recipe.gateway.host):
        yield ("gateway", "admin_key"), f"found {problem}; leave it out to generate one, or write a long random one"
    template, form = recipe.gateway.chat_template, recipe.gateway.tool_format
    if template not in ("", *TEMPLATE_WORDS) and not Path(template).expanduser().is_file():
        words = " or ".join(f"`{word}`" for word in TEMPLATE_WORDS)
        yield (
            ("gateway", "chat_template"),
            f"found {toml_value(template)}, which is no file; name a Jinja file, or {words}",
        )
    if bool(recipe.gateway.certificate) != bool(recipe.gateway.certificate_key):
        yield ("gateway", "certificate"), "certificate and certificate_key belong together; name both files, or neither"
    if form not in (names := format_names()):
        yield ("gateway", "tool_format"), f"found {toml_value(form)}; {nearest(form, names)}"
    if recipe.actors.session_manager.count > 1:
        yield from _several(recipe)
    if recipe.gateway.joined:
        yield from _check_joined(recipe)


def _check_joined(recipe: Recipe) -> Problems:
    key, joined, placement = ("gateway", "joined"), recipe.gateway.joined, recipe.actors.session_manager
    if joined > placement.count:
        yield (
            key,
            f"found {joined}, but actors.session_manager.count is {placement.count}; write at most that, or raise it",
        )
    if not recipe.bus.host or recipe.is_served():
        remedy = "remove it" if recipe.is_served() else "set bus.host to an address that they reach, or remove it"
        yield key, f"found {joined}, but no other host can join this run; {remedy}"
    actors = {name: placed.process for name, placed in msgspec.structs.asdict(recipe.actors).items() if name != GATEWAY}
    if sharing := [name for name, process in actors.items() if process == placement.process]:
        fault = (
            f"found {toml_value(placement.process)}, shared with {', '.join(sharing)}, which cannot be on another host"
        )
        yield ("actors", GATEWAY, "process"), f'{fault}; write `process = "gateway"`'


def _several(recipe: Recipe) -> Problems:
    count, port, advertise = recipe.actors.session_manager.count, recipe.gateway.port, recipe.gateway.advertise
    if "://" in advertise:
        remedy = "name a host, to which each adds its port"
        yield (
            ("gateway", "advertise"),
            f"found {toml_value(advertise)}, which is one address for {count} gateways; {remedy}",
        )
    if not port:
        return
    last = port + count - 1
    if last > LAST_PORT:
        yield (
            ("gateway", "port"),
            f"found {port}, but {count} gateways take ports up to {last}; write at most {LAST_PORT - count + 1}",
        )
    for name, taken in (("port", recipe.bus.port), ("objects_port", recipe.bus.objects_port)):
        if port <= taken <= last:
            fault = (
                f"found {port}, but {count} gateways take the ports from {port} to {last}, among them bus.{name} ="
                f" {taken}"
            )
            yield ("gateway", "port"), f"{fault}; write another"
