"""A screen of labelled facts that fits any terminal: the important ones stay, what does not fit is counted.

Legible without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from areal_actors.display.sentences import count_of

BARS = "▁▂▃▄▅▆▇█"
FULL, EMPTY = "█", "░"
LABEL_COLUMNS = 11
AXIS_COLUMNS = 8
WIDEST_BAR = 12
"""Columns of a step's value at most."""
CHART_LINES = (7, 28)
"""Height of the chart, with its axis: at least, and at most."""
ASCII = str.maketrans(
    dict(zip(BARS, "_.,:-=+#", strict=True)) | {EMPTY: "-", "─": "-", "·": "|", "…": "~", "×": "x", "–": "-", "→": ">"}
)
"""Replacements where the terminal's encoding has no such characters."""


class Fact(NamedTuple):
    """Some lines of the screen."""

    label: str
    """Word at their left; with an empty one they have the whole width."""
    text: Text
    rank: int
    """Facts of a lower rank are shown first where not all fit."""


class Chart(NamedTuple):
    """Values of a metric over the steps of a run."""

    name: str
    values: Sequence[float]


def sheet(console: Console, facts: Sequence[Fact], width: int, height: int | None, *, chart: Chart) -> list[Text]:
    """Returns the lines of a screen.

    Args:
        console: wraps the text.
        facts: from top to bottom.
        width: columns of the screen.
        height: lines of the screen, which are filled to the last; None for as many as needed.
        chart: drawn where `height` leaves room for it.
    """
    wrapped = [_lines(console, fact, width) for fact in facts]
    if height is None:
        return [line for lines in wrapped for line in lines]
    left, hidden = max(height - 1, 0), 0
    for place in sorted(range(len(facts)), key=lambda place: facts[place].rank):
        kept = min(len(wrapped[place]), left)
        hidden += len(wrapped[place]) - kept
        wrapped[place] = wrapped[place][:kept]
        left -= kept
    lines = [line for kept_lines in wrapped for line in kept_lines]
    if chart.values and left > CHART_LINES[0]:
        drawn = plot(chart, width, min(left - 1, CHART_LINES[1]))
        lines += [Text(), *map(Text, drawn)]
        left -= 1 + len(drawn)
    missing = f"{count_of(hidden, 'more line')} in a larger window" if hidden else ""
    return [*lines, *[Text()] * left, Text(missing, style="dim")]


def _lines(console: Console, fact: Fact, width: int) -> list[Text]:
    if not fact.label:
        lines = list(fact.text.split())
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines
    room = max(width - LABEL_COLUMNS, 1)
    wrapped = [line for part in fact.text.split(allow_blank=True) for line in part.wrap(console, room, overflow="fold")]
    labels = [fact.label, *[""] * (len(wrapped) - 1)]
    return [
        Text.assemble((f"{label:<{LABEL_COLUMNS}}", "bold cyan"), line)
        for label, line in zip(labels, wrapped, strict=True)
    ]


def in_encoding(line: Text, *, ascii_only: bool) -> Text:
    """Returns the line in characters that the terminal has."""
    if ascii_only:
        line.plain = line.plain.translate(ASCII).encode("ascii", "replace").decode()
    return line


def bar(done: float, total: float, width: int) -> str:
    """Returns a bar of `width` characters, whose filled part differs from the rest in shape."""
    filled = round(min(max(done / total, 0.0), 1.0) * width) if total else 0
    return FULL * filled + EMPTY * (width - filled)


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Returns a line of bars for a series, scaled from its minimum to its maximum; long series are averaged."""
    means = _average_ranges(values, width)
    low, high = min(means), max(means)
    return "".join(
        BARS[round((value - low) / (high - low) * (len(BARS) - 1))] if high > low else BARS[0] for value in means
    )


def plot(chart: Chart, width: int, height: int) -> list[str]:
    """Returns the lines of a chart of columns over zero, or over the minimum if it is negative.

    The last line is its axis.
    Series longer than the chart is wide are averaged.
    """
    room, rows = max(width - AXIS_COLUMNS, 1), max(height - 1, 1)
    means = _average_ranges(chart.values, room)
    each = min(max(room // len(means), 1), WIDEST_BAR)
    low, high = min(0.0, *means), max(0.0, *means)
    levels = [(value - low) / (high - low) * rows if high > low else 0.0 for value in means]
    lines = []
    for row in range(rows - 1, -1, -1):
        mark = f"{high:.3g}" if row == rows - 1 else f"{low:.3g}" if row == 0 else ""
        lines.append(f"{mark:>{AXIS_COLUMNS - 1}} {''.join(_block(level - row) * each for level in levels)}".rstrip())
    first, last = f"{chart.name} of step 1", str(len(chart.values))
    gap = max(each * len(means) - len(first) - len(last), 1)
    return [*lines, f"{' ' * AXIS_COLUMNS}{first}{' ' * gap}{last}"]


def _block(level: float) -> str:
    """Returns the part of a column in one line, which is full from a level of 1."""
    eighths = round(level * len(BARS))
    return " " if eighths <= 0 else BARS[min(eighths, len(BARS)) - 1]


def _average_ranges(values: Sequence[float], most: int) -> list[float]:
    size = max(len(values) / most, 1.0)
    edges = [round(n * size) for n in range(min(len(values), most) + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]


def columns(rows: Iterable[Sequence[str]], right: frozenset[int]) -> list[str]:
    """Returns rows of cells as lines with aligned columns.

    `right` has the numbers of those that are aligned at their right.
    """
    table = list(rows)
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))]
    aligned = (
        [
            cell.rjust(size) if place in right else cell.ljust(size)
            for place, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        for row in table
    )
    return ["  ".join(cells).rstrip() for cells in aligned]
