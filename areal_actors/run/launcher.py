"""Starts a run, or lets one go on that has ended early: what is checked before anything starts, the bus, and then its life."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from areal_actors.datasets import open_dataset
from areal_actors.engines.weight_folders import remove_all
from areal_actors.errors import SetupError
from areal_actors.messages import KINDS, RunResumed, RunStarted
from areal_actors.recipe.example_checks import check_examples
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL, resolve_reward
from areal_actors.run.life import RunLife
from areal_actors.run.logs import log_to_terminal
from areal_actors.run.resuming import recipe_to_resume, run_to_resume
from areal_actors.run.server import free_port, recognise_the_past, refuse_old_log, run_server
from areal_actors.run_folder import RunFolder
from areal_actors.steps.batching import filter_named
from bus.nats import NatsBus


def run(recipe: Recipe, *, profile: str, reason: str) -> int:
    """Run a recipe to its end; returns the exit status: 0, 1 when the run failed, 130 when it was interrupted.

    Raises:
        SetupError: something that the recipe needs is missing; nothing was started.
        BusError: the bus cannot be had; nothing is left running.
    """
    log_to_terminal()
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    if pid := folder.live_supervisor():
        raise SetupError(f"run '{recipe.run}' is running already (process {pid}); stop it, or give this one another name: run=NAME")
    recipe = _checked(recipe)
    remove_all(recipe.run, folder.path)
    try:
        folder.create(recipe)
    except OSError as error:
        reason = f"folder: the run cannot be kept in {folder.path} ({error.strerror}); set folder to one that can be written"
        raise SetupError(reason) from error
    started = RunStarted(recipe=msgspec.to_builtins(recipe), profile=profile, reason=reason, folder=str(folder.path))
    return _live(recipe, folder, started)


def resume(name: str, overrides: Sequence[str], *, folder: Path) -> int:
    """Let a run go on that was interrupted, failed or was killed; the exit status is that of `run`.

    Args:
        name: of the run; the one that ended last in `folder`, if it is empty.
        overrides: `KEY=VALUE`, of the settings that may change between two lives of a run.
        folder: where runs are written.

    Raises:
        SetupError: there is no such run, it is live or has done all that it was asked, or something that it needs is missing.
        RecipeError: an override is wrong, or is of a setting that may not change.
        BusError: the bus cannot be had; nothing is left running.
    """
    log_to_terminal()
    found = run_to_resume(name, folder)
    recipe, changed = recipe_to_resume(found, overrides)
    recipe = _checked(recipe)
    remove_all(recipe.run, found.path)
    found.keep(recipe)
    return _live(recipe, found, RunResumed(recipe=msgspec.to_builtins(recipe), reason=changed, folder=str(found.path)))


def _checked(recipe: Recipe) -> Recipe:
    """Everything that can be missing is looked for before anything starts."""
    if recipe.learns_from_examples():
        check_examples(recipe)
        return recipe
    if not recipe.is_online():
        open_dataset(recipe.task.dataset, seed=recipe.seed, held_out=recipe.task.held_out, columns=recipe.task.columns)
        if not recipe.task.reward.startswith(MODEL):
            resolve_reward(recipe.task.reward, options=recipe.task.reward_options)
    filter_named(recipe.batcher.filter, Path.cwd())
    return msgspec.structs.replace(recipe, gateway=msgspec.structs.replace(recipe.gateway, port=free_port(recipe)))


def _live(recipe: Recipe, folder: RunFolder, opening: RunStarted | RunResumed) -> int:
    if recipe.is_online():
        told = f"agents outside: http://{recipe.gateway.host}:{recipe.gateway.port}, admin key in {folder.path / 'admin_key'}\n"
        sys.stdout.write(told)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_launch(recipe, folder, opening))


async def _launch(recipe: Recipe, folder: RunFolder, opening: RunStarted | RunResumed) -> int:
    if isinstance(opening, RunResumed):
        await recognise_the_past(recipe, folder)
    async with run_server(recipe, folder) as (server, dead):
        bus = await NatsBus.connect(server.url, recipe.run, name="supervisor", token=server.token, kinds=KINDS, blobs=folder.blobs)
        try:
            if isinstance(opening, RunStarted):
                await refuse_old_log(bus, server)
            folder.announce(server)
            return await RunLife(recipe, folder, bus, dead).run(opening)
        finally:
            await bus.close()
            (folder.path / "bus.json").unlink(missing_ok=True)
            remove_all(recipe.run, folder.path)
