"""Arguments of the commands export | import."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from areal_actors.cli.reader_arguments import positive_count, takes_folder
from areal_actors.export.defaults import LEAST_REWARD


def add_export(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add export."""
    about = (
        "Write the durable log of a run to one portable file; or its episodes, with the tokens as they were sampled:\n"
        "--sft the best episodes of each group, as demonstrations for recipes/sft.toml and TRL's SFTTrainer,\n"
        "--preferences the best and the worst answer of each group, for recipes/dpo.toml and TRL's DPOTrainer,\n"
        "--atif all episodes as trajectories of the Agent Trajectory Interchange Format."
    )
    export = command("export", "export.command:export", "write the log of a run, or its episodes, to one file", about)
    export.add_argument(
        "run",
        nargs="?",
        default="",
        metavar="RUN",
        help="the run's name (default: the latest); for episodes also its folder, or an exported log",
    )
    export.add_argument(
        "destination", type=Path, metavar="FILE", help="where to write it; for --atif also a folder, without .jsonl"
    )
    kinds = export.add_mutually_exclusive_group()
    for kind, text in (
        ("sft", "demonstrations, JSON lines"),
        ("preferences", "preference pairs, JSON lines"),
        ("atif", "trajectories, JSON lines, or a folder with a file for each"),
    ):
        kinds.add_argument(f"--{kind}", dest="kind", action="store_const", const=kind, help=text)
    export.set_defaults(kind="log")
    export.add_argument(
        "--best", type=positive_count, default=1, metavar="N", help="with --sft: at most N episodes of a group (1)"
    )
    export.add_argument(
        "--least-reward",
        type=float,
        default=LEAST_REWARD,
        metavar="R",
        help="with --sft: smallest reward (%(default)s)",
    )
    export.add_argument(
        "--margin",
        type=float,
        default=0.0,
        metavar="R",
        help="with --preferences: smallest difference of the two rewards (any)",
    )
    takes_folder(export)


def add_import(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add import."""
    about = (
        "Write rollouts of another program as a log, which show, view, compare and what-if read as they read a run:\n"
        "rows with prompt, completion and reward (as verl, TRL and AReaL write them), or trajectories in ATIF."
    )
    imported = command(
        "import", "imports.command:import_rollouts", "read rollouts of another program into a log", about
    )
    imported.add_argument(
        "files", nargs="+", metavar="FILE", help="rows (.jsonl, .parquet, .csv), or trajectories (.json), or folders"
    )
    imported.add_argument("destination", type=Path, metavar="LOG", help="the log to write, as in episodes.xz")
    imported.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="KIND=NAME",
        help="column of prompt, completion, reward, group or step, where it has another name",
    )
    imported.add_argument("--run", default="", metavar="NAME", help="name of the run (default: that of the log)")
    imported.add_argument("--model", default="", metavar="NAME", help="name of the model, for readers")
