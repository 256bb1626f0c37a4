"""Writes the tables of docs/algorithms.md from the algorithms themselves: `python scripts/algorithms_table.py`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec

from areal_actors.core.config import Config
from areal_actors.core.problems import toml_value
from areal_actors.recipe.reference import meanings
from areal_actors.training.algorithms import Algorithm, AnyAlgorithm, CriticSettings
from areal_actors.training.algorithms.correction import Correction
from areal_actors.training.algorithms.dapo import Overlong
from areal_actors.training.algorithms.kl import Kl
from areal_actors.training.algorithms.shaping import Shaping
from areal_actors.training.algorithms.spans import Spans

PAGE = Path(__file__).parent.parent / "docs/algorithms.md"
BEGIN, END = "<!-- written by scripts/algorithms_table.py -->", "<!-- end of what it writes -->"
PARTS = {
    "correction": Correction,
    "kl": Kl,
    "shaping": Shaping,
    "spans": Spans,
    "overlong": Overlong,
    "critic": CriticSettings,
}
COLUMNS = ("Advantage", "Surrogate", "Filter", "AReaL")


def updated(page: str) -> str:
    """Return the page with updated tables."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{chr(10).join(tables())}\n{END}{after}"


def tables() -> Iterator[str]:
    """Yield all lines between the marks."""
    kinds: list[type[Algorithm]] = list(get_args(AnyAlgorithm))
    yield from row("name", "what it is", "advantage", "surrogate", "loss aggregation", "filter", "AReaL's name")
    yield from row(*["---"] * 7)
    for kind in kinds:
        described = facts(kind)
        aggregation = next(
            (shown(field.default) for field in msgspec.structs.fields(kind) if field.name == "loss_aggregation"), "—"
        )
        yield from row(
            f"`{tag(kind)}`",
            title(kind),
            described["Advantage"],
            described["Surrogate"],
            aggregation,
            described["Filter"],
            described["AReaL"],
        )
    yield "\n### Hyperparameters and defaults\n"
    yield from row("name", "hyperparameters", "nested tables")
    yield from row(*["---"] * 3)
    for kind in kinds:
        yield from row(f"`{tag(kind)}`", ", ".join(knobs(kind)), ", ".join(parts(kind)))
    for name, part in PARTS.items():
        yield f"\n### `[algorithm.{name}]`\n"
        yield from row("key", "default", "meaning")
        yield from row(*["---"] * 3)
        for field in msgspec.structs.fields(part):
            yield from row(f"`{field.name}`", default_of(field), meanings(part).get(field.name, ""))


def row(*cells: str) -> Iterator[str]:
    """One line of a table."""
    yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def tag(kind: type[Algorithm]) -> str:
    """Name of the algorithm in a recipe."""
    return str(kind.__struct_config__.tag)


def title(kind: type[Algorithm]) -> str:
    """First sentence of the algorithm's file, with links to papers."""
    first = (inspect.getdoc(sys.modules[kind.__module__]) or "").partition("\n")[0].rstrip(".:")
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", first)


def facts(kind: type[Algorithm]) -> dict[str, str]:
    """Parse the `Name: value` lines of the algorithm's docstring."""
    paragraphs = re.split(rf"\n(?={'|'.join(COLUMNS)}: )|\n\n", inspect.getdoc(kind) or "")
    lines = dict(" ".join(text.split()).split(": ", 1) for text in paragraphs if ": " in text)
    return {name: lines.get(name, "—") for name in COLUMNS}


def knobs(kind: type[Algorithm]) -> Iterator[str]:
    """Settings and their defaults, without nested tables."""
    for field in msgspec.structs.fields(kind):
        if field.name not in PARTS and field.name not in {"group_size", "minibatches"}:
            yield f"`{field.name}` {default_of(field)}"


def parts(kind: type[Algorithm]) -> Iterator[str]:
    """Nested tables, with differences from their usual defaults."""
    for field in msgspec.structs.fields(kind):
        if field.name in PARTS:
            yield f"`{field.name}`{differing(field.default, PARTS[field.name])}"


def differing(default: Any, part: type[Config]) -> str:
    """Defaults of an algorithm's nested table that differ from the usual ones, in brackets."""
    if type(default) is part or default is None:
        return ""
    usual = {field.name: field.default for field in msgspec.structs.fields(part)}
    other = [
        f"{name} {shown(value)}" for name, value in msgspec.structs.asdict(default).items() if value != usual[name]
    ]
    return f" ({', '.join(other)})" if other else ""


def default_of(field: msgspec.structs.FieldInfo) -> str:
    """Default of a setting."""
    if field.required:
        return "required"
    return shown(field.default if field.default is not msgspec.NODEFAULT else field.default_factory())


def shown(value: object) -> str:
    """Format a value in TOML."""
    if isinstance(value, msgspec.Struct):
        return ", ".join(f"`{name}` {shown(inner)}" for name, inner in msgspec.structs.asdict(value).items())
    return "not set" if value is None else f"`{toml_value(value)}`"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
