"""Tasks from a file: one JSON object a line, with a `question` and an `answer`; further fields are kept for the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from areal_actors.errors import SetupError

FIELDS = ("question", "answer")


def rows(path: Path) -> list[dict[str, Any]]:
    """Every row of the file, in order; empty lines are passed over.

    Raises:
        SetupError: the file cannot be read or has no rows, or a line is not an object with both texts; it names file, line and field.
    """
    path = path.expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}; name an existing .jsonl file (looked in {Path.cwd()})") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from error
    found = [_row(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise SetupError(f'{path}: the file has no rows; write one object a line: {{"question": "…", "answer": "…"}}')
    return found


def _row(line: str, place: str) -> dict[str, Any]:
    try:
        row = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise SetupError(f"{place}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise SetupError(f"{place}: expected an object with `question` and `answer`, got {type(row).__name__}")
    for field in FIELDS:
        if field not in row:
            raise SetupError(f"{place}: `{field}` is missing; the row has {', '.join(f'`{name}`' for name in row) or 'no fields'}")
        if not isinstance(row[field], str) or not row[field].strip():
            raise SetupError(f"{place}: `{field}` must be a text that is not empty, got {row[field]!r:.40}")
    return row
