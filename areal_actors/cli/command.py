"""Descriptions of commands: group, summary, arguments, and the function that runs one.

A command of ours is a file of `cli/commands` with a `DESCRIPTION`; its name is that of the file, and `serve/gateway.py`
is `serve gateway`. No other file names it. It imports only what its description needs: for `--help` all are imported,
else the one that is used.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, NamedTuple

from areal_actors.core.errors import RecipeError

Options = argparse.Namespace
"""Parsed arguments of one command; `do` names its function: `run:run` of `cli/run.py`, `replay.why:why` of
`replay/why.py`."""
Group = Literal["prepare", "train", "serve, and learn from what is served", "look at runs", "prove and exchange"]
WIDTH: Final = 80
"""Columns of a help text, in a wider terminal too."""


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs, and keeps those with indented lines as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=WIDTH - 1, max_help_position=26)

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - as the class declares it
        return "\n\n".join(
            paragraph if "\n    " in f"\n{paragraph}" else textwrap.fill(paragraph, width, break_on_hyphens=False)
            for paragraph in text.split("\n\n")
        )


class CommandParser(argparse.ArgumentParser):
    """Parser of one command."""

    def __init__(self, prog: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=prog, description=description, epilog=epilog, formatter_class=HelpFormatter, allow_abbrev=False
        )

    def list_commands(self, summaries: Mapping[str, str]) -> None:
        """Add the commands below this one to the help."""
        lines = "\n".join(f"    {name:<10}{summary}" for name, summary in summaries.items())
        self.epilog = f"{self.epilog}\n\n{self.prog} COMMAND:\n{lines}".strip()

    def option_names(self) -> frozenset[str]:
        """Returns its options, as `--json`."""
        return frozenset(self._option_string_actions)

    def stated(self, options: Options) -> dict[str, str]:
        """Returns how the options are written whose values differ from their defaults, by destination."""
        return {
            action.dest: next(iter(action.option_strings), action.dest)
            for action in self._actions
            if (value := getattr(options, action.dest, action.default)) != action.default
            and action.const in (None, value)  # of several options with one destination, the one of this value
        }


class Action(NamedTuple):
    """A function that a command may call, and the options that it understands."""

    do: str
    """`module:function`."""
    takes: Iterable[str] = ()
    """Destinations of the options that have an effect, besides `folder`."""

    def refuse_others(self, stated: dict[str, str], where: str) -> str:
        """Returns `do`.

        Args:
            stated: options on the command line, as of `CommandParser.stated`.
            where: how this action is chosen, for the message, as in `with --trace`.

        Raises:
            RecipeError: an option is stated that has no effect here.
        """
        others = [written for name, written in stated.items() if name not in {*self.takes, "folder"}]
        if others := [written for written in others if written.startswith("-")]:
            raise RecipeError(f"{others[0]} has no effect {where}; leave it out, or see what --help lists it under")
        return self.do


Choice = Callable[[Options, dict[str, str]], str]
"""Returns the `do` of parsed options, with those that are stated; it may complete the options."""


def no_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing."""


class CommandDescription(NamedTuple):
    """Description of a command; `DESCRIPTION` of its file."""

    group: Group
    place: int
    """Its place in the group: smaller numbers first."""
    summary: str
    """Line of `--help`."""
    about: str
    """Paragraphs of its own help."""
    do: str | Choice
    """`module:function`, or what chooses one; empty for a name that only has commands below it."""
    add_arguments: Callable[[argparse.ArgumentParser], None] = no_arguments
    epilog: str = ""
    takes_recipe: bool = False
    """True if `--key value` is a setting of a recipe."""

    def parser(self, prog: str) -> CommandParser:
        """Returns the parser of its arguments."""
        parser = CommandParser(prog, self.about, self.epilog)
        self.add_arguments(parser)
        return parser
