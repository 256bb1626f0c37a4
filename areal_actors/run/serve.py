"""`areal-actors serve`: a model behind the gateway, without a trainer.

Uses the same processes, bus and supervision as a run. This module publishes the first weights in place of a trainer.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from areal_actors.core.errors import SetupError
from areal_actors.core.gateways import GatewayShare
from areal_actors.core.module_command import module_command
from areal_actors.core.values import WeightsLocation
from areal_actors.folder.process_logs import log_to_terminal
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.messages import (
    ActorStarted,
    RunFinished,
    RunResumed,
    RunStarted,
    WeightsLoaded,
)
from areal_actors.recipe.needed_extras import check_extras
from areal_actors.recipe.recipe import Recipe, redact_recipe
from areal_actors.run.preflight import check_chat_template, check_devices, check_inference_server
from areal_actors.run.served_candidate import candidate_events, refuse_other_tokens
from areal_actors.run.served_log import continued_log, has_served_log, next_weights, served_folder
from areal_actors.run.served_retention import ServedRetention
from areal_actors.supervision.nats_server import RunServer, with_port
from areal_actors.supervision.run_session import Launch, on_interrupt, open_bus
from areal_bus.nats import NatsBus

SUFFIX = "-serve"
LONGEST_NAME = 64
ENDED, FAILED = 0, 1

BANNER = """\
serving {model} at {addresses}, {sessions} sessions at once; Ctrl-C ends
admin key: {key}
feedback key: {feedback_key}

A session from a shell:

    curl -s {root}/rl/start_session -H 'Authorization: Bearer {key}' -d '{{"task_id": "hello"}}'

and in it, with the base_url and api_key of the response:

    from openai import OpenAI
    client = OpenAI(base_url=base_url, api_key=api_key)
    client.chat.completions.create(model="default", messages=[{{"role": "user", "content": "2 + 3 ="}}])

    curl -s {root}/rl/set_reward -H 'Authorization: Bearer API_KEY' -d '{{"reward": 1.0}}'
    curl -s {root}/rl/end_session -H 'Authorization: Bearer API_KEY' -X POST
    curl -s {root}/rl/feedback -H 'Authorization: Bearer {feedback_key}' -d '{{"session_id": "{session}", "reward": 1}}'
    curl -s {root}/export_trajectories -H 'Authorization: Bearer {key}' -d '{{"session_id": "{session}"}}'
