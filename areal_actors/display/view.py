"""The live display of a run in a terminal, and plain lines per event elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from areal_actors.display.fit import Chart, Fact, bar, columns, in_encoding, sheet, sparkline
from areal_actors.display.limit import limit_sentence
from areal_actors.display.phases import Phase, Phases
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import (
    ACCURACY,
    MEASURED,
    best_checkpoint,
    bus_outages,
    count_of,
    duration,
    equal_groups,
    held_out_scores,
    left_out_text,
    model_ends_text,
    most_common,
    present,
    set_aside,
    without_score,
)
from areal_actors.display.throughput import busy_share, tokens_per_second
from areal_actors.display.waiting import awaited_end, waiting_summary
from areal_actors.display.warnings import attention
from areal_actors.messages import EvaluationCompleted, Heartbeat, RunFinished
from areal_actors.rollout.blocked import format_blocked
from areal_actors.sequences.step_metrics import REWARD_METRIC, is_source_mean
from areal_bus.base import Envelope
from areal_bus.message import Message

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
MEBIBYTE = 2**20
RECENT_SECONDS = 60.0
"""Time after which failures make room for everything else."""
NARROW = 80
"""Columns below which bars are short."""


class RunView:
    """The live display of a run, a renderable; feed it envelopes.

    Printed, it has as many lines as there is to show; on a whole screen, all lines of the screen, without what does not
    fit.
    """

    def __init__(self, usual: Mapping[str, float] | None = None) -> None:
        """`usual` are seconds of phases in an earlier run."""
        self.state = RunState()
        self.phases = Phases(usual or {})
        self.interrupted = ""
        """Answer to a signal, until the log has the reason."""
        self.notices: list[str] = []
        """Last lines on standard error while the display has the screen."""
        self.hint = ""
        """Meaning of Ctrl-C."""
        self.access = ""
        """Address and key for external agents; empty if there are none."""
        self.fills_screen = False
        self._failures = ""
        self._failed_at = 0.0
        """Time at which the failures were last seen to change."""

    def receive(self, envelope: Envelope) -> Message | None:
        """Fold an event or telemetry; returns it, or None for an unknown kind."""
        message = self.state.receive(envelope)
        if message is not None:
            self.phases.receive(message, envelope.time)
        return message

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines of the display."""
        width, state = options.max_width, self.state
        facts = [Fact("", self._title(width), 0), *self._facts(width)]
        name, metric = ("loss", "loss") if state.learns_from_examples() else ("reward", "reward_mean")
        chart = Chart(name, state.history(metric))
        height = options.max_height if self.fills_screen else None
        for line in sheet(console, facts, width, height, chart=chart):
            yield in_encoding(line, ascii_only=options.ascii_only)

    def _stopping(self) -> str:
        """Returns what a signal does, or why the run ends, and what it waits for."""
        lines = [self.interrupted or self.state.stopping] if self.interrupted or self.state.stopping else []
        return "\n".join([*lines, *([f"waits for {awaited_end(self.state)}"] if self.state.stopping else [])])

    def _title(self, width: int) -> Text:
        state = self.state
        name = f"── areal-actors · {state.run or 'waiting for the run'} "
        end = f" {duration(state.now - state.started_at)} ──" if state.started_at else ""
        return Text(f"{name}{'─' * max(width - len(name) - len(end), 0)}{end}", style="bold cyan")

    def _facts(self, width: int) -> Iterator[Fact]:
        """Yields the non-empty facts from top to bottom."""
        state, size = self.state, 10 if width < NARROW else 20
        spark = max(min(width - 64, state.steps_wanted() or 32), 16)
        step = state.steps[-1].metrics if state.steps else {}
        over, failed = state.finished is not None, _failures(state)
        if failed != self._failures:
            self._failures, self._failed_at = failed, state.now
        is_recent = state.now - self._failed_at < RECENT_SECONDS
        held_out = (*(_accuracy(mode, state.accuracy(mode), spark) for mode in MODES), *_losses(state, spark))
        for rank, label, text, style in (
            (12, "profile", f"{state.started.profile or 'none'}: {state.started.reason}" if state.started else "", ""),
            (
                2,
                "phase",
                "\n".join(_phase(self.phases, phase, state.now, size) for phase in self.phases.current.values()),
                "",
            ),
            (1, "step", _progress(state, size) if state.steps_wanted() else "", ""),
            (3, "held out", "\n".join(filter(None, held_out)), ""),
            (4, "loss", _course(state.history("loss"), spark) if state.learns_from_examples() else "", ""),
            (
                4,
                "reward",
                "  ".join(filter(None, (_course(state.history("reward_mean"), spark), equal_groups(step)))),
                "",
            ),
            (9, "answers", " · ".join(_answers(state, step)), ""),
            (8, "ended", model_ends_text(state.episodes), ""),
            (10, "staleness", " · ".join(present(STALENESS, step)), ""),
            (11, "learning", " · ".join(present(LEARNING, step)), ""),
            (8, "speed", " · ".join(_speed(state)), ""),
            (6, "limit", limit_sentence(state), ""),
            (7, "waiting", "" if over else waiting_summary(state), ""),
            (7, "left out", left_out_text(state.examples_dropped) if state.examples_dropped else "", "yellow"),
            (5, "attention", "" if over else "\n".join(attention(state)), "yellow"),
            (9, "set aside", set_aside(state.episodes), ""),
            (7 if is_recent or over else 16, "failures", failed, "yellow"),
            (7, "messages", "\n".join(line for line in self.notices if line != self.interrupted), "yellow"),
            (3, "agents", "" if over else self.access, ""),
            (13, "saved", f"step {state.checkpoint.step}, {state.checkpoint.folder}" if state.checkpoint else "", ""),
            (13, "best", best_checkpoint(state.best_checkpoint) if state.best_checkpoint else "", ""),
        ):
            if text:
                yield Fact(label, Text(text, style=style), rank)
        if state.beats:
            head, *others = _processes(state.beats.values())
            yield Fact("", Text(head), 8)
            yield Fact("", Text("\n".join(others)), 14)
        if state.stalled and not over:
            yield Fact("stalled", Text(state.stalled.sentence, style="bold red"), 0)
        if ending := "" if over else self._stopping():
            yield Fact("stopping", Text(ending, style="bold yellow"), 0)
        if state.finished:
            yield Fact("end", _ending(state.finished), 0)
        elif self.hint and not ending:
            yield Fact("", Text(self.hint, style="dim"), 13)


