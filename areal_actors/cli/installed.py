"""Commands that other distributions bring.

Each is a function of the words after its name, and returns the exit status.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from areal_actors.core.installed_parts import installed_parts

DO = "installed:run"


def add_installed_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> dict[str, str]:
    """Add the commands; each parses its own words, `--help` among them. Nothing is imported.

    Returns their summaries.
    """
    summaries: dict[str, str] = {}
    for name, part in installed_parts("command").items():
        if name not in commands.choices:
            summaries[name] = f"from {part.distribution} {part.version}"
            parser = commands.add_parser(name, add_help=False, prefix_chars="\0")
            parser.add_argument("rest", nargs="*")
            parser.set_defaults(do=DO, command=name)
    return summaries


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    command: Callable[[Sequence[str]], int | None] = installed_parts("command")[options.command].load()
    return command(options.rest) or 0
