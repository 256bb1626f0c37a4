"""Starts or resumes a run: preflight checks, the NATS server, then the run loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import explain_os_error, storage_error
from areal_actors.core.errors import SetupError
from areal_actors.core.lazy import LazyModule
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunResumed, RunStarted
from areal_actors.processes.fold_actors import open_tasks
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.model_size import one_checkpoint_bytes
from areal_actors.recipe.needed_extras import check_extras
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.recovery.log_recovery import recover_log
from areal_actors.recovery.resume import (
    checkpoint_to_resume,
    in_working_folder,
    recipe_to_resume,
    run_to_resume,
    set_later_aside,
)
from areal_actors.run.policies import policy_runs
from areal_actors.run.preflight import check_parts, fresh_folder, holding_weights, report_clean_up
from areal_actors.run.run_loop import FAILED, RunLoop
from areal_actors.supervision.disk_watch import refuse_full_disk
from areal_actors.supervision.nats_server import with_port
from areal_actors.supervision.run_session import access, open_bus
from areal_actors.tasks.environment_tasks import list_environment
from areal_actors.track.run_trackers import track_run
from areal_actors.weights.folders import remove_all
from areal_bus.descriptors import is_out_of_descriptors
from areal_bus.errors import BusError

ERASED: Any = LazyModule("areal_actors.reader.erased_sessions")


def run(recipe: Recipe, *, profile: str, reason: str) -> int:
    """Run a recipe to its end; returns the exit status: 0, 1 when the run failed, 130 when it was interrupted.

    Raises:
        SetupError: something that the recipe needs is missing; nothing was started.
        BusError: the bus cannot be started or reached; nothing is left running.
    """
    log_to_terminal()
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    with fresh_folder(recipe, folder, _prepare_recipe) as checked:
        place = str(Path(recipe.folder) / recipe.run)
        for name, source in source_recipes(checked).items():
            if source.plays_environment():
                list_environment(source.task, folder.tasks / name, Path.cwd())
                open_tasks(source, folder, name)
        return _live(
            checked, folder, RunStarted(recipe=redact_recipe(checked), profile=profile, reason=reason, folder=place)
        )


def resume(name: str, overrides: Sequence[str], *, folder: Path, checkpoint: str = "") -> int:
    """Resume a run that was interrupted, failed or was killed; returns the exit status as `run` does.

    Args:
        name: name of the run; if empty, the latest run in `folder`.
        overrides: `KEY=VALUE` for settings that may change when a run is resumed.
        folder: where runs are written.
        checkpoint: `step-N` of a kept checkpoint, or `step-0` for the first weights; if empty, the newest.

    Raises:
        SetupError: there is no such run, it is live or finished, or something that it needs is missing.
        RecipeError: an override is invalid, or its setting may not change.
        BusError: the bus cannot be started or reached; nothing is left running.
    """
    log_to_terminal()
    report_clean_up(folder)
    run = run_to_resume(name, folder)
    if run.working_folder() != Path.cwd():
        folder = folder.absolute()
    with run.hold(), in_working_folder(run):
        recipe, changed = recipe_to_resume(run, overrides)
        recipe = msgspec.structs.replace(_prepare_recipe(recipe), folder=str(folder))
        refuse_full_disk(recipe.disk, run.path, one_checkpoint_bytes(recipe))
        run.check_writable()
        from_step = checkpoint_to_resume(run, checkpoint)
        place = str(folder / run.path.name)
        with holding_weights(recipe, run):
            run.keep(recipe)
            set_later_aside(run, from_step)
            reason = "; ".join(filter(None, (changed, f"from {checkpoint}" if checkpoint else "")))
            resumed = RunResumed(recipe=redact_recipe(recipe), reason=reason, folder=place, from_step=from_step)
            return _live(recipe, run, resumed)


def _prepare_recipe(recipe: Recipe) -> Recipe:
    check_extras(recipe)
    if recipe.learns_from_examples() and recipe.examples() == "sessions":
        ERASED.refuse_erased(recipe)
    for notice in check_parts(recipe):
        sys.stderr.write(f"{notice}\n")
    return with_port(recipe)


def _live(recipe: Recipe, folder: RunFolder, opening: RunStarted | RunResumed) -> int:
    remove_all(recipe.run, folder.path, recipe.trainer.weights_folder)
    if recipe.is_online():
        sys.stdout.write(f"external agents: {access(recipe, folder)}\n")
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_launch(recipe, folder, opening))
    except (BusError, OSError) as error:
        what = f"run '{folder.path.name}' ended: its log could not be written ({error})"
        if refused := storage_error(what, error, folder.path, folder.path):
            raise refused from error
        if is_out_of_descriptors(error):
            resumed = f"then `{COMMAND} resume {folder.path.name}`"
            raise SetupError(f"run '{folder.path.name}' ended: {explain_os_error(error)}, {resumed}") from error
        raise


async def _launch(recipe: Recipe, folder: RunFolder, opening: RunStarted | RunResumed) -> int:
    if isinstance(opening, RunResumed):
        recovery = await recover_log(recipe, folder)
        opening = msgspec.structs.replace(opening, queued=recovery.queued, published=recovery.published)
        if recovery.problem:
            sys.stderr.write(f"the log of run '{recipe.run}' was recovered: {recovery.problem}\n")
    fresh = isinstance(opening, RunStarted)
    async with (
        track_run(recipe, folder),
        open_bus(recipe, folder, fresh=fresh) as (bus, server),
        policy_runs(recipe, folder, bus) as policy_failed,
    ):
        try:
            loop = RunLoop(recipe, folder, bus, server)
            policy_failed.add_done_callback(lambda failed: loop.end(failed.result()))
            return await loop.run(opening)
        except BusError:
            if not server.failed.done():
                raise
            sys.stderr.write(f"run '{recipe.run}' ended early: {server.failed.result()}\n")
            return FAILED
