"""Makes the folder of a fork: links to what never changes, and a log that begins with that of the recorded run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.folder.connections import open_store
from areal_actors.folder.run_folder import RunFolder
from areal_actors.fork.changes import ForkedRecipe
from areal_actors.fork.recorded_run import Beginning
from areal_actors.messages import KINDS, RunForked
from areal_actors.recovery.log_recovery import POSITION, note_log_end
from areal_actors.supervision.run_session import publish
from areal_actors.weights.manifest import PROOF
from areal_bus.log_rewrite import copy_events
from areal_bus.nats import NatsBus

LINKED = ("model", "blobs", "images", "tasks")
"""Folders whose files are written once."""


async def write_fork(
    forked: ForkedRecipe, fork: RunFolder, beginning: Beginning, step: int, run: RunFolder, bus: NatsBus
) -> None:
    """Make the folder of a fork, which is then resumed like a run that was interrupted.

    Args:
        forked: recipe of the fork.
        fork: its folder, which is held.
        beginning: its events.
        step: that of the checkpoint.
        run: folder of the recorded run.
        bus: with the log of the recorded run.

    Raises:
        SetupError: a file cannot be linked or copied.
        LogUnavailable: the log cannot be copied.
    """
    try:
        fork.create(forked.recipe)
        for name in LINKED:
            if (folder := run.path / name).is_dir():
                link_tree(folder, fork.path / name)
        for checkpoint in run.checkpoints.glob("step-*"):
            if int(checkpoint.name.removeprefix("step-")) <= step:
                link_tree(checkpoint, fork.checkpoints / checkpoint.name)
    except OSError as error:
        raise SetupError(f"the fork cannot be written to {fork.path}: {error}") from error
    event = RunForked(
        parent=run.path.name,
        step=step,
        prefix=beginning.prefix,
        head=beginning.head,
        reused=beginning.reused,
        reason=forked.changed,
        discarded_below=beginning.discarded_below,
    )
    await _write_log(forked, fork, beginning, event, bus)


async def _write_log(
    forked: ForkedRecipe, fork: RunFolder, beginning: Beginning, event: RunForked, source: NatsBus
) -> None:
    async with open_store(fork.nats, fork, forked.recipe.run) as bus:
        await bus.provision(KINDS, compress=forked.recipe.log.compress)
        end = await copy_events(source.streams, bus.streams, range(1, beginning.prefix + 1), 1)
        end = await copy_events(source.streams, bus.streams, beginning.copied, end + 1)
        for actor, position in beginning.positions.items():
            await bus.streams.put(POSITION + actor, b"%d" % position)
        await publish(bus, event)
    note_log_end(fork, end + 1)


def link_tree(source: Path, target: Path) -> None:
    """Link every file of a folder, or copy it where the file system has no links.

    The proof of a checkpoint is left out: it is proved in the folder of the run that made it.

    Raises:
        OSError: a file can be neither linked nor copied.
    """
    shutil.copytree(
        source, target, copy_function=_link, ignore=shutil.ignore_patterns(PROOF), dirs_exist_ok=True, symlinks=True
    )


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
