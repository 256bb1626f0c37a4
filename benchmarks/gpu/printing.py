"""The tables of the first hour, line by line as figures arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from run_sections import Outcome

NARROWEST = 10
CASE = 20
"""Smallest widths of a column of figures and of that of cases."""


class Printer:
    """Prints a row for each set of figures, under a header when its columns differ from those of the row before."""

    def __init__(self, line: Callable[[str], None]) -> None:
        self._line = line
        self._widths: dict[str, int] = {}
        """Width in characters of each column."""

    def show(self, outcome: Outcome, what: str) -> None:
        """Print what was added to an outcome."""
        match what:
            case "started":
                self._widths = {}
                self._line(f"\n== {outcome.name} (at most {outcome.budget_seconds:.0f} s)")
            case "figures":
                self._row(outcome.cases[-1])
            case "skipped":
                self._line(f"skipped: {outcome.skipped[-1]['case']}: {outcome.skipped[-1]['reason']}")
            case "error":
                error = outcome.errors[-1]
                self._line(f"FAILED: {error['case']}: {error['error']}\n{error['traceback']}")
            case "ended":
                peaks = ", ".join(f"{name} {size / 2**30:.2f} GiB" for name, size in outcome.peak_bytes.items())
                self._line(f"{outcome.status}: {outcome.seconds:.1f} s" + (f"; peak memory: {peaks}" if peaks else ""))

    def conclude(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """Print the status of all sections."""
        self._line("\n== all sections")
        for outcome in outcomes:
            remarks = [f"{len(outcome.cases)} rows of figures", f"{outcome.seconds:.1f} s"]
            remarks += [f"failed: {error['case']}: {error['error']}" for error in outcome.errors]
            remarks += [f"skipped: {skipped['case']}: {skipped['reason']}" for skipped in outcome.skipped]
            self._line(f"{outcome.name:<10}{outcome.status:<9}" + "; ".join(remarks))
        self._line(f"{seconds:.0f} s in all")

    def _row(self, figures: dict[str, Any]) -> None:
        cells = {name: shown(value) for name, value in figures.items()}
        if list(cells) != list(self._widths):
            self._widths = {name: max(len(name), len(cell), NARROWEST) for name, cell in cells.items()}
            self._widths["case"] = max(len(cells["case"]), CASE)
            self._cells({name: name for name in cells})
        self._cells(cells)

    def _cells(self, cells: dict[str, str]) -> None:
        padded = [
            cell.ljust(self._widths[name]) if name == "case" else cell.rjust(self._widths[name])
            for name, cell in cells.items()
        ]
        self._line("  ".join(padded))


def shown(value: float | str) -> str:
    """Return a figure with four significant digits."""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)