def _course(values: Sequence[float], width: int) -> str:
    return f"{values[-1]:.3f}  {sparkline(values, width)}  from {values[0]:.3f}" if values else ""


def _losses(state: RunState, width: int) -> Iterator[str]:
    """Yields one line for each metric on held-out examples."""
    for name in MEASURED:
        if values := state.held_out_values(name):
            last = state.losses[-1]
            course = (
                f"{values[0]:.3f} → {values[-1]:.3f}  {sparkline(values, width)}"
                if len(values) > 1
                else f"{values[0]:.3f}"
            )
            yield f"{name}  {course}  of {last.examples} examples at step {last.weight_version}"


def _phase(phases: Phases, phase: Phase, now: float, width: int) -> str:
    left, passed = phases.seconds_left(phase, now), now - phase.since
    counted_units = f" {phase.done}/{phase.total}  {bar(phase.done, phase.total, width)}" if phase.total else ""
    times = f"about {duration(left)} left" if left is not None else f"for {duration(passed)}" if passed >= 1 else ""
    return f"{phase.name}{counted_units}  {' · '.join(filter(None, (times, phase.detail)))}".rstrip()


def _progress(state: RunState, width: int) -> str:
    done, wanted = (state.steps[-1].number if state.steps else 0), state.steps_wanted()
    pace, left = state.seconds_per_step(), state.seconds_left()
    times = "" if pace is None or left is None else f"  {pace:.1f} s a step, {duration(left)} left"
    return f"{done}/{wanted}  {bar(done, wanted, width)}{times}"


def _accuracy(mode: str, evaluations: Sequence[EvaluationCompleted], width: int) -> str:
    if not evaluations:
        return ""
    last, (measure, values) = evaluations[-1], held_out_scores(evaluations)
    course = (
        f" → {values[-1]:.3f}  {sparkline(values, width) + '  ' if len(values) > 2 else ''}" if len(values) > 1 else " "
    )
    named = "" if measure == ACCURACY else f"{measure} "
    return (
        f"{mode}  {named}{values[0]:.3f}{course}of {last.tasks} tasks at step"
        f" {last.weight_version}{without_score(last)}"
    )


