"""Validates `engine = "shared"` of policies: one server holds one base model, and adapters of all its policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from areal_actors.core.actor_settings import ActorsSettings
from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.policy_settings import PolicyRole, PolicySettings
from areal_actors.core.problems import Problems, toml_value
from areal_actors.generation.engines import describe_engine, server_engines
from areal_actors.generation.settings import GenerationSettings
from areal_actors.training.settings import LoraSettings, TrainerSettings

OWN = 'or engine = "own"'
SLOTS = {"sglang": "max-loras-per-batch", "vllm": "max-loras"}
"""Option of each server for the number of adapters in one batch."""
WITHOUT_ADAPTER = {"sglang": 1, "vllm": 0}
"""Slots that requests without an adapter take."""


def find_problems(
    policies: dict[str, PolicySettings],
    policy: PolicyRole | None,
    trainer: TrainerSettings,
    generation: GenerationSettings,
    actors: ActorsSettings,
    bus: BusSettings,
    autoscale: AutoscaleSettings,
) -> Problems:
    """Yields what keeps a policy from the servers of the run that calls it."""
    if policy is not None and policy.settings.shares_engine() and policy.settings.kind == "trained":
        yield from _adapter_problems(("trainer", "lora"), trainer.lora)
    shared = {name: settings for name, settings in policies.items() if settings.shares_engine()}
    if not shared:
        return
    for name, settings in shared.items():
        for field, complaint in _policy_problems(settings, actors.inference_worker.count):
            yield ("policies", name, *field), complaint
    first: tuple[str, ...] = ("policies", next(iter(shared)), "engine")
    if not describe_engine(generation.engine).is_server:
        fault = f'found "shared", but generation.engine = {toml_value(generation.engine)} is no server'
        servers = " or ".join(toml_value(engine) for engine in server_engines())
        yield first, f'{fault}, and each worker computes with weights of its own; write "own", or engine {servers}'
        return
    for _, complaint in _adapter_problems(("trainer", "lora"), trainer.lora):
        yield first, f'found "shared", but for the recipe\'s own policy: `trainer.lora`: {complaint}'
    if autoscale.enabled and autoscale.inference_worker.max:
        fault = 'found "shared", but autoscale.inference_worker changes the number of servers'
        yield first, f'{fault}; leave autoscale.inference_worker out, or write "own"'
    if bus.host:
        fault = 'found "shared", but with bus.host servers may be on hosts that do not see the policy\'s adapters'
        yield first, f'{fault}; leave bus.host out, or write "own"'
    if generation.sleep == "on":
        fault = 'found "on", but other policies sample while this one takes a step'
        yield ("generation", "sleep"), f'{fault}; write "off", {OWN} for all policies'
    yield from _option_problems(generation, shared, trainer.lora)


def _adapter_problems(key: tuple[str, ...], lora: LoraSettings | None) -> Problems:
    """Yields what keeps a policy from being an adapter of the model that the server was started with."""
    if lora is None:
        yield key, f"found none, but a shared server keeps its model and is given adapters; write `rank = 8`, {OWN}"
        return
    if lora.published != "adapter":
        fault = f"found {toml_value(lora.published)}, but a shared server keeps its model"
        yield (*key, "published"), f'{fault}; write "adapter", {OWN}'
    if lora.quantize_base != "off":
        fault = f"found {toml_value(lora.quantize_base)}, but each trainer rounds a base of its own"
        yield (*key, "quantize_base"), f'{fault}, and a shared server has one; write "off", {OWN}'


def _policy_problems(settings: PolicySettings, workers: int) -> Problems:
    """Yields the settings of a policy that would need a server of its own."""
    if settings.kind == "remote":
        yield ("engine",), 'found "shared", but a policy of the kind "remote" has its own server; leave it out'
        return
    if settings.model and settings.kind != "past":
        fault = f"found {toml_value(settings.model)}, but the policies of a shared server are adapters of one model"
        yield ("model",), f"{fault}, the recipe's; leave it out, {OWN}"
    if "generation" in settings.settings:
        fault = "found a change, but a shared server is started with `[generation]` of the recipe"
        yield ("settings", "generation"), f"{fault}; leave it out, {OWN}"
    count = _changed_value(settings.settings, "actors", "inference_worker", "count")
    if isinstance(count, int) and count > workers:
        key = ("settings", "actors", "inference_worker", "count")
        fault = f"found {count}, but the run has {workers} servers, of which each worker takes one"
        yield key, f"{fault}; write at most {workers}, {OWN}"


def _changed_value(changes: Mapping[str, Any], *names: str) -> Any:
    """Returns the value that a policy's changes give a setting; None if they leave it as it is."""
    value: Any = changes
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _option_problems(
    generation: GenerationSettings, shared: Mapping[str, PolicySettings], own: LoraSettings | None
) -> Problems:
    """Yields flags of the server, stated in the recipe, that leave no room for the adapters of all policies."""
    stated = {name.replace("_", "-"): (name, value) for name, value in generation.options.items()}
    slots = SLOTS.get(generation.engine, "")
    changed = [_changed_value(settings.settings, "trainer", "lora", "rank") or 0 for settings in shared.values()]
    needed = {
        slots: 1 + len(shared) + WITHOUT_ADAPTER.get(generation.engine, 0),
        "max-lora-rank": max([own.rank if own is not None else 0, *changed]),
    }
    for flag, least in needed.items():
        name, value = stated.get(flag, ("", None))
        if isinstance(value, int) and value < least:
            fault = f"found {value}, but the adapters of {1 + len(shared)} policies need {least}"
            yield ("generation", "options", name), f"{fault}; write at least {least}, or leave it out"
