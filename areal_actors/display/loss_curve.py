"""Plots losses, and for pairs the accuracy, over the steps of a run that learned from examples, as a PNG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from areal_actors.display.run_state import RunState

TRAINED, HELD_OUT, ACCURACY = "#9aa5b1", "#d1495b", "#00798c"


def draw_loss(state: RunState, path: Path) -> None:
    """Write the plot; a run without steps gives empty axes."""
    figure = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot([step.number for step in state.steps], state.history("loss"), color=TRAINED, linewidth=1, label="loss of the step's examples")
    _held_out(state, "loss", HELD_OUT, axes)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("loss")
    axes.grid(visible=True, alpha=0.3)
    lines = list(axes.get_lines())
    if state.held_out("accuracy"):
        accuracy = axes.twinx()
        _held_out(state, "accuracy", ACCURACY, accuracy)
        accuracy.set_ylabel("accuracy on held-out pairs")
        accuracy.set_ylim(0, 1.02)
        lines += accuracy.get_lines()
    axes.legend(lines, [str(line.get_label()) for line in lines], loc="best", fontsize=9)
    name = state.setting("algorithm", "name")
    axes.set_title(f"{state.run}: {name} of {state.setting('model')} on {state.setting('task', 'dataset')}")
    figure.savefig(path)


def _held_out(state: RunState, name: str, colour: str, axes: Axes) -> None:
    if values := state.held_out(name):
        steps = [measured.weight_version for measured in state.losses if name in measured.metrics]
        axes.plot(steps, values, color=colour, linewidth=2, marker="o", label=f"held-out {name}")
