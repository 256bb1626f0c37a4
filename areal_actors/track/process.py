"""The process of the trackers of a recipe's `[track]`, beside its run.

Started by `areal-actors run`. Standard input closes when the run has ended, or its process has died: then the rest is
sent.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from pathlib import Path

from areal_actors.core.errors import SetupError
from areal_actors.folder.run_folder import RunFolder
from areal_actors.track.command import send_run
from areal_actors.track.follow import follow_folder


def main(arguments: list[str]) -> int:
    """Send the run of a folder; returns the exit status."""
    place, over = RunFolder(Path(arguments[0])), threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.buffer.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    with suppress(SetupError):  # the run has ended before its first event, and has reported why
        return asyncio.run(send_run(follow_folder(place), place.recipe().track, is_over=over.is_set))
    return 0
