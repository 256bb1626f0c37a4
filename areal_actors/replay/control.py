"""Replay of a run's control plane from its log: every actor that is a fold over events, built as the run built it.

The log holds all their input and all events that they emitted, so a sound log and the same program give no difference.
With other settings the replay shows where their decisions would have been different: each actor still receives what the
log holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

from areal_actors.core.actor_settings import processes_of
from areal_actors.core.decoding import decode
from areal_actors.core.errors import ArealError, RecipeError, SetupError
from areal_actors.core.layers import Layer
from areal_actors.folder.run_folder import RunFolder
from areal_actors.messages import KINDS, RunResumed, RunStarted
from areal_actors.processes.fold_actors import FOLDS, BuildContext
from areal_actors.recipe.recipe import Recipe
from areal_actors.recipe.source import read_override
from areal_actors.replay.fold import FoldReplay, LogDifference
from areal_actors.runtime.actor import Actor
from areal_bus.base import Envelope
from areal_bus.message import Event

KINDS_BY_SUBJECT: Mapping[str, type[Event]] = {kind.subject: kind for kind in KINDS if issubclass(kind, Event)}


class ControlReplay:
    """New actors of a run that receive its log."""

    def __init__(self, folder: RunFolder, *, only: Sequence[str] = (), settings: Sequence[str] = ()) -> None:
        """`only` names the actors to replay (none: all of `FOLDS`).

        `settings`, each `KEY=VALUE`, override the recorded recipe.

        Raises:
            RecipeError: a setting is not `KEY=VALUE`.
        """
        self._folder, self._only = folder, only
        self._settings = reduce(lambda below, override: read_override(override).over(below), settings, Layer({}, {}))
        self.actors: dict[str, FoldReplay] = {}
        self.left_out: dict[str, str] = {}
        """Actors that cannot be built here, each with the reason."""
        self.events = 0
        self.first_time = self.last_time = 0.0
        """Times of the first and the last event, in seconds since the epoch."""
        self._recipe: Recipe | None = None

    @property
    def recorded_seconds(self) -> float:
        """Duration of the recorded run."""
        return self.last_time - self.first_time

    async def differences(self, log: AsyncIterator[Envelope]) -> AsyncGenerator[LogDifference, None]:
        """Yields the differences of all actors, in the order of the log.

        Raises:
            SetupError: the log does not begin with the start of its run, or no actor can be replayed.
            RecipeError: the recorded recipe with the settings is invalid.
        """
        async for envelope in log:
            for difference in await self.receive(envelope):
                yield difference

    async def receive(self, envelope: Envelope) -> list[LogDifference]:
        """Compare an event with what the actors emitted, and let them handle it; same errors."""
        kind = KINDS_BY_SUBJECT.get(envelope.subject)
        self.events, self.last_time = self.events + 1, envelope.time
        if kind is None:
            return []
        if self._recipe is None or kind in (RunStarted, RunResumed):
            self._began(envelope, kind)
        differences = [difference for actor in self.actors.values() for difference in actor.compare(envelope)]
        receivers = [actor for actor in self.actors.values() if actor.handles(kind)]
        if receivers:
            message = envelope.open(kind)
            for actor in receivers:
                await actor.receive(envelope, message, {})
        return differences

    def _began(self, envelope: Envelope, kind: type[Event]) -> None:
        """Build the actors at the start of the run, and again when it is resumed with other settings."""
        if self._recipe is None and kind is not RunStarted:
            raise SetupError(
                f"the log begins with event {envelope.sequence}, {envelope.subject}, since earlier events were trimmed;"
                ' a replay needs all events of a run: log.keep = "all" keeps them'
            )
        self.first_time = self.first_time or envelope.time
        message = envelope.open(kind)
        assert isinstance(message, RunStarted | RunResumed)
        recipe = self._with_settings(message.recipe)
        if recipe == self._recipe:
            return
        self._recipe = recipe
        for instance, actor in self._build_actors(recipe):
            if instance in self.actors:
                self.actors[instance].continue_with(actor)
            else:
                self.actors[instance] = FoldReplay(actor, instance, recipe.seed)
        if not self.actors:
            reasons = [f"{name}: {reason}" for name, reason in self.left_out.items()] or [
                f"it has none of {', '.join(FOLDS)}"
            ]
            raise SetupError(f"no actor of this run can be replayed from its log: {'; '.join(reasons)}")

    def _with_settings(self, recorded: dict[str, Any]) -> Recipe:
        recipe, complaints = decode(self._settings.over(Layer(recorded, {})), Recipe)
        if recipe is None or complaints:
            raise RecipeError("\n".join(complaints))
        return recipe

    def _build_actors(self, recipe: Recipe) -> Iterator[tuple[str, Actor]]:
        for kind, build in FOLDS.items():
            for number in range(len(processes_of(getattr(recipe.actors, kind)))):
                instance = f"{kind}-{number}"
                if self._only and not {kind, instance} & set(self._only):
                    continue
                try:
                    yield instance, build(BuildContext(recipe=recipe, folder=self._folder, instance=instance))
                except (ArealError, OSError, ImportError) as error:
                    self.left_out[instance] = f"{type(error).__name__}: {error}"
