"""Reads AReaL's YAML files: `load_expr_config(argv, ConfigClass)`."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
import yaml

from areal_actors.compat.areal.config import BaseExperimentConfig
from areal_actors.compat.areal.keys import UnusedKeys, unused_keys
from areal_actors.core.config import merge_tables
from areal_actors.core.errors import RecipeError
from areal_actors.core.task_settings import TaskSettings
from areal_actors.embedded.settings import EMBEDDED
from areal_actors.recipe.recipe import Recipe
from areal_actors.training.algorithms import Grpo

C = TypeVar("C", bound=BaseExperimentConfig)

REFERENCE = re.compile(r"\$\{([^${}]*)\}")
NAME = re.compile(r"[A-Za-z_][\w-]*(?:\.[A-Za-z_][\w-]*)*")
LONGEST_CHAIN = 20
MODEL_MAKER = "areal_actors.processes.recipe_model"
logger = structlog.get_logger(__name__)


def load_expr_config(argv: Sequence[str], config_cls: type[C]) -> tuple[C, str]:
    """Read `--config FILE.yaml` and overrides such as `actor.path=…` or `+key=…`.

    Returns the configuration and the file's path.
    Keys that do not change training and have no counterpart are reported in the log.

    Raises:
        RecipeError: a file, key or value is invalid, or a key that changes training has no counterpart; the message
            lists all.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--config", required=True, help="YAML file with the configuration")
    given, overrides = parser.parse_known_args([word for word in argv if not word.endswith(".py")])
    config, reported = read_config(given.config, overrides, config_cls)
    if reported:
        logger.info("keys without effect here", file=given.config, keys=list(reported))
    if getattr(getattr(config, "actor", None), "path", "") == EMBEDDED:
        make_model(config)
    return config, str(Path(given.config).absolute())


def read_config(file: str, overrides: Sequence[str], config_cls: type[C]) -> tuple[C, Sequence[str]]:
    """Read a file with overrides; returns the configuration and the keys without effect.

    Raises like `load_expr_config`.
    """
    data = read_data(file, overrides, config_cls)
    unused = unused_keys(data, config_cls)
    if unused.unknown:
        raise RecipeError("\n".join(f"{file}: {message}" for message in unused.unknown))
    return _convert(data, config_cls, file), unused.reported


def read_known_keys(file: str, overrides: Sequence[str], config_cls: type[C]) -> tuple[C, UnusedKeys, dict[str, Any]]:
    """Read a file as `read_config`, and keep what no class has: the keys of a program's own class, and mistyped ones.

    Returns the configuration, the keys that it lacks, and all keys and values of the file.

    Raises:
        RecipeError: the file cannot be read, or a value is invalid.
    """
    data = read_data(file, overrides, config_cls)
    return _convert(data, config_cls, file), unused_keys(data, config_cls), data


def read_data(file: str, overrides: Sequence[str], config_cls: type[BaseExperimentConfig]) -> dict[str, Any]:
    """Returns the keys and values of a file with overrides; references may name a default of the class.

    Raises:
        RecipeError: the file cannot be read, an override has another form, or a reference names no key.
    """
    data = _read(Path(file))
    for override in overrides:
        _apply(data, override)
    resolved: dict[str, Any] = _resolve(data, merge_tables(default_values(config_cls), data))
    return resolved


def default_values(config_cls: type[Any]) -> dict[str, Any]:
    """Returns the defaults of a configuration class, those of its sections as tables."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(config_cls):
        value: Any = field.default
        if callable(field.default_factory):
            value = field.default_factory()
        if value is not dataclasses.MISSING:
            is_section = dataclasses.is_dataclass(value) and not isinstance(value, type)
            defaults[field.name] = dataclasses.asdict(value) if is_section else value
    return defaults


def make_model(config: BaseExperimentConfig) -> None:
    """Make the embedded model, or find it, and write its folder into the configuration."""
    algorithm, task = Grpo(), TaskSettings()
    recipe = Recipe(
        run="areal",
        steps=1,
        model=EMBEDDED,
        seed=config.seed,
        folder=config.cluster.fileroot,
        algorithm=algorithm,
        task=task,
    )
    folder = importlib.import_module(MODEL_MAKER).model_of(recipe)  # only here: it loads torch
    engines = (getattr(config, name, None) for name in ("actor", "ref", "critic", "teacher"))
    for holder, name in ((config, "tokenizer_path"), *((engine, "path") for engine in engines)):
        if holder is not None and getattr(holder, name) == EMBEDDED:
            setattr(holder, name, folder)


def _convert(data: Mapping[str, Any], config_cls: type[C], place: str) -> C:
    try:
        return msgspec.convert(dict(data), config_cls, strict=False)  # not strict: YAML 1.1 reads 1e-8 as a text
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$.")
        raise RecipeError(f"{place}: `{key.rstrip('`') or 'the file'}`: {what[:1].lower()}{what[1:]}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        data = _parse(path.read_text(encoding="utf-8"), f"--config {path}")
    except OSError as error:
        raise RecipeError(f"--config {path}: {error.strerror}; name a YAML file") from error
    if not isinstance(data, dict):
        raise RecipeError(f"--config {path}: found {type(data).__name__}, expected keys and values")
    return data


def _parse(text: str, place: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{place}: not valid YAML: {' '.join(str(error).split())}") from error


def _apply(data: dict[str, Any], override: str) -> None:
    """Apply `a.b=value`, `+a.b=value` or `~a.b` to the content of a file."""
    key, equals, value = override.lstrip("+").partition("=")
    removed = key.startswith("~")
    if not NAME.fullmatch(key.lstrip("~")) or not (equals or removed):
        raise RecipeError(f"`{override}`: expected `key=value`, such as `actor.path=Qwen/Qwen3-1.7B`")
    *sections, last = key.lstrip("~").split(".")
    table = data
    for section in sections:
        inner = table.get(section)
        if not isinstance(inner, dict):
            inner = table[section] = {}
        table = inner
    if removed:
        table.pop(last, None)
    else:
        table[last] = _parse(value, f"`{override}`") if value else None


def _resolve(value: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Replace references such as `${actor.path}` by the values of their keys."""
    if isinstance(value, Mapping):
        return {key: _resolve(inner, root, depth) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolve(inner, root, depth) for inner in value]
    if not isinstance(value, str) or (match := REFERENCE.search(value)) is None:
        return value
    if depth > LONGEST_CHAIN:
        raise RecipeError(f"`{value}` refers to itself; write a value")
    target = _resolve(_look_up(match[1], root, value), root, depth + 1)
    if match[0] == value:
        return target
    return _resolve(value.replace(match[0], str(target)), root, depth + 1)


def _look_up(name: str, root: Mapping[str, Any], text: str) -> Any:
    if not NAME.fullmatch(name):
        raise RecipeError(f"`{text}`: only references to keys are supported, such as ${{actor.path}}; write the value")
    node: Any = root
    for part in name.split("."):
        if not isinstance(node, Mapping) or part not in node:
            raise RecipeError(f"`{text}`: there is no key `{name}`; add it, or write the value")
        node = node[part]
    return node
