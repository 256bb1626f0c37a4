"""Kills and pauses the parts around a run, one at a time, and audits the run.

What stands still, for how long, and what is reported.
    python benchmarks/part_faults.py [SCENE ...] [--seed 0] [--quick] [--no-history]

`elsewhere-1` to `-3`: agents, engine and the second of two gateways are on another host (a network namespace, as root
on Linux): their processes, their `areal-actors join`, both together as a lost host, and both gateways. `launched-1` and
`-2`: `areal-actors run --on local` with `[autoscale]`: its jobs and workers, added workers while their number grows
or shrinks, the command itself, and its `areal- actors run`, which is then resumed. `beside-1` and `-2`: the page, and
the two processes of a tracker (TensorBoard, from `just environments trackers`). `tinker`: the server of
`areal-actors serve tinker`, whose client goes on from its last acknowledged checkpoint. A pause takes 2 to 20 s, a
heartbeat may be missing for 12 s, and a run without progress for 6 s is reported. What nothing restarts, such as a
killed `areal-actors join`, is started again after 3 s.

A standstill is the longest time without a step or an exported episode; of the page and the Tinker server, without an
answer. A report of a stall is right if it names what the fault hit as silent, missing, starting or paused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
from history import ROOT, append, parse_arguments, table
from rich.console import Console

sys.path.append(str(ROOT / "tests"))
from part_beside import PYTHON, beside
from part_elsewhere import ROLES, elsewhere
from part_launched import launched
from part_measure import Effect, effects
from part_scene import RUN, Fault, Kind, Scene, marked_processes, temporary_leftovers, until
from part_tinker import tinker
from support.other_host import ISOLATED

from areal_actors.audit.audit import KINDS_BY_SUBJECT
from areal_actors.folder.connections import open_store
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import EpisodeAbandoned
from areal_actors.messages.episode_ends import is_failure
from areal_actors.reader.audit_command import audit_run
from areal_actors.weights.folders import SECRET_FILE, lock_path, shared_memory_path
from areal_bus.recorded import export_log, read_log

LEAVE_SECONDS = 60.0
KEPT = "torchinductor_"
"""Beginning of the name of a folder that PyTorch keeps."""
KINDS: tuple[Kind, Kind] = ("kill", "pause")


class Outcome(msgspec.Struct):
    """A run that has ended, with its faults."""

    name: str
    effects: list[Effect] = []
    step_seconds: float = 0.0
    """Median time between two steps."""
    steps: int = 0
    lost: int = 0
    twice: int = 0
    audit: str = ""
    left: list[str] = []
    """Processes, temporary files and shared memory that the run has left, beside those of killed processes."""

    def passed(self) -> bool:
        """Returns True if the run always went on, nothing was lost or doubled, and every report named its cause."""
        sound = all(one.fault.went_on and not one.reports.wrong and not one.unreported for one in self.effects)
        return (
            sound
            and not (self.lost or self.twice or self.left)
            and not any(one.fault.lost or one.fault.twice for one in self.effects)
        )


# ------------------------------------------------------------ scenes


def plan_elsewhere(number: int) -> list[tuple[str, Kind]]:
    """The faults of one of the three runs with another host: every part of one role, and a gateway."""
    role = ROLES[number]
    worker = "gateway elsewhere" if role == "gateway" else f"joined {role.replace('_', ' ')}"
    parts = [worker, f"areal-actors join of a {role}", f"host of a {role}", "gateway here"]
    return [(part, kind) for part in parts for kind in KINDS]


async def disturb_elsewhere(name: str, folder: Path, random: Random, *, few: bool) -> Scene:
    """Run a scene with another host."""
    number = int(name[-1]) - 1
    faults = plan_elsewhere(number)
    random.shuffle(faults)
    with elsewhere(folder, random) as scene:
        async with scene.run.listening():
            await scene.open()
            for part, kind in faults[: 2 if few else None]:
                await scene.inject(part, kind)
            scene.run.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(scene.run.process.wait)
            for joined in scene.roles.values():
                if joined.joiner is not None:
                    await asyncio.to_thread(joined.joiner.ended, LEAVE_SECONDS)
        return scene


async def disturb_launched(name: str, folder: Path, random: Random, *, few: bool) -> Scene:
    """Run a scene of `areal-actors run --on`.

    In the first, added workers help; in the second, they do not, and it is killed at the end.
    """
    first = name.endswith("1")
    with launched(folder, random, helps=first) as scene:
        async with scene.run.listening():
            assert await scene.reach(2), scene.run.output()
            if first:
                await scene.inject_while_growing("kill", serving=False)
                if not few:
                    await scene.inject_while_growing("pause", serving=False)
                    await scene.inject_while_growing("pause", serving=True)
                    await scene.inject_while_growing("kill", serving=True)
                    for part in ("launched job (rollout_worker)", "launched worker (inference_worker)"):
                        for kind in KINDS:
                            await scene.inject(part, kind)
            else:
                await scene.inject_while_shrinking("kill")
                await scene.inject("areal-actors run --on", "pause")
                for _ in range(2):
                    await scene.inject("areal-actors run of a launch", "pause")
                for kind in KINDS:
                    await scene.inject("launched job (inference_worker)", kind)
                await scene.inject("areal-actors run --on", "kill")
        if not first:
            fault = await scene.hit("areal-actors run of a launch", "kill")
            await scene.resume()
            async with scene.run.listening():
                fault.went_on = await scene.reach(3) and scene.alive()
                fault.until = time.time()
                await scene.close()
        else:
            await scene.close()
        return scene


async def disturb_beside(name: str, folder: Path, random: Random, *, few: bool) -> Scene:
    """Run a scene with page and tracker."""
    first, trackers = name.endswith("1"), PYTHON.exists()
    own, library = "tracker: its run's process", "tracker: the library's process"
    plan: list[tuple[str, Kind]] = [("page", "pause"), ("page", "kill")]
    if trackers and not few:
        plan += [
            (own, "pause"),
            (library, "pause"),
            ("page", "kill" if first else "pause"),
            (own if first else library, "kill"),
        ]
        plan += [(own, "kill")] if first else []
    async with beside(folder, random) as scene:
        async with scene.run.listening():
            watching = asyncio.create_task(scene.watch())
            assert await scene.reach(2), scene.run.output()
            for part, kind in plan:
                await scene.inject(part, kind)
            scene.run.process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(scene.run.process.wait)
        page = next(fault for fault in scene.faults if fault.part == "page")
        page.lost = await scene.settle_page()
        watching.cancel()
        if trackers and not few:
            tracker = next(fault for fault in scene.faults if fault.part == own)
            tracker.lost, tracker.twice = await scene.tracked()
        return scene


async def disturb_tinker(folder: Path, random: Random, *, few: bool) -> Outcome:
    """Run the scene of the Tinker server, which has no log."""
    async with tinker(folder, random) as scene:
        assert await until(lambda: len(scene.times) >= 3, 400.0)
        for kind in ("kill", "pause") if few else ("kill", "pause", "kill", "pause", "kill", "pause", "kill"):
            await scene.inject(kind)
        gaps = sorted(second - first for first, second in zip(scene.times, scene.times[1:], strict=False))
        found, _ = effects([], scene.faults)
        return Outcome("tinker", found, gaps[len(gaps) // 2], scene.steps, scene.lost, scene.twice, "no log")


Disturb = Callable[..., Awaitable[Scene]]
SCENES: dict[str, Disturb | None] = {
    **{f"elsewhere-{number}": disturb_elsewhere for number in (1, 2, 3)},
    **{f"launched-{number}": disturb_launched for number in (1, 2)},
    **{f"beside-{number}": disturb_beside for number in (1, 2)},
    "tinker": None,
}


async def measure(name: str, folder: Path, seed: int, *, few: bool) -> Outcome:
    """Run one scene to its end; its log is audited."""
    random = Random(f"{seed} {name}")
    disturb = SCENES[name]
    if disturb is None:
        outcome = await disturb_tinker(folder, random, few=few)
    else:
        scene = await disturb(name, folder, random, few=few)
        outcome = await _audited(name, scene, folder)
    await until(lambda: not marked_processes(folder), LEAVE_SECONDS)
    outcome.left += [*marked_processes(folder), *_files_left(folder, outcome)]
    return outcome


async def _audited(name: str, scene: Scene, folder: Path) -> Outcome:
    place, log = RunFolder(scene.run.folder), folder / "log"
    async with open_store(place.nats, place, RUN) as bus:
        await export_log(bus, log)
    audit = await audit_run(str(log), folder=folder, recompute=False, console=Console(stderr=True))
    events = [(envelope.time, envelope.open(KINDS_BY_SUBJECT[envelope.subject])) for envelope in read_log(log)]
    found, seconds = effects(events, scene.faults)
    abandoned = sum(
        isinstance(event, EpisodeAbandoned) and is_failure(event) and not event.work.attempts_left
        for _, event in events
    )
    for fault in audit.all_faults()[:10]:
        print(f"    FAULT  {fault}", flush=True)
    return Outcome(name, found, seconds, audit.steps, audit.count_lost() + abandoned, audit.twice(), audit.verdict())


def shared_names(folder: Path) -> list[str]:
    """Returns what the runs of a folder have in this machine's shared memory; not what other runs of this name have."""
    places = [shared_memory_path(RUN, secret.parent) for secret in folder.rglob(SECRET_FILE)]
    return sorted(path.name for place in places for path in (place, lock_path(place)) if path.exists())