def _answers(state: RunState, step: Mapping[str, float]) -> list[str]:
    evaluated = state.accuracy("sampled")[-1:]
    metrics = {name.removeprefix(REWARD_METRIC): mean for name, mean in step.items() if name.startswith(REWARD_METRIC)}
    metrics |= {name: mean for name, mean in step.items() if is_source_mean(name)}
    if not metrics and evaluated:
        metrics = evaluated[0].reward_metrics
    tokens = step if "mean_tokens" in step or not evaluated else {"mean_tokens": evaluated[0].mean_tokens}
    shown = [f"{name} {mean:.3g}" for name, mean in metrics.items()]
    return [
        *present({"mean_tokens": "{:.1f} tokens"}, tokens),
        *shown,
        *present({"length_bias": "length bias {:.2f}"}, step),
    ]


def _speed(state: RunState) -> list[str]:
    window = (max(state.now - WINDOW_SECONDS, min(state.telemetry_since, state.now)), state.now)
    parts = []
    for side in ("generation", "training"):
        recent = [
            throughput
            for throughput in state.throughputs
            if throughput.side == side and throughput.started + throughput.seconds > window[0]
        ]
        if recent and window[0] < window[1]:
            parts.append(f"{side} {tokens_per_second(recent):,.0f} tokens/s, busy {busy_share(recent, window):.0%}")
    return parts


def _failures(state: RunState) -> str:
    lines = []
    if failures := state.episodes.failures():
        reasons = ", ".join(f"{reason} {count}" for reason, count in most_common(state.episodes.abandoned))
        given_up = count_of(state.episodes.given_up, "episode")
        lines.append(
            f"{count_of(failures, 'attempt')} abandoned ({reasons}), {given_up} given up; last {state.last_failure}"
        )
    if state.refused:
        lines.append(f"{', '.join(refusals(state))}; last {state.last_refused}")
    if state.last_refused_batch:
        lines.append(f"{refused_sequences(state)}; last {state.last_refused_batch}")
    lines += blocking_lines(state)
    lines += [f"{count} × {actor}" for actor, count in state.actor_failures.most_common(3)]
    lines += bus_outages(state.bus_outages)
    if state.injected:
        lines.append(f"{count_of(state.injected.total(), 'fault')} injected by chaos: {injected_faults(state)}")
    return "\n".join(line if len(line) <= 240 else f"{line[:240]}…" for line in lines)


def blocking_lines(state: RunState, most: int = 3) -> list[str]:
    """Returns the code lines that blocked other agents longest."""
    worst = sorted(state.blocked.values(), key=lambda block: -block.seconds)
    return [format_blocked(one) for one in worst[:most]]


def refusals(state: RunState) -> list[str]:
    """Returns the number of completions refused by the gateway, for each inference worker."""
    return [f"{count_of(count, 'completion')} of {worker} refused" for worker, count in state.refused.most_common()]


def refused_sequences(state: RunState) -> str:
    """Returns the number of rows left out of steps, and of steps without an update."""
    return (
        f"{count_of(state.refused_sequences, 'sequence')} not trainable, {count_of(state.skipped_steps, 'step')}"
        " skipped"
    )


def injected_faults(state: RunState) -> str:
    """Returns the faults of `[chaos]`, by kind and target."""
    return ", ".join(f"{count} × {fault}" for fault, count in state.injected.most_common())


def _processes(beats: Iterable[Heartbeat]) -> list[str]:
    """Returns the head of the table with the trainer's process below it, then each other process."""
    by_process: dict[str, list[Heartbeat]] = defaultdict(list)
    for beat in beats:
        by_process[beat.process].append(beat)
    rows = [("process", "pid", "CPU s", "peak MiB", "in flight")]
    trainer = {process for process, inside in by_process.items() if any("trainer" in beat.actor for beat in inside)}
    for process, inside in sorted(by_process.items(), key=lambda item: (item[0] not in trainer, item[0])):
        handling = ", ".join(f"{count} {name}" for beat in inside for name, count in beat.handling.items() if count)
        cpu, memory = max(beat.cpu_seconds for beat in inside), max(beat.peak_memory_bytes for beat in inside)
        rows.append((process, str(inside[0].pid), f"{cpu:.1f}", f"{memory / MEBIBYTE:,.0f}", handling))
    head, *lines = columns(rows, right=frozenset({1, 2, 3}))
    shown_first = len(trainer) or 1
    return ["\n".join([head, *lines[:shown_first]]), *lines[shown_first:]]


def _ending(finished: RunFinished) -> Text:
    if finished.error:
        return Text(f"Ended early after {finished.steps} steps: {finished.error}", style="bold red")
    return Text(f"Finished after {finished.steps} steps.", style="bold green")
