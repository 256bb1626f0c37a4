"""The help of the command line: its commands in groups, by what a reader wants to do."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterator
from typing import get_args

from areal_actors import __version__
from areal_actors.cli.command import WIDTH, Group
from areal_actors.cli.find_commands import command_modules, commands_below, load_command
from areal_actors.core.command import COMMAND
from areal_actors.core.lazy import LazyModule

INSTALLED = LazyModule("areal_actors.cli.installed")
"""Commands of other distributions: finding them reads the metadata of all."""
COMPLETION = LazyModule("areal_actors.cli.completion")
SHELLS = ("bash", "zsh", "fish")
INDENT, COLUMN = 4, 14


def main_parser() -> argparse.ArgumentParser:
    """Returns the parser of words without a command."""
    parser = GroupedParser(
        prog=COMMAND,
        description=(
            "Fully asynchronous reinforcement learning of language-model agents, as asyncio actors on one message bus."
        ),
        epilog=f"`{COMMAND} COMMAND --help` describes each command.",
    )
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    parser.add_argument("--completion", type=_print_completion, metavar="SHELL")
    return parser


def _print_completion(shell: str) -> None:
    """Print the code of a shell, and end.

    Raises:
        ArgumentTypeError: it is another shell.
    """
    if shell not in SHELLS:
        raise argparse.ArgumentTypeError(f"found '{shell}'; write {', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
    sys.stdout.write(COMPLETION.shell_code(shell))
    sys.exit(0)


class GroupedParser(argparse.ArgumentParser):
    """A parser whose help lists its commands in groups."""

    def format_usage(self) -> str:
        """Returns the line of usage."""
        return f"usage: {COMMAND} [-h] [--version] COMMAND ...\n"

    def format_help(self) -> str:
        """Returns the help: usage, description, commands, options."""
        parts = [self.format_usage().rstrip(), textwrap.fill(str(self.description), WIDTH)]
        parts += ["\n".join([f"{title}:", *lines]) for title, lines in _groups()]
        options = (
            "  -h, --help          show this help message and exit",
            "  --version           show the version and exit",
            f"  --completion SHELL  print the completion for {', '.join(SHELLS[:-1])} or {SHELLS[-1]}",
        )
        return "\n\n".join([*parts, "\n".join(["options:", *options]), str(self.epilog)]) + "\n"


def _groups() -> Iterator[tuple[str, list[str]]]:
    found = {name: load_command(name) for name in command_modules() if " " not in name}
    for group in get_args(Group):
        named = [(each.place, name) for name, each in found.items() if each.group == group]
        yield group, [_line(name, found[name].summary + _below(name)) for _, name in sorted(named)]
    if others := INSTALLED.summaries():
        yield "of other distributions", [_line(name, summary) for name, summary in others.items()]


def _below(name: str) -> str:
    words = commands_below(name)
    return f" (also: {', '.join(words)})" if words else ""


def _line(name: str, summary: str) -> str:
    head = f"{'':<{INDENT}}{name:<{COLUMN - INDENT}}"
    return textwrap.fill(summary, WIDTH, initial_indent=head, subsequent_indent=" " * COLUMN, break_on_hyphens=False)
