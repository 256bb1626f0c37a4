"""What carries a hand-written loop: it starts the actors, hears what becomes of episodes, sends the next ones, and waits.

The loop stands in place of three actors of a run: what the staleness gate, the task source and the batcher decide there is
decided here by the same arithmetic (`intake.py`). All others are the run's own.
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

import msgspec

from areal_actors.actors.reward_worker import RewardWorker
from areal_actors.actors.rollout_worker import RolloutWorker
from areal_actors.agent_runners.acceptance import Acceptance
from areal_actors.agent_runners.runners import episodes_at_once
from areal_actors.controllers.homes import PROCESS, Home, Household, in_process
from areal_actors.controllers.intake import Intake
from areal_actors.controllers.workflows import Workflows
from areal_actors.engines.weights import location_of
from areal_actors.errors import RolloutError, RolloutTimeout
from areal_actors.message_ids import message_id
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
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.process import Place
from areal_actors.run.tensor_process import HEAVY
from areal_actors.values import WeightsLocation
from bus.base import Stamp
from bus.message import Message

T = TypeVar("T")

HEARD = (TrajectoryExported, EpisodeAbandoned, EpisodeEvaluated, WeightsPublished, WeightsLoaded, ActorStarted, ActorFailed, ActorStopped)
WORKER = "rollout_worker-0"
INFERENCE = "inference_worker-"
LOAD_SECONDS = 120.0
"""For inference workers to start and to load weights, unless a call says otherwise."""
START_SECONDS = 60.0
KEPT_FAILURES = 256
NOT_STARTED = "has not been started: call start(), or use it in a `with`"
CLOSED = "was closed"


class Driver:
    """Use it as an async context manager, or call `start` and `close`. One loop uses it; its methods may be awaited side by side."""

    def __init__(self, recipe: Recipe, home: Home | None = None, *, root: Path = Path()) -> None:
        """Take a recipe; nothing starts yet.

        Args:
            recipe: its `[task]`, `[sampling]`, `[staleness_gate]`, `[batcher]`, `[generation]` and `[gateway]` hold, and of
                the rest `algorithm.group_size`, `trainer.batch_size` and `evaluation.max_concurrent`.
            home: where gateway and engines are; in this process if not said.
            root: from where the paths of workflows count.
        """
        self.recipe = recipe
        self.paused = False
        self.abandoned: deque[EpisodeAbandoned] = deque(maxlen=KEPT_FAILURES)
        """Episodes that were given up for good, the latest last."""
        self._home = home or in_process()
        self._root = root
        self._name = secrets.token_hex(4)
        self._workflows = Workflows(recipe.task, root, group_size=recipe.algorithm.group_size)
        places = max(recipe.actors.rollout_worker.concurrency, recipe.staleness_gate.max_concurrent * recipe.algorithm.group_size)
        self._places = episodes_at_once(recipe.task, places)
        self._held: deque[RunEpisode] = deque()
        """Episodes that start as soon as there is a place for them."""
        self._in_flight: set[tuple[str, int]] = set()
        """Episode and attempt."""
        self._held_out: deque[RunEpisode] = deque()
        """Those to be evaluated that have not started."""
        self._evaluating: set[tuple[str, int]] = set()
        """Episode and attempt of those that have; they take nobody's place."""
        self._evaluations: dict[str, dict[str, EpisodeEvaluated | EpisodeAbandoned]] = {}
        """By group, what became of each episode."""
        self._loaded: dict[str, int] = {}
        """The version that each live inference worker has."""
        self._in_a_row = 0
        """Failures since the last success."""
        self._closed = NOT_STARTED
        self._stack = AsyncExitStack()
        self._moved = asyncio.Event()
        self._intake = Intake(recipe, recipe.run, root=root)
        self._house: Household

    # ------------------------------------------------------------ its life

    async def start(self) -> Self:
        """Start the actors; returns when episodes can be submitted.

        Raises:
            SetupError: the machine, or what is to be joined, lacks something.
            BusError: the bus cannot be had.
            RolloutError: it has been started before.
        """
        if self._closed != NOT_STARTED:
            raise RolloutError(f"start: this controller {self._closed or 'runs already'}; make another")
        async with AsyncExitStack() as stack:
            self._house = house = await stack.enter_async_context(self._home(self.recipe))
            self._intake = Intake(self.recipe, house.bus.run, house.prefix, self._root)
            self._loaded = dict.fromkeys(house.inference_workers, -1)
            subscribed, caught_up = asyncio.Event(), asyncio.Event()
            hearing = asyncio.create_task(self._hear(subscribed, caught_up))
            stack.callback(hearing.cancel)
            hearing.add_done_callback(self._deaf)
            house.failed.add_done_callback(lambda _: self._tell())
            await subscribed.wait()
            await self._serve_workers(house)
            try:
                await asyncio.wait_for(caught_up.wait(), START_SECONDS)
            except TimeoutError as error:
                raise RolloutTimeout(f"start: {WORKER} was not heard of within {START_SECONDS:g} s; is the bus overloaded?") from error
            self._stack = stack.pop_all()
        self._closed = ""
        return self

    async def _serve_workers(self, house: Household) -> None:
        task = self.recipe.task
        acceptance = Acceptance(self._workflows.accepts, self._root, retry=task.retry_rejected)
        reward_worker = HEAVY["reward_worker"](Place(recipe=self.recipe, folder=house.folder, instance="reward_worker-0"))
        assert isinstance(reward_worker, RewardWorker)
        reward_worker.acceptance = acceptance
        await house.serve("reward_worker-0", reward_worker)
        worker = RolloutWorker(
            self._workflows,
            concurrency=self._places,
            timeout_seconds=task.timeout_seconds,
            acceptance=acceptance,
            retry_rejected=task.retry_rejected,
        )
        await house.serve(WORKER, worker)

    async def close(self) -> None:
        """End every episode and every actor of this controller; what is awaited elsewhere is told. A second time nothing happens."""
        self._closed = CLOSED
        self._tell()
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ------------------------------------------------------------ weights

    @property
    def weight_version(self) -> int:
        """The newest weights that were handed in; -1 before the first."""
        return self._intake.ledger.weight_version

    async def update_weights(
        self, weights: WeightsPublished | WeightsLocation | Path | str, version: int | None = None, *, timeout: float = LOAD_SECONDS
    ) -> int:
        """Have every inference worker generate with these weights; completions under way go on with them at their next token.

        Args:
            weights: what `TrainController.upload_weights` returned, a location, or a Hugging Face folder.
            version: theirs; if not given, what they say themselves, or one more than the present version.
            timeout: in seconds.

        Returns:
            The version.

        Raises:
            RolloutTimeout: an inference worker has not loaded them in time; names it.
            RolloutError: the version is not newer than the present one, an actor failed, or the controller is closed.
            EngineError: the folder holds no weights.
        """
        self._refuse("update_weights")
        if version is None:
            version = weights.weight_version if isinstance(weights, WeightsPublished) else self.weight_version + 1
        if version <= self.weight_version:
            raise RolloutError(f"update_weights: version {version} is not newer than {self.weight_version}, which is served already")
        if isinstance(weights, WeightsPublished):
            weights = weights.location
        elif not isinstance(weights, WeightsLocation):
            weights = await asyncio.to_thread(location_of, weights)
        await self._house.say(WeightsPublished(weight_version=version, location=weights))
        self._intake.weights(version)
        await self._admit()

        async def loaded() -> int | None:
            return version if self._loaded and min(self._loaded.values()) >= version else None

        def behind() -> str:
            late = ", ".join(worker for worker, has in self._loaded.items() if has < version)
            return f"{late or 'no inference worker is alive, so nobody'} has not loaded weights {version}"

        return await self._until(f"update_weights to version {version}", loaded, timeout, behind)

    # ------------------------------------------------------------ stopping and going on

    async def pause(self) -> None:
        """Let no episode start, not even one that is tried again; what runs goes on to its end, and what is evaluated starts."""
        self.paused = True

    async def resume(self) -> None:
        """Let episodes start again."""
        self._refuse("resume")
        self.paused = False
        await self._admit()
        self._tell()

    # ------------------------------------------------------------ what is sent

    async def _admit(self) -> None:
        """Let groups start while no bound binds."""
        for event in self._intake.dropped():
            await self._house.say(event)
        if not self.paused and (granted := self._intake.admit()) is not None:
            self._held.extend(self._intake.begun(granted))
        await self._send()

    async def _send(self) -> None:
        """Hand over as many episodes as the rollout worker has places: what it holds has started, what is held here has not.

        Held-out ones have places of their own, few while others run beside them.
        """
        while self._held and not self.paused and len(self._in_flight) < self._places:
            await self._hand_over(self._held.popleft())
        while self._held_out and len(self._evaluating) < (self.recipe.evaluation.max_concurrent if self._in_flight else self._places):
            await self._hand_over(self._held_out.popleft())

    async def _hand_over(self, work: RunEpisode) -> None:
        self._flight(work).add((work.episode, work.attempt))
        stamp = Stamp(id=message_id(self._name, work.episode, work.attempt), sender=PROCESS, time=time.time())
        await self._house.bus.publish(work if work.purpose == "train" else EvaluateEpisode(work=work), stamp)

    def _flight(self, work: RunEpisode) -> set[tuple[str, int]]:
        return self._in_flight if work.purpose == "train" else self._evaluating

    # ------------------------------------------------------------ what is heard

    async def _hear(self, subscribed: asyncio.Event, caught_up: asyncio.Event) -> None:
        """Fold what is said; all that was said before the rollout worker announced itself is folded by then."""
        async with self._house.bus.events(*HEARD, consumer=f"{PROCESS}-{self._name}", history="all") as inbox:
            subscribed.set()
            async for delivery in inbox:
                message = delivery.message
                await self._heard(message, delivery.envelope.sequence)
                await delivery.acknowledge()
                if isinstance(message, ActorStarted) and (message.actor, message.pid) == (WORKER, os.getpid()):
                    caught_up.set()
                self._tell()

    async def _heard(self, message: Message, sequence: int) -> None:
        if isinstance(message, TrajectoryExported):
            trajectory = message.trajectory
            self._in_flight.discard((trajectory.episode, trajectory.attempt))
            self._in_a_row = 0
            self._leave(self._intake.exported(message, sequence))
            await self._admit()
        elif isinstance(message, EpisodeAbandoned):
            await self._heard_abandoned(message)
        elif isinstance(message, EpisodeEvaluated):
            self._evaluating.discard((message.work.episode, message.work.attempt))
            self._evaluations.get(message.work.group, {})[message.work.episode] = message
            await self._send()
        elif isinstance(message, WeightsPublished):
            self._intake.weights(message.weight_version)
        elif isinstance(message, WeightsLoaded):
            self._loaded[message.worker] = message.weight_version
            self._intake.ledger = self._intake.ledger.weights_loaded(message.worker, message.weight_version)
            await self._admit()
        elif isinstance(message, ActorStarted) and message.actor.startswith(INFERENCE):
            self._loaded.setdefault(message.actor, -1)
        elif isinstance(message, ActorFailed | ActorStopped):
            self._loaded.pop(message.actor, None)
            self._intake.ledger = self._intake.ledger.worker_gone(message.actor)

    async def _heard_abandoned(self, lost: EpisodeAbandoned) -> None:
        work = lost.work
        if (attempt := (work.episode, work.attempt)) not in self._flight(work):
            return
        self._flight(work).discard(attempt)
        if work.attempts_left and work.purpose == "train":
            self._held.extend(self._intake.again(lost))
        elif work.attempts_left and work.group in self._evaluations:
            self._held_out.append(msgspec.structs.replace(work, attempt=work.attempt + 1, attempts_left=work.attempts_left - 1))
        elif not work.attempts_left:
            self._in_a_row += lost.reason != "rejected"
            self.abandoned.append(lost)
            self._evaluations.get(work.group, {}).setdefault(work.episode, lost)
            self._leave(self._intake.lost(lost))
        await self._admit()

    def _leave(self, number: int | None) -> None:
        if number is not None:
            self._workflows.leave(self._intake.name(number))

    def _deaf(self, hearing: asyncio.Task[None]) -> None:
        """Whoever hears nothing any more must not be waited for."""
        if not hearing.cancelled() and (error := hearing.exception()) is not None and not self._house.failed.done():
            self._house.failed.set_result(f"the controller hears nothing any more: {type(error).__name__}: {error}")

    # ------------------------------------------------------------ waiting

    def _tell(self) -> None:
        """Something has moved: everybody who waits looks again."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(
        self, name: str, reached: Callable[[], Awaitable[T | None]], timeout: float, standing: Callable[[], str] | None = None
    ) -> T:
        """Wait until there is something; it is looked for whenever anything has moved."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    moved = self._moved
                    self._refuse(name)
                    if (found := await reached()) is not None:
                        return found
                    await moved.wait()
        except TimeoutError as error:
            raise RolloutTimeout(f"{name}: not within {timeout:g} s: {(standing or self._standing)()}") from error

    def _refuse(self, name: str) -> None:
        """Raise what makes it useless to wait."""
        if self._closed:
            raise RolloutError(f"{name}: this controller {self._closed}")
        if self._house.failed.done():
            raise RolloutError(f"{name}: {self._house.failed.result()}")
        if self._in_a_row >= self.recipe.watchdog.max_failures_in_a_row:
            failures, self._in_a_row = self._in_a_row, 0
            raise RolloutError(f"{name}: {failures} episodes failed in a row; the last: {_told(self.abandoned[-1])}")
        if problem := self._intake.used_up():
            raise RolloutError(f"{name}: {problem}")

    def _refuse_impossible(self, name: str, count: int) -> None:
        """Raise for what no waiting would bring."""
        self._refuse(name)
        if self.weight_version < 0:
            raise RolloutError(f"{name}: there are no weights yet; call update_weights first, with what upload_weights returned")
        most = (self.recipe.staleness_gate.max_staleness + 1) * self.recipe.trainer.batch_size
        if count > most:
            raise RolloutError(
                f"{name}: staleness_gate.max_staleness and trainer.batch_size let at most {most} groups be ahead of the weights; "
                f"ask for no more, or raise them"
            )

    def _idle(self) -> bool:
        return not (self._intake.ledger.running or self._intake.waiting() or self._held)

    def _standing(self) -> str:
        """Who waits for what, in a sentence."""
        bound = self._intake.room()[1]
        running, waiting = len(self._intake.ledger.running), self._intake.waiting()
        told = f"{self._intake.complete()} groups are complete, {running} run, {waiting} wait to start"
        if self.paused:
            told += " (the controller is paused: call resume)"
        elif waiting and bound != "none":
            told += f" ({bound} binds{': call update_weights' if bound == 'staleness' else ''})"
        return f"{told}; the last failure: {_told(self.abandoned[-1])}" if self.abandoned else told


def _told(lost: EpisodeAbandoned) -> str:
    return f"episode {lost.work.episode}, {lost.reason}: {lost.detail}"
