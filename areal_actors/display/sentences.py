"""Formats events as one sentence each, for the live view, the monitor and the summary."""

from __future__ import annotations

from areal_actors.messages import BatchRefused, BusRestarted, CheckpointDamaged, EngineMismatch, LogRecovered, StepDiffered


def refused_batch(event: BatchRefused) -> str:
    """Returns the first cause in a refused batch."""
    if event.cause:
        return f"step {event.step + 1}: {event.cause}"
    first = event.rows[0]
    place = f"row {first.row} of episode {first.episode}" if first.row >= 0 else f"episode {first.episode}"
    return f"step {event.step + 1}: {place}: {first.cause}"


def damaged_checkpoint(event: CheckpointDamaged) -> str:
    """Returns the damage of a checkpoint, its new folder, and the checkpoint used instead."""
    instead = f"the checkpoint of step {event.weight_version}" if event.weight_version else "the first weights and the whole log"
    aside = f", set aside as {event.folder}" if event.folder else ""
    return f"checkpoint of step {event.step} damaged{aside}; went back to {instead}: {event.reason}"


def differed_step(event: StepDiffered) -> str:
    """Returns both checksums of a repeated step, and why they may differ."""
    return f"step {event.step} repeated has {event.found[:16]}, the log has {event.logged[:16]}: {event.reason}"


def mismatch(event: EngineMismatch) -> str:
    """Returns the worker that disagrees with the trainer, the size and the worst place of the mismatch, and the reaction."""
    worker = event.worker or "an inference worker (which one is not recorded)"
    vetoed = f" and {event.vetoed_frac:.1%} of tokens vetoed" if event.vetoed_frac else ""
    done = "its engine is recycled" if event.recycle else "no action is taken"
    return (
        f"{worker}: KL {event.kl:.3g} nats per token{vetoed}, {event.steps} steps in a row, worst token {event.token} of episode "
        f"{event.episode} (engine {event.recorded_logprob:.3f}, trainer {event.trainer_logprob:.3f}); {done}"
    )


def bus_outages(outages: list[BusRestarted]) -> list[str]:
    """Returns the number of nats-server restarts, the longest outage, and the last reason; empty if none."""
    if not outages:
        return []
    last = outages[-1]
    times = "once" if len(outages) == 1 else f"{len(outages)} times"
    return [f"nats-server restarted {times}, down for at most {max(one.seconds for one in outages):.1f} s; last: {last.reason}"]


def log_recovered(event: LogRecovered) -> str:
    """Returns the damage of the log, and what was set aside."""
    aside = f"; set aside: {', '.join(event.set_aside)}" if event.set_aside else ""
    return f"log recovered: {event.damage}, {event.lost} events lost{aside}"
