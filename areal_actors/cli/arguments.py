"""Arguments of the commands, their help, and hints for mistyped ones. Imports nothing of what the commands do."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from areal_actors import __version__
from areal_actors.cli.command_groups import GroupedParser
from areal_actors.cli.export_arguments import add_export, add_import
from areal_actors.cli.fork_arguments import add_fork
from areal_actors.cli.gateway_arguments import add_gateway_command
from areal_actors.cli.installed import DO as INSTALLED
from areal_actors.cli.installed import add_installed_commands
from areal_actors.cli.learn_arguments import add_learn
from areal_actors.cli.model_arguments import add_model_commands
from areal_actors.cli.other_names import no_command
from areal_actors.cli.promote_arguments import add_promote
from areal_actors.cli.reader_arguments import (
    add_explanations,
    add_readers,
    add_replays,
    positive_count,
    takes_folder,
    takes_json,
    takes_page_address,
)
from areal_actors.cli.recipe_arguments import add_check, add_launch, add_run_commands
from areal_actors.cli.verify_arguments import add_verify
from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.core.host_settings import JOIN_TOKEN
from areal_actors.tinker.command import TinkerOptions

Options = argparse.Namespace
"""Parsed arguments of one command; `do` names its function: `run:run` of `cli/run.py`, `replay.why:why` of
`replay/why.py`."""

TAKE_RECIPE = ("run", "serve", "check", "launch")
ROLES = ("inference_worker", "reward_worker", "rollout_worker")
"""Kinds of workers that may join a run of another host."""
OPTIONS_BESIDE_SETTINGS = (
    "--help",
    "--set",
    "--from",
    "--devices",
    "--json",
    "--data",
    "--static",
    "--on",
    "--output",
    "--dry-run",
    "--follow",
)
"""Options of the commands that take a recipe; any other is a setting."""


def parse_command_line(arguments: Sequence[str]) -> Options:
    """Parse the command line; positional words may also follow options, and `--key value` is a setting."""
    parser, names = _parser()
    if not arguments:
        parser.print_help(sys.stderr)
        sys.exit(2)
    if (word := arguments[0]) not in names and not word.startswith("-"):
        parser.error(no_command(word, names))
    if word in TAKE_RECIPE:
        arguments = [word, *_with_settings(arguments[1:], parser)]
    options, rest = parser.parse_known_args(arguments)
    if options.do == INSTALLED:
        return options
    if rest and (not hasattr(options, "words") or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        options.words = [*options.words, *rest]
    if hasattr(options, "settings_of_run"):
        options.run, options.settings = _run_and_settings(options.words)
    if options.do == "check_static:check" and not (options.static or options.as_json or options.devices):
        options.do = "check:check"
    return options


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


def _with_settings(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns the words with each `--key value` and `--key=value` as an override."""
    settings: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"--[A-Za-z][\w.-]*", name) or name in OPTIONS_BESIDE_SETTINGS:
            settings.append(word)
            continue
        if not equals:
            if not left or left[0].startswith("--") or "=" in left[0] or left[0].endswith(".toml"):
                near = difflib.get_close_matches(name, OPTIONS_BESIDE_SETTINGS, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                parser.error(
                    f"unrecognized arguments: {name} without a value; {hint}A setting is written `key=value` or `--key"
                    " value`"
                )
            value = left.pop(0)
        settings += ["--set", f"{name[2:].replace('-', '_')}={value}"]
    return settings


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """Returns the parser and the names of its commands."""
    summaries: dict[str, str] = {}
    parser = GroupedParser(
        prog=COMMAND,
        description=(
            "Fully asynchronous reinforcement learning of language-model agents, as asyncio actors on one message bus."
        ),
        epilog=f"`{COMMAND} COMMAND --help` describes each command.",
    )
    parser.add_argument("--version", action="version", version=f"{COMMAND} {__version__}")
    parser.summaries = summaries
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )

    def command(name: str, do: str, summary: str, about: str, epilog: str = "") -> argparse.ArgumentParser:
        summaries[name] = summary
        subparser = commands.add_parser(
            name,
            help=summary,
            description=about,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.set_defaults(do=do)
        return subparser

    _begins(command)
    add_run_commands(command)
    add_fork(command)
    add_learn(command)
    add_promote(command)
    _joins(command)
    add_launch(command)
    _serves_tinker(command)
    add_gateway_command(command)
    add_model_commands(command)
    add_check(command)

    about = (
        f"Describe settings of a recipe, or all settings of a table, as in\n`{COMMAND} explain"
        " trainer.microbatch_tokens gateway`."
    )
    describe = command("explain", "check_static:explain", "describe settings: type, default, meaning", about)
    describe.add_argument("settings", nargs="*", metavar="SETTING|TABLE", help="dotted names (default: all settings)")
    describe.add_argument(
        "--json-schema", action="store_true", help="print the JSON schema of recipe files, for editors"
    )

    _watches(command)
    add_readers(command)
    _uploads(command)

    add_export(command)
    add_import(command)

    audit = command(
        "audit",
        "reader.audit_command:audit",
        "check that a run lost nothing and trained nothing twice",
        "Read the log of a live or finished run, or an exported log, and check it: every group granted is trained,"
        " dropped, abandoned\nor in flight; every trajectory is in one batch or dropped; every step is taken once, on"
        " the rows of its batch; every\nweight version has one checksum. Exit status 1 if a check fails, with its"
        " position in the log.",
        "With --recompute the trainer repeats every step from the log alone, and its weight checksums must equal those"
        " in the log:\nthat makes a version `proved`; it is `compared` if it was loaded, or published again, with the"
        " same checksum.",
    )
    audit.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN|FILE",
        help="the run's name (default: the latest), or an exported log",
    )
    audit.add_argument(
        "--recompute", action="store_true", help="recompute every weight version (takes as long as training)"
    )
    takes_folder(audit)

    add_verify(command)
    add_replays(command)
    add_explanations(command)

    about = (
        "Print what this machine has for a run: packages, nats-server, devices, memory, disk, inference servers, and"
        " the abilities of\nthe engines. Exit status 1 if a run with the embedded defaults cannot start here; each"
        " problem has its remedy. Starts nothing."
    )
    examine = command("doctor", "run.doctor:doctor", "print what this machine has and lacks for a run", about)
    takes_json(examine)
    takes_folder(examine)
    summaries |= add_installed_commands(commands)
    return parser, list(commands.choices)


