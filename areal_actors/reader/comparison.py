"""`areal-actors compare`: the recipes of several runs where they differ, and their results.

Their curves are in one plot.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from areal_actors.core.errors import SetupError
from areal_actors.core.extras import require_module
from areal_actors.core.foreign_text import escape_controls
from areal_actors.core.lazy import LazyModule
from areal_actors.display.curves import SMOOTH_STEPS
from areal_actors.display.fit import sparkline
from areal_actors.display.held_out_change import change_of
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import ACCURACY, duration, held_out_scores, most_common
from areal_actors.display.view import MODES
from areal_actors.messages import EvaluationCompleted
from areal_actors.reader.listing import output
from areal_actors.reader.run_files import RunFiles, find_run_files
from areal_actors.sequences.step_metrics import is_source_mean

if TYPE_CHECKING:
    from matplotlib import figure as figures
    from matplotlib import ticker
    from matplotlib.axes import Axes
else:  # of an extra
    figures = LazyModule("matplotlib.figure")
    ticker = LazyModule("matplotlib.ticker")

MIN_BARS, MAX_BARS = 8, 32
"""Bars of a curve in text."""
WITHOUT_BARS = 32
"""Columns of a run's curve besides its bars, with its part of the names."""
NOT_SET = "not set"
OF_THE_RUN = frozenset({"run", "folder", "gateway.port"})
"""Settings that differ in any two runs, or are only where they were made."""
METRICS = (
    "reward_mean",
    "loss",
    "entropy",
    "mean_tokens",
    "token_staleness_mean",
    "masked_frac",
    "grad_norm",
    "approx_kl",
)
"""Metrics shown by default, where a run has them."""


