"""Validates `[policies]`: names, rewards, addresses and the changes of each policy."""

from __future__ import annotations

import os
from collections.abc import Iterator

from areal_actors.core.layers import Key
from areal_actors.core.policy_settings import METRIC, PolicySettings
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.gateway.settings import GatewaySettings

REWARDS = ("same", "opposite")
OF_REMOTE = ("url", "served_model", "api_key_variable")
OF_PAST = ("every_versions", "keep_versions")
OF_TRAINED = ("reward",)
OWN = "default"
LONGEST_RUN = 64
NOT_OF_A_POLICY = frozenset(
    {
        *("run", "folder", "steps", "model", "task", "evaluation", "gateway", "policies", "policy"),
        *("chaos", "hosts", "bus", "track", "autoscale"),
    }
)
"""Tables and settings of a recipe that `settings` of a policy cannot change."""


def find_problems(policies: dict[str, PolicySettings], run: str, gateway: GatewaySettings, facts: RunFacts) -> Problems:
    """Yields every problem that keeps a policy from answering."""
    if policies and gateway.joined:
        yield ("gateway", "joined"), f"found {gateway.joined}, but gateways on other hosts reach no policy; write 0"
    if policies and not facts.has_episodes():
        yield ("policies",), "found policies, but no agent calls them in such a run; leave them out"
        return
    if policies and facts.is_online:
        yield ("policies",), "found policies, but external agents call one model; leave them out"
        return
    for name, settings in policies.items():
        if name == OWN:
            yield ("policies", name), "found the name that agents give the recipe's own policy; write another"
        if len(run) + 1 + len(name) > LONGEST_RUN:
            fault = f"found {toml_value(run)}, but the run of policy '{name}' is called '{run}-{name}'"
            yield ("run",), f"{fault}; write at most {LONGEST_RUN - 1 - len(name)} characters"
        for field, complaint in _policy_problems(settings):
            yield ("policies", name, *field), complaint


def _policy_problems(settings: PolicySettings) -> Problems:
    reward = settings.reward
    if reward not in REWARDS and not (reward.startswith(METRIC) and len(reward) > len(METRIC)):
        yield ("reward",), f'found {toml_value(reward)}; write "same", "opposite" or "metric:NAME"'
    if settings.kind == "remote":
        if not settings.url.startswith(("http://", "https://")):
            yield ("url",), f'found {toml_value(settings.url)}; write an address as "http://127.0.0.1:8000/v1"'
        variable = settings.api_key_variable
        if variable and variable not in os.environ:
            yield ("api_key_variable",), f"found {toml_value(variable)}, which is not set; export it, or leave it out"
    for table in sorted(settings.settings.keys() & NOT_OF_A_POLICY):
        yield ("settings", table), "found a change, but it is the same for all policies of a run; leave it out"
    yield from _find_misplaced(settings)


def _find_misplaced(settings: PolicySettings) -> Problems:
    """Yields settings that have no effect for the kind of the policy."""
    for kind, fields in (("remote", OF_REMOTE), ("past", OF_PAST), ("trained", OF_TRAINED)):
        for field in fields:
            value = getattr(settings, field)
            if settings.kind != kind and value != getattr(PolicySettings(), field):
                remedy = f'leave it out, or write kind = "{kind}"'
                fault = f'found {toml_value(value)}, but a policy of the kind "{settings.kind}" has none'
                yield (field,), f"{fault}; {remedy}"
    if settings.kind == "past" and settings.model:
        fault = f"found {toml_value(settings.model)}, but past versions are of the recipe's model"
        yield ("model",), f"{fault}; leave it out"
    if settings.kind == "remote" and settings.settings:
        yield ("settings",), "found some, but this run starts nothing for a remote policy; leave them out"


def unused_settings(policies: dict[str, PolicySettings]) -> Iterator[Key]:
    """Yields the tables of policies where there are none."""
    if not policies:
        yield from (("policies",), ("policy",))
