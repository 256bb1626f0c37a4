"""Validates `[hosts]`: roles that the run has, and devices that its workers use."""

from __future__ import annotations

import re
from collections.abc import Iterator

from areal_actors.core.command import COMMAND
from areal_actors.core.gateways import GATEWAY
from areal_actors.core.host_settings import HostsSettings
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, toml_value
from areal_actors.core.run_facts import RunFacts
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.run_actors import COUNTED
from areal_bus.users import without_credentials

SLURM_OPTION = re.compile(r"--[a-z][a-z-]*(=\S+)?")
SLURM_TAKEN = (
    "chdir",
    "cpus-per-task",
    "gpus-per-task",
    "job-name",
    "mem",
    "nodes",
    "ntasks",
    "open-mode",
    "output",
    "signal",
)
"""Options that the script sets from other settings."""


def find_problems(recipe: Recipe, facts: RunFacts) -> Problems:
    """Yields what keeps the hosts of a recipe from being launched."""
    if facts.is_serving:
        return
    hosts = recipe.hosts
    for role, joined in hosts.joined_hosts().items():
        actor = GATEWAY if role == "gateway" else role
        assert actor in COUNTED
        if actor in facts.absent:
            yield ("hosts", role, "count"), f"found {joined.count}, but this run has no {role}; write 0"
    engines, width = hosts.inference_worker, recipe.generation.tensor_parallel
    if engines.count and engines.gpus not in (0, width):
        remedy = f"write gpus = {width}, and the number of engines as count"
        yield (
            ("hosts", "inference_worker", "gpus"),
            f"found {engines.gpus}, but an engine has generation.tensor_parallel = {width}; {remedy}",
        )
    elif engines.count and engines.gpus and engines.workers > 1:
        fault = f"found {engines.workers}, but workers of one host would all take its first GPU"
        yield ("hosts", "inference_worker", "workers"), f"{fault}; write 1, and the number of engines as count"
    if hosts.joined_hosts() and recipe.bus.url:
        url = toml_value(without_credentials(recipe.bus.url))
        yield (
            ("bus", "url"),
            f"found {url}, but hosts that `{COMMAND} run --on` starts join the run's own server; remove it, or [hosts]",
        )
    if hosts.gateway.count and recipe.gateway.certificate:
        fault = (
            f"found {hosts.gateway.count}, but gateway.certificate is not for the addresses of other hosts, which are"
            " not known yet"
        )
        yield ("hosts", "gateway", "count"), f"{fault}; write 0, or leave gateway.certificate out"
    yield from _slurm_problems(hosts.slurm)


def _slurm_problems(options: tuple[str, ...]) -> Problems:
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if not SLURM_OPTION.fullmatch(option):
            yield (
                ("hosts", "slurm"),
                f"found {toml_value(option)}; write options of sbatch as `--name=value`, without blanks",
            )
        elif name in SLURM_TAKEN:
            yield (
                ("hosts", "slurm"),
                f"found {toml_value(option)}, which the script sets itself from [hosts]; remove it",
            )


def unused_settings(hosts: HostsSettings) -> Iterator[Key]:
    """Yields the table if no host joins the run."""
    if not hosts.joined_hosts():
        yield ("hosts",)
