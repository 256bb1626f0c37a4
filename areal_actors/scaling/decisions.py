"""Decides when the number of workers changes.

A fold over `LoadMeasured` and `ScaleDecided`, so that a log gives the same decisions again.
Several windows in a row have to recommend the same direction, more of them for a decrease. After a decision nothing is
decided until its workers serve and `cooldown_seconds` have passed. A number at which the trainer waited is not returned
to, and an increase that did not shorten the waiting is undone and not tried again: the numbers settle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from areal_actors.core.autoscale_settings import AutoscaleSettings
from areal_actors.messages import LoadMeasured, RunResumed, RunStarted, ScaleDecided
from areal_actors.scaling.balance import SHORT, Recommendation, mean_load, recommend
from areal_bus.message import Message

UP_WINDOWS, DOWN_WINDOWS = 2, 4
"""Windows in a row before an increase, and before a decrease."""
GAIN = 1.05
"""Least factor by which an increase has to raise the share of the time in which the trainer is busy."""
PENDING_SECONDS = 600.0
"""Time after which workers that did not come, or did not leave, are no longer waited for."""


@dataclass
class _Trial:
    """An increase whose effect is not known yet."""

    role: str
    before: int
    busy: float
    """Share of the time in which the trainer was busy before it."""


@dataclass
class Decider:
    """Receives the events of a log in order, with their times in seconds of any clock."""

    settings: AutoscaleSettings
    windows: list[LoadMeasured] = field(default_factory=list)
    """Last windows with the same workers."""
    pending: ScaleDecided | None = None
    """Decision whose workers do not serve yet."""
    decided_at: float = float("-inf")
    added: dict[str, int] = field(default_factory=dict)
    """Workers that decisions have added, by role: only these can be removed again."""
    too_few: dict[str, int] = field(default_factory=dict)
    """Largest number of workers of a role that was too small."""
    useless: dict[str, int] = field(default_factory=dict)
    """Number of workers of a role beyond which more did not help."""
    trial: _Trial | None = None

    def is_trying(self) -> bool:
        """Returns True if workers come or go, or the effect of more of them is awaited."""
        return self.pending is not None or self.trial is not None

    def receive(self, message: Message, time: float) -> ScaleDecided | None:
        """Fold an event; returns the decision that follows from it, which counts when it is received itself."""
        match message:
            case RunStarted() | RunResumed():
                self.__init__(self.settings)  # type: ignore[misc]  # the workers of an earlier launch are gone
            case ScaleDecided():
                self._note_decision(message, time)
            case LoadMeasured() if self.settings.enabled:
                return self._decide(message, time)
        return None

    def _note_decision(self, decision: ScaleDecided, time: float) -> None:
        role, judged = decision.role, mean_load(self.windows[-UP_WINDOWS:])
        self.added[role] = self.added.get(role, 0) + decision.workers - decision.before
        if decision.workers > decision.before:
            self.too_few[role] = max(self.too_few.get(role, 0), decision.before)
            self.trial = _Trial(role, decision.before, 1 - judged.trainer_waits if judged else 0.0)
        elif self.trial is not None and self.trial.role == role:
            self.useless[role] = decision.workers
            self.too_few.pop(role, None)
            self.trial = None
        self.pending, self.decided_at, self.windows = decision, time, []

    def _decide(self, load: LoadMeasured, time: float) -> ScaleDecided | None:
        workers = {role: role_load.workers for role, role_load in load.roles.items()}
        if self.pending is not None:
            arrived = workers.get(self.pending.role) == self.pending.workers
            if not arrived and time < self.decided_at + PENDING_SECONDS:
                return None
            self.pending = None
        if self.windows and {role: one.workers for role, one in self.windows[-1].roles.items()} != workers:
            self.windows = []
        self.windows = [*self.windows[1 - DOWN_WINDOWS :], load]
        if time < self.decided_at + self.settings.cooldown_seconds:
            return None
        return self._require_minimum(workers) or self._undone() or self._increase() or self._decrease()

    def _require_minimum(self, workers: Mapping[str, int]) -> ScaleDecided | None:
        """Returns the decision for a role with fewer workers than its bound."""
        for role, bounds in self.settings.bounds().items():
            if workers.get(role, bounds.min) < bounds.min:
                reason = f"autoscale.{role}.min = {bounds.min}"
                return ScaleDecided(role=role, before=workers[role], workers=bounds.min, reason=reason)
        return None

    def _undone(self) -> ScaleDecided | None:
        """Returns the decision to undo the last increase, if it did not help; ends its trial if it did."""
        trial, load = self.trial, mean_load(self.windows[-UP_WINDOWS:])
        if trial is None or load is None or len(self.windows) < UP_WINDOWS:
            return None
        busy = 1 - load.trainer_waits
        if load.trainer_waits <= SHORT or busy >= trial.busy * GAIN:
            self.trial = None
            return None
        now = load.roles[trial.role].workers
        reason = (
            f"{now - trial.before} more did not help: the trainer is busy in {busy:.0%} of the time, before in"
            f" {trial.busy:.0%}"
        )
        decision = self._within(trial.role, now, trial.before, reason)
        if decision is None:
            self.trial = None
        return decision

    def _increase(self) -> ScaleDecided | None:
        return self._following(UP_WINDOWS, lambda recommendation: recommendation.change() > 0)

    def _decrease(self) -> ScaleDecided | None:
        return self._following(DOWN_WINDOWS, lambda recommendation: recommendation.change() < 0)

    def _following(self, windows: int, wanted: Callable[[Recommendation], bool]) -> ScaleDecided | None:
        """Returns the first change of this direction that the bounds permit and the last windows recommend.

        Each window and their mean have to recommend it.
        """
        last = self.windows[-windows:]
        load = mean_load(last)
        if load is None or len(last) < windows:
            return None
        each = [
            {recommendation.role for recommendation in recommend(window) if wanted(recommendation)} for window in last
        ]
        for one in recommend(load):
            if wanted(one) and all(one.role in roles for roles in each):
                decision = self._within(one.role, one.workers, one.recommended, one.reason)
                if decision is not None:
                    return decision
        return None

    def _within(self, role: str, before: int, workers: int, reason: str) -> ScaleDecided | None:
        """Returns the decision within the bounds; None if they leave nothing to change."""
        bounds = self.settings.bounds().get(role)
        if bounds is None:
            return None
        if workers > before:
            allowed = max(min(workers, bounds.max, self.useless.get(role, workers)), before)
        else:
            least = max(
                bounds.min, before - self.added.get(role, 0), self.too_few.get(role, 0) + 1 if self.trial is None else 0
            )
            allowed = min(max(workers, least), before)
        return ScaleDecided(role=role, before=before, workers=allowed, reason=reason) if allowed != before else None
