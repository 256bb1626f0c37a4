"""The table `[watchdog]` of a recipe, which the supervisor and the trainer read."""

from __future__ import annotations

from typing import Literal

from areal_actors.core.config import Config, Fraction, PositiveFloat, PositiveInt

QUIET_SECONDS, QUIET_PARTS = 3.0, 5.0
"""Longest interval between two heartbeats without news, and how many of them `heartbeat_seconds` has at least."""


class WatchdogSettings(Config):
    """`[watchdog]`: deadlines of starting, saving, loading and stopping, and of a run without progress.

    Seconds in which the supervisor itself was paused, or nats-server did not answer it, do not count, except for
    `bus_seconds`.
    """

    stall_seconds: PositiveFloat = 60.0
    """Seconds without progress after which the waits of every actor are reported."""
    heartbeat_seconds: PositiveFloat = 20.0
    """Seconds without a heartbeat from one of its actors after which a process is killed and restarted."""
    max_failures_in_a_row: PositiveInt = 64
    """Number of episodes in a row abandoned after all retries, with none exported between them, after which the run
    stops."""
    max_rejections_in_a_row: PositiveInt = 1024
    """Number of attempts in a row rejected (`should_accept`, or an agent that returned None), with none exported
    between them, after which the run stops."""
    engine_mismatch: Literal["recycle", "alarm", "off"] = "recycle"
    """Action on a training-inference mismatch, when log-probabilities recorded by an inference worker differ from the
    trainer's (`trainer.logprob_check_sequences` are checked): `alarm` reports it; `recycle` also recreates the worker's
    engine."""
    mismatch_kl: PositiveFloat = 0.05
    """Maximum KL(engine ‖ trainer) of a worker's tokens in a step, in nats per token; typically below 0.001 in float32
    and below 0.01 in bfloat16."""
    mismatch_vetoed_frac: Fraction = 0.01
    """Maximum share of a worker's tokens in a step that differ by more than 9.2 nats."""
    mismatch_steps: PositiveInt = 3
    """Number of steps in a row beyond one of these limits that raise the alarm."""
    start_seconds: PositiveFloat = 120.0
    """Seconds without progress (CPU time, disk reads) after which a starting process is killed and restarted, until all
    its actors serve. The limit for any start is ten times this value."""
    save_seconds: PositiveFloat = 300.0
    """Maximum wait, in seconds, for the last checkpoint of a run that is interrupted or ended early."""
    stop_seconds: PositiveFloat = 8.0
    """Seconds after SIGTERM after which a process that has not stopped is killed."""
    load_seconds: PositiveFloat = 300.0
    """Maximum duration, in seconds, of loading weights into an inference engine, including its creation; beyond it the
    worker fails."""
    bus_seconds: PositiveFloat = 60.0
    """Seconds without an answer of nats-server to the supervisor after which the run ends."""
    max_stall_seconds: PositiveFloat = 3600.0
    """Seconds without progress (a trained step, a checkpoint, an evaluated episode, a kept trajectory, a step of a
    trainer phase) after which the run ends."""
    max_discarded_batches: PositiveInt = 16
    """Number of batches of complete groups, dropped as too old or incomplete since the last trained step and for at
    least `stall_seconds`, after which the run ends. `batcher.max_filtered_batches` is the limit for filtered groups."""

    def quiet_seconds(self) -> float:
        """Returns the interval between two heartbeats of an actor about which there is nothing new.

        Several of them fit into `heartbeat_seconds`.
        """
        return max(float(min(QUIET_SECONDS, self.heartbeat_seconds / QUIET_PARTS) // 1), 1.0)
