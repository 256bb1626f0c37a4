"""Plots what a run learned over its steps, as a PNG.

Rewards and held-out accuracy, or the losses of a run that learned from examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from areal_actors.core.lazy import LazyModule
from areal_actors.display.run_state import RunState
from areal_actors.display.sentences import held_out_scores

if TYPE_CHECKING:
    from matplotlib import figure as figures
    from matplotlib import ticker
    from matplotlib.axes import Axes
else:  # of an extra
    figures = LazyModule("matplotlib.figure")
    ticker = LazyModule("matplotlib.ticker")

SMOOTH_STEPS = 5
PALE, DARK, RED, GREEN = "#9aa5b1", "#52606d", "#d1495b", "#00798c"


def draw_curves(state: RunState, path: Path) -> None:
    """Write the plot; a run without steps gives empty axes."""
    figure = figures.Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.3)
    held_out = (_losses if state.learns_from_examples() else _rewards)(state, axes)
    lines = [*axes.get_lines(), *(held_out.get_lines() if held_out is not None else ())]
    figure.legend(lines, [str(line.get_label()) for line in lines], loc="outside lower center", ncols=2, fontsize=9)
    name = f"{state.setting('algorithm', 'name')} of " if state.learns_from_examples() else ""
    axes.set_title(f"{state.run}: {name}{state.setting('model')} on {state.setting('task', 'dataset')}")
    figure.savefig(path)


def _losses(state: RunState, axes: Axes) -> Axes | None:
    """Plot losses, and for pairs their accuracy on other axes, which are returned."""
    axes.plot(
        [step.number for step in state.steps],
        state.history("loss"),
        color=PALE,
        linewidth=1,
        label="loss of the step's examples",
    )
    axes.set_ylabel("loss")
    points = {
        name: [
            (measured.weight_version, measured.metrics[name]) for measured in state.losses if name in measured.metrics
        ]
        for name in ("loss", "accuracy")
    }
    _plot_held_out(axes, points["loss"], color=RED, label="held-out loss")
    if not points["accuracy"]:
        return None
    accuracy: Axes = axes.twinx()
    _plot_held_out(accuracy, points["accuracy"], color=GREEN, label="held-out accuracy")
    accuracy.set_ylabel("accuracy on held-out pairs")
    accuracy.set_ylim(0, 1.02)
    return accuracy


def _rewards(state: RunState, axes: Axes) -> Axes:
    """Plot rewards, and accuracies on other axes of the same range, so that one grid serves both."""
    numbers = [step.number for step in state.steps if "reward_mean" in step.metrics]
    rewards = state.history("reward_mean")
    joined = "-" if len(rewards) > 2 else "none"
    axes.plot(
        numbers, rewards, color=PALE, linewidth=1, linestyle=joined, marker=".", label="reward of the step's episodes"
    )
    if len(rewards) > SMOOTH_STEPS:
        smooth = [
            sum(rewards[max(0, n - SMOOTH_STEPS + 1) : n + 1]) / min(n + 1, SMOOTH_STEPS) for n in range(len(rewards))
        ]
        axes.plot(numbers, smooth, color=DARK, linewidth=2, label=f"mean of the last {SMOOTH_STEPS} steps")
    axes.set_ylabel("mean training reward")
    accuracy: Axes = axes.twinx()
    modes: tuple[tuple[Literal["sampled", "greedy"], str, str], ...] = (("sampled", RED, "-"), ("greedy", GREEN, "--"))
    for mode, color, linestyle in modes:
        measure, values = held_out_scores(state.accuracy(mode))
        points = list(zip([evaluation.weight_version for evaluation in state.accuracy(mode)], values, strict=True))
        _plot_held_out(accuracy, points, color=color, linestyle=linestyle, label=f"held-out {measure}, {mode}")
    accuracy.set_ylabel(f"{measure} on held-out tasks")
    ranges = [axes.get_ylim(), *([accuracy.get_ylim()] if state.evaluations else [])]
    both = min(low for low, _ in ranges), max(high for _, high in ranges)
    axes.set_ylim(*both)
    accuracy.set_ylim(*both)
    return accuracy


def _plot_held_out(axes: Axes, points: Sequence[tuple[int, float]], **style: Any) -> None:
    """Plot measured points; two of them, before and after, are not joined by a line that would suggest a course."""
    if points:
        joined = style if len(points) > 2 else style | {"linestyle": "none"}
        axes.plot(*zip(*points, strict=True), linewidth=2, marker="o", **joined)
