"""The commands of a launch: one `areal-actors run`, and an `areal-actors join` for each joining host.

Every launcher adds its addresses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2

from areal_actors.core.command import COMMAND
from areal_actors.core.host_settings import JoinedHosts
from areal_actors.core.values import Value
from areal_actors.recipe.recipe import Recipe
from areal_bus.tls import SCHEME

TEMPLATES = Path(__file__).parent / "templates"
PROGRAM = (sys.executable, "-m", "areal_actors")
"""Start of a command on hosts that see this installation, over a shared file system or in the same image."""
SAVING_SECONDS = 60
"""Time beyond `watchdog.save_seconds` that an ending run has before it is killed."""


class Place(Value):
    """Equal hosts: their number, what each of them needs, and the words of its command after `areal-actors`."""

    name: str
    count: int
    gpus: int
    cpus: int
    memory_gb: int
    words: tuple[str, ...]

    def describe(self) -> str:
        """Returns number and size in words, without the command."""
        parts = (
            f"{self.cpus} CPU cores",
            f"{self.gpus} GPUs" if self.gpus else "",
            f"{self.memory_gb} GiB" if self.memory_gb else "",
        )
        return f"{self.count} × {self.name}: {', '.join(filter(None, parts))}"


class LaunchPlan(Value):
    """A run with the hosts of its recipe."""

    recipe: Recipe
    run: Place
    """The host of `areal-actors run`."""
    joined: tuple[Place, ...]
    """Hosts of `areal-actors join`; their words lack the address, which comes first."""
    added: tuple[Place, ...] = ()
    """Hosts that decisions of `[autoscale]` may add, with a worker each: `count` is the largest number of them."""
    fingerprint: str = ""
    """Fingerprint of the certificate of the run's server; empty if it does not encrypt."""

    def address(self, host: str, port: object) -> str:
        """Returns the address at which workers join the run."""
        place = f"{host}:{port}/{self.recipe.run}"
        return f"{SCHEME}://{place}#{self.fingerprint}" if self.fingerprint else f"nats://{place}"

    def ending_seconds(self) -> int:
        """Returns the time that the run may need between SIGTERM and its end."""
        return round(self.recipe.watchdog.save_seconds) + SAVING_SECONDS

    def following(self, target: str) -> tuple[str, ...]:
        """Returns the words, after `areal-actors`, of the command beside the run that acts on its decisions."""
        return ("run", *self.run.words[1:], "--on", target, "--follow")

    def describe(self) -> Iterator[str]:
        """Yields one line for each kind of host."""
        yield f"{self.run.describe()}: {COMMAND} {' '.join(self.run.words)}"
        for place in self.joined:
            yield f"{place.describe()}: {COMMAND} join ADDRESS {' '.join(place.words)}"


def launch_plan(recipe: Recipe, words: Sequence[str], profile: str) -> LaunchPlan:
    """Returns the plan for a recipe that was read from these words of the command line, with this profile.

    Every launch names the profile, because the machine that reads the recipe may have other devices than the run's
    host.
    """
    hosts = recipe.hosts
    without = [f"actors.{role}.count=0" for role in hosts.joined_hosts() if role != "gateway"]
    if gateways := hosts.gateway.count * hosts.gateway.workers:
        count = max(recipe.actors.session_manager.count, gateways)
        without += [f"gateway.joined={gateways}", f"actors.session_manager.count={count}"]
    chosen = [f"profile={profile}"] if profile else []
    run = Place(
        name="run",
        count=1,
        gpus=hosts.run.gpus,
        cpus=hosts.run.cpus,
        memory_gb=hosts.run.memory_gb,
        words=("run", *words, *chosen, *without),
    )
    joined = tuple(
        Place(
            name=role,
            count=place.count,
            gpus=place.gpus,
            cpus=place.cpus,
            memory_gb=place.memory_gb,
            words=("--role", role, "--count", str(place.workers), "--wait", f"{hosts.wait_seconds:g}"),
        )
        for role, place in hosts.joined_hosts().items()
    )
    return LaunchPlan(
        recipe=recipe, run=run, joined=joined, added=tuple(_addable_places(recipe)) if recipe.autoscale.enabled else ()
    )


def _addable_places(recipe: Recipe) -> Iterator[Place]:
    """Yields the hosts that decisions may add.

    Each has what a worker of `[hosts.ROLE]` has, whether it lists hosts or none.
    """
    joined = recipe.hosts.joined_hosts()
    for role, bounds in recipe.autoscale.bounds().items():
        host: JoinedHosts = getattr(recipe.hosts, role)
        own = host.count * host.workers if role in joined else getattr(recipe.actors, role).count
        if (most := bounds.max - own) > 0:
            yield Place(
                name=role,
                count=most,
                gpus=host.gpus,
                cpus=-(-host.cpus // host.workers),
                memory_gb=-(-host.memory_gb // host.workers),
                words=("--role", role, "--wait", f"{recipe.hosts.wait_seconds:g}"),
            )


def render_template(template: str, **values: Any) -> str:
    """Returns a template of this folder with its values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - scripts and YAML; every value is quoted for its language
    )
    return environment.get_template(template).render(**values)