COMMAND_PARTS = ("areal", "host", "launched", "added", "page", "tinker")
"""First words of the parts that are commands: one that is killed cannot remove its temporary files."""


def _files_left(folder: Path, outcome: Outcome) -> list[str]:
    """Returns temporary files and shared memory that are left, beside those of killed commands."""
    kills = [one.fault.part.split()[0] for one in outcome.effects if one.fault.kind == "kill"]
    killed = sum(part in COMMAND_PARTS for part in kills)
    left = [
        name
        for place in (folder / "tmp", folder / "other" / "tmp")
        if place.is_dir()
        for name in temporary_leftovers(place)
        if not name.startswith(KEPT)
    ]
    return [f"{len(left)} temporary folders of {killed} killed commands: {left}"] * (len(left) > killed) + shared_names(
        folder
    )


# ------------------------------------------------------------ the table


HEADER = ["part", "fault", "count", "goes on", "standstill s", "named", "wrong", "unreported", "lost", "twice"]


def rows(outcomes: Sequence[Outcome]) -> list[list[object]]:
    """Lines of the table: one for each part and kind of fault."""
    groups: defaultdict[tuple[str, Kind], list[Effect]] = defaultdict(list)
    for outcome in outcomes:
        for one in outcome.effects:
            groups[one.fault.part, one.fault.kind].append(one)
    return [
        [
            part, kind, len(some), sum(one.fault.went_on for one in some), max(one.standstill for one in some),
            sum(len(one.reports.right) for one in some), sum(len(one.reports.wrong) for one in some),
            sum(one.unreported for one in some),
            sum(one.fault.lost for one in some), sum(one.fault.twice for one in some),
        ]
        for (part, kind), some in sorted(groups.items())
    ]  # fmt: skip


