"""Reads the configuration file of another system: YAML, JSON, a Python program, or a shell script."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from areal_actors.core.errors import RecipeError

CONFIG_CLASSES = {
    "GRPOConfig": "grpo",
    "RLOOConfig": "rloo",
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "RewardConfig": "reward",
}
"""TRL's classes of arguments, and the method of each."""
TRAINERS = ("GRPOTrainer", "RLOOTrainer", "SFTTrainer", "DPOTrainer", "RewardTrainer")
LORA = {"r": "lora_r", "lora_alpha": "lora_alpha", "target_modules": "lora_target_modules"}
"""Arguments of `LoraConfig` under the names of TRL's files."""
OVERRIDE = re.compile(r"[+~]*([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class ForeignFile(NamedTuple):
    """Keys and values of a file, with dotted keys."""

    values: dict[str, Any]
    method: str = ""
    """Method of a program (`grpo`); empty if the file does not name it."""


def read_foreign(file: Path, overrides: Sequence[str]) -> ForeignFile:
    """Read a file with overrides `key=value`.

    Raises:
        RecipeError: it cannot be read, has no configuration, or an override has another form.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(
            f"--from {file}: cannot be read: {error}; name a file of YAML, JSON, Python or shell"
        ) from error
    if file.suffix == ".py":
        found = _read_program(text, file)
    elif file.suffix in (".sh", ".bash"):
        found = ForeignFile(dict(_overrides(_shell_words(text, file), strict=False)))
    else:
        found = ForeignFile(_read_table(text, file))
    values = flatten({**found.values})
    return found._replace(values=values | dict(_overrides(overrides, strict=True)))


def flatten(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Returns the values of nested tables by dotted keys; an empty table is a value."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{path}{key}"
        if isinstance(value, Mapping) and value:
            values |= flatten(value, f"{name}.")
        else:
            values[name] = value
    return values


def _read_table(text: str, file: Path) -> dict[str, Any]:
    try:
        table = yaml.safe_load(text)  # JSON is YAML
    except yaml.YAMLError as error:
        raise RecipeError(f"--from {file}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict) or not table:
        raise RecipeError(f"--from {file}: found {type(table).__name__}, expected keys and values")
    return {str(key): value for key, value in table.items()}


def _shell_words(text: str, file: Path) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "), comments=True)
    except ValueError as error:
        raise RecipeError(f"--from {file}: not a shell script: {error}") from error


def _overrides(words: Sequence[str], *, strict: bool) -> Iterator[tuple[str, Any]]:
    """Yields keys and values; of a script only words with a dotted key, since it sets variables, too."""
    for word in words:
        match = OVERRIDE.fullmatch(word)
        if match is None and strict:
            raise RecipeError(f"--from: `{word}`: expected key=value, such as trainer.total_epochs=3")
        if match is not None and (strict or "." in match[1]):
            yield match[1], _value(match[2])


def _value(text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return _number(value) if isinstance(value, str) else value


def _number(text: str) -> Any:
    """Returns the number of a text such as `1e-6`, which YAML 1.1 reads as a text; any other text as it is."""
    try:
        return float(text) if re.fullmatch(r"[+-]?\d+(?:\.\d*)?e[+-]?\d+", text, re.IGNORECASE) else text
    except ValueError:
        return text


# ---------------------------------------------------------------- programs


def _read_program(text: str, file: Path) -> ForeignFile:
    """Returns the arguments of TRL's configuration and trainer in a program that states them as literals."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise RecipeError(f"--from {file}: line {error.lineno}: not valid Python: {error.msg}") from error
    values: dict[str, Any] = {}
    methods: list[str] = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in CONFIG_CLASSES:
            methods.append(CONFIG_CLASSES[name])
            values |= _arguments(call)
        elif name in TRAINERS:
            values |= {key: value for key, value in _arguments(call).items() if key not in ("args", "peft_config")}
        elif name == "LoraConfig":
            values |= {LORA[key]: value for key, value in _arguments(call).items() if key in LORA} | {"use_peft": True}
    if not methods:
        raise RecipeError(
            f"--from {file}: found no call of {', '.join(CONFIG_CLASSES)}; name a program with one, or a YAML file"
        )
    return ForeignFile(values, methods[0])


def _arguments(call: ast.Call) -> dict[str, Any]:
    """Returns the named arguments; one that is no literal is its source."""
    return {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg is not None}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return Expression(ast.unparse(node))


class Expression(str):
    """A value that a program computes: its source."""

    __slots__ = ()
