"""A policy that is not trained: its first weights, or earlier versions of those of the run that calls it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
from contextlib import aclosing
from pathlib import Path

import msgspec
import uvloop

from areal_actors.core.values import WeightsLocation
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import RunFinished, RunStarted, WeightsPublished
from areal_actors.processes.policy_sessions import follow_run
from areal_actors.recipe.policies import main_folder
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.run.preflight import fresh_folder
from areal_actors.run.serve import ENDED, FAILED, locate_served_model
from areal_actors.supervision.nats_server import RunServer
from areal_actors.supervision.run_session import Launch, on_interrupt, open_bus
from areal_bus.errors import BusError
from areal_bus.nats import NatsBus

VERSIONS = "versions"
FOLLOW_AGAIN_SECONDS = 1.0


def serve_policy(recipe: Recipe) -> int:
    """Serve a policy until the run that calls it ends; returns the exit status."""
    log_to_terminal()
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    with fresh_folder(recipe, folder, lambda checked: checked) as chosen:
        assert chosen.policy is not None
        place = str(Path(recipe.folder) / recipe.run)
        reason = f"a policy of run '{chosen.policy.run}'"
        started = RunStarted(recipe=redact_recipe(chosen), profile="", reason=reason, folder=place)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(chosen, folder, started))


async def _serve(recipe: Recipe, folder: RunFolder, started: RunStarted) -> int:
    interrupted = asyncio.Event()
    on_interrupt(interrupted, lambda name: sys.stderr.write(f"{name}: the policy ends\n"))
    if (location := await locate_served_model(folder, interrupted)) is None:
        return ENDED
    async with open_bus(recipe, folder, fresh=True) as (bus, server):
        error = await PolicyServing(recipe, folder, bus, server, interrupted).run(started, location)
    if error:
        sys.stderr.write(f"'{recipe.run}' ended early: {error}\n")
    return FAILED if error else ENDED


class PastVersions:
    """Earlier versions of the weights of a run, of which one is drawn whenever another is taken up.

    Draws depend on the seed and on the number of the version that was taken up, and on nothing else.
    """

    def __init__(self, place: Path, *, seed: int, every: int, keep: int) -> None:
        self.place, self.seed, self.every, self.keep = place, seed, every, keep
        self.kept: list[int] = []

    def take_up(self, version: int, location: WeightsLocation) -> tuple[int, WeightsLocation] | None:
        """Keep a version, and draw one of those that are kept; None if this one is left out or already gone.

        Args:
            version: number of the version, from 0.
            location: its files, with absolute paths.
        """
        if version % self.every or version in self.kept:
            return None
        try:
            shutil.copytree(location.folder, self._folder(version), copy_function=_link_or_copy, dirs_exist_ok=True)
        except OSError:  # a newer version has replaced it
            shutil.rmtree(self._folder(version), ignore_errors=True)
            return None
        self.kept.append(version)
        drawn = random.Random(f"{self.seed} {version}").choice(self.kept)
        while len(self.kept) > self.keep:
            oldest = next(kept for kept in self.kept if kept != drawn)
            self.kept.remove(oldest)
            shutil.rmtree(self._folder(oldest), ignore_errors=True)
        return drawn, msgspec.structs.replace(location, folder=str(self._folder(drawn)), checksum="")

    def _folder(self, version: int) -> Path:
        return self.place / f"version-{version}"


def _link_or_copy(source: str, target: str) -> None:
    """Link a file, which costs nothing and outlasts its removal, or copy it to another file system."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


class PolicyServing(Launch):
    """Runs the gateway and the inference workers of a policy that is not trained, and publishes its weights."""

    def __init__(
        self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server: RunServer, interrupted: asyncio.Event
    ) -> None:
        super().__init__(recipe, folder, bus, server)
        self.interrupted = interrupted
        assert recipe.policy is not None
        settings = recipe.policy.settings
        self.is_past = settings.kind == "past"
        self.versions = PastVersions(
            folder.path / VERSIONS, seed=recipe.seed, every=settings.every_versions, keep=settings.keep_versions
        )
        self.checksums: dict[int, str] = {}
        self.published = 0

    async def run(self, started: RunStarted, location: WeightsLocation) -> str:
        """Serve; returns the error that ended it, empty if the run that calls it has ended."""
        listeners = [self._follow_versions()] if self.is_past else []
        async with self.supervise(*listeners):
            await self.publish(started)
            await self.publish(WeightsPublished(weight_version=0, location=location))
            await self.supervisor.start(self.supervisor.startable())
            error = await self.first_end() or ""
            if self.bus_answers():
                await self.publish(RunFinished(steps=0, error=error))
        return error

    async def _follow_versions(self) -> None:
        """Take up versions of the run that calls the policy, as they are published."""
        main = RunFolder(main_folder(self.folder.path))
        while True:
            try:
                async with aclosing(follow_run(main)) as events:
                    async for envelope in events:
                        if envelope.subject == WeightsPublished.subject:
                            await self._take_up(envelope.open(WeightsPublished), main.path)
            except BusError as error:
                sys.stderr.write(f"the versions of run '{main.path.name}' are followed again: {error}\n")
            await asyncio.sleep(FOLLOW_AGAIN_SECONDS)

    async def _take_up(self, event: WeightsPublished, root: Path) -> None:
        location = event.location.resolve(root)
        self.checksums[event.weight_version] = location.checksum
        drawn = await asyncio.to_thread(self.versions.take_up, event.weight_version, location)
        if drawn is None:
            return
        self.published += 1
        version, files = drawn
        sys.stdout.write(f"plays with version {version} of run '{root.name}'\n")
        sys.stdout.flush()
        await self.publish(
            WeightsPublished(
                weight_version=self.published,
                location=msgspec.structs.replace(files, checksum=self.checksums[version]),
            )
        )
