"""Before a run goes on: is its log whole, and does it reach as far as what was read from it?

A log that is damaged is cut at its good end: the store is rewritten with what comes before, checkpoints of later steps are set aside,
and every actor is given again what may have lost an answer. Ids follow from what is handled, so that what the log still has
is kept once. Nothing is trained twice, for whatever was trained behind the good end was set aside with its weights.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from areal_actors.engines.checkpoint_store import CHECKPOINTS
from areal_actors.engines.manifest import digest_of_manifest
from areal_actors.errors import SetupError
from areal_actors.messages import KINDS, CheckpointSaved, LogRecovered
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.log_answers import Answers
from areal_actors.run.queued_work import SAY_EPISODES, queued_attempts
from areal_actors.run_folder import RunFolder
from areal_actors.snapshots import SnapshotStore
from areal_actors.values import Value
from bus.base import Stamp
from bus.log_check import LogCheck, check_log, is_missing
from bus.log_rewrite import aside_name, copy_log, copy_values, create_empty_queue, exchange, finish_exchange, keys, unfinished_store
from bus.message import Event
from bus.nats import DUPLICATE_SECONDS, NatsBus
from bus.server import EmbeddedServer, has_users, resolve_server

POSITION = "_position."
BEYOND = "beyond-the-log"
LOG_END = "log_end.json"


class Recovered(Value):
    """What a run goes on with."""

    problem: str
    """What was wrong with its log; empty if nothing was."""
    queued: dict[str, int]
    """The attempts that wait in the queue of work, by episode."""
    published: dict[str, int]
    """Up to which event whoever publishes episodes had published them, by kind of actor."""


async def recover_log(recipe: Recipe, folder: RunFolder) -> Recovered:
    """Check the log of a run that is to go on, and cut it at its good end if it is damaged; see what the queue of work has.

    The server is also told to recognise messages from before the pause, so that what is said again is kept once.

    Raises:
        SetupError: there is no log, or nothing of it can be used; says what to do.
        BusError: the server cannot be started or does not answer.
    """
    if resolve_server(recipe.bus.url or None):
        return await _check_elsewhere(recipe, folder)
    finish_exchange(folder.nats)
    if not folder.nats.is_dir() or not any(folder.nats.iterdir()):
        raise SetupError(_gone(recipe, folder, f"{folder.nats} is gone or empty"))
    async with _opened(folder.nats, folder, recipe.run) as bus:
        answers = Answers()
        found = await _checked(bus, recipe, folder, answers)
        positions = await _positions(bus)
        late = _late_checkpoints(folder, found.end)
        problem = _problem(found, positions, late) or _unnoticed_loss(folder, found, answers)
        if not problem:
            if answers.newest:
                await bus.set_dedup_window(time.time() - answers.newest + DUPLICATE_SECONDS)
            return Recovered(problem="", queued=await queued_attempts(bus.streams), published=_published(positions))
        _refuse_without_beginning(recipe, folder, found, problem)
        moved = {actor: answers.position(actor, position, found.end) for actor, position in positions.items()}
        # Rewritten also where the log is only shorter: a queue that follows from events that are gone runs episodes nobody has granted.
        async with _opened(unfinished_store(folder.nats), folder, recipe.run, owner_only=has_users(folder.nats)) as fresh:
            await copy_log(bus.streams, fresh.streams, found.first, found.end)
            await create_empty_queue(bus.streams, fresh.streams)
            await copy_values(bus.streams, fresh.streams, {POSITION + actor: b"%d" % place for actor, place in moved.items()})
            aside = (aside_name(folder.nats).name, *_set_aside(late))
            await _report(fresh, folder, found, answers, problem, aside)
            await fresh.set_dedup_window(time.time() - answers.oldest + DUPLICATE_SECONDS)
    _forget_snapshots(folder, moved, found.end)
    exchange(folder.nats)
    note_log_end(folder, found.end)
    return Recovered(problem=problem, queued={}, published=_published(moved))


def _forget_snapshots(folder: RunFolder, moved: Mapping[str, int], end: int) -> None:
    """Remove snapshots of what an actor is given again: one that began with them would not answer anew what lost its answer."""
    store = SnapshotStore(folder.snapshots)
    for fold in store.folds():
        store.remove_after(fold, moved.get(fold, end))


async def _check_elsewhere(recipe: Recipe, folder: RunFolder) -> Recovered:
    """A server that somebody else runs is not rewritten: a log that is not whole is refused by name."""
    url = resolve_server(recipe.bus.url or None)
    assert url is not None
    bus = await NatsBus.connect(url, recipe.run, name="supervisor", blobs=folder.blobs)
    try:
        found = await _checked(bus, recipe, folder, Answers())
        positions = await _positions(bus)
        if problem := _problem(found, positions, _late_checkpoints(folder, found.end)):
            raise SetupError(_unusable(recipe, folder, f"{problem}, on a server that this run does not own ({url})"))
        return Recovered(problem="", queued=await queued_attempts(bus.streams), published=_published(positions))
    finally:
        await bus.close()


@asynccontextmanager
async def _opened(store: Path, folder: RunFolder, run: str, *, owner_only: bool = False) -> AsyncIterator[NatsBus]:
    """The bus of a run over a server of its own, for as long as this takes."""
    server = await EmbeddedServer.start(store, owner_only=owner_only)
    try:
        bus = await NatsBus.connect(server.url, run, name="supervisor", token=server.token, blobs=folder.blobs)
        try:
            yield bus
        finally:
            await bus.close()
    finally:
        await server.stop()


async def _checked(bus: NatsBus, recipe: Recipe, folder: RunFolder, answers: Answers) -> LogCheck:
    for stream in (bus.streams.log, bus.streams.queue, bus.streams.values):
        if await is_missing(bus.streams, stream):
            raise SetupError(_gone(recipe, folder, f"the server finds no stream {stream} in its store"))
    return await check_log(bus.streams, answers.take)


async def _positions(bus: NatsBus) -> dict[str, int]:
    """How far each actor had come."""
    names = [key.removeprefix(POSITION) for key in await keys(bus.streams, POSITION)]
    return {name: await bus.position(name) for name in names}


def _published(positions: Mapping[str, int]) -> dict[str, int]:
    return {kind: place for kind in SAY_EPISODES for actor, place in positions.items() if actor.startswith(kind)}


def _cursors(folder: RunFolder) -> dict[Path, int]:
    """The checkpoints that there are, oldest first, and the last event that each was trained on."""
    found: dict[Path, int] = {}
    for path in folder.checkpoints.glob("step-*"):
        with suppress(OSError, ValueError):
            found[path] = int((path / "cursor").read_text())
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _late_checkpoints(folder: RunFolder, end: int) -> list[Path]:
    """Checkpoints of steps whose batches the log does not have."""
    return [path for path, cursor in _cursors(folder).items() if cursor > end]


def _problem(found: LogCheck, positions: dict[str, int], late: list[Path]) -> str:
    """What is wrong with the log, empty if nothing is."""
    if found.damage:
        return f"{found.damage}; the log is good up to event {found.end} of {found.last}"
    if late:
        return f"the log ends at event {found.end}, before the cursor of {', '.join(path.name for path in late)}"
    ahead = {actor: place for actor, place in positions.items() if place > found.end}
    if ahead:
        actor, place = max(ahead.items(), key=lambda item: item[1])
        return f"the log ends at event {found.end}, and {actor} had read event {place}"
    return ""


class LogEnd(Value):
    """How far the supervisor had read the log, and the start of the machine in which it did: kept beside the store."""

    sequence: int
    boot: str


def note_log_end(folder: RunFolder, sequence: int) -> None:
    """Keep how far the log has been read at least; a disk that takes nothing has other messengers."""
    with suppress(OSError):
        (folder.path / LOG_END).write_bytes(msgspec.json.encode(LogEnd(sequence=sequence, boot=boot_id())))


def _unnoticed_loss(folder: RunFolder, found: LogCheck, answers: Answers) -> str:
    """Whether the end of a log may be gone although nobody has acknowledged it; empty if it is not, or if nothing is known."""
    try:
        noted = msgspec.json.decode((folder.path / LOG_END).read_bytes(), type=LogEnd)
    except (OSError, msgspec.MsgspecError):
        return ""
    if noted.sequence > found.end:
        return f"the log ends at event {found.end}, and the supervisor had read event {noted.sequence}"
    if not answers.ended and noted.boot and noted.boot != boot_id():
        return f"the machine went down during the run, and events after {found.end} may not have been on its disk"
    return ""


def boot_id() -> str:
    """Names this start of the machine; empty where the system gives it no name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _refuse_without_beginning(recipe: Recipe, folder: RunFolder, found: LogCheck, problem: str) -> None:
    """Refuse to go on with nothing, and with a log whose beginning was trimmed where no checkpoint stands on what it has.

    Raises:
        SetupError: says what to do.
    """
    kept = [cursor for cursor in _cursors(folder).values() if cursor <= found.end]
    if found.end < found.first or (found.first > 1 and not kept):
        raise SetupError(_unusable(recipe, folder, problem))


