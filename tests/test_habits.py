"""The tests that docs/habits.md names exist."""

import ast
import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "habits.md"
LEAST = 40
"""Number of habits that the page has at least."""


def test_every_habit_has_a_test_that_exists():
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith("| habit")
    ]
    named = [re.findall(r"`(test_\w+)(?:\[\w+\])?`", row) for row in rows]
    assert len(rows) >= LEAST
    assert [row for row, tests in zip(rows, named, strict=True) if not tests] == []
    existing = {
        node.name
        for file in PAGE.parent.parent.joinpath("tests").glob("test_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {test for tests in named for test in tests} - existing == set()
