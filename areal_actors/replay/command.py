"""`areal-actors audit --replay`.

Replays the control plane, the trainer or one actor of a recorded run, and reports each first difference.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from areal_actors.audit.report import report
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.display.safe_console import SafeConsole
from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.processes.fold_actors import FOLDS
from areal_actors.reader.audit_command import audit_run
from areal_actors.reader.run_files import run_folder
from areal_actors.replay.control import ControlReplay
from areal_actors.replay.fold import FoldReplay, LogDifference
from areal_bus.base import Envelope
from areal_bus.recorded import read_header, read_log

EQUAL, DIFFERENT = 0, 1
LONGEST = 400
"""Characters of a message or a value that are printed."""


class ReplayReport(msgspec.Struct):
    """Result of a replay."""

    run: str
    events: int
    seconds: float
    """Duration of the replay."""
    recorded_seconds: float
    """Duration of the recorded run."""
    actors: dict[str, FoldReplay]
    left_out: dict[str, str]
    differences: list[LogDifference]
    """The first difference of each actor."""
    count: int
    """Number of differences; of a replay that stops at the first, those until then."""
    complete: bool
    """False if the replay stopped at a difference."""

    def to_builtins(self) -> dict[str, Any]:
        """Returns the report as data for JSON."""
        rows = {
            name: {"received": actor.received, "equal": actor.equal, "work": actor.work}
            for name, actor in self.actors.items()
        }
        kept = {name: getattr(self, name) for name in self.__struct_fields__ if name not in ("actors", "differences")}
        differences: Any = msgspec.to_builtins(self.differences, enc_hook=bytes.hex)
        return {**kept, "actors": rows, "differences": differences}

    def to_text(self) -> str:
        """Returns the report as lines of text."""
        speed = (
            f", {self.recorded_seconds / self.seconds:,.0f} times as fast as the run"
            if self.complete and self.seconds
            else ""
        )
        ended = "" if self.complete else ", then stopped at the first difference (--all continues)"
        lines = [f"replayed {self.events:,} events of {self.run} in {self.seconds:.2f} s{speed}{ended}"]
        differing = {difference.actor for difference in self.differences}
        for name, actor in self.actors.items():
            result = "DIFFERENT" if name in differing else "equal"
            work = f", {actor.work:,} work items (not in the log)" if actor.work else ""
            lines.append(
                f"  {name:<18} {result:<9}  {actor.received:,} events received, {actor.equal:,} emitted as"
                f" recorded{work}"
            )
        lines += [f"  {name:<18} left out: {reason}" for name, reason in self.left_out.items()]
        for one in self.differences:
            lines += ["", *_state_lines(one)]
        if self.count > len(self.differences):
            lines += ["", f"{self.count - len(self.differences):,} further differences"]
        return "\n".join(lines)


def _state_lines(difference: LogDifference) -> list[str]:
    cause = f"answering event {difference.cause}" if difference.cause else "answering no event"
    lines = [
        f"first difference of {difference.actor}: {difference.subject}, {cause}, seen at event {difference.sequence}"
    ]
    if difference.fields:
        lines += [
            f"  {name}: recorded {_short(before)}, replayed {_short(now)}"
            for name, (before, now) in difference.fields.items()
        ]
    else:
        lines += [f"  recorded: {_short(difference.recorded)}", f"  replayed: {_short(difference.replayed)}"]
    return [*lines, "  its state: " + ", ".join(f"{name} {value}" for name, value in difference.status.items())]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=bytes.hex).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


def replay(
    run: str,
    settings: Sequence[str],
    *,
    folder: Path,
    actors: Sequence[str] = (),
    trainer: bool = False,
    every: bool = False,
    as_json: bool = False,
) -> int:
    """Replay the control plane of a run by name or path, or of an exported log; returns the exit status.

    Args:
        run: name or path; empty for the latest run.
        settings: overrides of the recorded recipe, each `KEY=VALUE`; differences are then expected, and the status is
            0.
        folder: where runs are written.
        actors: names or kinds of the actors to replay; none for all that are folds over events.
        trainer: compute every weight version again instead, and compare the checksums.
        every: continue after the first difference.
        as_json: print the report as JSON.

    Raises:
        SetupError: there is no such run or actor, or its log was trimmed; or `trainer` has settings, actors or
            `as_json` beside it.
        RecipeError: a setting is invalid.
        BusError: its log cannot be read.
    """
    if trainer:
        if settings or actors or as_json:
            raise SetupError("--trainer compares checksums, so it takes no settings, no --actor and no --json")
        return _replay_trainer(run, folder)
    if unknown := [name for name in actors if re.sub(r"-\d+$", "", name) not in FOLDS]:
        raise SetupError(
            f"--actor: found '{unknown[0]}'; only actors that are folds over events can be replayed from a log:"
            f" {', '.join(FOLDS)}. A tape of any other (record_actor_io = true) is replayed by"
            " areal_actors.testing.replayed"
        )
    report = asyncio.run(_replay_run(run, folder, actors, settings, every=every))
    sys.stdout.write(f"{msgspec.json.encode(report.to_builtins()).decode() if as_json else report.to_text()}\n")
    return DIFFERENT if report.count and not settings else EQUAL


async def _replay_run(
    run: str, folder: Path, actors: Sequence[str], settings: Sequence[str], *, every: bool
) -> ReplayReport:
    place = None if Path(run).is_file() else run_folder(run, folder)  # noqa: ASYNC240 - nothing else runs in this loop
    control = ControlReplay(place or RunFolder(Path(f"{run}.run")), only=actors, settings=settings)
    first: dict[str, LogDifference] = {}
    count, began, complete = 0, time.perf_counter(), True
    async with aclosing(log_of(place, Path(run))) as log:
        began = time.perf_counter()
        async with aclosing(control.differences(log)) as differences:
            async for difference in differences:
                count += 1
                first.setdefault(difference.actor, difference)
                if not every:
                    complete = False
                    break
    return ReplayReport(
        run=place.path.name if place else run,
        events=control.events,
        seconds=time.perf_counter() - began,
        recorded_seconds=control.recorded_seconds,
        actors=control.actors,
        left_out=control.left_out,
        differences=list(first.values()),
        count=count,
        complete=complete,
    )


async def log_of(place: RunFolder | None, file: Path) -> AsyncGenerator[Envelope, None]:
    """Yields the events of a run's log, or of an exported one if there is no folder.

    Raises:
        SetupError: the file is no log.
        BusError: the log cannot be read, or is damaged.
    """
    if place is None:
        if read_header(file).holds != "log":
            raise SetupError(f"{file} is a tape of one actor; `{COMMAND} export RUN FILE` writes the log of a run")
        for envelope in read_log(file):
            yield envelope
        return
    async with open_log(place) as bus:
        async for envelope in bus.log():
            yield envelope


def _replay_trainer(run: str, folder: Path) -> int:
    began = time.perf_counter()
    audit = asyncio.run(audit_run(run, folder=folder, recompute=True, console=SafeConsole(stderr=True)))
    sys.stdout.write(
        f"{report(audit)}\nreplayed {audit.steps} steps of the trainer in {time.perf_counter() - began:.1f} s\n"
    )
    return DIFFERENT if audit.all_faults() else EQUAL
