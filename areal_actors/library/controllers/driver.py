"""The base of the rollout controllers.

It starts the actors, receives the outcomes of episodes, sends the next ones, and waits. A hand-written loop replaces
three actors of a run: the decisions of the staleness gate, the task source and the batcher are made here by the same
code (`scheduler.py`). All other actors are those of a run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self, TypeVar

from areal_actors.core.errors import RolloutError, RolloutTimeout
from areal_actors.core.values import WeightsLocation
from areal_actors.library.controllers.backends import Backend, in_process
from areal_actors.library.controllers.episode_workers import WORKER, serve_episode_workers
from areal_actors.library.controllers.scheduler import RolloutScheduler
from areal_actors.library.controllers.tasks import Feed
from areal_actors.library.controllers.workflows import Workflows
from areal_actors.messages import (
    ActorFailed,
    ActorStarted,
    ActorStopped,
    EpisodeAbandoned,
    EpisodeEvaluated,
    EvaluateEpisode,
    RunEpisode,
    TrajectoryExported,
    WeightsLoaded,
    WeightsPublished,
)
from areal_actors.processes.actor_host import PROCESS, ActorHost
from areal_actors.recipe.recipe import Recipe
from areal_actors.rollout.runners import episodes_at_once
from areal_actors.runtime.message_ids import message_id
from areal_actors.tasks.attempts import next_attempt
from areal_actors.weights.weight_files import location_of
from areal_bus.base import Stamp
from areal_bus.message import Message

T = TypeVar("T")

RECEIVED = (
    TrajectoryExported,
    EpisodeAbandoned,
    EpisodeEvaluated,
    WeightsPublished,
    WeightsLoaded,
    ActorStarted,
    ActorFailed,
    ActorStopped,
)
INFERENCE = "inference_worker-"
LOAD_SECONDS = 120.0
"""Default time for inference workers to start and to load weights."""
START_SECONDS = 60.0
KEPT_FAILURES = 256
NOT_STARTED = "has not been started: call start(), or use it in a `with`"
CLOSED = "was closed"


class Driver:
    """Use it as an async context manager, or `start` and `close` it, in one event loop; calls may run concurrently."""

    def __init__(self, recipe: Recipe, backend: Backend | None = None, *, root: Path = Path()) -> None:
        """Configure the controller; nothing starts yet.

        Args:
            recipe: used are `[task]`, `[sampling]`, `[staleness_gate]`, `[batcher]`, `[generation]` and `[gateway]`,
                and of the rest `algorithm.group_size`, `trainer.batch_size` and `evaluation.max_concurrent`.
            backend: where gateway and engines run; by default in this process.
            root: folder to which paths of workflows are relative.
        """
        self.recipe = recipe
        self.paused = False
        self.abandoned: deque[EpisodeAbandoned] = deque(maxlen=KEPT_FAILURES)
        """Episodes that failed after all retries, the latest last."""
        self._backend = backend or in_process()
        self._root = root
        self._name = secrets.token_hex(4)
        self._workflows = Workflows(recipe.task, root, group_size=recipe.algorithm.group_size)
        slots = max(recipe.actors.rollout_worker.concurrency, recipe.concurrent_groups() * recipe.algorithm.group_size)
        self._slots = episodes_at_once(recipe.task, slots)
        self._held: deque[RunEpisode] = deque()
        """Training episodes waiting for a free slot."""
        self._in_flight: set[tuple[str, int]] = set()
        """Episode and attempt of training episodes in flight."""
        self._held_out: deque[RunEpisode] = deque()
        """Evaluation episodes that have not started."""
        self._evaluating: set[tuple[str, int]] = set()
        """Episode and attempt of evaluation episodes in flight; they have separate slots."""
        self._evaluations: dict[str, dict[str, EpisodeEvaluated | EpisodeAbandoned]] = {}
        """Outcome of each evaluation episode, by group."""
        self._evaluated = 0
        """Number of evaluations."""
        self._feeds: list[Feed] = []
        """Sources of tasks of `prepare_batch`, which continue where they stopped."""
        self._loaded: dict[str, int] = {}
        """Weight version of each live inference worker."""
        self._in_a_row = 0
        """Consecutive failures since the last success."""
        self._closed = NOT_STARTED
        self._stack = AsyncExitStack()
        self._changed = asyncio.Event()
        self._scheduler = RolloutScheduler(recipe, recipe.run, root=root)
        self._host: ActorHost

    # ------------------------------------------------------------ lifecycle

    async def start(self) -> Self:
        """Start the actors; returns when episodes can be submitted.

        Raises:
            SetupError: the machine, or the joined server, lacks something.
            BusError: the bus cannot be started or reached.
            RolloutError: it has been started before.
        """
        if self._closed != NOT_STARTED:
            raise RolloutError(f"start: this controller {self._closed or 'is already running'}; create another")
        async with AsyncExitStack() as stack:
            self._host = host = await stack.enter_async_context(self._backend(self.recipe))
            self._scheduler = RolloutScheduler(self.recipe, host.bus.run, host.prefix, self._root)
            self._loaded = dict.fromkeys(host.inference_workers, -1)
            subscribed, caught_up = asyncio.Event(), asyncio.Event()
            consumer = asyncio.create_task(self._consume(subscribed, caught_up))
            stack.callback(consumer.cancel)
            consumer.add_done_callback(self._on_consumer_exit)
            host.failed.add_done_callback(lambda _: self._notify())
            await subscribed.wait()
            await serve_episode_workers(host, self.recipe, self._workflows, self._root, slots=self._slots)
            try:
                await asyncio.wait_for(caught_up.wait(), START_SECONDS)
            except TimeoutError as error:
                raise RolloutTimeout(
                    f"start: {WORKER} did not start within {START_SECONDS:g} s; is the bus overloaded?"
                ) from error
            self._stack = stack.pop_all()
        self._closed = ""
        return self

    async def close(self) -> None:
        """End all episodes and actors of this controller; concurrent waits raise an error. Idempotent."""
        self._closed = CLOSED
        self._notify()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------ weights

    @property
    def weight_version(self) -> int:
        """Version of the newest weights passed to `update_weights`; -1 before the first."""
        return self._scheduler.ledger.weight_version

    async def update_weights(
        self,
        weights: WeightsPublished | WeightsLocation | Path | str,
        version: int | None = None,
        *,
        timeout: float = LOAD_SECONDS,
    ) -> int:
        """Load these weights into every inference worker; completions in flight continue with them at their next token.

        Args:
            weights: the result of `TrainController.upload_weights`, a location, or a Hugging Face folder.
            version: version of the weights; by default their own, or one more than the present version.
            timeout: in seconds.

        Returns:
            The version.

        Raises:
            RolloutTimeout: an inference worker has not loaded them in time; the message names it.
            RolloutError: the version is not newer than the present one, an actor failed, or the controller is closed.
            EngineError: the folder has no weights.
        """
        self._check_running("update_weights")
        if version is None:
            version = weights.weight_version if isinstance(weights, WeightsPublished) else self.weight_version + 1
        if version <= self.weight_version:
            raise RolloutError(
                f"update_weights: version {version} is not newer than {self.weight_version}, which is already served"
            )
        if isinstance(weights, WeightsPublished):
            weights = weights.location
        elif not isinstance(weights, WeightsLocation):
            weights = await asyncio.to_thread(location_of, weights)
        await self._host.publish(WeightsPublished(weight_version=version, location=weights))
        self._scheduler.weights(version)
        await self._admit()

        async def loaded_version() -> int | None:
            return version if self._loaded and min(self._loaded.values()) >= version else None

        def behind() -> str:
            late = ", ".join(worker for worker, has in self._loaded.items() if has < version)
            return f"{late or 'no inference worker is alive; none'} has not loaded weights {version}"

        return await self._until(f"update_weights to version {version}", loaded_version, timeout, behind)

    # ------------------------------------------------------------ pause and resume

    async def pause(self) -> None:
        """Start no more training episodes or retries.

        Running ones continue to their end, and evaluations still start.
        """
        self.paused = True

    async def resume(self) -> None:
        """Let episodes start again."""
        self._check_running("resume")
        self.paused = False
        await self._admit()
        self._notify()

    # ------------------------------------------------------------ sending episodes

    async def _admit(self) -> None:
        """Start waiting groups until a limit is reached."""
        for event in self._scheduler.drop_groups():
            await self._host.publish(event)
        if not self.paused:
            self._held.extend(self._scheduler.admit())
        await self._send()

    async def _send(self) -> None:
        """Send episodes to the rollout worker while it has free slots.

        Evaluation episodes have separate slots, limited while training episodes run.
        """
        while self._held and not self.paused and len(self._in_flight) < self._slots:
            await self._publish_episode(self._held.popleft())
        while self._held_out and len(self._evaluating) < (
            self.recipe.evaluation.max_concurrent if self._in_flight else self._slots
        ):
            await self._publish_episode(self._held_out.popleft())

    async def _publish_episode(self, work: RunEpisode) -> None:
        self._flight(work).add((work.episode, work.attempt))
        stamp = Stamp(id=message_id(self._name, work.episode, work.attempt), sender=PROCESS, time=time.time())
        await self._host.bus.publish(work if work.purpose == "train" else EvaluateEpisode(work=work), stamp)

    def _flight(self, work: RunEpisode) -> set[tuple[str, int]]:
        return self._in_flight if work.purpose == "train" else self._evaluating

    # ------------------------------------------------------------ received events

    async def _consume(self, subscribed: asyncio.Event, caught_up: asyncio.Event) -> None:
        """Fold events; `caught_up` is set once all events before the start of the rollout worker are folded."""
        async with self._host.bus.events(*RECEIVED, consumer=f"{PROCESS}-{self._name}", history="all") as inbox:
            subscribed.set()
            async for delivery in inbox:
                message = delivery.message
                await self._handle(message, delivery.envelope.sequence)
                await delivery.acknowledge()
                if isinstance(message, ActorStarted) and (message.actor, message.pid) == (WORKER, os.getpid()):
                    caught_up.set()
                self._notify()

    async def _handle(self, message: Message, sequence: int) -> None:
        if isinstance(message, TrajectoryExported):
            trajectory = message.trajectory
            self._in_flight.discard((trajectory.episode, trajectory.attempt))
            self._in_a_row = 0
            self._leave(self._scheduler.add_trajectory(message, sequence))
            await self._admit()
        elif isinstance(message, EpisodeAbandoned):
            await self._handle_abandoned(message)
        elif isinstance(message, EpisodeEvaluated):
            self._evaluating.discard((message.work.episode, message.work.attempt))
            self._evaluations.get(message.work.group, {})[message.work.episode] = message
            await self._send()
        elif isinstance(message, WeightsPublished):
            self._scheduler.weights(message.weight_version)
        elif isinstance(message, WeightsLoaded):
            self._loaded[message.worker] = message.weight_version
            self._scheduler.ledger.weights_loaded(message.worker, message.weight_version)
            await self._admit()
        elif isinstance(message, ActorStarted) and message.actor.startswith(INFERENCE):
            self._loaded.setdefault(message.actor, -1)
        elif isinstance(message, ActorFailed | ActorStopped):
            self._loaded.pop(message.actor, None)
            self._scheduler.ledger.worker_gone(message.actor)
            await self._admit()

    async def _handle_abandoned(self, lost: EpisodeAbandoned) -> None:
        work = lost.work
        if (attempt := (work.episode, work.attempt)) not in self._flight(work):
            return
        self._flight(work).discard(attempt)
        if work.attempts_left and work.purpose == "train":
            self._held.append(next_attempt(work))
        elif work.attempts_left and work.group in self._evaluations:
            self._held_out.append(next_attempt(work))
        elif not work.attempts_left:
            self._in_a_row += lost.reason != "rejected"
            self.abandoned.append(lost)
            self._evaluations.get(work.group, {}).setdefault(work.episode, lost)
            self._leave(self._scheduler.record_lost_episode(lost))
        await self._admit()

    def _leave(self, number: int | None) -> None:
        if number is not None:
            self._workflows.leave(self._scheduler.name(number))

    def _on_consumer_exit(self, consumer: asyncio.Task[None]) -> None:
        """Fail the controller when its event consumer ends, so that no call waits forever."""
        if not consumer.cancelled() and (error := consumer.exception()) is not None and not self._host.failed.done():
            self._host.failed.set_result(f"the controller receives no more events: {type(error).__name__}: {error}")

    # ------------------------------------------------------------ waiting

    def _notify(self) -> None:
        """Wake all waits after a state change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _until(
        self,
        name: str,
        reached: Callable[[], Awaitable[T | None]],
        timeout: float,
        describe: Callable[[], str] | None = None,
    ) -> T:
        """Wait until `reached` returns a value; it is called after every state change."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed = self._changed
                    self._check_running(name)
                    if (result := await reached()) is not None:
                        return result
                    await changed.wait()
        except TimeoutError as error:
            raise RolloutTimeout(
                f"{name}: not within {timeout:g} s: {(describe or self._describe_progress)()}"
            ) from error

    def _check_running(self, name: str) -> None:
        """Raise if the controller is closed or has failed."""
        if self._closed:
            raise RolloutError(f"{name}: this controller {self._closed}")
        if self._host.failed.done():
            raise RolloutError(f"{name}: {self._host.failed.result()}")
        if self._in_a_row >= self.recipe.watchdog.max_failures_in_a_row:
            failures, self._in_a_row = self._in_a_row, 0
            raise RolloutError(
                f"{name}: {failures} episodes failed in a row; the last: {_describe_failure(self.abandoned[-1])}"
            )
        if problem := self._scheduler.filter_error():
            raise RolloutError(f"{name}: {problem}")

    def _check_possible(self, name: str, count: int) -> None:
        """Raise if waiting cannot succeed."""
        self._check_running(name)
        if self.weight_version < 0:
            raise RolloutError(
                f"{name}: there are no weights yet; first call update_weights with the result of upload_weights"
            )
        most = (self.recipe.staleness_gate.max_staleness + 1) * self.recipe.trainer.batch_size
        if count > most:
            raise RolloutError(
                f"{name}: staleness_gate.max_staleness and trainer.batch_size allow at most {most} groups ahead of the"
                " weights; request fewer, or raise them"
            )

    def _idle(self) -> bool:
        return not (self._scheduler.ledger.running or self._scheduler.waiting() or self._held)

    def _describe_progress(self) -> str:
        """Describes the state of groups in a sentence."""
        bound = self._scheduler.room()[1]
        running, waiting = len(self._scheduler.ledger.running), self._scheduler.waiting()
        progress = (
            f"{len(self._scheduler.assembler.complete)} groups are complete, {running} run, {waiting} wait to start"
        )
        if self.paused:
            progress += " (the controller is paused: call resume)"
        elif waiting and bound != "none":
            progress += f" ({bound} limit reached{': call update_weights' if bound == 'staleness' else ''})"
        return f"{progress}; last failure: {_describe_failure(self.abandoned[-1])}" if self.abandoned else progress


def _describe_failure(lost: EpisodeAbandoned) -> str:
    return f"episode {lost.work.episode}, {lost.reason}: {lost.detail}"