def _watches(command: Callable[..., argparse.ArgumentParser]) -> None:
    about = "Watch a run from another process; the run is not affected."
    watch = command("monitor", "monitor:monitor", "watch a run from outside", about)
    _takes_run(watch)
    watch.add_argument(
        "subjects",
        nargs="?",
        default="",
        help="print these messages instead, as in `trajectory.>` (default: the live view)",
    )
    watch.add_argument(
        "--bus", type=Path, metavar="FILE", help="the run's monitor.json, if its folder is not accessible"
    )
    takes_json(watch, "print every message whole, as one JSON object a line (with subjects: these)")
    watch.add_argument(
        "--prometheus", default="", metavar="[HOST:]PORT", help="serve the run's metrics there instead, for Prometheus"
    )

    watch.add_argument(
        "--web", action="store_true", help=f"serve the run's page for a browser instead, as `{COMMAND} view` does"
    )
    takes_page_address(watch)


def _begins(command: Callable[..., argparse.ArgumentParser]) -> None:
    about = (
        "Write a folder with an agent, its reward, its tasks, a recipe and a test, which run at once: change them step"
        " by step into your\nown. With the recipe as written, the embedded model learns on a CPU; nothing is"
        " downloaded."
    )
    begun = command("init", "init:init", "write a new agent with tasks, recipe, reward and test", about)
    begun.add_argument("path", metavar="NAME", help="folder to create; its last part is the name of the run")
    kinds = (
        "text: one call; tools: with a tool; environment: several turns; node: in JavaScript, without packages"
        " (default: %(default)s)"
    )
    begun.add_argument("--kind", choices=("text", "tools", "environment", "node"), default="text", help=kinds)
    source = (
        "a configuration of AReaL (YAML), TRL (YAML, JSON, a Python program) or verl (YAML, a script), and overrides"
        " KEY=VALUE: the recipe is its conversion, and conversion.md lists every key"
    )
    begun.add_argument("--from", dest="source", nargs="+", default=[], metavar="FILE", help=source)


