"""Recovers the log of a run before it is resumed: checks that it is whole and reaches every acknowledged position.

A damaged log is truncated: the store is rewritten with the readable part, checkpoints of later steps are set aside, and
events whose answers may be lost are redelivered. Message ids are deterministic, so answers that are still in the log
are deduplicated. Nothing is trained twice: the weights of lost steps were set aside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.core.values import Value
from areal_actors.folder.connections import connect_to_run, open_store
from areal_actors.folder.run_folder import RunFolder, ServerAddress, first_free
from areal_actors.messages import KINDS, CheckpointCommitted, LogRecovered
from areal_actors.recipe.recipe import Recipe
from areal_actors.recovery.log_answers import EPISODE_PUBLISHERS, AnsweredEvents, queued_attempts
from areal_actors.supervision.run_session import publish
from areal_actors.training.checkpoint_store import CHECKPOINTS
from areal_actors.weights.manifest import digest_of_manifest
from areal_bus.log_check import LogCheck, check_log, is_missing
from areal_bus.log_rewrite import (
    aside_name,
    copy_log,
    copy_values,
    create_empty_queue,
    exchange,
    finish_exchange,
    keys,
    unfinished_store,
)
from areal_bus.nats import DUPLICATE_SECONDS, NatsBus
from areal_bus.server import has_users, resolve_server
from areal_bus.store_key import begin_encrypted, is_encrypted
from areal_bus.users import without_credentials

POSITION = "_position."
BEYOND = "beyond-the-log"
LOG_END = "log_end.json"


class Recovered(Value):
    """State that a run is resumed with."""

    problem: str
    """Description of the damage of its log; empty if it was whole."""
    queued: dict[str, int]
    """Latest queued attempt in the work queue, by episode."""
    published: dict[str, int]
    """Last event for which episodes had been published, by kind of the publishing actor."""


async def recover_log(recipe: Recipe, folder: RunFolder) -> Recovered:
    """Check the log of a run to be resumed, truncate it if it is damaged, and read the work queue.

    Also extends the server's deduplication window to before the pause, so that repeated messages are dropped.

    Raises:
        SetupError: there is no log, or it is unusable; the message has the remedy.
        BusError: the server cannot be started or does not answer.
    """
    if url := resolve_server(recipe.bus.url or None):
        return await _check_elsewhere(url, recipe, folder)
    finish_exchange(folder.nats)
    if not folder.nats.is_dir() or not any(folder.nats.iterdir()):
        raise SetupError(_describe_missing_log(recipe, folder, f"{folder.nats} is gone or empty"))
    async with open_store(folder.nats, folder, recipe.run) as bus:
        answers = AnsweredEvents()
        check = await _check_log(bus, recipe, folder, answers)
        positions = await read_positions(bus)
        late = _late_checkpoints(folder, check.end)
        problem = _problem(check, positions, late) or _unnoticed_loss(folder, check, answers)
        if not problem:
            if answers.oldest:
                await bus.set_dedup_window(answers.seconds_since_end(time.time()) + DUPLICATE_SECONDS)
            return Recovered(
                problem="", queued=await queued_attempts(bus.streams), published=_published_positions(positions)
            )
        _refuse_without_beginning(recipe, folder, check, problem)
        moved = {actor: answers.position(actor, position, check.end) for actor, position in positions.items()}
        # Rewritten even if the log is only shorter: a queue from lost events would run episodes that were never
        # granted.
        if is_encrypted(folder.nats):
            begin_encrypted(unfinished_store(folder.nats))
        async with open_store(
            unfinished_store(folder.nats), folder, recipe.run, owner_only=has_users(folder.nats)
        ) as fresh:
            await copy_log(bus.streams, fresh.streams, check.first, check.end)
            await create_empty_queue(bus.streams, fresh.streams)
            await copy_values(
                bus.streams, fresh.streams, {POSITION + actor: b"%d" % place for actor, place in moved.items()}
            )
            aside = (aside_name(folder.nats).name, *_set_aside(late))
            await _report(fresh, folder, check, answers, problem, aside)
            await fresh.set_dedup_window(answers.seconds_since_beginning(time.time()) + DUPLICATE_SECONDS)
    _forget_snapshots(folder, moved, check.end)
    exchange(folder.nats)
    note_log_end(folder, check.end)
    return Recovered(problem=problem, queued={}, published=_published_positions(moved))


def _forget_snapshots(folder: RunFolder, moved: Mapping[str, int], end: int) -> None:
    """Remove snapshots of redelivered events: an actor restored from them would not repeat lost answers."""
    store = SnapshotStore(folder.snapshots)
    for fold in store.folds():
        store.remove_after(fold, moved.get(fold, end))


async def _check_elsewhere(url: str, recipe: Recipe, folder: RunFolder) -> Recovered:
    """Check the log on an external server, which is not rewritten: a damaged log is refused."""
    async with connect_to_run(ServerAddress(url=url, run=recipe.run, pid=0), folder) as bus:
        check = await _check_log(bus, recipe, folder, AnsweredEvents())
        positions = await read_positions(bus)
        if problem := _problem(check, positions, _late_checkpoints(folder, check.end)):
            raise SetupError(
                _unusable(
                    recipe, folder, f"{problem}, on a server that this run does not own ({without_credentials(url)})"
                )
            )
        return Recovered(
            problem="", queued=await queued_attempts(bus.streams), published=_published_positions(positions)
        )


async def _check_log(bus: NatsBus, recipe: Recipe, folder: RunFolder, answers: AnsweredEvents) -> LogCheck:
    for stream in (bus.streams.log, bus.streams.queue, bus.streams.values):
        if await is_missing(bus.streams, stream):
            raise SetupError(_describe_missing_log(recipe, folder, f"the server finds no stream {stream} in its store"))
    return await check_log(bus.streams, answers.receive)


async def read_positions(bus: NatsBus) -> dict[str, int]:
    """Returns the log position of each actor."""
    names = [key.removeprefix(POSITION) for key in await keys(bus.streams, POSITION)]
    return {name: await bus.position(name) for name in names}


def _published_positions(positions: Mapping[str, int]) -> dict[str, int]:
    return {kind: place for kind in EPISODE_PUBLISHERS for actor, place in positions.items() if actor.startswith(kind)}


def _cursors(folder: RunFolder) -> dict[Path, int]:
    """Returns the last event trained on for each checkpoint, oldest first."""
    by_file: dict[Path, int] = {}
    for path in folder.checkpoints.glob("step-*"):
        with suppress(OSError, ValueError):
            by_file[path] = int((path / "cursor").read_text())
    return dict(sorted(by_file.items(), key=lambda item: item[1]))


def _late_checkpoints(folder: RunFolder, end: int) -> list[Path]:
    """Returns the checkpoints of steps whose batches are not in the log."""
    return [path for path, cursor in _cursors(folder).items() if cursor > end]


def _problem(check: LogCheck, positions: dict[str, int], late: list[Path]) -> str:
    """Describes the damage of the log; empty if there is none."""
    if check.damage:
        return f"{check.damage}; the log is readable up to event {check.end} of {check.last}"
    if late:
        return f"the log ends at event {check.end}, before the cursor of {', '.join(path.name for path in late)}"
    ahead = {actor: place for actor, place in positions.items() if place > check.end}
    if ahead:
        actor, place = max(ahead.items(), key=lambda item: item[1])
        return f"the log ends at event {check.end}, and {actor} had read event {place}"
    return ""


class LogEnd(Value):
    """Last event that the supervisor had read, and the boot id at that time; stored beside the log."""

    sequence: int
    boot: str


def note_log_end(folder: RunFolder, sequence: int) -> None:
    """Store how far the log has been read; a full disk is reported elsewhere."""
    with suppress(OSError):
        (folder.path / LOG_END).write_bytes(msgspec.json.encode(LogEnd(sequence=sequence, boot=boot_id())))


def _unnoticed_loss(folder: RunFolder, check: LogCheck, answers: AnsweredEvents) -> str:
    """Describes a possible loss of unacknowledged events at the end of the log; empty if there is no sign of it."""
    try:
        noted = msgspec.json.decode((folder.path / LOG_END).read_bytes(), type=LogEnd)
    except (OSError, msgspec.MsgspecError):
        return ""
    if noted.sequence > check.end:
        return f"the log ends at event {check.end}, and the supervisor had read event {noted.sequence}"
    if not answers.ended and noted.boot and noted.boot != boot_id():
        return f"the machine went down during the run, and events after {check.end} may not have reached its disk"
    return ""


def boot_id() -> str:
    """Returns the boot id of this machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _refuse_without_beginning(recipe: Recipe, folder: RunFolder, check: LogCheck, problem: str) -> None:
    """Refuse an empty log, and a trimmed log without a checkpoint inside its remaining part.

    Raises:
        SetupError: the log is unusable; the message has the remedy.
    """
    kept = [cursor for cursor in _cursors(folder).values() if cursor <= check.end]
    if check.end < check.first or (check.first > 1 and not kept):
        raise SetupError(_unusable(recipe, folder, problem))


