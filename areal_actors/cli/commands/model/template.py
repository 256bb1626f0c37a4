"""`model template`."""

from __future__ import annotations

import argparse

from areal_actors.cli.command import CommandDescription


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="Hugging Face folder of the model")
    styles = (
        "chatml: <|im_start|> and <|im_end|>; plain: `User:` and the end-of-text token (default: chatml where the"
        " tokens exist)"
    )
    parser.add_argument("--style", choices=("auto", "chatml", "plain"), default="auto", help=styles)


DESCRIPTION = CommandDescription(
    group="prepare",
    place=3,
    summary="give a base model a chat template",
    about=(
        "Write chat_template.jinja into the folder of a base model, which has none, and add the token that ends a turn"
        " to its stop tokens."
    ),
    do="model:template",
    add_arguments=_add_arguments,
)
