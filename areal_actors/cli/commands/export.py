"""`export`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import Action, CommandDescription, Options
from areal_actors.cli.shared_arguments import positive_count, takes_folder
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.export.defaults import LEAST_REWARD

FILE = Action("export.command:export", ("kind", "best", "least_reward", "margin"))
TRACKERS = Action("track:track", ("to", "otlp", "once", "project", "python"))
HUB = Action("reader.push:push", ("hub", "checkpoint", "episodes", "private", "dry_run"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN FILE",
        help="the run (default: the latest) or an exported log, and the file to write; for --atif also a folder, for"
        " --hub OWNER/NAME, for trackers nothing",
    )
    kinds = parser.add_mutually_exclusive_group()
    for kind, text in (
        ("sft", "the best episodes of each group, for recipes/sft.toml and TRL's SFTTrainer"),
        ("preferences", "the best and the worst answer of each group, for recipes/dpo.toml and TRL's DPOTrainer"),
        ("atif", "all episodes in the Agent Trajectory Interchange Format"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    parser.set_defaults(kind="log")
    parser.add_argument(
        "--best", type=positive_count, default=1, metavar="N", help="with --sft: at most N episodes of a group (1)"
    )
    parser.add_argument(
        "--least-reward",
        type=float,
        default=LEAST_REWARD,
        metavar="R",
        help="with --sft: smallest reward (%(default)s)",
    )
    parser.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="R",
        help="with --preferences: smallest difference of the two rewards (any)",
    )
    _add_trackers(parser.add_argument_group("experiment trackers, followed until the run ends"))
    _add_hub(parser.add_argument_group("the Hugging Face hub"))
    takes_folder(parser)


def _add_trackers(parser: argparse._ActionsContainer) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--to", default="", metavar="NAMES", help="tensorboard, wandb, mlflow, trackio; several with commas"
    )
    where.add_argument(
        "--otlp", default="", metavar="URL", help="send traces to this OpenTelemetry collector instead, over HTTP"
    )
    parser.add_argument("--once", action="store_true", help="send what is there, and end")
    parser.add_argument(
        "--project", default="", help="project or experiment (default: the library's own variable, or areal)"
    )
    parser.add_argument(
        "--python", default="", metavar="FILE", help="Python interpreter that has the trackers (default: this one)"
    )


def _add_hub(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--hub",
        action="store_true",
        help="upload the best or newest checkpoint as a model, with a card, the recipe and the curve, to OWNER/NAME",
    )
    parser.add_argument(
        "--checkpoint", default="", metavar="step-N", help="another checkpoint (default: the best, else the newest)"
    )
    parser.add_argument(
        "--episodes", action="store_true", help="upload tables of episodes and calls as a dataset instead"
    )
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--dry-run", action="store_true", help="print what would be uploaded; nothing is sent")


def _choose(options: Options, stated: dict[str, str]) -> str:
    words = options.words
    if options.to or options.otlp:
        if len(words) > 1:
            raise RecipeError(f"found {words[1]} behind the run; trackers get the run from its log, and take no file")
        options.run = words[0] if words else ""
        return TRACKERS.refuse_others(stated, "with --to and --otlp")
    if not 1 <= len(words) <= 2:
        raise RecipeError(
            f"found {len(words)} words; write `{COMMAND} export RUN FILE`, `{COMMAND} export RUN OWNER/NAME --hub` or"
            f" `{COMMAND} export RUN --to tensorboard`"
        )
    options.run = words[0] if len(words) > 1 else ""
    if options.hub:
        options.repo = words[-1]
        return HUB.refuse_others(stated, "with --hub")
    options.destination = Path(words[-1])
    return FILE.refuse_others(stated, "for a file")


DESCRIPTION = CommandDescription(
    group="prove and exchange",
    place=2,
    summary="send a run to a file, to a tracker, or to the Hugging Face hub",
    about=(
        "Write the durable log of a run to one portable file, or its episodes, with the tokens as they were sampled."
        "\n\n"
        "With --to, send steps, evaluations and recipe to experiment trackers, each of which gets only what it does not"
        " have yet; `[track]` in the recipe does the same beside the run. With --hub, upload a checkpoint or the"
        " episodes in one commit: HF_TOKEN, or `hf auth login`, gives the access; HF_ENDPOINT names another hub. The"
        " run is not affected."
    ),
    do=_choose,
    add_arguments=_add_arguments,
)
