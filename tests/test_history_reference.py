"""docs/history.md: its tables are those of the code, every column has a meaning, its queries run."""

from __future__ import annotations

import re
import runpy

import pytest
from support.live_run import ROOT
from test_history import LOG, in_memory

PAGE = (ROOT / "docs" / "history.md").read_text()
STATEMENTS = [
    statement
    for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    for statement in block.split(";")
    if statement.strip()
]


def test_the_page_is_current():
    script = runpy.run_path(str(ROOT / "scripts/history_reference.py"))
    assert script["page"](PAGE) == PAGE, "run `python scripts/history_reference.py`"
    assert [line for line in PAGE.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_query_of_the_page_runs(statement):
    history = in_memory(LOG)
    rows = history.query(statement)
    assert rows or "tool_call_error" in statement or "severity" in statement
