"""The live display of a run in a terminal, and plain lines per event elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Literal

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import bus_outages, damaged_checkpoint, differed_step, log_recovered, mismatch, refused_batch
from areal_actors.display.throughput import busy_share, tokens_per_second
from areal_actors.display.waiting import waiting_summary
from areal_actors.messages import (
    ActorFailed,
    BatchRefused,
    BestCheckpointChosen,
    BusRestarted,
    CheckpointCommitted,
    CheckpointDamaged,
    CompletionRefused,
    DiskLow,
    EngineMismatch,
    EpisodeAbandoned,
    EvaluationCompleted,
    EventLoopBlocked,
    ExamplesDropped,
    FaultInjected,
    FilterExhausted,
    Heartbeat,
    LogRecovered,
    LogTrimmed,
    LossEvaluated,
    RunFinished,
    RunResumed,
    RunStalled,
    RunStarted,
    RunStopping,
    SnapshotRefused,
    StepCompleted,
    StepDiffered,
    TrainerProgress,
    TrainerRolledBack,
    TrainingHalted,
)
from areal_actors.rollout.blocked import format_blocked
from areal_actors.sequences.step_metrics import REWARD_METRIC
from bus.base import Envelope
from bus.message import Message

MODES: tuple[Literal["sampled", "greedy"], ...] = ("sampled", "greedy")
MEASURED = ("loss", "accuracy", "margin")
"""Metrics shown for held-out examples; the last two exist only for pairs."""
WINDOW_SECONDS = 30.0
"""Window of the displayed throughput."""
SPARK_WIDTH = 32
BARS = "▁▂▃▄▅▆▇█"
MEBIBYTE = 2**20


class RunView:
    """The live display of a run; feed it envelopes, print what `render` returns."""

    def __init__(self) -> None:
        self.state = RunState()

    def receive(self, envelope: Envelope) -> Message | None:
        """Fold an event or telemetry; returns it, or None for an unknown kind."""
        return self.state.receive(envelope)

    def render(self) -> RenderableType:
        """Returns the display, legible from 80 columns."""
        state = self.state
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="bold cyan", no_wrap=True)
        facts.add_column(ratio=1)
        for label, value in _facts(state):
            facts.add_row(label, value)
        parts: list[RenderableType] = [facts]
        if state.beats:
            parts.append(_processes(state.beats.values()))
        if state.stalled and not state.finished:
            parts.append(Text(f"Stalled: {state.stalled.sentence}", style="bold red"))
        if state.finished:
            parts.append(_ending(state.finished))
        return Panel(Group(*parts), title=f"areal-actors · {state.run or 'waiting for the run'}", title_align="left", border_style="cyan")


def _facts(state: RunState) -> Iterator[tuple[str, RenderableType]]:
    """Yields the non-empty lines of the display."""
    if state.started:
        yield "profile", Text(f"{state.started.profile}: {state.started.reason}")
    if state.phase:
        yield "phase", _phase(state.phase)
    if state.steps_wanted():
        yield "step", _progress(state)
    for label, text, style in (
        ("reward", _rewards(state.history("reward_mean")), ""),
        ("loss", _rewards(state.history("loss")) if state.learns_from_examples() else "", ""),
        ("held out", "\n".join(filter(None, (*(_accuracy(mode, state.accuracy(mode)) for mode in MODES), *_losses(state)))), ""),
        ("answers", " · ".join(_answers(state)), ""),
        ("staleness", " · ".join(_staleness(state)), ""),
        ("learning", " · ".join(_learning(state)), ""),
        ("speed", " · ".join(_speed(state)), ""),
        ("waiting", "" if state.finished else waiting_summary(state), ""),
        ("left out", left_out(state.examples_dropped) if state.examples_dropped else "", "yellow"),
        ("stopping", "" if state.finished else state.stopping, "yellow"),
        ("failures", _failures(state), "yellow"),
        ("saved", f"step {state.checkpoint.step}, {state.checkpoint.folder}" if state.checkpoint else "", ""),
        ("best", best_checkpoint(state.best_checkpoint) if state.best_checkpoint else "", ""),
    ):
        if text:
            yield label, Text(text, style=style, overflow="fold")


def _rewards(rewards: Sequence[float]) -> str:
    return f"{rewards[-1]:.3f}  {sparkline(rewards)}  from {rewards[0]:.3f}" if rewards else ""


def _losses(state: RunState) -> Iterator[str]:
    """Yields one line for each metric on held-out examples."""
    for name in MEASURED:
        if values := state.held_out(name):
            last = state.losses[-1]
            course = f"{values[0]:.3f} → {values[-1]:.3f}  {sparkline(values)}" if len(values) > 1 else f"{values[0]:.3f}"
            yield f"{name}  {course}  of {last.examples} examples at step {last.weight_version}"


def _phase(phase: TrainerProgress) -> RenderableType:
    metrics = " · ".join(f"{name} {value:.3g}" for name, value in phase.metrics.items())
    if not phase.total:
        return Text(" · ".join(filter(None, [phase.phase, metrics])))
    row = Table.grid(padding=(0, 1))
    row.add_row(f"{phase.phase} {phase.done}/{phase.total}", ProgressBar(total=phase.total, completed=phase.done, width=20), metrics)
    return row


def _progress(state: RunState) -> RenderableType:
    done, wanted = (state.steps[-1].number if state.steps else 0), state.steps_wanted()
    pace, left = state.seconds_per_step(), state.seconds_left()
    times = "" if pace is None or left is None else f"{pace:.1f} s a step, {duration(left)} left"
    row = Table.grid(padding=(0, 1))
    row.add_row(f"{done}/{wanted}", ProgressBar(total=wanted, completed=done, width=20), times)
    return row


def _accuracy(mode: str, evaluations: Sequence[EvaluationCompleted]) -> str:
    if not evaluations:
        return ""
    first, last = evaluations[0], evaluations[-1]
    failed = f", {last.failed} without a score" if last.failed else ""
    if first is last:
        return f"{mode}  {last.accuracy:.3f} of {last.tasks} tasks at step {last.weight_version}{failed}"
    line = sparkline([evaluation.accuracy for evaluation in evaluations])
    return f"{mode}  {first.accuracy:.3f} → {last.accuracy:.3f}  {line}  of {last.tasks} tasks at step {last.weight_version}{failed}"


def _answers(state: RunState) -> list[str]:
    evaluated = state.accuracy("sampled")[-1:]
    tokens, step = state.metric("mean_tokens"), state.steps[-1].metrics if state.steps else {}
    metrics = {name.removeprefix(REWARD_METRIC): mean for name, mean in step.items() if name.startswith(REWARD_METRIC)}
    if tokens is None and evaluated:
        tokens = evaluated[0].mean_tokens
    if not metrics and evaluated:
        metrics = evaluated[0].reward_metrics
    shown = [f"{name} {mean:.3g}" for name, mean in metrics.items()]
    return [*_present(("{:.1f} tokens", tokens)), *shown, *_present(("length bias {:.2f}", state.metric("length_bias")))]


def _staleness(state: RunState) -> list[str]:
    return _present(
        ("mean {:.2f}", state.metric("token_staleness_mean")),
        ("p99 {:.0f}", state.metric("token_staleness_p99")),
        ("max {:.0f}", state.metric("token_staleness_max")),
        ("{:.1%} of tokens masked", state.metric("masked_frac")),
    )


def _learning(state: RunState) -> list[str]:
    return _present(
        ("loss {:.4f}", state.metric("loss")),
        ("entropy {:.3f}", state.metric("entropy")),
        ("gradient {:.3f}", state.metric("grad_norm")),
        ("clipped {:.1%}", state.metric("clip_frac")),
        ("accuracy {:.1%}", state.metric("accuracy")),
        ("margin {:.3f}", state.metric("margin")),
        ("engine and trainer differ by at most {:.1e} in log p", state.metric("train_infer_logprob_diff_max")),
    )


def _speed(state: RunState) -> list[str]:
    window = (max(state.now - WINDOW_SECONDS, min(state.telemetry_since, state.now)), state.now)
    parts = []
    for side in ("generation", "training"):
        recent = [one for one in state.throughputs if one.side == side and one.started + one.seconds > window[0]]
        if recent and window[0] < window[1]:
            parts.append(f"{side} {tokens_per_second(recent):,.0f} tokens/s, busy {busy_share(recent, window):.0%}")
    return parts


def _failures(state: RunState) -> str:
    lines = []
    if state.abandoned:
        reasons = ", ".join(f"{reason} {count}" for reason, count in state.abandoned.most_common())
        counts = f"{counted(state.abandoned.total(), 'attempt')} abandoned ({reasons}), {counted(state.given_up, 'episode')} given up"
        lines.append(f"{counts}; last {state.last_failure}")
    if state.refused:
        lines.append(f"{', '.join(refusals(state))}; last {state.last_refused}")
    if state.last_refused_batch:
        lines.append(f"{refused_rows(state)}; last {state.last_refused_batch}")
    lines += blocked(state)
    lines += [f"{count} × {actor}" for actor, count in state.actor_failures.most_common(3)]
    lines += bus_outages(state.bus_outages)
    if state.injected:
        lines.append(f"{counted(state.injected.total(), 'fault')} injected by chaos: {injected(state)}")
    return "\n".join(line if len(line) <= 240 else f"{line[:240]}…" for line in lines)


def blocked(state: RunState, most: int = 3) -> list[str]:
    """Returns the code lines that blocked other agents longest."""
    worst = sorted(state.blocked.values(), key=lambda one: -one.seconds)
    return [format_blocked(one) for one in worst[:most]]


def refusals(state: RunState) -> list[str]:
    """Returns the number of completions refused by the gateway, for each inference worker."""
    return [f"{counted(count, 'completion')} of {worker} refused" for worker, count in state.refused.most_common()]


def refused_rows(state: RunState) -> str:
    """Returns the number of rows left out of steps, and of steps without an update."""
    return f"{counted(state.refused_rows, 'row')} not trainable, {counted(state.skipped_steps, 'step')} skipped"


def injected(state: RunState) -> str:
    """Returns the faults of `[chaos]`, by kind and target."""
    return ", ".join(f"{count} × {fault}" for fault, count in state.injected.most_common())


def _processes(beats: Iterable[Heartbeat]) -> RenderableType:
    by_process: dict[str, list[Heartbeat]] = defaultdict(list)
    for beat in beats:
        by_process[beat.process].append(beat)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("process", "pid", "CPU s", "peak MiB", "in flight"):
        table.add_column(name, justify="left" if name in ("process", "in flight") else "right", no_wrap=name != "in flight")
    for process, inside in sorted(by_process.items()):
        handling = ", ".join(f"{count} {name}" for beat in inside for name, count in beat.handling.items() if count)
        cpu, memory = max(beat.cpu_seconds for beat in inside), max(beat.peak_memory_bytes for beat in inside)
        table.add_row(process, str(inside[0].pid), f"{cpu:.1f}", f"{memory / MEBIBYTE:,.0f}", handling)
    return table


def _ending(finished: RunFinished) -> Text:
    if finished.error:
        return Text(f"Ended early after {finished.steps} steps: {finished.error}", style="bold red")
    return Text(f"Finished after {finished.steps} steps.", style="bold green")


def best_checkpoint(chosen: BestCheckpointChosen) -> str:
    """Returns the best checkpoint so far, with its metric."""
    return f"step {chosen.step}, {chosen.metric} {chosen.value:.3f} on held-out data: {chosen.folder}"


def left_out(event: ExamplesDropped) -> str:
    """Returns the number of examples that were too long."""
    dropped = f"{counted(event.dropped, 'example')} and {event.held_out_dropped} held out, longer than {event.limit:,} tokens"
    return f"{dropped}; {event.left:,} are left"


def _present(*parts: tuple[str, float | None]) -> list[str]:
    return [form.format(value) for form, value in parts if value is not None]


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Returns a line of bars for a series, scaled from its minimum to its maximum; long series are averaged."""
    size = max(len(values) / width, 1.0)
    edges = [round(n * size) for n in range(min(len(values), width) + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] if high > low else BARS[0] for value in means)