def _set_aside(late: list[Path]) -> tuple[str, ...]:
    """Give checkpoints that the log does not reach another name, under which nobody looks for one; returns these names."""
    names = []
    for path in late:
        number = 1
        while (aside := path.with_name(f"{BEYOND}-{number}.{path.name}")).exists():
            number += 1
        path.rename(aside)
        names.append(aside.name)
    return tuple(names)


async def _report(bus: NatsBus, folder: RunFolder, found: LogCheck, answers: Answers, problem: str, aside: tuple[str, ...]) -> None:
    """Put into the log what was lost, and a checkpoint to go on from where the log has lost the event of the one that there is."""
    await bus.provision(KINDS)
    await _say(bus, LogRecovered(damage=problem, lost=found.last - found.end, set_aside=aside))
    there = _cursors(folder)
    if there and (answers.saved is None or folder.checkpoints / Path(answers.saved.folder).name not in there):
        newest, cursor = list(there.items())[-1]
        step = int(newest.name.removeprefix("step-"))
        kept = tuple(int(path.name.removeprefix("step-")) for path in there)
        folder_name, manifest = f"{CHECKPOINTS}/{newest.name}", digest_of_manifest(newest)
        await _say(bus, CheckpointSaved(folder=folder_name, step=step, cursor=cursor, manifest=manifest, kept=kept))


async def _say(bus: NatsBus, event: Event) -> None:
    await bus.publish(event, Stamp(id=uuid.uuid4().hex, sender="supervisor", time=time.time()))


def _gone(recipe: Recipe, folder: RunFolder, why: str) -> str:
    return _unusable(recipe, folder, f"there is no log to go on from: {why}")


def _unusable(recipe: Recipe, folder: RunFolder, why: str) -> str:
    checkpoints = list(_cursors(folder))
    start = f"model={checkpoints[-1]}" if checkpoints else "with the same recipe"
    return (
        f"run '{recipe.run}' cannot go on: {why}; put back a copy of {folder.nats} if you have one, "
        f"or start another run from what there is: run=NAME {start}"
    )
