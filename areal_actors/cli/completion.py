"""Completion in bash, zsh and fish, by argcomplete: commands, options, and names of runs, recipes and settings.

The shell starts this program at each TAB, with the words so far in environment variables. It loads the description of
the command in question only.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.shell_integration import shellcode

from areal_actors.cli.find_commands import command_modules, commands_below, load_command, split_command
from areal_actors.core.command import COMMAND
from areal_actors.core.lazy import LazyModule

REFERENCE = LazyModule("areal_actors.recipe.reference")
PATHS = LazyModule("areal_actors.recipe.paths")
EXECUTABLES: Final = (COMMAND, "areala")


def shell_code(shell: str) -> str:
    """Returns what a shell evaluates to complete our words: `bash` and `zsh` share theirs."""
    return shellcode(EXECUTABLES, shell="fish" if shell == "fish" else "bash")


def complete() -> None:
    """Answer the shell, and end the process."""
    words = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])].split()
    argcomplete.autocomplete(parser_of(words[1:]), exclude=["--trainer"])
    sys.exit(1)  # argcomplete ends the process itself; this line is reached if the shell asked in a form it ignores


def parser_of(words: Sequence[str]) -> argparse.ArgumentParser:
    """Returns a parser with all names of commands, and the arguments of the command that the words name."""
    name, _ = split_command(words)
    parser = argparse.ArgumentParser(COMMAND)
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--completion", choices=("bash", "zsh", "fish"))
    commands = parser.add_subparsers()
    first = name.partition(" ")[0]
    for other in command_modules():
        if " " in other:
            continue
        is_asked = other == first
        added = commands.add_parser(other, help=load_command(other).summary if not first else None)
        if is_asked:
            _add_words(added, name)
    return parser


def _add_words(parser: argparse.ArgumentParser, name: str) -> None:
    """Add what follows a command: its arguments, or the commands below it."""
    first, _, second = name.partition(" ")
    below = commands_below(first)
    if second or (below and not load_command(first).do):
        nested = parser.add_subparsers()
        for word in below:
            added = nested.add_parser(word)
            if word == second:
                _complete_arguments(added, name, [])
    else:
        _complete_arguments(parser, name, below)


def _complete_arguments(parser: argparse.ArgumentParser, name: str, below: Sequence[str]) -> None:
    description = load_command(name)
    description.add_arguments(parser)
    for action in parser._actions:  # noqa: SLF001 - argcomplete asks for an attribute of the actions
        kinds = str(action.metavar or "")
        if action.option_strings or not kinds:
            continue
        action.completer = _Words(kinds, below)  # type: ignore[attr-defined]


class _Words:
    """Completes positional words of the kinds that a metavar names."""

    def __init__(self, kinds: str, below: Sequence[str]) -> None:
        self._kinds = kinds
        self._below = below

    def __call__(self, prefix: str, parsed_args: argparse.Namespace, **_: Any) -> Iterator[str]:
        yield from self._below
        if "RUN" in self._kinds:
            yield from (
                place.parent.name for place in getattr(parsed_args, "folder", Path("runs")).glob("*/recipe.json")
            )
        if "RECIPE" in self._kinds:
            yield from (file.stem for file in PATHS.SHIPPED.glob("*.toml"))
        if "KEY" in self._kinds or "SETTING" in self._kinds:
            equals = "=" if "KEY" in self._kinds else ""
            yield from (f"{each.name}{equals}" for each in (REFERENCE.settings() if prefix else ()))
        if "RECIPE" in self._kinds or "FILE" in self._kinds or "FOLDER" in self._kinds:
            yield from FilesCompleter()(prefix)