def counted(number: int, thing: str) -> str:
    """Returns `1 episode`, `2 episodes`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Formats seconds: `45 s`, `3 min 20 s`, `2:05 h`."""
    whole = timedelta(seconds=round(seconds))
    minutes, rest = divmod(int(whole.total_seconds()), 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d} h"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plain_line(message: Message) -> str | None:  # noqa: C901, PLR0911, PLR0912 - one return for each kind
    """Formats a message as one plain line; returns None for kinds that are not shown."""
    match message:
        case RunStarted():
            return f"run started, profile {message.profile}: {message.reason}; files in {message.folder}"
        case RunResumed():
            return f"run resumed{f', {message.reason}' if message.reason else ''}; files in {message.folder}"
        case StepCompleted():
            return f"step {message.step}: " + ", ".join(_step_parts(message.metrics))
        case EvaluationCompleted():
            failed = f", {message.failed} without a score" if message.failed else ""
            metrics = "".join(f", {name} {mean:.3g}" for name, mean in message.reward_metrics.items())
            return (
                f"held out at step {message.weight_version}, {message.mode}: {message.accuracy:.3f} of {message.tasks} tasks"
                f"{failed}, {message.mean_tokens:.1f} tokens{metrics}"
            )
        case LossEvaluated():
            measured = ", ".join(f"{name} {message.metrics[name]:.4f}" for name in MEASURED if name in message.metrics)
            return f"held out at step {message.weight_version}: {measured} of {message.examples} examples"
        case EpisodeAbandoned():
            last = "given up" if message.work.attempts_left == 0 else f"attempt {message.work.attempt}"
            return f"episode {message.work.episode} abandoned ({last}) by {message.reason}: {message.detail}"
        case CompletionRefused():
            return f"completion of {message.worker} refused in episode {message.episode}: {message.cause}"
        case BatchRefused():
            outcome = f"trained on {counted(message.trained_rows, 'row')}" if message.trained_rows else "skipped, weights unchanged"
            return f"batch refused, {counted(len(message.rows), 'row')} left out, {outcome}: {refused_batch(message)}"
        case TrainingHalted():
            return f"training halted: {message.reason}"
        case EventLoopBlocked():
            return format_blocked(message)
        case ActorFailed():
            return f"actor {message.actor} failed: {message.reason}"
        case BusRestarted():
            return f"nats-server restarted after {message.seconds:.1f} s: {message.reason}"
        case LogRecovered():
            return log_recovered(message)
        case EngineMismatch():
            return f"engine mismatch: {mismatch(message)}"
        case FaultInjected():
            return f"fault injected, {message.kind} of {message.target}: {message.detail}"
        case RunStalled():
            return f"stalled: {message.sentence}"
        case CheckpointCommitted():
            return f"checkpoint of step {message.step} saved: {message.folder}"
        case CheckpointDamaged():
            return damaged_checkpoint(message)
        case StepDiffered():
            return differed_step(message)
        case DiskLow():
            return f"disk nearly full: {message.reason}"
        case BestCheckpointChosen():
            return f"best checkpoint: {best_checkpoint(message)}"
        case LogTrimmed():
            return f"log trimmed: it now begins at event {message.first:,}; the run can be resumed from step {message.step} or later"
        case SnapshotRefused():
            return f"snapshot of {message.fold} refused, restored after event {message.restored:,} instead: {message.reason}"
        case TrainerRolledBack():
            reason = message.reason.partition("\n")[0]
            return f"trainer rolled back to step {message.weight_version} and repeats the steps to {message.step}: {reason}"
        case ExamplesDropped():
            return f"left out: {left_out(message)}"
        case FilterExhausted():
            return f"nothing left to learn from: {message.reason}"
        case RunStopping():
            return f"stopping: {message.reason}"
        case RunFinished():
            return f"ended early after {message.steps} steps: {message.error}" if message.error else f"finished after {message.steps} steps"
    return None


def _step_parts(metrics: dict[str, float]) -> list[str]:
    return _present(
        ("reward {:.3f}", metrics.get("reward_mean")),
        ("loss {:.4f}", metrics.get("loss")),
        ("accuracy {:.3f}", metrics.get("accuracy")),
        ("margin {:.3f}", metrics.get("margin")),
        ("entropy {:.3f}", metrics.get("entropy")),
        ("{:.1f} tokens", metrics.get("mean_tokens")),
        ("staleness mean {:.2f}", metrics.get("token_staleness_mean")),
        ("max {:.0f}", metrics.get("token_staleness_max")),
        ("{:.1%} masked", metrics.get("masked_frac")),
    )
