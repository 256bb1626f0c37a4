"""The page of a run with many episodes: reading its log, opening it, moving through it, and browsers that do not read.

    python benchmarks/web_page.py [--episodes 20000] [--browsers 20] [--repeats 3]

A made-up exported log with episodes of two calls, in groups of eight, is served by `areal-actors view` in its own
process. `read` is the time from its start until the last event is in the index, `open` that of the requests with which
a browser opens the page, `change` that of the request for the rows of the last step. `drawn` is from the start of the
process until a Chromium that is there has drawn the overview of all episodes, `opened_drawn` from its opening of a page
whose log is read; both are left out without Chromium. Then `--browsers` connections receive notices, half of which
never read theirs; memory is that of the process before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import msgspec
import psutil
from history import ROOT, append, parse_arguments

from areal_actors.core.values import (
    Interaction,
    SamplingParams,
    Task,
    TokenColumns,
    Trajectory,
    WeightsLocation,
    pack_ids,
)
from areal_actors.messages import (
    BatchFormed,
    CapacityGranted,
    EpisodeScored,
    InteractionRecorded,
    RunEpisode,
    RunFinished,
    RunStarted,
    StepCompleted,
    TrajectoryExported,
    TrajectoryRef,
    WeightsPublished,
)
from areal_bus.base import Envelope, Stamp
from areal_bus.message import Event
from areal_bus.recorded import LogWriter

sys.path.append(str(ROOT / "tests"))
from support.browser import CHROMIUM, Tab, browser

DRAWN = "Number(document.querySelector('[data-station=\"trained\"] .value')?.textContent.replace(/\\D/g, ''))"
"""Number of trained episodes that the page shows."""
GROUP, GROUPS, TOKENS = 8, 16, 200
QUICK = {"episodes": 256, "browsers": 4, "repeats": 1}


def events(episodes: int) -> Iterator[Event]:
    """Yield the events of a run, whose positions in the log are their numbers from 1."""
    position = 2
    yield RunStarted(
        recipe={"steps": episodes, "algorithm": {"group_size": GROUP}},
        profile="embedded",
        reason="",
        folder="runs/made-up",
    )
    yield WeightsPublished(weight_version=0, location=WeightsLocation(folder="w", checksum="", model="m"))
    for step in range(max(episodes // (GROUP * GROUPS), 1)):
        yield CapacityGranted(first_group=step * GROUPS, groups=GROUPS, weight_version=step)
        position += 1
        groups = []
        for group in range(step * GROUPS, (step + 1) * GROUPS):
            refs = []
            for member in range(GROUP):
                for event in episode(f"{group}.{member}", group, step, member):
                    yield event
                    position += 1
                refs.append(TrajectoryRef(episode=f"{group}.{member}", sequence=position))
            groups.append(tuple(refs))
        totals = {"trained_trajectories": 0, "trained_tokens": 0, "dropped_trajectories": 0, "dropped_tokens": 0}
        yield BatchFormed(step=step, groups=tuple(groups), oldest_version=step - 2, **totals)
        metrics = {f"metric_{number}": float(step) for number in range(50)} | {"reward_mean": 0.5, "loss": 0.1}
        yield StepCompleted(step=step + 1, metrics=metrics, sequences_checksum="")
        yield WeightsPublished(weight_version=step + 1, location=WeightsLocation(folder="w", checksum="", model="m"))
        position += 3
    yield RunFinished(steps=step + 1)


def episode(name: str, group: int, version: int, member: int) -> Iterator[Event]:
    """Yield the events of an episode of two calls."""
    work = RunEpisode(
        episode=name, group=str(group), task=Task(id=f"task-{group}", data={"question": "?"}), sampling=SamplingParams()
    )
    calls, recorded = [], []
    for number in (1, 2):
        columns = TokenColumns.of([7] * TOKENS, [-0.5] * TOKENS, [version] * TOKENS)
        calls.append(
            Interaction(id=f"{name}-{number}", prompt_suffix=pack_ids([1, 2]), completion=columns, finish_reason="stop")
        )
        counts = {"prompt_tokens": 10, "completion_tokens": TOKENS, "finish_reason": "stop", "weight_version": version}
        recorded.append(InteractionRecorded(session=name, episode=name, interaction=f"{name}-{number}", **counts))
    yield EpisodeScored(work=work, session=name, reward=float(member % 2), output=f"the answer of {name}")
    rewarded = {"task": work.task.id, "reward": float(member % 2), "interactions": tuple(calls)}
    yield TrajectoryExported(
        trajectory=Trajectory(episode=name, group=str(group), attempt=1, **rewarded), recorded=tuple(recorded)
    )


def write_log(path: Path, episodes: int) -> int:
    """Write the log; returns the number of its events."""
    with LogWriter(path, "made-up") as log:
        number = 0
        for number, event in enumerate(events(episodes), start=1):
            stamp = Stamp(id=f"m{number}", sender="made-up", time=1.7e9 + number / 100)
            log.write(msgspec.structs.replace(Envelope.seal(event, stamp, "made-up"), sequence=number))
    return number


async def measure(options: argparse.Namespace, report: Callable[[str], None]) -> dict[str, object]:
    """Serve the page, and ask for it as browsers do."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "made-up.log"
        count = write_log(log, options.episodes)
        words = [sys.executable, "-m", "areal_actors", "view", str(log)]
        drawing = await _drawn(words, options.episodes // (GROUP * GROUPS) * GROUP * GROUPS) if CHROMIUM else {}
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().strip()
            served = time.perf_counter() - began
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                figures = await _measured(session, url, count, began, options)
                memory = psutil.Process(process.pid)
                before = memory.memory_info().rss
                figures |= await _crowd(session, url, options.browsers)
                grown = memory.memory_info().rss - before
        finally:
            process.terminate()
            await process.wait()
    figures |= drawing | {
        "episodes": options.episodes,
        "events": count,
        "served_seconds": served,
        "memory_bytes": before,
        "grown_bytes": grown,
    }
    for name, value in figures.items():
        report(f"{name:<16}{value:>14,.3f}" if isinstance(value, float) else f"{name:<16}{value:>14,}")
    return figures


async def _drawn(words: list[str], episodes: int) -> dict[str, float]:
    """Serve the page for a Chromium that runs, and wait until it has drawn it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browser(Path(profile)) as tab:
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
            )
            try:
                assert process.stdout is not None
                url = (await process.stdout.readline()).decode().strip()
                drawn = await _seconds_to_draw(tab, url, episodes, began)
                await tab.open("about:blank")
                return {
                    "drawn_seconds": drawn,
                    "opened_drawn_seconds": await _seconds_to_draw(tab, url, episodes, time.perf_counter()),
                }
            finally:
                await tab.open("about:blank")
                process.terminate()
                await process.wait()


async def _seconds_to_draw(tab: Tab, url: str, episodes: int, began: float) -> float:
    await tab.open(url)
    await tab.until(f"{DRAWN} === {episodes}", every=0.02)
    return time.perf_counter() - began


async def _measured(
    session: aiohttp.ClientSession, url: str, count: int, began: float, options: argparse.Namespace
) -> dict[str, float]:
    while (await _get(session, f"{url}api/run"))["head"]["last"] < count:  # noqa: ASYNC110 - another process reads
        await asyncio.sleep(0.01)
    read, opened, sent = time.perf_counter() - began, [], 0
    for _ in range(options.repeats):
        start, sent = time.perf_counter(), 0
        for path in ("", "api/run", "api/rows"):
            async with session.get(f"{url}{path}") as answer:
                sent += len(await answer.read())
        opened.append(time.perf_counter() - start)
    start = time.perf_counter()
    await _get(session, f"{url}api/rows?after={count - 3}")
    return {
        "read_seconds": read,
        "open_seconds": min(opened),
        "opened_bytes": sent,
        "change_seconds": time.perf_counter() - start,
    }


async def _crowd(session: aiohttp.ClientSession, url: str, browsers: int) -> dict[str, float]:
    """Let browsers receive notices, half of which do not read, and open the page meanwhile."""
    streams = [await session.get(f"{url}api/changes") for _ in range(browsers)]
    unread = [await session.get(f"{url}api/rows") for _ in range(browsers // 2)]
    for stream in streams[::2]:
        await stream.content.readline()
    start = time.perf_counter()
    await _get(session, f"{url}api/rows")
    seconds = time.perf_counter() - start
    for stream in (*streams, *unread):
        stream.close()
    return {"browsers": browsers, "open_in_crowd_seconds": seconds}


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, dict[str, int]]:
    async with session.get(url) as answer:
        found: dict[str, dict[str, int]] = msgspec.json.decode(await answer.read())
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--browsers", type=int, default=20, help="connections that receive notices, at most 64")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parse_arguments(parser, QUICK)
    figures = asyncio.run(measure(arguments, print))
    if not arguments.no_history:
        append("web_page", figures)


if __name__ == "__main__":
    main()
