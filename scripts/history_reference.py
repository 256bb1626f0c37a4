"""Writes the tables of docs/history.md from the schema of a run's history: `python scripts/history_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from areal_actors.history.row import HistoryRow
from areal_actors.history.schema import TABLES, VIEWS, columns_of
from areal_actors.recipe.reference import meanings

PAGE = Path(__file__).parent.parent / "docs" / "history.md"
HEADING = "## Tables\n"
COMMON = {
    "run": "Name of the run.",
    "episode": "Name of the episode.",
    "worker": "Inference worker.",
    "actor": "Name of the actor.",
    "process": "Its process.",
    "weight_version": "Number of steps that made the weights.",
    "checksum": "Checksum of the tensors as they were loaded.",
    "reward": "Reward of the episode; null without one.",
    "reward_mean": "Mean reward of the scored episodes.",
    "newest_version": "Newest weight version that sampled a token.",
    "completion_tokens": "Number of sampled tokens.",
    "prompt_tokens": "Tokens of the whole prompt; null if it is not recorded.",
    "finish_reason": "`stop`, `length`, `tool_calls` or `cancelled`.",
    "dropped_tokens": "Their sampled tokens.",
    "schema_version": "Version of these tables.",
    "id": "Always 1.",
    "name": "Name of the metric.",
    "value": "What the command keeps.",
    "at": "Time of the event.",
    "number": "Number of the group, from 0.",
    "step": "Step, counted from 1.",
    "position": "Position of the event.",
}
"""Meanings of columns that have what they are."""


def page(before: str) -> str:
    """Returns the text of the page, with its tables as the code has them."""
    return before.partition(HEADING)[0] + HEADING + "\n" + "\n".join(_sections())


def _sections() -> Iterator[str]:
    for table in TABLES:
        yield f"### `{table.table}`\n"
        yield f"{table.__doc__}  Key: {', '.join(f'`{column.strip()}`' for column in table.key.split(','))}.\n".replace(
            "  ", " "
        )
        yield "| column | type | meaning |\n|---|---|---|"
        yield from _rows(table)
        yield ""
    for name, query in VIEWS.items():
        yield f"### `{name}`\n"
        yield f"A view: `{query}`.\n"


def _rows(table: type[HistoryRow]) -> Iterator[str]:
    documented = meanings(table)
    for column, kind in columns_of(table).items():
        shown = kind.removesuffix(" NOT NULL").lower() + ("" if kind.endswith("NOT NULL") else ", may be null")
        meaning = (
            documented.get(column) or COMMON.get(column) or ("Time of that event." if column.endswith("_at") else "")
        )
        yield f"| `{column}` | {shown} | {meaning} |"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
