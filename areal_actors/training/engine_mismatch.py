"""Engine mismatch monitor.

Raises an alarm and recycles the engine if a worker's log-probabilities differ from the trainer's.
The trainer rescores a sample of the tokens of each step under the weights that sampled them (`mismatch_kl_k3/WORKER`
and related metrics). Equal weights give equal log-probabilities up to rounding, whatever their age, so a persistent
divergence means a broken engine: wrong or damaged weights, a stale KV cache, another temperature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from areal_actors.core.values import TrainingSequence
from areal_actors.core.watchdog_settings import WatchdogSettings
from areal_actors.messages import EngineMismatch
from areal_actors.sequences.step_metrics import REWARD_METRIC_PREFIXES

MAX_RECYCLES = 3
"""Maximum number of engine recycles per worker; a fault that persists has another cause and is only reported."""
KL = "mismatch_kl_k3"
PARTS = (
    KL,
    "mismatch_vetoed_frac",
    "mismatch_worst_sequence",
    "mismatch_worst_position",
    "mismatch_worst_logprob",
    "parity_tokens",
)
"""Per-worker metrics, as `NAME/WORKER`."""


def reported_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics of a step with those of single rewards, and of each worker only the divergence."""
    kept = (f"{KL}/", REWARD_METRIC_PREFIXES[0])
    return {name: value for name, value in metrics.items() if "/" not in name or name.startswith(kept)}


class EngineMonitor:
    """Counts consecutive steps in which the log-probabilities of a worker differ too much from the trainer's."""

    def __init__(self, settings: WatchdogSettings, max_staleness: int) -> None:
        self.settings = settings
        self.quiet_steps = max_staleness + 1
        """Number of steps after an alarm whose tokens the faulty engine may still have sampled."""
        self._bad_steps: Counter[str] = Counter()
        self._recycled: Counter[str] = Counter()
        self._quiet_until: dict[str, int] = {}

    def complete_step(
        self, step: int, sequences: Sequence[TrainingSequence], metrics: Mapping[str, float]
    ) -> list[EngineMismatch]:
        """Returns the alarms of a step, one per worker with a persistent mismatch.

        Args:
            step: weight version that the step was trained on.
            sequences: sequences of the step.
            metrics: metrics of the step and of each worker; if no worker is recorded, all tokens count as those of
                worker "".
        """
        if self.settings.engine_mismatch == "off" or KL not in metrics:
            return []
        workers = [name.partition("/")[2] for name in metrics if name.startswith(f"{KL}/")] or [""]
        return [alarm for worker in workers if (alarm := self._alarm(step, worker, sequences, metrics)) is not None]

    def _alarm(
        self, step: int, worker: str, sequences: Sequence[TrainingSequence], metrics: Mapping[str, float]
    ) -> EngineMismatch | None:
        if step < self._quiet_until.get(worker, 0):
            return None
        kl, vetoed, sequence, position, logprob, tokens = (
            metrics[f"{name}/{worker}" if worker else name] for name in PARTS
        )
        if kl <= self.settings.mismatch_kl and vetoed <= self.settings.mismatch_vetoed_frac:
            self._bad_steps[worker] = 0
            return None
        self._bad_steps[worker] += 1
        if self._bad_steps[worker] < self.settings.mismatch_steps:
            return None
        recycle = self.settings.engine_mismatch == "recycle" and self._recycled[worker] < MAX_RECYCLES
        self._recycled[worker] += recycle
        steps, self._bad_steps[worker] = self._bad_steps[worker], 0
        self._quiet_until[worker] = step + 1 + self.quiet_steps
        worst = sequences[int(sequence)]
        return EngineMismatch(
            step=step,
            worker=worker,
            kl=kl,
            vetoed_frac=vetoed,
            tokens=int(tokens),
            steps=steps,
            recycle=recycle,
            episode=worst.episode,
            position=int(position),
            token=int(worst.token_ids[int(position)]),
            recorded_logprob=float(worst.logprobs[int(position)]),
            trainer_logprob=logprob,
        )
