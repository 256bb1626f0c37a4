"""Arguments of the commands, their help, and hints for mistyped ones. Imports nothing of what the commands do."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Sequence

from areal_actors.cli.command import CommandParser, Options
from areal_actors.cli.command_groups import main_parser
from areal_actors.cli.find_commands import command_modules, commands_below, load_command, split_command
from areal_actors.cli.other_names import no_command, with_new_name
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.core.lazy import LazyModule

INSTALLED = LazyModule("areal_actors.cli.installed")


def parse_command_line(arguments: Sequence[str]) -> Options:
    """Parse the command line; positional words may also follow options, and `--key value` is a setting."""
    arguments = with_new_name(arguments)
    name, words = split_command(arguments)
    if not name:
        return _without_command(arguments)
    description = load_command(name)
    parser = description.parser(f"{COMMAND} {name}")
    if below := commands_below(name):
        parser.list_commands({word: load_command(f"{name} {word}").summary for word in below})
    if not description.do:
        _refuse_without_word(parser, name, words)
    if description.takes_recipe:
        words = _with_settings(words, parser)
    options, rest = parser.parse_known_args(words)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words = [*options.words, *rest]
    stated = parser.stated(options)
    if hasattr(options, "settings_of_run"):
        options.run, options.settings = _run_and_settings(options.words)
    options.do = description.do if isinstance(description.do, str) else description.do(options, stated)
    return options


def _without_command(arguments: Sequence[str]) -> Options:
    """Answer words that name no command of ours: those of another distribution, options, mistakes."""
    parser = main_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    word = arguments[0]
    if word.startswith("-"):
        return parser.parse_args(arguments)
    names = INSTALLED.installed_names()
    if word not in names:
        parser.error(no_command(word, [*(name for name in command_modules() if " " not in name), *names]))
    return argparse.Namespace(do=INSTALLED.DO, command=word, rest=list(arguments[1:]))


def _refuse_without_word(parser: CommandParser, name: str, words: Sequence[str]) -> None:
    """End with the help of a name that only has commands below it, or with the error of a wrong word."""
    if "--help" in words or "-h" in words:
        parser.print_help()
        sys.exit(0)
    known = ", ".join(f"`{COMMAND} {name} {word}`" for word in commands_below(name))
    parser.error(f"found {words[0] if words else 'no word'} behind `{name}`; write {known}")


def _run_and_settings(words: Sequence[str]) -> tuple[str, list[str]]:
    """Returns the run that words name, empty for none, and the settings among them.

    Raises:
        RecipeError: they name several runs.
    """
    settings = [word for word in words if "=" in word]
    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise RecipeError(
            f"found {len(named)} runs, {' and '.join(named)}; name one run or exported log, and settings as KEY=VALUE"
        )
    return named[0] if named else "", settings


def _with_settings(words: Sequence[str], parser: CommandParser) -> list[str]:
    """Returns the words with each `--key value` and `--key=value` as an override."""
    known = sorted(parser.option_names())
    settings: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--[A-Za-z][\w.-]*", name) or name in known:
            settings.append(word)
            continue
        if not equals:
            if not left or left[0].startswith("--") or "=" in left[0] or left[0].endswith(".toml"):
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                parser.error(
                    f"unrecognized arguments: {name} without a value; {hint}A setting is written `key=value` or `--key"
                    " value`"
                )
            value = left.pop(0)
        settings += ["--set", f"{name[2:].replace('-', '_')}={value}"]
    return settings
