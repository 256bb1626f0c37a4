"""Raises limits of the staleness gate where that helps (`[autopilot]`).

A fold over loads, decisions and steps, and after a resume over a heartbeat of the gate. After each window the one thing
that limits the run is looked for, as `areal-actors why` does. If its advice is to raise a limit that the recipe lets
the run choose, the limit is raised: unless the log shows that too little can be gained, or that the steps would drift
too far. A change after which the trainer is not busier is taken back in the next window, unless the other limit holds
the run back as well: then both are raised before they are judged. What did not help is not tried again before another
change has helped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from areal_actors.messages import (
    Heartbeat,
    LimitDecided,
    LoadMeasured,
    OffPolicyChanged,
    RunResumed,
    RunStarted,
    ScaleDecided,
    StepCompleted,
)
from areal_actors.recipe.recipe import Recipe
from areal_actors.scaling.balance import SHORT
from areal_actors.scaling.decisions import GAIN
from areal_actors.scaling.limit import find_limit
from areal_bus.message import Message

Setting = Literal["max_staleness", "max_concurrent"]
GATE = "staleness_gate"
SETTINGS: tuple[Setting, ...] = ("max_staleness", "max_concurrent")
BOUNDS: Mapping[Setting, str] = {"max_staleness": "staleness", "max_concurrent": "concurrency"}
"""Name of the bound that each setting is, in the gate's status."""
FACTOR = 2
"""Factor by which `max_concurrent` grows."""


class _LimitTrial(NamedTuple):
    """Changes whose effect is not known yet: of one limit, or of both where one alone showed none."""

    limits: Mapping[Setting, int]
    """Limits before them."""
    busy: float
    """Share of the time in which the trainer was busy before them."""
    raised: tuple[Setting, ...]


