"""The end of a run on one screen: what it cost, what was learned, what went wrong, and answers from before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal_actors.display.loss_curve import draw_loss
from areal_actors.display.reward_curve import draw_reward
from areal_actors.display.run_state import RunState
from areal_actors.display.throughput import overlap_share
from areal_actors.display.view import MEASURED, MODES, best_checkpoint, counted, duration, left_out, refusals, refused_rows
from areal_actors.messages import EvaluationCompleted, Throughput
from bus.base import Bus

FILE_COLUMNS = 100
LONGEST_ANSWER = 400


async def write_summary(bus: Bus, folder: Path) -> RenderableType:
    """Read the run's log and its `metrics.jsonl`, write `summary.txt` and `reward.png` or `loss.png` there; returns what to print."""
    state = RunState()
    async for envelope in bus.log():
        state.heard(envelope)
    throughputs = read_throughputs(folder / "metrics.jsonl")
    if state.learns_from_examples():
        draw_loss(state, folder / "loss.png")
    else:
        draw_reward(state, folder / "reward.png")
    picture = summary(state, throughputs)
    with (folder / "summary.txt").open("w", encoding="utf-8") as file:
        Console(file=file, width=FILE_COLUMNS).print(picture)
    return picture


def read_throughputs(metrics: Path) -> list[Throughput]:
    """The throughput lines of a `metrics.jsonl`; none where there is no such file. A last line cut short is passed over."""
    found: list[Throughput] = []
    if not metrics.exists():
        return found
    for line in metrics.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and row.get("kind") == Throughput.subject:
            found.append(msgspec.convert(row, Throughput))
    return found


def summary(state: RunState, throughputs: list[Throughput]) -> RenderableType:
    """The table, and under it a few answers to held-out tasks before the first step and after the last."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, value in _rows(state, throughputs):
        table.add_row(label, Text(value))
    parts: list[RenderableType] = [Text(f"\nRun {state.run}", style="bold cyan"), table]
    evaluations = state.accuracy("sampled") or state.accuracy("greedy")
    if evaluations:
        parts += _samples(evaluations[0], evaluations[-1])
    return Group(*parts)


def _rows(state: RunState, throughputs: list[Throughput]) -> Iterator[tuple[str, str]]:
    ended = f", ended early: {state.finished.error}" if state.finished and state.finished.error else ""
    yield "steps", f"{len(state.steps)} of {state.steps_wanted()} in {duration(state.now - state.started_at)}{ended}"
    if state.started:
        yield "profile", f"{state.started.profile}: {state.started.reason}"
    yield from _examples(state) if state.learns_from_examples() else _episodes(state)
    if best := state.best_checkpoint:
        yield "best checkpoint", best_checkpoint(best)
    if throughputs and not state.learns_from_examples():
        yield "async overlap", f"generation was busy in {overlap_share(throughputs):.0%} of training time"
    yield "failures", _failures(state)


def _episodes(state: RunState) -> Iterator[tuple[str, str]]:
    """What was learned from rewards."""
    yield "trained", f"{state.exported:,} episodes exported, {sum(state.history('trained_tokens')):,.0f} tokens trained"
    if rewards := state.history("reward_mean"):
        yield "reward", f"first step {rewards[0]:.3f}, last {rewards[-1]:.3f}, best {max(rewards):.3f}"
    for mode in MODES:
        if found := state.accuracy(mode):
            yield f"held out, {mode}", _before_after([one.accuracy for one in found], "{:.3f}") + f" of {found[-1].tasks} tasks"
    if found := state.accuracy("sampled") or state.accuracy("greedy"):
        yield "answer length", _before_after([one.mean_tokens for one in found], "{:.1f}") + " tokens"
        yield "answers worked", _before_after([one.worked_share for one in found], "{:.0%}")
    if means := state.history("token_staleness_mean"):
        highest = max(state.history("token_staleness_max") or [0.0])
        bound = state.setting("staleness_gate", "max_staleness")
        yield "token staleness", f"mean {sum(means) / len(means):.2f}, max {highest:.0f} (bound {bound})"
    if masked := state.history("masked_share"):
        yield "tokens masked", f"{sum(masked) / len(masked):.1%} a step, at most {max(masked):.1%}"
    if differences := state.history("max_logprob_difference"):
        yield "parity", f"engine and trainer differ by at most {max(differences):.1e} in log p"


def _examples(state: RunState) -> Iterator[tuple[str, str]]:
    """What was learned where there are no episodes."""
    yield "trained", f"{sum(state.history('examples')):,.0f} examples, {sum(state.history('trained_tokens')):,.0f} tokens"
    if state.examples_dropped:
        yield "left out", left_out(state.examples_dropped)
    if losses := state.history("loss"):
        yield "loss", f"first step {losses[0]:.4f}, last {losses[-1]:.4f}, lowest {min(losses):.4f}"
    for name in MEASURED:
        if values := state.held_out(name):
            yield f"held out, {name}", _before_after(values, "{:.4f}") + f" of {state.losses[-1].examples} examples"


def _before_after(values: list[float], form: str) -> str:
    first, last = form.format(values[0]), form.format(values[-1])
    return f"{first} → {last}" if len(values) > 1 else f"{first} at the start"


def _failures(state: RunState) -> str:
    parts = [f"{counted(count, 'attempt')} abandoned ({reason})" for reason, count in state.abandoned.most_common()]
    parts += [f"{counted(state.given_up, 'episode')} given up"] * bool(state.given_up)
    parts += refusals(state)
    parts += [refused_rows(state)] * bool(state.last_refused_batch)
    parts += [f"trajectories dropped: {count} ({reason})" for reason, count in state.dropped.most_common()]
    parts += [f"{count} × {actor}" for actor, count in state.actor_failures.most_common()]
    return "; ".join(parts) or "none"


def _samples(before: EvaluationCompleted, after: EvaluationCompleted) -> Iterator[RenderableType]:
    """The same tasks' answers from both evaluations, where both have them."""
    later = {_question(sample): sample for sample in after.samples}
    for sample in before.samples:
        question = _question(sample)
        yield Text(f"\n{question}", style="italic")
        yield _answer(f"step {before.weight_version}", sample)
        if after is not before and question in later:
            yield _answer(f"step {after.weight_version}", later[question])


def _question(sample: dict[str, object]) -> str:
    task = sample.get("task")
    return str(task.get("question", task)) if isinstance(task, dict) else str(task)


def _answer(when: str, sample: dict[str, object]) -> RenderableType:
    text = str(sample.get("output", ""))
    shown = text if len(text) <= LONGEST_ANSWER else f"{text[:LONGEST_ANSWER]}…"
    row = Table.grid(padding=(0, 2))
    row.add_column(style="bold", no_wrap=True)
    row.add_column()
    row.add_row(f"  {when}, reward {sample.get('reward')}", Text(shown))
    return row
