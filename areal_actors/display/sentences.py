"""Formats events as one sentence each, for the live view, the monitor and the summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from areal_actors.messages import (
    ActorFailed,
    BatchRefused,
    BestCheckpointChosen,
    BusRestarted,
    CandidateDecided,
    CandidatePublished,
    CheckpointCommitted,
    CheckpointDamaged,
    CompletionRefused,
    ConcurrencyChanged,
    ConversationsLimited,
    DiskLow,
    EngineInexact,
    EngineLost,
    EngineMismatch,
    EpisodeAbandoned,
    EvaluationCompleted,
    EventLoopBlocked,
    ExamplesDropped,
    FaultInjected,
    FilterExhausted,
    JudgeCalibrated,
    LimitDecided,
    LogRecovered,
    LogTrimmed,
    LossEvaluated,
    OffPolicyChanged,
    PoolsMeasured,
    RunFinished,
    RunForked,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    ScaleDecided,
    SnapshotRefused,
    SourcesChanged,
    StepCompleted,
    StepDiffered,
    ToolsRefused,
    TrainerRolledBack,
    TrainingHalted,
    WeightTransferRefused,
    WorkerJoined,
    WorkerLeft,
)
from areal_actors.messages.episode_ends import EpisodeCounts, abandoned_outcome, is_failure
from areal_actors.rollout.blocked import format_blocked
from areal_actors.sequences.step_metrics import BASELINE_METRIC
from areal_bus.message import Message

ACCURACY = "accuracy"
ROUNDING = 1e-9
MEASURED = ("loss", "accuracy", "margin")
"""Metrics shown for held-out examples; the last two exist only for pairs."""
STEP_METRICS = {
    "reward_mean": "reward {:.3f}",
    "loss": "loss {:.4f}",
    "accuracy": "accuracy {:.3f}",
    "margin": "margin {:.3f}",
    "entropy": "entropy {:.3f}",
    "mean_tokens": "{:.1f} tokens",
    "token_staleness_mean": "staleness mean {:.2f}",
    "token_staleness_max": "max {:.0f}",
    "masked_frac": "{:.1%} masked",
}
"""Metrics in the line of a step, with their formats."""


def plain_line(message: Message) -> str | None:
    """Formats a message as one plain line; returns None for kinds that are not shown."""
    line = LINES.get(type(message))
    return line(message) if line is not None else None


def present(forms: Mapping[str, str], metrics: Mapping[str, float]) -> list[str]:
    """Returns the metrics that have a value, each in its format."""
    return [form.format(metrics[name]) for name, form in forms.items() if name in metrics]


def equal_groups(metrics: Mapping[str, float]) -> str:
    """Returns how many groups of a step have equal rewards, and so no advantage; empty if none has."""
    groups, equal = int(metrics.get("groups", 0)), int(metrics.get("groups_without_signal", 0))
    if not equal:
        return ""
    if equal < groups:
        return f"equal rewards in {equal} of {groups} groups"
    return f"no signal: equal rewards {f'within each of {groups} groups' if groups > 1 else 'in its only group'}"


def role_baselines(metrics: Mapping[str, float]) -> str:
    """Returns the baseline of each role of a step; empty without role-wise baselines."""
    baselines = [
        f"{name.removeprefix(BASELINE_METRIC)} {value:.3f}"
        for name, value in metrics.items()
        if name.startswith(BASELINE_METRIC)
    ]
    return f"baseline of {', '.join(baselines)}" if baselines else ""


def without_credit(metrics: Mapping[str, float]) -> str:
    """Returns how many calls of a step no reward reaches under the recipe's discount; empty if none."""
    calls = int(metrics.get("calls_without_credit", 0))
    return f"no reward follows {count_of(calls, 'call')}, trained with 0 (docs/rewards.md)" if calls else ""


