"""`model convert`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE.gguf", help="the file")
    parser.add_argument(
        "folder", nargs="?", default="", metavar="FOLDER", help="folder to create (default: FILE without its suffix)"
    )
    precision = "precision of the written weights (default: %(default)s)"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=precision)


DESCRIPTION = CommandDescription(
    group="prepare",
    place=2,
    summary="write the model of a GGUF file as a Hugging Face folder",
    about=(
        "Write the model of a GGUF file as a Hugging Face folder, once: read and dequantized by transformers, with its"
        " tokenizer, chat template and stop tokens checked. Needs the extra `gguf`: pip install 'areal-actors[gguf]'."
    ),
    do="model:convert",
    add_arguments=_add_arguments,
)
