"""Commands of this package, found by the files of `cli/commands`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from areal_actors.cli import commands
from areal_actors.cli.command import CommandDescription


@cache
def command_modules() -> Mapping[str, str]:
    """Returns the module of each command by its name, as `what-if` and `serve gateway`; imports none."""
    folder = Path(commands.__path__[0])
    modules: dict[str, str] = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        words = parts[:-1] if parts[-1] == "__init__" else parts
        if words:
            modules[" ".join(words).replace("_", "-")] = ".".join((commands.__name__, *words))
    return modules


def load_command(name: str) -> CommandDescription:
    """Returns the description of a command; imports its file."""
    description: CommandDescription = importlib.import_module(command_modules()[name]).DESCRIPTION
    return description


def split_command(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the name of the command at the begin of the words, of two words where there is one, and the rest.

    The name is empty if no command of ours begins so.
    """
    for length in (2, 1):
        if (name := " ".join(words[:length])) in command_modules() and len(words) >= length:
            return name, list(words[length:])
    return "", list(words)


def commands_below(name: str) -> list[str]:
    """Returns the second words of the commands below one: `get`, `convert` and `template` of `model`."""
    return [other.removeprefix(f"{name} ") for other in command_modules() if other.startswith(f"{name} ")]