def compare(
    runs: Sequence[str],
    *,
    folder: Path,
    metrics: Sequence[str] = (),
    plot: Path | None = None,
    as_json: bool = False,
    console: Console | None = None,
) -> int:
    """Print where the recipes of runs differ, and their results side by side; returns the exit status.

    Args:
        runs: names, folders or exported logs; at least two.
        folder: where runs are written.
        metrics: metrics of the steps to show instead of the usual ones.
        plot: image file for the curves.
        as_json: print the same as JSON, nothing else.
        console: prints.

    Raises:
        SetupError: there is no such run or metric, or the plot's package is absent.
    """
    if plot is not None:
        require_module("matplotlib", "--plot")
    screen, files = console or output(), [find_run_files(run, folder) for run in runs]
    named = name_runs(files)
    shown = choose_metrics(files, metrics)
    if as_json:
        comparison = {
            "recipe": differences([run.recipe for run in files]),
            "results": {label: dict(zip(named, values, strict=True)) for label, values in list_results(files)},
            "metrics": {
                name: {name_of_run: run.state.history(name) for name_of_run, run in zip(named, files, strict=True)}
                for name in shown
            },
        }
        screen.print(
            escape_controls(json.dumps(comparison, indent=1, default=str)),
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    else:
        screen.print(
            _page(named, files, shown, bars=max(MIN_BARS, min(MAX_BARS, screen.width // len(files) - WITHOUT_BARS)))
        )
    if plot is not None:
        draw_comparison(named, [run.state for run in files], plot)
        if not as_json:
            screen.print(f"curves: {plot}", markup=False, highlight=False, soft_wrap=True)
    return 0


def differences(recipes: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the settings, by dotted name, whose values differ; `not set` where a recipe lacks one."""
    flat = [dict(_flat(recipe)) for recipe in recipes]
    names = dict.fromkeys(name for recipe in flat for name in recipe if name not in OF_THE_RUN)
    values = {name: [recipe.get(name, NOT_SET) for recipe in flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield from _flat(entry, f"{before}{name}.")
        else:
            yield f"{before}{name}", entry


def name_runs(files: Sequence[RunFiles]) -> list[str]:
    """Returns a name for each run; the path where two have the same."""
    names = [run.name for run in files]
    return [
        str(run.folder.path) if run.folder and names.count(name) > 1 else name
        for name, run in zip(names, files, strict=True)
    ]


def choose_metrics(files: Sequence[RunFiles], wanted: Sequence[str] = ()) -> list[str]:
    """Returns the metrics that are asked for; without any, those of the usual ones that a run has.

    Raises:
        SetupError: no run has one that is asked for.
    """
    metric_names = dict.fromkeys(name for run in files for step in run.state.steps for name in step.metrics)
    if missing := [name for name in wanted if name not in metric_names]:
        hint = f"its metrics: {', '.join(sorted(metric_names))}" if metric_names else "no run has completed a step"
        raise SetupError(f"--metric {missing[0]}: no run has it; {hint}")
    return list(wanted) or [name for name in METRICS if name in metric_names]


def list_results(files: Sequence[RunFiles]) -> Iterator[tuple[str, list[str]]]:
    """Yields label and values of each row about the whole run."""
    states = [run.state for run in files]
    yield "status", [run.status() for run in files]
    yield (
        "steps",
        [f"{run.state.steps[-1].number if run.state.steps else 0} of {run.recipe.get('steps', 0)}" for run in files],
    )
    yield "took", [duration(state.now - state.started_at) if state.started_at else "" for state in states]
    paces = [state.seconds_per_step() for state in states]
    yield "seconds a step", [f"{pace:.2f}" if pace is not None else "" for pace in paces]
    yield "tokens trained", [f"{sum(state.history('trained_tokens')):,.0f}" for state in states]
    for mode in MODES:
        if any(evaluations := [state.accuracy(mode) for state in states]):
            yield f"held out, {mode}", [_scores(evaluated) for evaluated in evaluations]
            if any(changes := [change_of(state, mode) for state in states]):
                yield f"  change, {mode}", ["" if change is None else change.describe() for change in changes]
            yield f"best held out, {mode}", [_best(evaluated) for evaluated in evaluations]
            yield from _of_sources(mode, evaluations)
    for name in ("loss", "accuracy", "margin"):
        if any(state.held_out_values(name) for state in states):
            yield f"held-out {name}", [_course(state.held_out_values(name)) for state in states]
    if any(state.episodes.abandoned for state in states):
        reasons = [most_common(state.episodes.abandoned) for state in states]
        yield "attempts abandoned", [", ".join(f"{count} {reason}" for reason, count in counts) for counts in reasons]
    if any(state.finished and state.finished.error for state in states):
        yield "ended early", [state.finished.error if state.finished else "" for state in states]
    if any(run.complaint for run in files):
        yield "files", [run.complaint for run in files]


def _of_sources(mode: str, runs: Sequence[Sequence[EvaluationCompleted]]) -> Iterator[tuple[str, list[str]]]:
    """Yields a row with the held-out reward of each source of a mixture, the first and the last."""
    names = dict.fromkeys(name for run in runs for one in run for name in one.reward_metrics if is_source_mean(name))
    for name in names:
        values = [[one.reward_metrics[name] for one in run if name in one.reward_metrics] for run in runs]
        yield f"  {name}, {mode}", list(map(_course, values))


def _course(values: Sequence[float]) -> str:
    ends = [values[0], values[-1]][: len(values)] if values else []  # the score of one evaluation is no course
    return " → ".join(f"{value:.3f}" for value in ends)


def _scores(evaluated: Sequence[EvaluationCompleted]) -> str:
    measure, values = held_out_scores(evaluated)
    return _course(values) if measure == ACCURACY or not values else f"{measure} {_course(values)}"


def _best(evaluations: Sequence[EvaluationCompleted]) -> str:
    scores = held_out_scores(evaluations)[1]
    best = max(range(len(scores)), key=scores.__getitem__, default=None)
    return "" if best is None else f"{scores[best]:.3f} at step {evaluations[best].weight_version}"


def _page(named: Sequence[str], files: Sequence[RunFiles], metrics: Sequence[str], *, bars: int) -> RenderableType:
    parts: list[RenderableType] = []
    changed = differences([run.recipe for run in files])
    if changed:
        parts.append(
            _table("recipe", named, [(name, [_value(value) for value in values]) for name, values in changed.items()])
        )
    else:
        parts.append(Text("the recipes are equal", style="bold"))
    parts += [Text(), _table("result", named, list_results(files))]
    if metrics:
        rows = [(name, [_curve(run.state.history(name), bars) for run in files]) for name in metrics]
        parts += [
            Text(),
            _table("steps", named, rows),
            Text(f"\nsteps: means of the first and the last {SMOOTH_STEPS}", style="dim"),
        ]
    return Group(*parts)


def _table(title: str, named: Sequence[str], rows: Any) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    table.add_column(title, style="bold", overflow="fold")
    for name in named:
        table.add_column(name, overflow="fold")
    for label, values in rows:
        table.add_row(Text(label), *map(Text, values))
    return table


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _curve(values: Sequence[float], bars: int) -> str:
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    first, last = values[:SMOOTH_STEPS], values[-SMOOTH_STEPS:]
    return f"{sum(first) / len(first):.4g} → {sum(last) / len(last):.4g}  {sparkline(values, bars)}"


def draw_comparison(named: Sequence[str], states: Sequence[RunState], path: Path) -> None:
    """Write a plot of the rewards (or losses) of the steps, and of the held-out results, of several runs.

    Raises:
        SetupError: it cannot be written there.
    """
    figure = figures.Figure(figsize=(9, 7), dpi=120, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    name = "reward_mean" if any(state.history("reward_mean") for state in states) else "loss"
    for label, state in zip(named, states, strict=True):
        points = [(step.number, step.metrics[name]) for step in state.steps if name in step.metrics]
        _smooth(upper, points, label)
        held_out = [
            (evaluation.weight_version, evaluation.accuracy)
            for evaluation in state.accuracy("sampled") or state.accuracy("greedy")
        ]
        held_out = held_out or [
            (one.weight_version, one.metrics["loss"]) for one in state.losses if "loss" in one.metrics
        ]
        if held_out:
            lower.plot(*zip(*held_out, strict=True), marker="o", linewidth=2, label=label)
    upper.set_ylabel(f"{'mean training reward' if name == 'reward_mean' else 'loss'}, mean of {SMOOTH_STEPS} steps")
    lower.set_ylabel("held-out accuracy" if name == "reward_mean" else "held-out loss")
    lower.set_xlabel("step")
    lower.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    for axes in (upper, lower):
        axes.grid(visible=True, alpha=0.3)
        if axes.get_lines():
            axes.legend(loc="best", fontsize=9)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise SetupError(f"--plot {path}: cannot be written: {error}") from error


def _smooth(axes: Axes, points: Sequence[tuple[int, float]], label: str) -> None:
    if not points:
        return
    numbers, values = zip(*points, strict=True)
    means = [sum(values[max(0, n - SMOOTH_STEPS + 1) : n + 1]) / min(n + 1, SMOOTH_STEPS) for n in range(len(values))]
    axes.plot(numbers, means, linewidth=2, label=label)