def _set_aside(late: list[Path]) -> tuple[str, ...]:
    """Rename checkpoints beyond the end of the log so that they are not loaded; returns the new names."""
    return tuple(path.rename(first_free(path.parent, f"{BEYOND}-", f".{path.name}")).name for path in late)


async def _report(
    bus: NatsBus, folder: RunFolder, check: LogCheck, answers: AnsweredEvents, problem: str, aside: tuple[str, ...]
) -> None:
    """Log the loss, and log the newest checkpoint again if its event was lost."""
    await bus.provision(KINDS)
    await publish(bus, LogRecovered(damage=problem, lost=check.last - check.end, set_aside=aside))
    cursors = _cursors(folder)
    if cursors and (answers.saved is None or folder.checkpoints / Path(answers.saved.folder).name not in cursors):
        newest, cursor = list(cursors.items())[-1]
        step = int(newest.name.removeprefix("step-"))
        kept = tuple(int(path.name.removeprefix("step-")) for path in cursors)
        folder_name, manifest = f"{CHECKPOINTS}/{newest.name}", digest_of_manifest(newest)
        await publish(
            bus, CheckpointCommitted(folder=folder_name, step=step, cursor=cursor, manifest=manifest, kept=kept)
        )


def _describe_missing_log(recipe: Recipe, folder: RunFolder, why: str) -> str:
    return _unusable(recipe, folder, f"there is no log to resume from: {why}")


def _unusable(recipe: Recipe, folder: RunFolder, why: str) -> str:
    checkpoints = list(_cursors(folder))
    start = f"model={checkpoints[-1]}" if checkpoints else "with the same recipe"
    return (
        f"run '{recipe.run}' cannot be resumed: {why}; restore a copy of {folder.nats} if you have one, "
        f"or start another run: run=NAME {start}"
    )
