"""The summary of a run: cost, learning, failures, and sample answers from before and after."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal_actors.audit.audit import Audit
from areal_actors.audit.fold import AuditFold
from areal_actors.core.command import COMMAND
from areal_actors.core.durable_files import Lines, atomic_write, read_lines
from areal_actors.core.snapshots import SnapshotStore
from areal_actors.display.curves import draw_curves
from areal_actors.display.held_out_change import change_of, describe_missing_gain
from areal_actors.display.limit import limit_of
from areal_actors.display.run_state import RunState
from areal_actors.display.safe_console import SafeConsole
from areal_actors.display.sentences import (
    ACCURACY,
    MEASURED,
    best_checkpoint,
    bus_outages,
    count_of,
    duration,
    held_out_scores,
    left_out_text,
    model_ends_text,
    most_common,
    set_aside,
)
from areal_actors.display.snapshot_start import AUDIT, restore_fold, trimmed_notice
from areal_actors.display.throughput import busy_while_training, overlap_share
from areal_actors.display.view import MODES, blocking_lines, injected_faults, refusals, refused_sequences
from areal_actors.display.warnings import attention
from areal_actors.messages import EvaluationCompleted, Throughput
from areal_actors.recipe.limits import lowest_limit
from areal_actors.recipe.recipe import Recipe
from areal_actors.sequences.step_metrics import is_source_mean
from areal_bus.base import Bus
from areal_bus.errors import CorruptMessage

FILE_COLUMNS = 100
LONGEST_ANSWER = 400
AUDIT_FAULTS_SHOWN = 3


async def write_summary(
    bus: Bus,
    folder: Path,
    following: Callable[[RunState], Sequence[tuple[str, str]]] | None = None,
    audit_command: str = "",
    folded: tuple[RunState, int] | None = None,
) -> RenderableType:
    """Read the run's log and its `metrics.jsonl`, write `summary.txt` and `reward.png` or `loss.png` there.

    Returns what to print.
    `following` returns label and text of rows at the end of what is printed, once the files are written.
    `audit_command` is named beside faults, unless it is empty. `folded` is the state of the run after an event, of
    which the rest is folded into it; without one, all events are. The audit is of the log as it is stored.
    """
    state, auditor, store = folded[0] if folded else RunState(), AuditFold(), SnapshotStore(folder / "snapshots")
    missing = ""
    try:
        shown = folded[1] if folded else await restore_fold(bus, store, state)
        audited = await restore_fold(bus, store, auditor, AUDIT)
        async for envelope in bus.log(after=min(shown, audited)):
            if envelope.sequence > shown:
                state.receive(envelope)
            if envelope.sequence > audited:
                auditor.receive(envelope)
        missing = await trimmed_notice(bus, state)
    except CorruptMessage as error:
        auditor.audit.unreadable(auditor.audit.sequence + 1, str(error))
        missing = f"log damaged: the lines above cover only the events before the damage: {error}"
    metrics = read_lines(folder / "metrics.jsonl")
    complaints = [
        metrics.complaint(folder / "metrics.jsonl"),
        read_lines(folder / "episodes.jsonl").complaint(folder / "episodes.jsonl"),
    ]
    damaged = [*filter(None, complaints)]
    picture = summary(state, throughputs_of(metrics), damaged, auditor.audit, missing, audit_command=audit_command)
    try:
        _write(state, picture, folder)
    except OSError as error:
        return Group(picture, Text(f"the summary cannot be kept in {folder}: {error.strerror}", style="red"))
    if following is None:
        return picture
    return summary(state, throughputs_of(metrics), damaged, auditor.audit, missing, following(state), audit_command)


def _write(state: RunState, picture: RenderableType, folder: Path) -> None:
    """Write the text, and draw the curve under a temporary name, so that no partial file remains."""
    text = io.StringIO()
    SafeConsole(file=text, width=FILE_COLUMNS).print(picture)
    atomic_write(folder / "summary.txt", text.getvalue().encode())
    name = "loss.png" if state.learns_from_examples() else "reward.png"
    partial = folder / f".partial.{name}"
    try:
        draw_curves(state, partial)
        if partial.exists():
            partial.replace(folder / name)
    finally:
        partial.unlink(missing_ok=True)


def read_throughputs(metrics: Path) -> list[Throughput]:
    """Returns the throughput lines of a `metrics.jsonl`; empty if there is no such file."""
    return throughputs_of(read_lines(metrics))


def throughputs_of(metrics: Lines) -> list[Throughput]:
    """Returns the throughput lines of a `metrics.jsonl`."""
    return [msgspec.convert(row, Throughput) for row in metrics.rows if row.get("kind") == Throughput.subject]


def summary(
    state: RunState,
    throughputs: list[Throughput],
    complaints: Sequence[str] = (),
    audit: Audit | None = None,
    missing: str = "",
    following: Sequence[tuple[str, str]] = (),
    audit_command: str = "",
) -> RenderableType:
    """Returns the summary table, held-out answers before and after training, and the verdict of the audit.

    `complaints` are about damaged input files, `missing` about a log whose beginning was trimmed; `following` are rows
    before the verdict.
    """
    parts: list[RenderableType] = [
        Text(f"\nRun {state.run}", style="bold cyan"),
        _label_table(summary_rows(state, throughputs, complaints, missing)),
    ]
    evaluations = state.accuracy("sampled") or state.accuracy("greedy")
    if evaluations:
        parts += _samples(evaluations[0], evaluations[-1])
    if following:
        parts += [Text(), *_to_copy(following)]
    if audit is not None:
        parts += _audit_lines(audit, audit_command or f"{COMMAND} audit {state.run}")
    return Group(*parts)


def summary_rows(
    state: RunState, throughputs: list[Throughput], complaints: Sequence[str] = (), missing: str = ""
) -> list[tuple[str, str]]:
    """Returns labels and texts of the summary, without empty ones; arguments as of `summary`."""
    rows = [*_rows(state, throughputs), ("files", "; ".join(complaints)), ("log", missing)]
    return [row for row in rows if row[1]]


def _audit_lines(audit: Audit, command: str) -> Iterator[RenderableType]:
    """Yields the first faults and the verdict, which is the last line of every summary."""
    faults = audit.all_faults()
    for fault in faults[:AUDIT_FAULTS_SHOWN]:
        yield Text(f"FAULT  {fault}", style="bold red")
    verdict = f"\naudit: {audit.verdict()}" + (f"; see `{command}`" if faults else "")
    yield Text(verdict, style="bold red" if faults else "bold", no_wrap=bool(faults), overflow="ignore")


def _rows(state: RunState, throughputs: list[Throughput]) -> Iterator[tuple[str, str]]:
    ended = f", ended early: {state.finished.error}" if state.finished and state.finished.error else ""
    yield "steps", f"{len(state.steps)} of {state.steps_wanted()} in {duration(state.now - state.started_at)}{ended}"
    if state.started:
        yield "profile", f"{state.started.profile or 'none'}: {state.started.reason}"
    yield from _examples(state) if state.learns_from_examples() else _episodes(state)
    if best := state.best_checkpoint:
        yield "best checkpoint", best_checkpoint(best)
    if throughputs and not state.learns_from_examples():
        yield "async overlap", f"generation was busy in {overlap_share(throughputs):.0%} of training time"
        yield "trainer busy", f"{busy_while_training(throughputs):.0%} of the time from its first step to its last"
    if found := limit_of(state):
        yield "limit", " To change: ".join([found.sentence, *found.advice[:1]])
    elif state.started and not state.learns_from_examples():
        with suppress(msgspec.ValidationError):  # another version wrote the recipe
            yield "limit", lowest_limit(msgspec.convert(state.started.recipe, Recipe))
    yield "attention", "; ".join(filter(None, (describe_missing_gain(state), *attention(state))))
    yield "set aside", set_aside(state.episodes)
    yield "failures", _failures(state)
    if state.injected:
        yield "chaos", f"{count_of(state.injected.total(), 'fault')} injected: {injected_faults(state)}"


def _episodes(state: RunState) -> Iterator[tuple[str, str]]:
    """Yields the rows about learning from rewards."""
    yield "ended", model_ends_text(state.episodes)
    yield (
        "trained",
        f"{state.episodes.exported:,} episodes exported, {sum(state.history('trained_tokens')):,.0f} tokens trained",
    )
    for mode in MODES:
        if evaluations := state.accuracy(mode):
            measure, values = held_out_scores(evaluations)
            named = "" if measure == ACCURACY else f"{measure} "
            change = change_of(state, mode)
            limits = f" ({change.describe()})" if change is not None else ""
            course = f"{named}{_before_after(values, '{:.3f}')} of {evaluations[-1].tasks} tasks{limits}"
            yield f"held out, {mode}", course
    if rewards := state.history("reward_mean"):
        yield "reward", f"first step {rewards[0]:.3f}, last {rewards[-1]:.3f}, best {max(rewards):.3f}"
    if evaluations := state.accuracy("sampled") or state.accuracy("greedy"):
        yield (
            "answer length",
            _before_after([evaluation.mean_tokens for evaluation in evaluations], "{:.1f}") + " tokens",
        )
        for name in evaluations[-1].reward_metrics:
            yield (
                f"held out, {name}" if is_source_mean(name) else f"reward's {name}",
                _before_after([one.reward_metrics.get(name, math.nan) for one in evaluations], "{:.3g}"),
            )
    if means := state.history("token_staleness_mean"):
        highest = max(state.history("token_staleness_max") or [0.0])
        bound = state.setting("staleness_gate", "max_staleness")
        yield "token staleness", f"mean {sum(means) / len(means):.2f}, max {highest:.0f} (bound {bound})"
    if masked := state.history("masked_frac"):
        yield "tokens masked", f"{sum(masked) / len(masked):.1%} a step, at most {max(masked):.1%}"
    if differences := state.history("train_infer_logprob_diff_max"):
        yield "parity", f"engine and trainer differ by at most {max(differences):.1e} in log p"


def _examples(state: RunState) -> Iterator[tuple[str, str]]:
    """Yields the rows about learning from examples."""
    yield (
        "trained",
        f"{sum(state.history('examples')):,.0f} examples, {sum(state.history('trained_tokens')):,.0f} tokens",
    )
    if state.examples_dropped:
        yield "left out", left_out_text(state.examples_dropped)
    if losses := state.history("loss"):
        yield "loss", f"first step {losses[0]:.4f}, last {losses[-1]:.4f}, lowest {min(losses):.4f}"
    for name in MEASURED:
        if values := state.held_out_values(name):
            yield f"held out, {name}", _before_after(values, "{:.4f}") + f" of {state.losses[-1].examples} examples"


def _before_after(values: list[float], form: str) -> str:
    first, last = form.format(values[0]), form.format(values[-1])
    return f"{first} → {last}" if len(values) > 1 else f"{first} at the start"


def _failures(state: RunState) -> str:
    counts = state.episodes
    parts = [f"{count_of(count, 'attempt')} abandoned ({reason})" for reason, count in most_common(counts.abandoned)]
    parts += [f"{count_of(counts.given_up, 'episode')} given up"] * bool(counts.given_up)
    parts += refusals(state)
    parts += blocking_lines(state)
    parts += [refused_sequences(state)] * bool(state.last_refused_batch)
    parts += [f"trajectories dropped: {count} ({reason})" for reason, count in most_common(counts.losses())]
    parts += [f"{count} × {actor}" for actor, count in state.actor_failures.most_common()]
    parts += bus_outages(state.bus_outages)
    return "; ".join(parts) or "none"


def _samples(before: EvaluationCompleted, after: EvaluationCompleted) -> Iterator[RenderableType]:
    for question, answers in paired_answers(before, after):
        yield Text(f"\n{question}", style="italic")
        yield from (_label_table([(f"  {label}", text)]) for label, text in answers)


def paired_answers(
    before: EvaluationCompleted, after: EvaluationCompleted
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields tasks of both evaluations, with label and text of the answers to each."""
    later = {_question(sample): sample for sample in after.samples}
    for sample in before.samples:
        question = _question(sample)
        answers = [_answer(f"step {before.weight_version}", sample)]
        if after is not before and question in later:
            answers.append(_answer(f"step {after.weight_version}", later[question]))
        yield question, answers


def _question(sample: dict[str, object]) -> str:
    task = sample.get("task")
    return str(task.get("question", task)) if isinstance(task, dict) else str(task)


def _answer(when: str, sample: dict[str, object]) -> tuple[str, str]:
    text = str(sample.get("output", ""))
    shown = text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}…"
    return f"{when}, reward {sample.get('reward')}", shown


def _to_copy(rows: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    """Yields rows whose lines are not broken: a command of two lines cannot be pasted."""
    width = max(len(label) for label, _ in rows)
    for label, value in rows:
        for number, line in enumerate(value.splitlines()):
            yield Text.assemble(
                (f"{'' if number else label:<{width}}  ", "bold"), line, no_wrap=True, overflow="ignore"
            )


def _label_table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in rows:
        table.add_row(label, Text(value))
    return table
