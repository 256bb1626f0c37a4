"""`areal-actors show RUN --at N`.

The state of a run after any event of its log: gate, groups in flight, batch, weights, evaluation.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.core.errors import RecipeError
from areal_actors.display.run_state import RunState
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunStarted, StepCompleted
from areal_actors.reader.run_files import run_folder
from areal_actors.replay.command import log_of
from areal_actors.replay.control import ControlReplay
from areal_actors.replay.in_flight import EpisodeInFlight, InFlight
from areal_bus.base import Envelope

MOST_GROUPS = 12
"""Number of groups in flight that are printed."""


class Moment(msgspec.Struct, frozen=True):
    """A position in a log: after an event, after a step, or at a time. All None for its end."""

    event: int | None = None
    step: int | None = None
    seconds: float | None = None
    """Seconds after the start of the run."""

    @classmethod
    def parse(cls, text: str) -> Moment:
        """Returns the moment that `1200`, `step-12`, `90s` or nothing names.

        Raises:
            RecipeError: it is none of these.
        """
        if not text:
            return cls()
        if text.isdecimal():
            return cls(event=int(text))
        if step := re.fullmatch(r"step[-:](\d+)", text):
            return cls(step=int(step[1]))
        if seconds := re.fullmatch(r"(\d+(?:\.\d+)?)s", text):
            return cls(seconds=float(seconds[1]))
        raise RecipeError(
            f"--at: found '{text}'; write an event as 1200, a step as step-12, or seconds after the start as 90s"
        )

    def is_before(self, envelope: Envelope, began: float) -> bool:
        """True if the event is later than this moment."""
        if self.event is not None:
            return envelope.sequence > self.event
        return self.seconds is not None and envelope.time - began > self.seconds

    def ends_with(self, envelope: Envelope) -> bool:
        """True if the event is the last of this moment."""
        return (
            self.step is not None
            and envelope.subject == StepCompleted.subject
            and envelope.open(StepCompleted).step >= self.step
        )


class RunAt(msgspec.Struct):
    """The state of a run after an event."""

    run: str
    event: int
    """Sequence of the event; 0 if there is none at that moment."""
    seconds: float
    """Time of the event after the start of the run."""
    step: int
    steps: int
    weight_version: int
    loaded: dict[str, int]
    """Weight version of each inference worker."""
    actors: dict[str, dict[str, float | str]]
    """Figures of the gate, the task source, the batcher and the evaluator, as in their heartbeats."""
    groups: dict[str, list[EpisodeInFlight]]
    """Groups in flight with their episodes."""
    live: list[str]
    """Actors that serve."""
    failures: dict[str, int]
    """Failed attempts until then, by reason."""

    def to_text(self) -> str:
        """Returns the state as lines of text."""
        lines = [f"{self.run} after event {self.event:,}, {self.seconds:.1f} s after its start"]
        lines.append(f"step {self.step} of {self.steps}, weight version {self.weight_version}; {self._loaded_text()}")
        for name, row in self.actors.items():
            figures = ", ".join(f"{field} {_short(value)}" for field, value in row.items())
            lines.append(f"{name:<18} {figures or 'idle'}")
        lines += self._in_flight()
        lines.append(f"actors: {', '.join(self.live) or 'none serves'}")
        if self.failures:
            lines.append(
                f"failed attempts: {', '.join(f'{reason} {count}' for reason, count in self.failures.items())}"
            )
        return "\n".join(lines)

    def _loaded_text(self) -> str:
        by_version = Counter(self.loaded.values())
        workers = ", ".join(f"{count} at version {version}" for version, count in sorted(by_version.items()))
        return f"inference workers: {workers or 'none has loaded weights'}"

    def _in_flight(self) -> Iterator[str]:
        phases = Counter(episode.phase for group in self.groups.values() for episode in group)
        total = ", ".join(f"{count} {phase}" for phase, count in phases.items())
        yield f"groups in flight: {len(self.groups)}; episodes: {total or 'none'}"
        for number, episodes in list(self.groups.items())[:MOST_GROUPS]:
            counted = ", ".join(
                f"{count} {phase}" for phase, count in Counter(in_flight.phase for in_flight in episodes).items()
            )
            calls = sum(one.calls for one in episodes)
            yield f"  group {number}: {counted}; {calls} calls"
        if len(self.groups) > MOST_GROUPS:
            yield f"  … and {len(self.groups) - MOST_GROUPS} more (--json has all)"


def _short(value: float | str) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def state(run: str, *, folder: Path, at: str = "", as_json: bool = False) -> int:
    """Print the state of a run by name or path, or of an exported log, at a moment; returns the exit status.

    Raises:
        RecipeError: the moment is not understood.
        SetupError: there is no such run, or its log was trimmed.
        BusError: its log cannot be read.
    """
    run_at = asyncio.run(_state(run, folder, Moment.parse(at)))
    sys.stdout.write(f"{msgspec.json.encode(run_at).decode() if as_json else run_at.to_text()}\n")
    return 0


async def _state(run: str, folder: Path, moment: Moment) -> RunAt:
    place = None if Path(run).is_file() else run_folder(run, folder)  # noqa: ASYNC240 - nothing else runs in this loop
    control, shown = ControlReplay(place or RunFolder(Path(f"{run}.run"))), RunState()
    flying: InFlight | None = None
    last: Envelope | None = None
    async with aclosing(log_of(place, Path(run))) as log:
        async for envelope in log:
            if moment.is_before(envelope, shown.started_at or envelope.time):
                break
            await control.receive(envelope)
            message, last = shown.receive(envelope), envelope
            if isinstance(message, RunStarted):
                flying = flying or InFlight(message.recipe["algorithm"]["group_size"])
            if flying is not None and message is not None:
                flying.receive(message, envelope.time)
            if moment.ends_with(envelope):
                break
    return _describe_run(place.path.name if place else run, control, shown, flying, last)


def _describe_run(
    run: str, control: ControlReplay, shown: RunState, flying: InFlight | None, last: Envelope | None
) -> RunAt:
    recipe: dict[str, Any] = shown.started.recipe if shown.started else {}
    return RunAt(
        run=run,
        event=last.sequence if last else 0,
        seconds=last.time - shown.started_at if last else 0.0,
        step=shown.steps[-1].number if shown.steps else 0,
        steps=recipe.get("steps", 0),
        weight_version=shown.weight_version,
        loaded=dict(shown.loaded),
        actors={name: replayed.actor.status() for name, replayed in control.actors.items()},
        groups={number: list(group.values()) for number, group in flying.groups.items()} if flying else {},
        live=sorted(shown.serving),
        failures=dict(shown.episodes.abandoned),
    )
