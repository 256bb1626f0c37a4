"""The live display of a run in a terminal, and plain lines per event elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from areal_actors.display.attention import attention
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import (
    ACCURACY,
    MEASURED,
    best_checkpoint,
    bus_outages,
    counted,
    duration,
    held_out_scores,
    left_out,
    present,
    without_score,
)
from areal_actors.display.throughput import busy_share, tokens_per_second
from areal_actors.display.waiting import waiting_summary
from areal_actors.messages import EvaluationCompleted, Heartbeat, RunFinished, TrainerProgress
from areal_actors.rollout.blocked import format_blocked
from areal_actors.sequences.step_metrics import REWARD_METRIC
from bus.base import Envelope
from bus.message import Message

MODES: tuple[Literal["sampled", "greedy"], ...] = ("sampled", "greedy")
STALENESS = {
    "token_staleness_mean": "mean {:.2f}",
    "token_staleness_p99": "p99 {:.0f}",
    "token_staleness_max": "max {:.0f}",
    "masked_frac": "{:.1%} of tokens masked",
}
LEARNING = {
    "loss": "loss {:.4f}",
    "entropy": "entropy {:.3f}",
    "grad_norm": "gradient {:.3f}",
    "clip_frac": "clipped {:.1%}",
    "accuracy": "accuracy {:.1%}",
    "margin": "margin {:.3f}",
    "train_infer_logprob_diff_max": "engine and trainer differ by at most {:.1e} in log p",
}
"""Metrics of the last step in two lines of the display, with their formats."""
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
        yield "profile", Text(f"{state.started.profile or 'none'}: {state.started.reason}")
    if state.phase:
        yield "phase", _phase(state.phase)
    if state.steps_wanted():
        yield "step", _progress(state)
    step = state.steps[-1].metrics if state.steps else {}
    for label, text, style in (
        ("reward", _rewards(state.history("reward_mean")), ""),
        ("loss", _rewards(state.history("loss")) if state.learns_from_examples() else "", ""),
        ("held out", "\n".join(filter(None, (*(_accuracy(mode, state.accuracy(mode)) for mode in MODES), *_losses(state)))), ""),
        ("answers", " · ".join(_answers(state, step)), ""),
        ("staleness", " · ".join(present(STALENESS, step)), ""),
        ("learning", " · ".join(present(LEARNING, step)), ""),
        ("speed", " · ".join(_speed(state)), ""),
        ("waiting", "" if state.finished else waiting_summary(state), ""),
        ("left out", left_out(state.examples_dropped) if state.examples_dropped else "", "yellow"),
        ("attention", "" if state.finished else "\n".join(attention(state)), "yellow"),
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
    last, (measure, values) = evaluations[-1], held_out_scores(evaluations)
    course = f" → {values[-1]:.3f}  {sparkline(values)} " if len(values) > 1 else ""
    named = "" if measure == ACCURACY else f"{measure} "
    return f"{mode}  {named}{values[0]:.3f}{course} of {last.tasks} tasks at step {last.weight_version}{without_score(last)}"


def _answers(state: RunState, step: Mapping[str, float]) -> list[str]:
    evaluated = state.accuracy("sampled")[-1:]
    metrics = {name.removeprefix(REWARD_METRIC): mean for name, mean in step.items() if name.startswith(REWARD_METRIC)}
    if not metrics and evaluated:
        metrics = evaluated[0].reward_metrics
    tokens = step if "mean_tokens" in step or not evaluated else {"mean_tokens": evaluated[0].mean_tokens}
    shown = [f"{name} {mean:.3g}" for name, mean in metrics.items()]
    return [*present({"mean_tokens": "{:.1f} tokens"}, tokens), *shown, *present({"length_bias": "length bias {:.2f}"}, step)]


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
        lines.append(f"{refused_sequences(state)}; last {state.last_refused_batch}")
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


def refused_sequences(state: RunState) -> str:
    """Returns the number of rows left out of steps, and of steps without an update."""
    return f"{counted(state.refused_sequences, 'sequence')} not trainable, {counted(state.skipped_steps, 'step')} skipped"


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


def sparkline(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """Returns a line of bars for a series, scaled from its minimum to its maximum; long series are averaged."""
    size = max(len(values) / width, 1.0)
    edges = [round(n * size) for n in range(min(len(values), width) + 1)]
    means = [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
    low, high = min(means), max(means)
    return "".join(BARS[round((value - low) / (high - low) * (len(BARS) - 1))] if high > low else BARS[0] for value in means)