"""


def serve(recipe: Recipe, *, profile: str, reason: str) -> int:
    """Serve a recipe's model until interrupted; returns the exit status: 0 when interrupted, 1 on failure.

    Raises:
        SetupError: something that the recipe needs is missing.
        BusError: the bus cannot be started or reached; nothing is left running.
    """
    log_to_terminal()
    check_extras(recipe)
    check_devices(recipe)
    check_inference_server(recipe)
    check_chat_template(recipe)
    recipe = msgspec.structs.replace(recipe, run=recipe.run[: LONGEST_NAME - len(SUFFIX)] + SUFFIX)
    folder = RunFolder(Path(recipe.folder).absolute() / recipe.run)
    goes_on = has_served_log(folder)
    with served_folder(recipe, folder, with_port) as chosen:
        place = str(Path(recipe.folder) / recipe.run)
        started = RunStarted(recipe=redact_recipe(chosen), profile=profile, reason=reason, folder=place)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(chosen, folder, started, goes_on=goes_on))


async def _serve(recipe: Recipe, folder: RunFolder, started: RunStarted, *, goes_on: bool) -> int:
    interrupted = asyncio.Event()
    on_interrupt(interrupted, lambda name: sys.stderr.write(f"{name}: the sessions and processes are ended\n"))
    if (location := await locate_served_model(folder, interrupted)) is None:
        return ENDED
    candidate: WeightsLocation | None = None
    if model := recipe.gateway.candidate.model:
        if (candidate := await locate_served_model(folder, interrupted, model)) is None:
            return ENDED
        await refuse_other_tokens(location, candidate)
    opening = await continued_log(recipe, folder, started.folder) if goes_on else started
    async with open_bus(recipe, folder, fresh=not goes_on) as (bus, server):
        error = await _Serving(recipe, folder, bus, server, interrupted).run(opening, location, candidate)
    if error:
        sys.stderr.write(f"'{recipe.run}' ended early: {error}\n")
    return FAILED if error else ENDED


async def locate_served_model(folder: RunFolder, interrupted: asyncio.Event, model: str = "") -> WeightsLocation | None:
    """Make or find the weights of the recipe's model, or of another, in a process of their own.

    Returns their location, None when interrupted.

    Raises:
        SetupError: the model could not be made or found.
    """
    process = await asyncio.create_subprocess_exec(
        *module_command("areal_actors.run.served_model", str(folder.path), *filter(None, (model,))),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    finished = asyncio.create_task(process.communicate())
    stop = asyncio.create_task(interrupted.wait())
    await asyncio.wait({finished, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not finished.done():
        process.kill()
        await finished
        return None
    if process.returncode:
        errors = finished.result()[1].decode(errors="replace").strip().splitlines()
        raise SetupError(
            "the model could not be loaded:"
            f" {errors[-1] if errors else f'its process ended with status {process.returncode}'}"
        )
    return msgspec.json.decode(folder.served.read_bytes(), type=WeightsLocation)


class _Serving(Launch):
    """Runs the gateway and its inference workers until interrupted or failed."""

    def __init__(
        self, recipe: Recipe, folder: RunFolder, bus: NatsBus, server: RunServer, interrupted: asyncio.Event
    ) -> None:
        super().__init__(recipe, folder, bus, server)
        self.interrupted = interrupted
        self.earlier = 0
        """Position of the last event of the log as it was found."""
        self.ready = asyncio.Event()
        """Set once sessions can be served."""
        settings, instances = recipe.log.retention, tuple(self.supervisor.instances().items())
        self.retention = (
            ServedRetention(settings, bus, folder, instances=instances, publish=self.publish)
            if settings.is_on()
            else None
        )
        self.model = recipe.model
        """Model that is served: a promoted candidate may be in the place of the recipe's."""

    async def run(
        self, opening: RunStarted | RunResumed, location: WeightsLocation, candidate: WeightsLocation | None
    ) -> str:
        """Serve; returns the error that ended it, empty if interrupted."""
        span = await self.bus.span()
        self.earlier = span.last
        serving, versions = await next_weights(self.bus, self.recipe.run, location)
        self.model = serving.location.folder if serving.location != location else self.recipe.model
        async with self.supervise(self._show_when_ready(), *self._keep_limits()):
            await self.publish(opening)
            is_known = versions.published is not None and versions.published.weight_version == serving.weight_version
            if not is_known or span.first > 1:  # a snapshot of another kind of gateway may not have them
                await self.publish(serving)
            for event in candidate_events(self.recipe, versions, serving, candidate):
                await self.publish(event)
            await self.supervisor.start(self.supervisor.startable())
            error = await self.first_end() or ""
            if self.bus_answers():
                await self.publish(RunFinished(steps=0, error=error))
            if self.retention is not None:
                await self.retention.close()
        return error

    def _keep_limits(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Yields the work of deleting old sessions, if the recipe has limits."""
        if (retention := self.retention) is None:
            return

        async def watch() -> None:
            await self.ready.wait()
            await retention.watch()

        yield retention.follow()
        yield watch()

    async def _show_when_ready(self) -> None:
        """Print the address once all actors serve and weights are loaded; those of earlier days do not count."""
        unstarted, loaded, shown = set(self.supervisor.instances()), False, False
        kinds = (ActorStarted, WeightsLoaded)
        async with self.bus.events(*kinds, consumer="serve", history="all", after=self.earlier) as inbox:
            async for delivery in inbox:
                event = delivery.message
                if isinstance(event, ActorStarted):
                    unstarted.discard(event.actor)
                loaded = loaded or isinstance(event, WeightsLoaded)
                await delivery.acknowledge()
                if loaded and not unstarted and not shown:
                    shown = True
                    self.ready.set()
                    self._show()

    def _show(self) -> None:
        recipe, gateways = self.recipe, self.recipe.actors.session_manager.count
        sys.stdout.write(
            BANNER.format(
                model=self.model,
                addresses=recipe.gateway.urls(gateways),
                root=recipe.gateway.url(recipe.gateway.port),
                sessions=recipe.concurrent_groups() * recipe.algorithm.group_size,
                session=GatewayShare(number=0, count=gateways).mark("hello-0"),
                key=self.folder.admin_key(recipe),
                feedback_key=feedback_key(self.folder.secret()),
            )
        )
        sys.stdout.flush()
