"""Tables of figures in the documentation, and the lines of `benchmarks/history.jsonl` that they name.

A table of figures has a comment directly above it, `<!-- history: NAME ... -->`, with the `id` of each line that it is
made of, as `gateway-1`; or `<!-- history: none, REASON -->` where the figures are of no benchmark. Each figure stands
in one of those lines: as it is, or as a share in percent, or in thousandths (seconds as ms), rounded as it is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.doc_blocks import PAGES, ROOT

HISTORY = ROOT / "benchmarks" / "history.jsonl"
SCALES = (1.0, 100.0, 1000.0, 1e-3, 1e-6)
_MARK = re.compile(r"^<!-- history: (?P<reason>.*) -->$")
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Table:
    """A table of Markdown."""

    page: Path
    line: int
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    mark: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    def figures(self) -> Iterator[str]:
        """Numbers of all cells but the first of each row, which is its label."""
        for row in self.rows:
            for cell in row[1:]:
                yield from _NUMBER.findall(cell)

    def is_of_figures(self) -> bool:
        """True if most cells are measured numbers: more fractions than integers, and hardly a word."""
        cells = [cell for row in self.rows for cell in row[1:] if cell]
        numeric = [
            cell for cell in cells if re.fullmatch(r"[\d\s.,/%→*×–seSkMB-]+", cell) and any(map(str.isdigit, cell))
        ]
        return (
            len(numeric) >= 4
            and len(numeric) * 2 > len(cells)
            and any("." in cell or "," in cell or "%" in cell for cell in numeric)
        )


def tables_of(page: Path) -> list[Table]:
    """The tables of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines[1:-1], start=1):
        if not re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line) or not lines[number - 1].startswith("|"):
            continue
        end = next((at for at in range(number, len(lines)) if not lines[at].startswith("|")), len(lines))
        mark = _MARK.match(lines[number - 2].strip()) if number >= 2 else None
        cells = [
            tuple(cell.strip() for cell in row.strip("|").split("|"))
            for row in [lines[number - 1], *lines[number + 1 : end]]
        ]
        found.append(Table(page, number, cells[0], tuple(cells[1:]), mark["reason"] if mark else ""))
    return found


TABLES = [table for page in PAGES for table in tables_of(page)]


def history() -> dict[str, Any]:
    """The lines of the history by id."""
    lines = [json.loads(line) for line in HISTORY.read_text(encoding="utf-8").splitlines()]
    return {line["id"]: line for line in lines}


def numbers_in(value: object) -> Iterator[float]:
    """All numbers of a line, those within texts included."""
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, str):
        yield from (float(found.replace(",", "")) for found in _NUMBER.findall(value))
    else:
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(part)


def is_among(figure: str, numbers: list[float]) -> bool:
    """True if one of the numbers is printed like this."""
    text = figure.replace(",", "")
    places = len(text.partition(".")[2].partition("e")[0])
    printed = float(text)
    near = 0.5000001 * 10.0**-places if "e" not in text else abs(printed) * 0.06
    return any(abs(number * scale - printed) <= near for number in numbers for scale in SCALES)
