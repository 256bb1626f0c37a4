"""The command line: `areal-actors COMMAND`.

Arguments are parsed before the module of a command is imported, so that `--help` and mistyped commands are answered at
once.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from areal_actors.cli.arguments import parse_command_line
from areal_actors.cli.command import Options
from areal_actors.core.errors import ArealError, RecipeError
from areal_actors.core.extras import missing_module
from areal_actors.core.foreign_text import show_controls
from areal_actors.core.lazy import LazyModule
from areal_actors.core.module_command import load_module

BUS_ERRORS = LazyModule("areal_bus.errors")
"""The bus is loaded behind the parsing of arguments."""
DESCRIPTORS = LazyModule("areal_bus.descriptors")
COMPLETION = LazyModule("areal_actors.cli.completion")

WRONG_RECIPE = 2
FAILED = 1
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1 for a failed run, 2 for an invalid recipe or usage."""
    if "_ARGCOMPLETE" in os.environ:
        COMPLETION.complete()
    try:
        options = parse_command_line(sys.argv[1:] if arguments is None else arguments)
        DESCRIPTORS.raise_descriptor_limit()
        with _json_alone(options):
            return _run_command(options)
    except SystemExit:  # of `--help`, before the errors of the bus are loaded for comparison
        raise
    except RecipeError as error:
        print(show_controls(str(error)), file=sys.stderr)
        return WRONG_RECIPE
    except (ArealError, BUS_ERRORS.BusError) as error:
        print(show_controls(f"{type(error).__name__}: {error}"), file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        if (lacking := missing_module(error)) is None:
            raise
        print(show_controls(f"{type(lacking).__name__}: {lacking}"), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED


def _json_alone(options: Options) -> AbstractContextManager[None]:
    """With --json, warnings, such as those of a bus that ends meanwhile, go to standard error.

    Standard output is JSON only.
    """
    if not getattr(options, "as_json", False):
        return nullcontext()
    logs = importlib.import_module("areal_actors.folder.process_logs")
    logging_to_terminal: Callable[[], AbstractContextManager[None]] = logs.logging_to_terminal
    return logging_to_terminal()


def _run_command(options: Options) -> int:
    """Call the function that `do` names.

    One of this folder gets the options, any other those that are its parameters.
    """
    module, _, name = options.do.partition(":")
    in_folder = "." not in module
    command: Callable[..., int] = getattr(load_module(f"areal_actors.{'cli.' * in_folder}{module}"), name)
    return command(options) if in_folder else command(**arguments_of(command, options))


def arguments_of(command: Callable[..., int], options: Options) -> dict[str, object]:
    """Returns the options that are parameters of a command's function, by name."""
    return {name: getattr(options, name) for name in inspect.signature(command).parameters if hasattr(options, name)}
