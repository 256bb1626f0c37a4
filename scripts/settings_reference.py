"""Writes docs/settings.md and docs/recipe.schema.json from the structs of a recipe.

`python scripts/settings_reference.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from areal_actors.recipe.reference import Setting, json_schema, settings

DOCS = Path(__file__).parent.parent / "docs"
PAGE, SCHEMA = DOCS / "settings.md", DOCS / "recipe.schema.json"
HEAD = """# Settings

After this page you know every setting of a recipe, with its type, its default and its meaning.

Every setting of a recipe, with type, default and meaning. Names are as in overrides, `areal-actors run RECIPE
trainer.batch_size=8`; in a file `[trainer]` is a table and `batch_size` a key of it. `areal-actors explain
trainer.batch_size` prints the same, `areal-actors check RECIPE` the values that a recipe resolves to.

[recipe.schema.json](recipe.schema.json) is the JSON schema of recipe files: editors with a TOML language server (such
as Even Better TOML or taplo) complete and check a file whose first line is `#:schema PATH/docs/recipe.schema.json`.

`python scripts/settings_reference.py` writes this page and the schema from the code.
"""


def table_of(setting: Setting) -> str:
    """Name of the table of a setting: empty for the top level, two parts for nested tables."""
    return setting.name.rpartition(".")[0]


def page() -> str:
    """Returns the text of the page."""
    return "\n".join([HEAD, *_sections()]).rstrip() + "\n"


def _sections() -> Iterator[str]:
    ordered = sorted(settings(), key=lambda setting: (_order().index(table_of(setting)),))
    for table, members in groupby(ordered, key=table_of):
        yield f"## `[{table}]`\n" if table else "## Top level\n"
        algorithms = table.startswith("algorithm")
        yield "| key | type | default | " + ("algorithms | " if algorithms else "") + "meaning |"
        yield "|---|---|---|" + ("---|" if algorithms else "") + "---|"
        for one in members:
            cells = [
                f"`{one.name.rpartition('.')[2]}`",
                one.type,
                one.default if " " in one.default else f"`{one.default}`",
            ]
            cells += [", ".join(one.algorithms)] if algorithms else []
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in [*cells, one.meaning]) + " |"
        yield ""


def _order() -> list[str]:
    return list(dict.fromkeys(table_of(setting) for setting in settings()))


def schema() -> str:
    """Returns the text of the schema."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
