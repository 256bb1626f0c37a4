"""Other commands about the run that a page shows.

Each runs in a process of its own: it reads the log again, or loads torch.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.web.source import LogSource
from areal_actors.web.what_if_curves import curves_of

why: Any = LazyModule("areal_actors.replay.why")
ANSWERS_KEPT = 16
LONGEST_SECONDS = 600.0
"""Time limit of a command."""
KILLED_SECONDS = 10.0
"""Time limit of its end, once it was killed."""
MOST_SETTINGS = 8
SETTING = re.compile(r"[a-z_]+(\.[a-z_]+)+=(true|false|[a-z_]+|-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?)")
"""Settings that a browser may ask about: no paths, so that no browser names a file whose code would run."""
REFUSED = ("task.reward", "algorithm.path")
"""Beginnings of settings that name code."""


class RunCommands:
    """Runs commands one at a time, and keeps their answers for as long as the log does not grow."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._running = asyncio.Lock()
        self._answers: OrderedDict[tuple[str, ...], tuple[int, bytes]] = OrderedDict()

    async def trace(self, episode: str, attempt: int) -> bytes:
        """Returns the JSON of `areal-actors show --trace` for an attempt.

        Raises:
            SetupError: the process failed.
        """
        return await self._answer("show", [episode, "--trace", "--attempt", str(attempt)], is_final=True)

    async def explain_limit(self) -> bytes:
        """Returns the JSON of `areal-actors why`, with its figures as lines of text.

        Raises:
            SetupError: the process failed.
        """
        explanation = msgspec.json.decode(await self._answer("why", []), type=why.Why)
        return msgspec.json.encode(msgspec.to_builtins(explanation) | {"figures": explanation.figures()})

    async def compare_settings(self, settings: Sequence[str]) -> bytes:
        """Returns the JSON of `areal-actors what-if` for settings, and its curves.

        Raises:
            SetupError: a setting names code, or the process failed.
        """
        for setting in settings[:MOST_SETTINGS]:
            if not SETTING.fullmatch(setting) or setting.startswith(REFUSED):
                raise SetupError(
                    f"found '{setting}'; the page takes KEY=VALUE with a number, true, false or a name;"
                    f" `{COMMAND} what-if` takes all others"
                )
        answer = await self._answer("what-if", [*settings[:MOST_SETTINGS]])
        with suppress(msgspec.ValidationError):  # another order of the data has no steps
            return msgspec.json.encode({"comparison": msgspec.Raw(answer), "curves": curves_of(answer)})
        return msgspec.json.encode({"comparison": msgspec.Raw(answer), "curves": None})

    async def _answer(self, command: str, words: Sequence[str], *, is_final: bool = False) -> bytes:
        """Returns what a command prints; a final answer is that of a longer log, too."""
        key, last = (command, *words), self._source.history.progress.last
        async with self._running:
            known, answer = self._answers.get(key, (-1, b""))
            if known != last and not (is_final and answer):
                answer = await _run([command, await self._target(command), *words, "--json"])
                self._answers[key] = last, answer
                while len(self._answers) > ANSWERS_KEPT:
                    self._answers.popitem(last=False)
            return answer

    async def _target(self, command: str) -> str:
        """Returns the path of the run's folder, whose history has answers, or of the page's copy of the log."""
        place = self._source.place
        if command == "why" and place is not None:
            return str(place.path)
        await self._source.wait_copied(self._source.history.progress.last)
        self._source.copy.flush()
        return str(self._source.copy.path)

    async def wait_until_ended(self) -> None:
        """Wait until the process of a cancelled request has ended, which was killed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(KILLED_SECONDS), self._running:
                pass


async def _run(words: Sequence[str]) -> bytes:
    """Run a command; returns its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "areal_actors", *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), LONGEST_SECONDS)
    except TimeoutError:
        raise SetupError(
            f"`{COMMAND} {words[0]}` took more than {LONGEST_SECONDS:.0f} s; in a terminal it has no limit"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines()
        raise SetupError(lines[-1] if lines else f"`{COMMAND} {words[0]}` failed without a reason")
    return output