@dataclass
class Autopilot:
    """Receives the events and heartbeats of a run in order."""

    recipe: Recipe
    limits: dict[Setting, int] = field(init=False)
    """Limits now, of the settings that the run may choose."""
    highest: dict[Setting, int] = field(init=False)
    """Limits of the recipe, or those beyond which steps drifted."""
    most: dict[Setting, int] = field(init=False)
    """Limits beyond which more did not help."""
    trial: _LimitTrial | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last step."""
    back: list[LimitDecided] = field(default_factory=list)
    """Further changes that are to be taken back."""
    has_limits: bool = True
    """False until the gate of a resumed run has shown its limits, which outlive an interrupted run."""

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        lowest, gate = self.recipe.autopilot.lowest(), self.recipe.staleness_gate
        self.limits = {setting: lowest[setting] for setting in SETTINGS if setting in lowest}
        concurrent = gate.most_concurrent(self.recipe.trainer.batch_size)
        self.highest = {"max_staleness": gate.max_staleness, "max_concurrent": concurrent}
        self.most, self.trial, self.back = dict(self.highest), None, []

    def is_trying(self) -> bool:
        """Returns True if the effect of a change is awaited, so that nothing else should change."""
        return self.trial is not None

    def receive(self, message: Message) -> LimitDecided | None:
        """Fold a message; returns the decision that follows, which counts when it is received itself."""
        if not self.limits:
            return None
        match message:
            case RunStarted() | RunResumed():
                self._begin()
                self.has_limits = isinstance(message, RunStarted)
            case Heartbeat() if message.actor.startswith(GATE) and not self.has_limits:
                self.limits = {name: int(message.status.get(name, limit)) for name, limit in self.limits.items()}
                self.has_limits = True
            case LimitDecided():
                self.limits = {**self.limits, message.setting: message.value}
                return self.back.pop() if self.back else None
            case ScaleDecided():
                self.trial = None  # what follows has two causes
            case StepCompleted():
                self.metrics = message.metrics
            case OffPolicyChanged() if self._has_drifted(message):
                return self._step_back(message)
            case LoadMeasured() if self.has_limits:
                return self._judge(message) if self.trial else self._raise(message)
        return None

    def _has_drifted(self, event: OffPolicyChanged) -> bool:
        """Returns True if steps are too far from the weights that sampled, whatever the guard does about it."""
        drift = self.recipe.staleness_gate.guard.drift_sentences(self.metrics)
        return event.max_staleness < event.before or (bool(event.outside) and any(drift))

    def _step_back(self, event: OffPolicyChanged) -> LimitDecided | None:
        """Returns the decision for one version less, since steps are off policy with the bound of now."""
        if (now := self.limits.get("max_staleness", 0)) <= (self.recipe.autopilot.min_staleness or 0):
            return None
        self.highest["max_staleness"] = self.most["max_staleness"] = now - 1
        self.trial, self.back = None, []
        reason = f"step {event.step} is off policy: {'; '.join(event.outside)}"
        return LimitDecided(setting="max_staleness", before=now, value=now - 1, reason=reason)

    def _judge(self, load: LoadMeasured) -> LimitDecided | None:
        """Returns what follows from the effect of the last change: the next one, or that it is taken back."""
        trial, busy = self.trial, 1.0 - load.trainer_waits
        assert trial is not None
        if load.trainer_waits <= SHORT or busy >= trial.busy * GAIN:
            self.trial, self.most = None, dict(self.highest)  # what did not help alone may help now
            return self._raise(load)
        if len(trial.raised) == 1 and busy * GAIN > trial.busy and (both := self._raise(load)) is not None:
            return both
        self.trial = None
        share = f"the trainer is busy in {busy:.0%} of the time, before in {trial.busy:.0%}"
        for setting in trial.raised:
            now, before = self.limits[setting], trial.limits[setting]
            self.most[setting] = before
            reason = f"{now} did not help: {share}"
            self.back.append(LimitDecided(setting=setting, before=now, value=before, reason=reason))
        return self.back.pop()

    def _raise(self, load: LoadMeasured) -> LimitDecided | None:
        """Returns the decision that follows the advice for this load; None where there is none.

        During a trial it is one about the limit that was not raised yet.
        """
        gate = msgspec.structs.replace(self.recipe.staleness_gate, **self.limits)
        found = find_limit(load, (), msgspec.structs.replace(self.recipe, staleness_gate=gate))
        if (advised := found.raises) is None:
            return None
        trial = self.trial or _LimitTrial(self.limits, 1.0 - load.trainer_waits, ())
        for setting in sorted(self.limits, key=lambda name: name != advised.setting):
            now, value, gain = self.limits[setting], self._next_value(setting), self._most_gain(setting, load)
            is_possible = setting not in trial.raised and value > now and gain >= trial.busy * (GAIN - 1.0)
            if is_possible and not (setting == "max_staleness" and self._drifts(now)):
                self.trial = trial._replace(raised=(*trial.raised, setting))
                return LimitDecided(
                    setting=setting, before=now, value=value, reason=found.sentence, most_gain=round(gain, 3)
                )
        return None

    def _next_value(self, setting: Setting) -> int:
        """Returns the next value of a limit, which is that of now where it cannot be raised."""
        now = self.limits[setting]
        if setting == "max_staleness":
            return min(now + 1, self.most[setting])
        staleness = self.limits.get("max_staleness", self.recipe.staleness_gate.max_staleness)
        ahead = (staleness + 1) * self.recipe.trainer.batch_size
        return max(min(now * FACTOR, self.most[setting], ahead), now)

    def _most_gain(self, setting: Setting, load: LoadMeasured) -> float:
        """Returns the share of the time that the limit can have cost."""
        takes_turns = setting == "max_staleness" and self.limits[setting] == 0
        return load.trainer_waits * (1.0 if takes_turns else load.bounds.get(BOUNDS[setting], 0.0))

    def _drifts(self, staleness: int) -> bool:
        """Returns True if steps would be off policy with one version more.

        Their distances are taken to grow with the number of versions.
        """
        factor = (staleness + 2) / (staleness + 1)
        expected = dict(self.metrics)
        if (divergence := expected.get("approx_kl")) is not None:
            expected["approx_kl"] = divergence * factor
        if (size := expected.get("effective_sample_size")) is not None:
            expected["effective_sample_size"] = 1.0 - (1.0 - size) * factor
        return any(self.recipe.staleness_gate.guard.drift_sentences(expected))
