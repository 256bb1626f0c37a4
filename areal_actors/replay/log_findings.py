"""Findings about the limit of a run that need its whole log.

Shares of time beside a replay of the gate, and its first episodes.
Loaded only where the history does not have it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.display.run_state import RunState
from areal_actors.folder.connections import connect_to_run
from areal_actors.folder.run_folder import RunFolder
from areal_actors.lint.first_episodes import FirstEpisodes
from areal_actors.lint.rules import findings
from areal_actors.messages import KINDS, Heartbeat, RunStarted, Throughput
from areal_actors.recipe.recipe import Recipe, recorded_recipe
from areal_actors.replay.command import log_of
from areal_actors.replay.control import ControlReplay
from areal_actors.replay.in_flight import InFlight
from areal_actors.replay.time_shares import LogFindings, OpenWait, TimeFold
from areal_actors.reward_hacking.fold import HackFold
from areal_actors.sequences.credit import Credit

LISTENED_SECONDS = 10.0
"""Longest wait for a heartbeat of every actor of a live run."""
_KINDS = {kind.subject: kind for kind in KINDS}


def fold_log(folder: Path | None, file: Path, recipe: Recipe) -> LogFindings:
    """Fold the log of a run's folder, or an exported one.

    Raises:
        BusError: it cannot be read.
    """
    return asyncio.run(_fold_log(RunFolder(folder) if folder else None, file, recipe))


async def _fold_log(place: RunFolder | None, file: Path, recipe: Recipe) -> LogFindings:
    of_examples = recipe.learns_from_examples()
    times, facts, hacks, without_gate = TimeFold(), FirstEpisodes(Credit()), HackFold(), ""
    flying = None if of_examples else InFlight(recipe.algorithm.group_size)
    gate: ControlReplay | None = ControlReplay(place or RunFolder(Path(f"{file}.run")), only=["staleness_gate"])
    async with aclosing(log_of(place, file)) as log:
        async for envelope in log:
            if (kind := _KINDS.get(envelope.subject)) is None:
                continue
            message = envelope.open(kind)
            if isinstance(message, RunStarted):
                facts.credit = Credit.of(recorded_recipe(message.recipe).task)
            facts.receive(message)
            hacks.receive(message)
            times.receive(message, envelope.time, bound=_bound(gate), flying=flying)
            if flying is not None:
                flying.receive(message, envelope.time)
            if gate is not None:
                try:
                    await gate.receive(envelope)
                except SetupError as error:
                    gate, without_gate = None, "" if of_examples else str(error)
    return LogFindings(times.shares, without_gate, [] if of_examples else findings(facts, recipe), hacks.alarms)


def _bound(gate: ControlReplay | None) -> str:
    actors = list(gate.actors.values()) if gate is not None else []
    return str(actors[0].actor.status()["bound"]) if actors else ""


def listen(place: RunFolder, state: RunState) -> list[OpenWait]:
    """Fold the heartbeats of a live run; returns the open waits that have a deadline, the longest first."""
    return asyncio.run(_listen(place, state))


async def _listen(place: RunFolder, state: RunState) -> list[OpenWait]:
    with suppress(TimeoutError):
        async with (
            asyncio.timeout(LISTENED_SECONDS),
            connect_to_run(place.monitor(), place, monitors=True) as bus,
            bus.telemetry(Heartbeat, Throughput) as inbox,
        ):
            async for delivery in inbox:
                state.receive(delivery.envelope)
                if state.serving.keys() <= state.beats.keys():
                    break
    waits = [
        OpenWait(actor, wait.name, state.now - wait.since, wait.deadline - state.now)
        for actor, beat in state.beats.items()
        for wait in beat.waits
        if wait.deadline
    ]
    return sorted(waits, key=lambda wait: -wait.seconds)