def model_ends_text(counts: EpisodeCounts) -> str:
    """Returns how many exported episodes the model itself ended, by its deed; empty if there are none."""
    deeds, episodes = counts.model_ends, counts.exported
    count = sum(deeds.values())
    causes = ", ".join(f"{deed} ({number})" for deed, number in most_common(deeds))
    return (
        f"the model itself ended {count} of {count_of(episodes, 'episode')} ({count / max(episodes, 1):.0%}): {causes}"
        if count
        else ""
    )


def set_aside(counts: EpisodeCounts) -> str:
    """Returns the episodes that are not trained because the recipe asks for it, which is no failure.

    Empty if there are none.
    """
    numbers = (
        (counts.surplus(), "surplus (staleness_gate.surplus_groups)"),
        (counts.dropped.get("filtered", 0), "filtered (batcher)"),
        (counts.rejected, "rejected by the recipe"),
    )
    parts = [f"{number:,} {meaning}" for number, meaning in numbers if number]
    return f"episodes set aside, no failures: {', '.join(parts)}" if parts else ""


def most_common(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns names with their counts, largest first."""
    return sorted(counts.items(), key=lambda item: -item[1])


def count_of(number: int, thing: str) -> str:
    """Returns `1 episode`, `2 episodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Formats seconds: `45 s`, `3 min 20 s`, `2:05 h`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d} h"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def refused_batch(event: BatchRefused) -> str:
    """Returns the first cause in a refused batch."""
    if event.cause:
        return f"step {event.step + 1}: {event.cause}"
    first = event.sequences[0]
    place = (
        f"sequence {first.sequence} of episode {first.episode}" if first.sequence >= 0 else f"episode {first.episode}"
    )
    return f"step {event.step + 1}: {place}: {first.cause}"


def best_checkpoint(chosen: BestCheckpointChosen) -> str:
    """Returns the best checkpoint so far, with its metric."""
    return f"step {chosen.step}, {chosen.metric} {chosen.value:.3f} on held-out data: {chosen.folder}"


def left_out_text(event: ExamplesDropped) -> str:
    """Returns the number of examples that were too long."""
    dropped = (
        f"{count_of(event.dropped, 'example')} and {event.held_out_dropped} held out, longer than {event.limit:,}"
        " tokens"
    )
    return f"{dropped}; {event.left:,} are left"


def without_score(event: EvaluationCompleted) -> str:
    """Returns the number of failed episodes, as a suffix; empty if there are none."""
    return f", {event.failed} without a score" if event.failed else ""


def bus_outages(outages: list[BusRestarted]) -> list[str]:
    """Returns the number of nats-server restarts, the longest outage, and the last reason; empty if none."""
    if not outages:
        return []
    last = outages[-1]
    times = "once" if len(outages) == 1 else f"{len(outages)} times"
    what = "NATS cluster changed" if last.leader else "nats-server restarted"
    return [f"{what} {times}, down for at most {max(outage.seconds for outage in outages):.1f} s; last: {last.reason}"]


def _bus_restarted(event: BusRestarted) -> str:
    what = "NATS cluster without a leader for" if event.leader else "nats-server restarted after"
    return f"{what} {event.seconds:.1f} s: {event.reason}"


def _damaged_checkpoint(event: CheckpointDamaged) -> str:
    instead = (
        f"the checkpoint of step {event.weight_version}"
        if event.weight_version
        else "the first weights and the whole log"
    )
    aside = f", set aside as {event.folder}" if event.folder else ""
    return f"checkpoint of step {event.step} damaged{aside}; went back to {instead}: {event.reason}"


def _mismatch(event: EngineMismatch) -> str:
    worker = event.worker or "an inference worker (which one is not recorded)"
    vetoed = f" and {event.vetoed_frac:.1%} of tokens vetoed" if event.vetoed_frac else ""
    done = "its engine is recycled" if event.recycle else "no action is taken"
    return (
        f"engine mismatch: {worker}: KL {event.kl:.3g} nats per token{vetoed}, {event.steps} steps in a row, worst"
        f" token {event.token} of episode {event.episode} (engine {event.recorded_logprob:.3f}, trainer"
        f" {event.trainer_logprob:.3f}); {done}"
    )


def _pools(event: PoolsMeasured) -> str:
    totals: dict[str, int] = {}
    for sizes in event.pools.values():
        for pool, size in sizes.items():
            totals[pool] = totals.get(pool, 0) + size
    counts = ", ".join(f"{size:,} {pool}" for pool, size in totals.items())
    return f"tasks when step {event.step} was formed: {counts}; {event.returned:,} draws of returned ones"


def _log_recovered(event: LogRecovered) -> str:
    aside = f"; set aside: {', '.join(event.set_aside)}" if event.set_aside else ""
    return f"log recovered: {event.damage}, {event.lost} events lost{aside}"


def _step(event: StepCompleted) -> str:
    share = event.metrics.get("ended_by_model", 0.0)
    ended = f"{share:.0%} ended by the model" if share else ""
    parts = (
        *present(STEP_METRICS, event.metrics),
        role_baselines(event.metrics),
        ended,
        equal_groups(event.metrics),
        without_credit(event.metrics),
    )
    return f"step {event.step}: {', '.join(filter(None, parts))}"


def _evaluation(event: EvaluationCompleted) -> str:
    metrics = "".join(f", {name} {mean:.3g}" for name, mean in event.reward_metrics.items())
    measure, (value,) = held_out_scores([event])
    measured = f"{value:.3f}" if measure == ACCURACY else f"{measure} {value:.3f}"
    scored = f"{measured} of {event.tasks} tasks{without_score(event)}, {event.mean_tokens:.1f} tokens{metrics}"
    return f"held out at step {event.weight_version}, {event.mode}: {scored}"


def _losses(event: LossEvaluated) -> str:
    measured = ", ".join(f"{name} {event.metrics[name]:.4f}" for name in MEASURED if name in event.metrics)
    return f"held out at step {event.weight_version}: {measured} of {event.examples} examples"


def _describe_abandoned(event: EpisodeAbandoned) -> str:
    if not is_failure(event):
        return f"episode {event.work.episode} {abandoned_outcome(event.reason)}: {event.detail}"
    last = "given up" if event.work.attempts_left == 0 else f"attempt {event.work.attempt}"
    return f"episode {event.work.episode} abandoned ({last}) by {event.reason}: {event.detail}"


def _off_policy(event: OffPolicyChanged) -> str:
    sentence = (
        f"step {event.step} is off policy, {'; '.join(event.outside)}"
        if event.outside
        else f"steps to {event.step} are on policy"
    )
    return (
        sentence
        if event.max_staleness == event.before
        else f"{sentence}: staleness bound {event.before} → {event.max_staleness}"
    )


def _describe_refused_batch(event: BatchRefused) -> str:
    outcome = (
        f"trained on {count_of(event.trained_sequences, 'sequence')}"
        if event.trained_sequences
        else "skipped, weights unchanged"
    )
    return f"batch refused, {count_of(len(event.sequences), 'sequence')} left out, {outcome}: {refused_batch(event)}"


def _describe_rollback(event: TrainerRolledBack) -> str:
    reason = event.reason.partition("\n")[0]
    return f"trainer rolled back to step {event.weight_version} and repeats the steps to {event.step}: {reason}"


Sentence = Callable[[Any], str]

FAULTS: Mapping[type[Message], Sentence] = {
    CheckpointDamaged: _damaged_checkpoint,
    StepDiffered: lambda it: f"step {it.step} repeated has {it.found[:16]}, the log has {it.logged[:16]}: {it.reason}",
    DiskLow: lambda it: f"disk nearly full: {it.reason}",
    EngineInexact: lambda it: f"{it.worker}: {it.finding}",
    EngineMismatch: _mismatch,
    EngineLost: lambda it: f"inference server of {it.worker} lost: {it.reason.partition(chr(10))[0]}",
    WeightTransferRefused: lambda it: (
        f"weight version {it.weight_version} came to {it.worker} as a folder: {it.reason.partition(chr(10))[0]}"
    ),
    LogRecovered: _log_recovered,
}
"""Faults that the live view and the summary count by their sentence."""

LINES: Mapping[type[Message], Sentence] = {
    **FAULTS,
    RunStarted: lambda it: f"run started, profile {it.profile or 'none'}: {it.reason}; files in {it.folder}",
    RunForked: lambda it: (
        f"fork of {it.parent} at step {it.step}, {it.reason or 'with the same settings'}; {it.prefix:,} events are"
        f" shared, {it.reused:,} later episodes are reused"
    ),
    RunResumed: lambda it: f"run resumed{f', {it.reason}' if it.reason else ''}; files in {it.folder}",
    StepCompleted: _step,
    EvaluationCompleted: _evaluation,
    LossEvaluated: _losses,
    EpisodeAbandoned: _describe_abandoned,
    ToolsRefused: lambda it: f"requests with tools are refused for {it.model}: {it.reason}",
    CompletionRefused: lambda it: f"completion of {it.worker} refused in episode {it.episode}: {it.cause}",
    BatchRefused: _describe_refused_batch,
    OffPolicyChanged: _off_policy,
    SourcesChanged: lambda it: (
        f"source {it.source} has reached its success rate; group {it.first_group} and later ones are of"
        f" {', '.join(it.weights)}"
    ),
    PoolsMeasured: _pools,
    ConcurrencyChanged: lambda it: f"groups at once: {it.groups}, before {it.before}: {it.reason}",
    LimitDecided: lambda it: f"staleness_gate.{it.setting}: {it.value}, before {it.before}: {it.reason}",
    ScaleDecided: lambda it: f"{it.role}: {it.workers} workers, before {it.before}: {it.reason}",
    TrainingHalted: lambda it: f"training halted: {it.reason}",
    EventLoopBlocked: format_blocked,
    ActorFailed: lambda it: f"actor {it.actor} failed: {it.reason}",
    WorkerJoined: lambda it: f"{it.worker} of {it.host} has joined",
    WorkerLeft: lambda it: f"{it.worker} has left{f': {it.reason}' if it.reason else ''}",
    BusRestarted: _bus_restarted,
    FaultInjected: lambda it: f"fault injected, {it.kind} of {it.target}: {it.detail}",
    RunStalled: lambda it: f"stalled: {it.sentence}",
    CheckpointCommitted: lambda it: f"checkpoint of step {it.step} saved: {it.folder}",
    BestCheckpointChosen: lambda it: f"best checkpoint: {best_checkpoint(it)}",
    LogTrimmed: lambda it: (
        f"log trimmed: it now begins at event {it.first:,}"
        + (it.occasion() if it.before else f"; the run can be resumed from step {it.step} or later")
    ),
    ConversationsLimited: lambda it: it.sentence(),
    CandidatePublished: lambda it: it.sentence(),
    CandidateDecided: lambda it: it.sentence(),
    SnapshotRefused: lambda it: (
        f"snapshot of {it.fold} refused, restored after event {it.restored:,} instead: {it.reason}"
    ),
    TrainerRolledBack: _describe_rollback,
    JudgeCalibrated: lambda it: it.sentence(),
    ExamplesDropped: lambda it: f"left out: {left_out_text(it)}",
    FilterExhausted: lambda it: f"nothing left to learn from: {it.reason}",
    RunStopping: lambda it: f"stopping: {it.reason}",
    RunFinished: lambda it: (
        f"ended early after {it.steps} steps: {it.error}" if it.error else f"finished after {it.steps} steps"
    ),
}
"""Kinds of messages that are shown as one line each."""


def held_out_scores(evaluations: Sequence[EvaluationCompleted]) -> tuple[str, list[float]]:
    """Returns what evaluations of one mode measure, and its values.

    Accuracy where all rewards are 0 or 1, otherwise the mean reward.
    """
    is_reward = any(abs(evaluation.accuracy - evaluation.reward_mean) > ROUNDING for evaluation in evaluations)
    is_reward &= any(one.reward_mean for one in evaluations)  # earlier versions did not write it
    return (
        ("mean reward", [one.reward_mean for one in evaluations])
        if is_reward
        else (ACCURACY, [one.accuracy for one in evaluations])
    )
