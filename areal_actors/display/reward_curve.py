"""Plots the reward of each step and the accuracy on held-out tasks over the steps of a run, as a PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from areal_actors.display.run_state import RunState

SMOOTH_STEPS = 5
REWARD, SAMPLED, GREEDY = "#9aa5b1", "#d1495b", "#00798c"


def draw_reward(state: RunState, path: Path) -> None:
    """Write the plot; a run without steps gives empty axes."""
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    numbers = [step.number for step in state.steps if "reward_mean" in step.metrics]
    rewards = state.history("reward_mean")
    axes.plot(numbers, rewards, color=REWARD, linewidth=1, marker=".", label="reward of the step's episodes")
    smooth = [sum(rewards[max(0, n - SMOOTH_STEPS + 1) : n + 1]) / min(n + 1, SMOOTH_STEPS) for n in range(len(rewards))]
    axes.plot(numbers, smooth, color="#52606d", linewidth=2, label=f"mean of the last {SMOOTH_STEPS} steps")
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("mean training reward")
    axes.grid(visible=True, alpha=0.3)
    held_out = axes.twinx()
    _accuracy(state, "sampled", SAMPLED, held_out)
    _accuracy(state, "greedy", GREEDY, held_out)
    held_out.set_ylabel("accuracy on held-out tasks")
    held_out.set_ylim(*_shared_range(axes.get_ylim(), held_out.get_ylim() if state.evaluations else axes.get_ylim()))
    axes.set_ylim(*held_out.get_ylim())
    lines = [*axes.get_lines(), *held_out.get_lines()]
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="best", fontsize=9)
    axes.set_title(f"{state.run}: {state.setting('model')} on {state.setting('task', 'dataset')}")
    figure.savefig(path)


def _accuracy(state: RunState, mode: Literal["sampled", "greedy"], colour: str, axes: Axes) -> None:
    found = state.accuracy(mode)
    if found:
        steps, values = [one.weight_version for one in found], [one.accuracy for one in found]
        axes.plot(
            steps,
            values,
            color=colour,
            linewidth=2,
            linestyle="-" if mode == "sampled" else "--",
            marker="o",
            label=f"held-out accuracy, {mode}",
        )


def _shared_range(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Returns one range for both axes, so that one grid serves reward and accuracy."""
    return min(one[0], other[0]), max(one[1], other[1])
