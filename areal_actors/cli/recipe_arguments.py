"""Arguments of the commands that take a recipe, or settings of one: run, resume, serve, check, launch."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from areal_actors.cli.reader_arguments import splits_words
from areal_actors.core.command import COMMAND
from areal_actors.core.devices import CudaDevices, pretended_cuda

_SETTINGS_HELP = """\
RECIPE is a TOML file, or the name of a recipe that comes with the package; later files override earlier ones.
KEY=VALUE, or --KEY VALUE, overrides all files; the value is TOML or a bare word:

    {command} {verb} gsm8k_grpo
    {command} {verb} recipes/gsm8k_grpo.toml my_changes.toml staleness_gate.max_staleness=4 --profile embedded

A relative path in a recipe is looked for beside the recipe first, then in the current directory."""


def add_run_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands `run`, `resume` and `serve`."""
    about = "Train with a recipe until its steps are done or Ctrl-C."
    _takes_recipe(
        command("run", "run:run", "train with a recipe", about, _SETTINGS_HELP.format(command=COMMAND, verb="run"))
    )

    resuming = command(
        "resume",
        "resume:resume",
        "resume an interrupted or failed run",
        "Resume a run that was interrupted, failed or was killed, from its last checkpoint and its log: steps after the"
        " checkpoint\nare trained again from the same trajectories, unfinished episodes are run again, and nothing is"
        " counted twice.",
        "Settings of placement and speed may change, as `trainer.microbatch_tokens=2048` after a trainer that ran out"
        " of memory;\nsettings of what is learned may not: for those, start another run from a checkpoint.",
    )
    resuming.add_argument(
        "words", nargs="*", metavar="RUN|KEY=VALUE", help="the run (default: the latest), and overrides from now on"
    )
    resuming.add_argument(
        "--from",
        dest="checkpoint",
        default="",
        metavar="step-N",
        help=(
            "go back to this checkpoint and retrain the later steps from the log (default: the newest; step-0: all"
            " steps)"
        ),
    )
    _takes_settings(resuming)
    splits_words(resuming)

    serving = command(
        "serve",
        "serve:serve",
        "serve a recipe's model to external agents, without training",
        "Serve the model of a recipe through the gateway until Ctrl-C: agents start sessions, call the model over the"
        " OpenAI\nor Anthropic protocol, set rewards, end and export their sessions. Nothing is trained.\nAt most"
        " staleness_gate.max_concurrent × algorithm.group_size sessions run at once.",
        _SETTINGS_HELP.format(command=COMMAND, verb="serve")
        + "\n\nServe a checkpoint with `model=runs/NAME/checkpoints/step-40`.",
    )
    _takes_recipe(serving)


def add_check(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command `check`."""
    check = command(
        "check",
        "check_static:check",
        "validate a recipe and print the resolved configuration (dry run)",
        "Print the resolved recipe, the chosen profile with its reason, the supervision tree and the plan; then open"
        " the data, load\nagent and reward, and let them play a task with given answers in place of a model. Nothing is"
        " written.\nExit status 2, with every error, if the recipe is invalid.",
        _SETTINGS_HELP.format(command=COMMAND, verb="check"),
    )
    _takes_recipe(check)
    check.add_argument(
        "--devices",
        type=_devices,
        metavar="COUNT[xGIB]",
        help="check for another machine: its number of CUDA devices and their memory, as 8 or 8x80; 0: without any",
    )
    check.add_argument(
        "--static", action="store_true", help="read settings only: load no data, agent or reward, and play no task"
    )
    check.add_argument(
        "--data",
        action="store_true",
        help=(
            "also look at every row: references that the reward cannot read, prompts against the limits, duplicates,"
            " overlap"
        ),
    )
    check.add_argument("--full", action="store_true", help="print settings without effect in such a run, too")
    check.add_argument(
        "--json", dest="as_json", action="store_true", help="print recipe, profile and reason as JSON, nothing else"
    )


def add_launch(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command `launch`."""
    about = (
        f"Start a run together with the remote workers that its table [hosts] lists: `{COMMAND} run`, and"
        f" an\n`{COMMAND} join` for each of these hosts. slurm, kubernetes, ray: write a batch script, manifests or a"
        " Ray program, and print\nthe command that submits it; nothing is started. local: start all of it on this"
        " machine, until the run ends."
    )
    launched = command(
        "launch",
        "launch:launch",
        "start a run with the hosts of its recipe",
        about,
        _SETTINGS_HELP.format(command=COMMAND, verb="launch"),
    )
    _takes_recipe(launched)
    launched.add_argument(
        "--on", choices=("local", "slurm", "kubernetes", "ray"), required=True, help="what starts the hosts"
    )
    launched.add_argument(
        "--output", type=Path, default=Path("launch"), metavar="FOLDER", help="where files go (default: %(default)s)"
    )
    launched.add_argument(
        "--dry-run", action="store_true", help="print the commands or the file; write and start nothing"
    )
    follow = "on a cluster: act on the decisions of [autoscale] of the run, until SIGTERM; what is written starts it"
    launched.add_argument("--follow", action="store_true", help=follow)


def _devices(text: str) -> CudaDevices:
    try:
        return pretended_cuda(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"found '{text}'; write COUNT, as 8, or COUNTxGIB, as 8x80") from None


def _takes_recipe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RECIPE|KEY=VALUE",
        help="recipe files (later ones override) and KEY=VALUE overrides",
    )
    _takes_settings(parser)
    parser.add_argument(
        "--from",
        dest="origin",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder to search for a recipe that is not in the current directory",
    )


def _takes_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an override as an explicit option; may be repeated",
    )
