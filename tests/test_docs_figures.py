"""Every table of measured figures in the documentation names its lines of benchmarks/history.jsonl, and they hold its
figures."""

from __future__ import annotations

import pytest
from support.doc_figures import HISTORY, TABLES, history, is_among, numbers_in

MARKED = [table for table in TABLES if table.mark]
MOST_OF_NO_BENCHMARK = 6


def test_every_line_of_the_history_has_a_name_of_its_own():
    lines = HISTORY.read_text(encoding="utf-8").splitlines()
    assert len(history()) == len(lines)
    for name, line in history().items():
        assert name.rpartition("-")[0] == line["benchmark"]
        assert line["commit"]
        assert line["machine"]


@pytest.mark.parametrize("table", [table for table in TABLES if table.is_of_figures()], ids=str)
def test_a_table_of_figures_names_where_they_come_from(table):
    assert table.mark, (
        f"{table}: write `<!-- history: NAME -->` above it, or `none, REASON`; see tests/support/doc_figures.py"
    )


def test_few_tables_of_figures_come_from_no_benchmark():
    without = [table for table in MARKED if table.mark.startswith("none, ")]
    assert len(without) <= MOST_OF_NO_BENCHMARK, ", ".join(map(str, without))


@pytest.mark.parametrize("table", [table for table in MARKED if not table.mark.startswith("none, ")], ids=str)
def test_the_named_lines_hold_the_figures(table):
    lines = history()
    assert set(table.mark.split()) <= lines.keys()
    numbers = [number for name in table.mark.split() for number in numbers_in(lines[name])]
    assert [figure for figure in table.figures() if not is_among(figure, numbers)] == []


def test_of_each_benchmark_that_is_named_the_newest_line_is():
    """A page with older figures alone would show what is no longer so."""
    named = {name for table in MARKED if not table.mark.startswith("none, ") for name in table.mark.split()}
    newest = {line["benchmark"]: name for name, line in history().items()}
    benchmarks = {history()[name]["benchmark"] for name in named}
    assert {newest[benchmark] for benchmark in benchmarks} - named == set()


@pytest.mark.parametrize(
    ("figure", "is_there"),
    [
        ("0.51", True),
        ("0.5", True),
        ("51", True),
        ("0.52", False),
        ("513", True),
        ("7,200", True),
        ("7,201", False),
        ("3e-7", True),
    ],
)
def test_a_figure_is_found_as_it_is_printed(figure, is_there):
    assert is_among(figure, [0.513, 7200.2, 3.1e-7]) == is_there