def _joins(command: Callable[..., argparse.ArgumentParser]) -> None:
    about = (
        "Serve more workers to a live run of another host, which was started with `bus.host`: recipe, code, tokenizer,"
        " model and weights\ncome from there over the network; this host needs the same version of areal-actors and the"
        " packages of the agent.\nAt SIGTERM or Ctrl-C episodes in progress are finished, then the workers leave;"
        " nothing of the run is lost if they are killed."
    )
    joined = command("join", "join:join", "serve workers to a run of another host", about)
    joined.add_argument(
        "address", nargs="?", default="", metavar="nats://HOST:PORT/RUN", help=f"as `{COMMAND} run` printed it"
    )
    joined.add_argument(
        "--role", choices=(*ROLES, "gateway"), default="rollout_worker", help="kind of worker (default: %(default)s)"
    )
    joined.add_argument(
        "--count", type=positive_count, default=1, metavar="NUMBER", help="workers, each in a process (default: 1)"
    )
    joined.add_argument(
        "--credential",
        type=Path,
        metavar="FILE",
        help="a copy of join.json of the run's folder, which also has the address",
    )
    joined.add_argument(
        "--token", default="", help=f"the password in that file instead; or in the variable {JOIN_TOKEN}"
    )
    joined.add_argument(
        "--drain", type=float, default=30.0, metavar="SECONDS", help="time to finish episodes at the end (default: 30)"
    )
    waits = "time to wait for the run, and for the file of --credential, if they are not there yet (default: 0)"
    joined.add_argument("--wait", type=float, default=0.0, metavar="SECONDS", help=waits)
    joined.add_argument(
        "--folder", default="", help="where code, model and logs are kept (default: a temporary folder)"
    )
    settings = (
        "a setting that differs here: of [generation] or [actors], task.python, task.processes, gateway.host, …; may be"
        " repeated"
    )
    joined.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=settings)


def _serves_tinker(command: Callable[..., argparse.ArgumentParser]) -> None:
    about = (
        "Serve a model through Thinking Machines' Tinker API until Ctrl-C: programs that use its client library train"
        " the model, save\nit, and sample from it, with TINKER_BASE_URL as printed. Every API key that begins with"
        " `tml-` is accepted."
    )
    api = command("tinker", "tinker:serve", "serve the Tinker API on this machine", about)
    defaults = TinkerOptions()
    api.add_argument("--model", default=defaults.model, help="Hugging Face folder or id, or `embedded` (default)")
    api.add_argument("--name", default="", help="further name of the model, for programs that know certain names only")
    api.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    api.add_argument(
        "--port", type=int, default=defaults.port, help="port to listen on; 0: a free one (default: %(default)s)"
    )
    api.add_argument(
        "--state", default=defaults.state, metavar="FOLDER", help="where checkpoints are written (default: %(default)s)"
    )
    api.add_argument(
        "--threads", type=int, default=1, metavar="COUNT", help="CPU threads of training, and of sampling (default: 1)"
    )
    api.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="device (default: cuda if there is one)"
    )


def _uploads(command: Callable[..., argparse.ArgumentParser]) -> None:
    about = (
        "Send the steps, evaluations and recipe of a live, finished or exported run to experiment trackers, and follow"
        " it until it ends.\nThe run is not affected. Each tracker gets only what it does not have yet. `[track]` in"
        " the recipe does the same beside the run."
    )
    sent = command("track", "track:track", "send a run to TensorBoard, W&B, MLflow, Trackio or OpenTelemetry", about)
    sent.add_argument(
        "run", nargs="?", default="", metavar="RUN|FILE", help="the run (default: the latest), or an exported log"
    )
    where = sent.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--to", default="", metavar="NAMES", help="tensorboard, wandb, mlflow, trackio; several with commas"
    )
    where.add_argument(
        "--otlp", default="", metavar="URL", help="send traces to this OpenTelemetry collector instead, over HTTP"
    )
    sent.add_argument("--once", action="store_true", help="send what is there, and end")
    sent.add_argument(
        "--project", default="", help="project or experiment (default: the library's own variable, or areal)"
    )
    sent.add_argument(
        "--python", default="", metavar="FILE", help="Python interpreter that has the trackers (default: this one)"
    )
    takes_folder(sent)

    about = (
        "Upload the best or newest checkpoint of a run to the Hugging Face hub as a model, with a card, the recipe and"
        " the curve, in one\ncommit. HF_TOKEN, or `hf auth login`, gives the access; HF_ENDPOINT names another hub."
    )
    pushed = command("push", "reader.push:push", "upload a checkpoint, or the episodes, to the Hugging Face hub", about)
    pushed.add_argument("run", metavar="RUN", help="the run's name or folder")
    pushed.add_argument("repo", metavar="OWNER/NAME", help="repository; it is made if it is missing")
    pushed.add_argument(
        "--checkpoint", default="", metavar="step-N", help="another checkpoint (default: the best, else the newest)"
    )
    pushed.add_argument(
        "--episodes", action="store_true", help="upload tables of episodes and calls as a dataset instead"
    )
    pushed.add_argument("--private", action="store_true", help="make a new repository private")
    takes_folder(pushed)


def _takes_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", default="", metavar="RUN", help="the run's name, as in its recipe (default: the latest)"
    )
    takes_folder(parser)
