"""Commands that other distributions bring.

Each is a function of the words after its name, and returns the exit status.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from areal_actors.cli.find_commands import command_modules
from areal_actors.core.installed_parts import installed_parts

DO = "installed:run"


def installed_names() -> list[str]:
    """Returns the names of the commands; nothing is imported. A name that ours have is left out."""
    return list(summaries())


def summaries() -> dict[str, str]:
    """Returns the line of each command in `--help`, by name; nothing is imported."""
    return {
        name: f"from {part.distribution} {part.version}"
        for name, part in installed_parts("command").items()
        if name not in command_modules()
    }


def run(options: argparse.Namespace) -> int:
    """Run the command; it parses its own words, `--help` among them."""
    command: Callable[[Sequence[str]], int | None] = installed_parts("command")[options.command].load()
    return command(options.rest) or 0
