"""Validates `[gateway]`, and the ports and addresses of several gateways."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.environments import host_of
from areal_actors.core.gateways import GATEWAY
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, nearest, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.core.task_settings import TaskSettings
from areal_actors.gateway.sessions.keys import weakness
from areal_actors.gateway.settings import TEMPLATE_WORDS, GatewaySettings
from areal_actors.tokenization.tool_parsers.families import format_names

LAST_PORT = 65_535
ONLY_EXTERNAL = ("feedback", "idle_timeout_seconds", "reservation_ttl_seconds", "default_consent", "recorded_baggage")
"""Settings of external agents."""


def find_problems(
    gateway: GatewaySettings, actors: ActorsSettings, bus: BusSettings, task: TaskSettings, facts: RunFacts
) -> Problems:
    """Yields what keeps the gateways of a recipe from being started."""
    if problem := weakness(gateway.admin_key, gateway.host):
        yield ("gateway", "admin_key"), f"found {problem}; leave it out to generate one, or write a long random one"
    template, form = gateway.chat_template, gateway.tool_format
    if template not in ("", *TEMPLATE_WORDS) and not Path(template).expanduser().is_file():
        words = " or ".join(f"`{word}`" for word in TEMPLATE_WORDS)
        yield (
            ("gateway", "chat_template"),
            f"found {toml_value(template)}, which is no file; name a Jinja file, or {words}",
        )
    if bool(gateway.certificate) != bool(gateway.certificate_key):
        yield ("gateway", "certificate"), "certificate and certificate_key belong together; name both files, or neither"
    if form not in (names := format_names()):
        yield ("gateway", "tool_format"), f"found {toml_value(form)}; {nearest(form, names)}"
    host = host_of(task.environment) if facts.has_episodes() and not facts.is_online else None
    if host is not None and host.marks_untrained and gateway.store_false == "train":
        value = 'found "train", but calls of agents that an environment does not train have `store: false`'
        yield ("gateway", "store_false"), f'{value}; write "skip"'
    if actors.session_manager.count > 1:
        yield from _several(gateway, actors.session_manager.count, bus)
    if gateway.joined:
        yield from _check_joined(gateway, actors, bus, facts)


def _check_joined(gateway: GatewaySettings, actors: ActorsSettings, bus: BusSettings, facts: RunFacts) -> Problems:
    key, joined, placement = ("gateway", "joined"), gateway.joined, actors.session_manager
    if joined > placement.count:
        yield (
            key,
            f"found {joined}, but actors.session_manager.count is {placement.count}; write at most that, or raise it",
        )
    if not bus.host or facts.is_served:
        remedy = "remove it" if facts.is_served else "set bus.host to an address that they reach, or remove it"
        yield key, f"found {joined}, but no other host can join this run; {remedy}"
    processes = {name: placed.process for name, placed in msgspec.structs.asdict(actors).items() if name != GATEWAY}
    if sharing := [name for name, process in processes.items() if process == placement.process]:
        fault = (
            f"found {toml_value(placement.process)}, shared with {', '.join(sharing)}, which cannot be on another host"
        )
        yield ("actors", GATEWAY, "process"), f'{fault}; write `process = "gateway"`'


def _several(gateway: GatewaySettings, count: int, bus: BusSettings) -> Problems:
    port, advertise = gateway.port, gateway.advertise
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
    for name, taken in (("port", bus.port), ("objects_port", bus.objects_port)):
        if port <= taken <= last:
            fault = (
                f"found {port}, but {count} gateways take the ports from {port} to {last}, among them bus.{name} ="
                f" {taken}"
            )
            yield ("gateway", "port"), f"{fault}; write another"


def unused_settings(gateway: GatewaySettings, bus: BusSettings, task: TaskSettings, facts: RunFacts) -> Iterator[Key]:
    """Yields settings without effect.

    Those of external agents where there are none, the address for agents elsewhere where all are in processes of the
    run, the key of a certificate that is not named, and the number of gateways of hosts that cannot join.
    """
    if not (facts.is_online or facts.is_served or facts.is_serving):
        yield from (("gateway", name) for name in ONLY_EXTERNAL)
        if task.runner == "inline" and not task.container.service and not bus.host:
            yield ("gateway", "advertise")
    if not bus.host:
        yield ("gateway", "joined")
    if not gateway.certificate:
        yield ("gateway", "certificate_key")
