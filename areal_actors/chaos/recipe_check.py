"""Validates the targets of `[chaos]`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from areal_actors.chaos.corruption import SPOILT
from areal_actors.chaos.settings import EVERYTHING, LAUNCHER, SERVER, ChaosSettings, Kind
from areal_actors.core.actor_settings import ActorsSettings, processes_of
from areal_actors.core.bus_settings import BusSettings
from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, nearest, toml_value


def find_problems(chaos: ChaosSettings, actors: ActorsSettings, bus: BusSettings) -> Problems:
    """Yields key and complaint; nothing if chaos is off."""
    if not chaos.enabled:
        return
    if not chaos.rates():
        yield (
            ("chaos", "enabled"),
            "found true, but no fault has a rate; write `per_minute = 2.0` under `[chaos.kill]`, or leave it out",
        )
    for kind, rate in chaos.rates().items():
        targets = known_targets(actors)[kind]
        for target in rate.targets:
            if target not in targets:
                yield ("chaos", kind, "targets"), f"found {toml_value(target)}; {nearest(target, targets)}"
            elif target == SERVER and bus.url:
                yield (
                    ("chaos", kind, "targets"),
                    f'found "{SERVER}", but the server of bus.url is not this run\'s own; leave it out',
                )
    if chaos.injects("partition") and (bus.tls or bus.url.startswith("tls://") or "," in bus.url):
        yield (
            ("chaos", "partition", "per_minute"),
            "found a rate, but a link to a server with TLS cannot be cut, nor one to a cluster; leave it out",
        )


def known_targets(actors: ActorsSettings) -> Mapping[Kind, tuple[str, ...]]:
    """Returns the possible targets of each kind of fault in this run."""
    placements = {kind: placement for kind, placement in msgspec.structs.asdict(actors).items() if placement.count}
    processes = tuple(
        dict.fromkeys(
            [process for placement in placements.values() for process in processes_of(placement)] + list(placements)
        )
    )
    return {
        "kill": (*processes, SERVER, LAUNCHER, EVERYTHING),
        "pause": (*processes, SERVER, LAUNCHER),
        "partition": processes,
        "flip": ("checkpoint", "log"),
        "slow_disk": (SERVER,),
        "bad_completion": tuple(SPOILT),
    }


def unused_settings(chaos: ChaosSettings) -> Iterator[Key]:
    """Yields the table of a run without faults."""
    if not chaos.enabled:
        yield ("chaos",)