def show(outcome: Outcome) -> None:
    """Print a run's result, and all reports of stalls."""
    print(
        f"{outcome.name}: {len(outcome.effects)} faults, {outcome.steps} steps, {outcome.step_seconds:.2f} s per step, "
        f"{outcome.lost} lost, {outcome.twice} twice; {outcome.audit}; left: {outcome.left or 'nothing'}",
        flush=True,
    )
    for one in outcome.effects:
        print(
            f"  {one.fault.kind} {one.fault.part} {one.fault.seconds:.1f} s: standstill {one.standstill:.1f} s",
            flush=True,
        )
        for kind, sentences in (
            ("right", one.reports.right),
            ("WRONG", one.reports.wrong),
            ("NONE", ["not reported"] * one.unreported),
        ):
            for sentence in sentences:
                print(f"      {kind}: {sentence}", flush=True)


def main() -> int:
    """Run the scenes; returns 1 if one of them lost anything, did not go on, or left something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "scenes", nargs="*", metavar="SCENE", default=list(SCENES), help=f"{', '.join(SCENES)} (default: all)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parse_arguments(parser, {"scenes": ["elsewhere-1", "beside-1", "tinker"]})
    if unknown := set(options.scenes) - set(SCENES):
        parser.error(f"there is no scene {min(unknown)!r}; there are {', '.join(SCENES)}")
    outcomes = []
    for name in options.scenes:
        with tempfile.TemporaryDirectory(prefix="areal-part-faults-") as temporary:
            (Path(temporary) / "tmp").mkdir()
            os.environ["TMPDIR"] = str(Path(temporary) / "tmp")
            outcomes.append(asyncio.run(measure(name, Path(temporary), options.seed, few=options.quick)))
            del os.environ["TMPDIR"]
        show(outcomes[-1])
    print("\n" + table(HEADER, rows(outcomes)))
    faults: list[Fault] = [one.fault for outcome in outcomes for one in outcome.effects]
    print(
        f"{len(faults)} faults; longest standstill"
        f" {max(one.standstill for each in outcomes for one in each.effects):.1f} s"
    )
    if not options.no_history:
        runs = [{**msgspec.structs.asdict(outcome), "effects": len(outcome.effects)} for outcome in outcomes]
        append("part_faults", {"seed": options.seed, "namespaces": ISOLATED, "table": rows(outcomes), "runs": runs})
    return int(not all(outcome.passed() for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
