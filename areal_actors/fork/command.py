"""`areal-actors fork RUN --at step-N KEY=VALUE…`: runs that begin at a checkpoint of another."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import SetupError
from areal_actors.core.snapshots import Snapshot, SnapshotStore
from areal_actors.folder.connections import open_store
from areal_actors.folder.run_folder import RunFolder
from areal_actors.fork.changes import ForkedRecipe, fork_recipe
from areal_actors.fork.folder import write_fork
from areal_actors.fork.folds import fold_beginning
from areal_actors.fork.recorded_run import Beginning, RecordedRun
from areal_actors.hosts.portable_recipe import code_digest
from areal_actors.proof.proof import read_proof
from areal_actors.recipe.model_size import one_checkpoint_bytes
from areal_actors.recipe.recipe import Recipe
from areal_actors.recovery.log_recovery import read_positions
from areal_actors.recovery.resume import in_working_folder, list_kept_steps, read_kept_recipe, run_to_resume
from areal_actors.stages.run_stages import start_command
from areal_actors.supervision.disk_watch import refuse_full_disk
from areal_actors.training.checkpoint_store import CheckpointStore
from areal_actors.weights.manifest import PROOF
from areal_bus.claims import check_out
from areal_bus.log_check import check_log
from areal_bus.server import resolve_server


class Arm(msgspec.Struct, frozen=True):
    """One fork of several."""

    name: str
    """Name of its run."""
    settings: tuple[str, ...]
    """`KEY=VALUE` of each changed setting."""


class PlannedFork(msgspec.Struct, frozen=True):
    """A fork before it is written."""

    forked: ForkedRecipe
    beginning: Beginning
    step: int

    def describe(self, run: str, last: int) -> str:
        """Returns what it shares and what it does not, as a sentence."""
        beginning, recipe = self.beginning, self.forked.recipe
        if recipe.learns_from_examples():
            episodes = ""
        elif self.forked.reuse == "nothing":
            episodes = ", no recorded episode is reused, and those in no batch are dropped: they have other settings"
        else:
            episodes = f", {beginning.reused:,} later episodes are reused"
            episodes += ", and the next batch" if self.forked.reuse == "batch" else ""
        return (
            f"{recipe.run}: step {self.step} of {run}, {self.forked.changed or 'no other settings'};"
            f" {beginning.prefix:,} of {last:,} events are shared{episodes}"
        )


def fork(
    run: str, checkpoint: str, arms: Sequence[Arm], *, folder: Path, other_code: bool = False, dry_run: bool = False
) -> int:
    """Make forks of a run, then run them one after another; returns the exit status of the first that fails, else 0.

    Args:
        run: name of the run; if empty, the latest run in `folder`.
        checkpoint: `step-N`.
        arms: the forks.
        folder: where runs are written.
        other_code: also fork a run of another version of areal-actors.
        dry_run: print what would be shared, and write nothing.

    Raises:
        SetupError: there is no such run or checkpoint, the run is live, or its log is not whole; nothing was written.
        RecipeError: a setting is invalid or cannot change in a fork; nothing was written.
        BusError: the log of the run cannot be read.
    """
    folder, parent = folder.absolute(), run_to_resume(run, folder)
    with ExitStack() as stack:
        stack.enter_context(parent.hold())
        stack.enter_context(in_working_folder(parent))
        recipe = read_kept_recipe(parent)
        _refuse_other_server(recipe)
        step = _step_of(parent, checkpoint, other_code=other_code)
        forked = [fork_recipe(recipe, arm.settings, arm.name, str(parent.checkpoints / f"step-{step}")) for arm in arms]
        _refuse_last_step(forked, step)
        refuse_full_disk(recipe.disk, folder, one_checkpoint_bytes(recipe))
        forks = [] if dry_run else [RunFolder(folder / each.recipe.run) for each in forked]
        for made in forks:
            stack.enter_context(made.hold())
        asyncio.run(_write_forks(parent, recipe, step, forked, forks))
    return _run_forks(forks, folder)


def _refuse_other_server(recipe: Recipe) -> None:
    if resolve_server(recipe.bus.url or None):
        raise SetupError("the log of this run is on a server that the run does not own (bus.url), and cannot be forked")
    if recipe.policies or recipe.policy:
        raise SetupError("a run of several policies has several logs, and cannot be forked; start another run")


def _refuse_last_step(forked: Sequence[ForkedRecipe], step: int) -> None:
    for each in forked:
        if each.recipe.steps <= step:
            raise SetupError(
                f"{each.recipe.run}: step {step} is the last of {each.recipe.steps}; add steps=NUMBER, or fork at an"
                " earlier checkpoint"
            )


def _step_of(parent: RunFolder, checkpoint: str, *, other_code: bool) -> int:
    """Returns the step of the checkpoint, whose files are verified against the manifest."""
    name = parent.path.name
    kept = list_kept_steps(parent)
    step = int(number) if (number := checkpoint.removeprefix("step-")).isdecimal() else -1
    if step not in kept:
        steps = ", ".join(f"step-{kept_step}" for kept_step in kept)
        raise SetupError(f"run '{name}' has no checkpoint '{checkpoint}'; kept: {steps or 'none'}")
    saved = parent.checkpoints / f"step-{step}"
    program = read_proof(saved).program if (saved / PROOF).is_file() else "an unknown version"
    if program != (here := code_digest()) and not other_code:
        raise SetupError(
            f"'{name}' was made by another version of areal-actors ({program}, this is {here}), so a fork would differ"
            " by more than its settings: install that version, or accept it with --other-code"
        )
    return step


async def _write_forks(
    parent: RunFolder, recipe: Recipe, step: int, forked: Sequence[ForkedRecipe], forks: Sequence[RunFolder]
) -> None:
    if not parent.nats.is_dir():
        raise SetupError(
            f"{parent.nats} is gone: a run without its log cannot be forked; start another run from model="
        )
    async with open_store(parent.nats, parent, recipe.run) as bus:
        recorded = RecordedRun()
        check = await check_log(bus.streams, lambda event: recorded.receive(check_out(event, bus.streams.blobs)))
        if check.damage:
            raise SetupError(f"the log of '{parent.path.name}' is damaged: {check.damage}; resume the run first")
        if check.first > 1:
            raise SetupError(
                f"the log of '{parent.path.name}' begins at event {check.first:,}: only a whole log can be forked"
                ' (log.keep = "all")'
            )
        if step not in recorded.saved:
            raise SetupError(f"the log of '{parent.path.name}' has no checkpoint of step {step}")
        CheckpointStore(parent.path).verify(recorded.saved[step][1])
        positions = await read_positions(bus)
        plans = [PlannedFork(each, recorded.begin_fork(step, each.reuse, positions), step) for each in forked]
        for plan in plans:
            _print(plan.describe(parent.path.name, recorded.last))
        states: dict[int, list[Snapshot]] = {}
        for plan, folder in zip(plans, forks, strict=False):
            beginning = plan.beginning
            if plan.forked.reuse != "batch" and beginning.prefix not in states:
                states[beginning.prefix] = await fold_beginning(bus, parent, beginning.positions)
            await write_fork(plan.forked, folder, beginning, step, parent, bus)
            for state in states[beginning.prefix] if plan.forked.reuse != "batch" else ():
                SnapshotStore(folder.snapshots).write(state)


def _run_forks(forks: Sequence[RunFolder], folder: Path) -> int:
    for number, each in enumerate(forks, start=1):
        if len(forks) > 1:
            _print(f"fork {number} of {len(forks)}: run '{each.path.name}'")
        if code := start_command(["resume", each.path.name, "--folder", str(folder)]):
            left = ", ".join(fork.path.name for fork in forks[number - 1 :])
            _print(f"'{each.path.name}' ended with exit status {code}; `{COMMAND} resume NAME` goes on with: {left}")
            return code
    return 0


def _print(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
