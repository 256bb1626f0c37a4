"""Injects faults of every kind into live runs, resumes runs that ended, and audits the results.

    python benchmarks/chaos.py [CAMPAIGN ...] [--quick] [--recompute] [--folder runs/chaos] [--no-history]

A campaign is a run of the main recipe with its own `[chaos]` table. It passes if the run completes its exact number of
steps, with any number of resumes, and its audit finds nothing lost and nothing twice; with `--recompute` every weight
version is also recomputed from the log. A run whose log was damaged also passes if it ends with an error that names the
damage.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from chaos_recovery import Recovery, by_kind, recoveries, rows
from history import ROOT, append, table
from rich.console import Console

from areal_actors.audit.audit import KINDS_BY_SUBJECT, Audit
from areal_actors.folder.connections import open_log
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import FaultInjected, StepCompleted
from areal_actors.reader.audit_command import audit_run
from areal_bus.errors import BusError
from areal_bus.message import Message

PROCESS_SECONDS = 1200.0
"""Time limit of one run or resume; a longer one is killed and its campaign fails."""
PROCESSES = '["control", "trainer", "gateway", "rollout_worker", "inference_worker", "reward_worker"]'
HUNG = 124
REFUSAL = "cannot be resumed: "
"""Part of the error of a run whose log is unusable."""
DISABLE_CHAOS = ("chaos.enabled=false",)
"""A truncated log may have lost its `FaultInjected` events, so a resumed run would repeat the damage."""
FAST = "600"
"""Rate per minute: the next fault follows as soon as the run has recovered."""


class Campaign(msgspec.Struct, frozen=True):
    """One run and its faults."""

    name: str
    steps: int
    chaos: tuple[str, ...]
    damages_log: bool = False
    """True if the run may end with an error instead of completing."""


def faults(kind: str, count: int, targets: str = "", **settings: float) -> tuple[str, ...]:
    """Settings of one kind."""
    every = {"per_minute": FAST, "count": count, **({"targets": targets} if targets else {}), **settings}
    return tuple(f"chaos.{kind}.{key}={value}" for key, value in every.items())


def damaged_log(seed: int) -> Campaign:
    """A run whose log is damaged once, at a position that depends on the seed."""
    return Campaign(
        f"log-{seed}", 8, (*faults("flip", 1, '["log"]'), f"chaos.seed={seed}", "chaos.after_steps=3"), damages_log=True
    )


FULL = (
    Campaign("kills", 180, faults("kill", 30, PROCESSES)),
    Campaign("pauses", 150, faults("pause", 24, PROCESSES, seconds=4)),
    Campaign("partitions", 110, faults("partition", 18, PROCESSES, seconds=4)),
    Campaign("server", 96, (*faults("kill", 8, '["server"]'), *faults("pause", 8, '["server"]', seconds=4))),
    Campaign("launcher", 60, (*faults("kill", 4, '["launcher"]'), *faults("pause", 4, '["launcher"]', seconds=4))),
    Campaign("everything", 60, faults("kill", 10, '["everything"]')),
    Campaign("completions", 170, (*faults("bad_completion", 14), *faults("slow_disk", 8, seconds=4))),
    Campaign("checkpoints", 60, (*faults("flip", 8), "checkpoint.every_steps=2")),
    *map(damaged_log, range(4)),
)
QUICK = (
    Campaign(
        "processes",
        30,
        (*faults("kill", 3, PROCESSES), *faults("pause", 1, seconds=2), *faults("partition", 1, seconds=2)),
    ),
    Campaign(
        "everything",
        24,
        (*faults("kill", 1, '["everything"]'), *faults("bad_completion", 2), *faults("slow_disk", 1, seconds=2)),
    ),
)


class Outcome(msgspec.Struct, frozen=True):
    """Result of a campaign."""

    campaign: Campaign
    seconds: float
    lives: int
    ended: str
    """Empty if the run completed; otherwise the last lines of its output."""
    audit: Audit
    recovered: tuple[Recovery, ...]

    def passed(self) -> bool:
        """True if the campaign met its criteria."""
        if self.campaign.damages_log and self.ended:
            return REFUSAL in self.ended and "Traceback" not in self.ended
        return not self.ended and self.audit.steps == self.campaign.steps and not self.audit.all_faults()

    def row(self) -> list[object]:
        """A line of the table."""
        steps = f"{self.audit.steps} of {self.campaign.steps}"
        return [
            self.campaign.name,
            len(self.recovered),
            steps,
            self.lives,
            f"{self.seconds:.0f}",
            self.audit.verdict(),
            self._state(),
        ]

    def _state(self) -> str:
        return "FAILED" if not self.passed() else f"named: {self.ended.splitlines()[-1]}" if self.ended else "passed"


def run_process(words: Sequence[str], output: Path) -> int:
    """Run one command to its end; returns its exit status."""
    with output.open("ab") as file:
        command = [sys.executable, "-m", "areal_actors", *words]
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            return process.wait(PROCESS_SECONDS)
        except subprocess.TimeoutExpired:
            file.write(f"the run did not end within {PROCESS_SECONDS:g} s, and was killed\n".encode())
            return HUNG
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def run(campaign: Campaign, folder: Path, *, recompute: bool) -> Outcome:
    """Run a campaign to its last step, or until a resume makes no progress."""
    name, output = f"chaos-{campaign.name}", folder / f"{campaign.name}.txt"
    output.unlink(missing_ok=True)
    began = time.monotonic()
    settings = ("profile=embedded", f"run={name}", f"folder={folder}", f"steps={campaign.steps}", *campaign.chaos)
    status = run_process(["run", "recipes/gsm8k_grpo.toml", "benchmarks/chaos.toml", *settings], output)
    lives, before = 1, (-1, -1)
    while status not in (0, HUNG) and (
        (reached := _reached(folder / name)) > before or (campaign.damages_log and lives == 1)
    ):
        before, lives = reached, lives + 1
        status = run_process(
            ["resume", name, *(DISABLE_CHAOS if campaign.damages_log else ()), "--folder", str(folder)], output
        )
    seconds = time.monotonic() - began
    log = asyncio.run(_read_log(folder / name))
    found = asyncio.run(
        audit_run(name, folder=folder, recompute=recompute and status == 0, console=Console(stderr=True))
    )
    # A launcher killed after the last step leaves nothing to resume.
    ended = (
        ""
        if status == 0 or found.steps == campaign.steps
        else "\n".join(output.read_text(errors="replace").strip().splitlines()[-20:])
    )
    return Outcome(campaign, seconds, lives, ended, found, tuple(recoveries(log)))


def _reached(folder: Path) -> tuple[int, int]:
    """Faults and steps so far: a resume that adds to neither ends the campaign."""
    events = [event for _, event in asyncio.run(_read_log(folder))]
    return sum(isinstance(event, FaultInjected) for event in events), sum(
        isinstance(event, StepCompleted) for event in events
    )


async def _read_log(folder: Path) -> list[tuple[float, Message]]:
    """Times and events, up to the first unreadable one."""
    found: list[tuple[float, Message]] = []
    try:
        async with open_log(RunFolder(folder)) as bus:
            async for envelope in bus.log():
                # Keeps events before an error
                found.append((envelope.time, envelope.open(KINDS_BY_SUBJECT[envelope.subject])))  # noqa: PERF401
    except BusError as error:
        print(f"{folder.name}: {error}", file=sys.stderr)
    return found


def main() -> int:
    """Run the named campaigns, and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "campaigns",
        nargs="*",
        metavar="CAMPAIGN",
        help=f"{', '.join(campaign.name for campaign in FULL)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="a few faults of each kind in two runs")
    parser.add_argument("--recompute", action="store_true", help="recompute every weight version from the log")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/chaos"), help="parent of the run folders (default: %(default)s)"
    )
    parser.add_argument("--no-history", action="store_true", help="write no history")
    options = parser.parse_args()
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for campaign in QUICK if options.quick else FULL:
        if options.campaigns and campaign.name not in options.campaigns:
            continue
        outcomes.append(run(campaign, folder, recompute=options.recompute))
        print("  ".join(map(str, outcomes[-1].row())), flush=True)
        for fault in outcomes[-1].audit.all_faults()[:10]:
            print(f"    FAULT  {fault}", flush=True)
    found = [one for outcome in outcomes for one in outcome.recovered]
    print(
        "\n"
        + table(
            ["campaign", "faults", "steps", "lives", "wall s", "audit", ""], [outcome.row() for outcome in outcomes]
        )
    )
    print("\n" + table(["fault", "faults", "s to recover, p50", "max", "run ended"], rows(found)))
    lost, twice = (sum(how(outcome.audit) for outcome in outcomes) for how in (Audit.count_lost, Audit.twice))
    passed = sum(outcome.passed() for outcome in outcomes)
    print(f"\n{len(found)} faults, {lost} lost, {twice} twice, {passed} of {len(outcomes)} runs passed")
    if not options.no_history and not options.quick:
        figures = {"faults": len(found), "lost": lost, "twice": twice, "runs": len(outcomes), "kinds": by_kind(found)}
        append("chaos", figures | {"passed": passed})
    return int(passed < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
