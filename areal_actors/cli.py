"""The command line: run | resume | serve | check | monitor | export | audit."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from areal_actors import __version__
from areal_actors.devices import detect_cuda
from areal_actors.display import monitor
from areal_actors.errors import ArealError, RecipeError
from areal_actors.recipe.load import Resolved, is_file, load
from areal_actors.recipe.plan import explained, to_json
from areal_actors.run import auditing, launcher, serve
from areal_actors.run.leftovers import report_clean_up
from bus.errors import BusError

WRONG_RECIPE = 2
FAILED = 1
INTERRUPTED = 130

_SETTINGS_HELP = """\
RECIPE is a TOML file; a later one is laid over an earlier one. KEY=VALUE is laid over all of them, a value being written
as in TOML, or as a bare word:

    areal {verb} recipes/gsm8k_grpo.toml
    areal {verb} recipes/gsm8k_grpo.toml my_changes.toml staleness_gate.max_staleness=4 profile=embedded

Paths in a recipe are relative to the current directory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit status: 0, 1 for a failed run, 2 for a wrong recipe or usage."""
    options = _parsed(arguments)
    try:
        status: int = options.do(options)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return WRONG_RECIPE
    except (ArealError, BusError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return FAILED
    return status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; words count wherever they stand, also behind an option."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words = [*options.words, *rest]
    return options


def _run(options: argparse.Namespace) -> int:
    resolved = _load(options)
    return launcher.run(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def _resume(options: argparse.Namespace) -> int:
    names = [word for word in options.words if "=" not in word]
    if len(names) > 1:
        raise RecipeError(f"found several runs, {' and '.join(names)}; name one, and settings as KEY=VALUE")
    overrides = [word for word in options.words if "=" in word] + options.set
    return launcher.resume("".join(names), overrides, folder=Path(options.folder), checkpoint=options.checkpoint)


def _serve(options: argparse.Namespace) -> int:
    resolved = _load(options, serving=True)
    return serve.serve(resolved.recipe, profile=resolved.profile, reason=resolved.reason)


def _check(options: argparse.Namespace) -> int:
    resolved = _load(options)
    print(to_json(resolved) if options.json else explained(resolved), flush=True)
    return 0


def _monitor(options: argparse.Namespace) -> int:
    report_clean_up(Path(options.folder))
    return monitor.attach(options.run, folder=Path(options.folder), subjects=options.subjects, bus=options.bus)


def _export(options: argparse.Namespace) -> int:
    return monitor.export(options.run, Path(options.destination), folder=Path(options.folder))


def _audit(options: argparse.Namespace) -> int:
    return auditing.audit(options.run, folder=Path(options.folder), recompute=options.recompute)


def _load(options: argparse.Namespace, *, serving: bool = False) -> Resolved:
    files = [Path(word) for word in options.words if is_file(word)]
    overrides = [word for word in options.words if not is_file(word)] + options.set
    if not files:
        raise RecipeError("found no recipe among the arguments; name a TOML file, as in `recipes/gsm8k_grpo.toml`")
    return load([_found(file, options.origin) for file in files], overrides, detect_cuda(), serving=serving)


def _found(file: Path, origin: Path) -> Path:
    """The file as named, or as named from the folder where the command was typed."""
    return origin / file if not file.exists() and (origin / file).exists() else file


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="areal",
        description="Fully asynchronous reinforcement learning of language-model agents, as asyncio actors on one bus.",
        epilog="`areal COMMAND --help` says more about each.",
    )
    parser.add_argument("--version", action="version", version=f"areal-actors {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = commands.add_parser(
        "run",
        help="train as a recipe says",
        description="Train as a recipe says, until its steps are done or Ctrl-C.",
        epilog=_SETTINGS_HELP.format(verb="run"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _takes_recipe(run)
    run.set_defaults(do=_run)

    resuming = commands.add_parser(
        "resume",
        help="let a run go on that ended early",
        description=(
            "Let a run go on that was interrupted, failed or was killed, from its last checkpoint and its log: what was trained since\n"
            "the checkpoint is trained again from the same trajectories, episodes under way are run again, and nothing counts twice."
        ),
        epilog=(
            "Settings of where and how fast may change, as `trainer.microbatch_tokens=2048` after a trainer that ran out of memory;\n"
            "what is learned may not: for that, start another run from a checkpoint."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    resuming.add_argument(
        "words", nargs="*", metavar="RUN|KEY=VALUE", help="the run (default: the latest), and settings for it from now on"
    )
    resuming.add_argument(
        "--from",
        dest="checkpoint",
        default="",
        metavar="step-N",
        help="go back to this checkpoint and take the steps since then again from the log (default: the newest; step-0: all steps)",
    )
    _takes_settings(resuming)
    _takes_folder(resuming)
    resuming.set_defaults(do=_resume)

    serving = commands.add_parser(
        "serve",
        help="serve a recipe's model to agents outside, and train nothing",
        description=(
            "Serve the model of a recipe behind the gateway, until Ctrl-C: agents start sessions, call the model over the OpenAI\n"
            "or Anthropic protocol, set rewards, end and export their sessions. Nothing is trained.\n"
            "At most staleness_gate.max_concurrent × algorithm.group_size sessions run at once."
        ),
        epilog=_SETTINGS_HELP.format(verb="serve") + "\n\nA checkpoint is served by `model=runs/NAME/checkpoints/step-40`.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _takes_recipe(serving)
    serving.set_defaults(do=_serve)

    check = commands.add_parser(
        "check",
        help="say what a recipe would do, and start nothing",
        description=(
            "Print the resolved recipe, the chosen profile and why, the supervision tree and the plan; start nothing.\n"
            "Exit status 2, with everything that is wrong, when the recipe cannot be run."
        ),
        epilog=_SETTINGS_HELP.format(verb="check"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _takes_recipe(check)
    check.add_argument("--json", action="store_true", help="print recipe, profile and reason as JSON, nothing else")
    check.set_defaults(do=_check)

    watch = commands.add_parser("monitor", help="watch a run from outside", description="Watch a run from outside; it does not notice.")
    _takes_run(watch)
    watch.add_argument(
        "subjects", nargs="?", default="", help="print these messages instead, as in `trajectory.>` (default: the live view)"
    )
    watch.add_argument("--bus", type=Path, metavar="FILE", help="the run's monitor.json, where its folder is not at hand")
    watch.set_defaults(do=_monitor)

    export = commands.add_parser(
        "export",
        help="write the log of a run to one file",
        description="Write everything that happened in a run, its durable log, to one portable file.",
    )
    _takes_run(export)
    export.add_argument("destination", metavar="FILE", help="where to write it")
    export.set_defaults(do=_export)

    audit = commands.add_parser(
        "audit",
        help="check that a run lost nothing and trained nothing twice",
        description=(
            "Read the log of a run, live or over, or an exported one, and check it: every group granted is trained, dropped, abandoned\n"
            "or under way; every trajectory is in one batch or dropped; every step is taken once, on the rows of its batch; every\n"
            "version of the weights has one checksum. Exit status 1 if anything is otherwise, with its place in the log."
        ),
        epilog=(
            "With --recompute the trainer takes every step again, from the log alone, and the checksums of its weights must be those that\n"
            "the log has: a version is `proved` by that, and `compared` when it was loaded, or published again, with the same checksum."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    audit.add_argument("run", nargs="?", default="", metavar="RUN|FILE", help="the run's name (default: the latest), or an exported log")
    audit.add_argument("--recompute", action="store_true", help="compute every version of the weights again (takes as long as training)")
    _takes_folder(audit)
    audit.set_defaults(do=_audit)
    return parser


def _takes_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="+", metavar="RECIPE|KEY=VALUE", help="recipe files and settings laid over them")
    _takes_settings(parser)
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where to look for a recipe that is not in the current directory",
    )


def _takes_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", default="", metavar="RUN", help="the run's name, as in its recipe (default: the latest)")
    _takes_folder(parser)


def _takes_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, said explicitly; may be repeated")


def _takes_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", default="runs", help="where runs are written (default: %(default)s)")
