"""The commands `model get`, `model convert`, `model template`."""

from __future__ import annotations

import shlex
from pathlib import Path

from areal_actors.cli.command import Options
from areal_actors.core.command import COMMAND
from areal_actors.core.known_models import KNOWN, models_folder
from areal_actors.core.lazy import LazyModule
from areal_actors.core.programs import program
from areal_actors.models.get import get_model
from areal_actors.models.templates import FILE, write_template

CONVERT = LazyModule("areal_actors.models.convert")
"""Loads torch, which only `convert` needs."""


def get(options: Options) -> int:
    """Fetch a model."""
    stated = bool(options.folder)
    models = Path(options.folder).expanduser() if stated else models_folder()
    folder = get_model(options.name, models, origin=options.origin, report=_report)
    _print_next(str(folder) if stated else options.name)
    return 0


def convert(options: Options) -> int:
    """Convert a GGUF file."""
    file = Path(options.file).expanduser()
    folder = Path(options.folder).expanduser() if options.folder else file.with_suffix("")
    result = CONVERT.convert_gguf(file, folder, dtype=options.dtype, report=_report)
    for line in result.lines():
        _report(line)
    if not result.has_template:
        _report(
            f"a base model: `{program(COMMAND)} model template {shlex.quote(str(folder))}` writes a chat template"
            " for it"
        )
    _print_next(str(folder))
    return 0


def template(options: Options) -> int:
    """Write a chat template for a base model."""
    folder = Path(options.folder).expanduser()
    style = write_template(folder, options.style)
    _report(f"{folder / FILE}: written ({style})")
    return 0


def _report(line: str) -> None:
    print(line, flush=True)


def _print_next(model: str) -> None:
    recipe = f"recipes/{model}.toml" if model in KNOWN else f"recipes/gsm8k_grpo.toml {shlex.quote(f'model={model}')}"
    _report(f'in a recipe: model = "{model}"; a first look: {program(COMMAND)} check {recipe}')
