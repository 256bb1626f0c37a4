"""`audit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from areal_actors.cli.command import Action, CommandDescription, Options
from areal_actors.cli.shared_arguments import natural_number, splits_words, takes_json
from areal_actors.core.errors import RecipeError

LOG = Action("reader.audit_command:audit", ("recompute",))
REPLAY = Action("replay.command:replay", ("replay", "recompute", "actors", "every", "as_json"))
VERIFY = Action("replay.verify:verify", ("verify", "log", "steps", "completions", "seed", "proof", "as_json"))


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RUN|FILE|KEY=VALUE",
        help="the run (default: the latest) or exported log; with --replay settings; with --verify a checkpoint",
    )
    parser.add_argument(
        "--recompute", action="store_true", help="recompute every weight version (takes as long as training)"
    )
    parser.add_argument("--trainer", dest="recompute", action="store_true", help=argparse.SUPPRESS)
    takes_json(parser, "print a replay or a verification as JSON, nothing else")
    replayed = parser.add_argument_group("decisions of the actors, from the log")
    replayed.add_argument(
        "--replay",
        action="store_true",
        help="give the log to new actors, and compare each event that they emit; with KEY=VALUE they have other"
        " settings, and the first difference is where they would have decided otherwise",
    )
    replayed.add_argument(
        "--actor",
        dest="actors",
        action="append",
        default=[],
        metavar="NAME",
        help="replay only this actor, as in batcher; may be repeated",
    )
    replayed.add_argument(
        "--all", dest="every", action="store_true", help="continue after the first difference, and count them"
    )
    _add_verification(parser)
    splits_words(parser)


def _add_verification(parser: argparse.ArgumentParser) -> None:
    verified = parser.add_argument_group("a checkpoint, as in runs/NAME/checkpoints/step-20")
    verified.add_argument(
        "--verify",
        action="store_true",
        help="check that it came about as the log of its run states: hash chain, audit, recipe, code, data, files,"
        " and rewards and optimizer steps that are drawn at random and computed again",
    )
    verified.add_argument(
        "--log", type=Path, metavar="FILE", help="an exported log, in place of the one in the folder of the run"
    )
    verified.add_argument(
        "--steps", type=natural_number, default=3, metavar="COUNT", help="steps to draw (default: %(default)s)"
    )
    verified.add_argument(
        "--completions",
        type=natural_number,
        default=1000,
        metavar="COUNT",
        help="scored episodes to draw (default: %(default)s)",
    )
    verified.add_argument(
        "--seed", type=natural_number, metavar="NUMBER", help="seed of the draws, to repeat them (default: a new one)"
    )
    verified.add_argument(
        "--proof", default="", metavar="DIGEST", help="digest of the proof that you were given beforehand"
    )


def _choose(options: Options, stated: dict[str, str]) -> str:
    if options.replay:
        options.trainer = options.recompute
        return REPLAY.refuse_others(stated, "with --replay")
    if options.settings:
        raise RecipeError(f"found the setting {options.settings[0]}; only --replay takes settings")
    if options.verify:
        if not options.run:
            raise RecipeError("--verify: name the folder of a checkpoint, as in runs/NAME/checkpoints/step-20")
        options.checkpoint = options.run
        return VERIFY.refuse_others(stated, "with --verify")
    return LOG.refuse_others(stated, "without --replay and --verify")


DESCRIPTION = CommandDescription(
    group="prove and exchange",
    place=1,
    summary="prove that a run lost nothing, trained nothing twice, and can be repeated",
    about=(
        "Read the log of a live or finished run, or an exported log, and check it: every group granted is trained,"
        " dropped, abandoned or in flight; every trajectory is in one batch or dropped; every step is taken once, on"
        " the rows of its batch; every weight version has one checksum. Exit status 1 if a check fails, with its"
        " position in the log."
    ),
    epilog=(
        "With --recompute the trainer repeats every step from the log alone, and its weight checksums must equal those"
        " in the log: that makes a version `proved`; it is `compared` if it was loaded, or published again, with the"
        " same checksum."
    ),
    do=_choose,
    add_arguments=_add_arguments,
)
