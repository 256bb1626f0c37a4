"""The commands of `--help` in groups, by what a reader wants to do."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping

GROUPS: dict[str, tuple[str, ...]] = {
    "prepare": ("init", "model", "check", "explain", "doctor"),
    "train": ("run", "resume", "fork", "launch", "join"),
    "serve, and learn from what is served": ("serve", "gateway", "tinker", "learn", "promote"),
    "look at runs": ("runs", "show", "view", "monitor", "compare", "why", "what-if", "trace", "state"),
    "prove and exchange": ("audit", "verify", "replay", "export", "import", "push", "track"),
}
"""Names of the commands of each group."""
WIDTH, INDENT, COLUMN = 80, 4, 14


class GroupedParser(argparse.ArgumentParser):
    """A parser whose help lists its commands in groups."""

    summaries: Mapping[str, str] = {}
    """Summary of each command; one that is in no group is of another distribution."""

    def format_help(self) -> str:
        """Returns the help: usage, description, commands, options."""
        parts = [self.format_usage().rstrip(), textwrap.fill(str(self.description), WIDTH)]
        parts += ["\n".join([f"{title}:", *lines]) for title, lines in self._groups()]
        options = "  -h, --help    show this help message and exit\n  --version     show the version and exit"
        return "\n\n".join([*parts, f"options:\n{options}", str(self.epilog)]) + "\n"

    def _groups(self) -> Iterator[tuple[str, list[str]]]:
        grouped = {name for names in GROUPS.values() for name in names}
        others = tuple(name for name in self.summaries if name not in grouped)
        for title, names in {**GROUPS, "of other distributions": others}.items():
            lines = [self._line(name) for name in names if name in self.summaries]
            if lines:
                yield title, lines

    def _line(self, name: str) -> str:
        head = f"{'':<{INDENT}}{name:<{COLUMN - INDENT}}"
        return textwrap.fill(self.summaries[name], WIDTH, initial_indent=head, subsequent_indent=" " * COLUMN)
