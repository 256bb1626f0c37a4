"""JSON schema reward: checks that the answer is JSON and satisfies a schema.

The whole answer is parsed, without one optional code fence around it; any other text makes it wrong. The schema is that
of the task (`task["schema"]`, an object or its JSON text), or one for all tasks: an inline table or the path of a
`.json` file. `NaN`, numbers that are too long and answers nested deeper than a hundred are rejected. An invalid schema
is an error, not a wrong answer. References are resolved within the schema only; nothing is fetched.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from areal_actors.core.config import Config
from areal_actors.core.errors import RecipeError, RewardError
from areal_actors.rewards.checks import optional_package, task_name

DEEPEST = 100
_FENCE = "```"


class JsonSchema(Config):
    """`task.reward = "json_schema"`; these are its `[task.reward_options]`."""

    schema: dict[str, Any] | str = {}
    """Schema of all tasks: a table, or the path of a `.json` file; if empty, each task has its own."""
    field: str = "schema"
    """Field of the task with its own schema."""
    partial: bool = False
    """Reward an object that does not satisfy the schema with its share of valid `properties`."""

    def prepare(self) -> None:
        """Check the library and the schema before the run.

        Raises:
            RecipeError: the library is not installed, or the schema cannot be read or is invalid.
        """
        library()
        if self.schema:
            try:
                _validator(self._text())
            except RewardError as error:
                raise RecipeError(f"`task.reward_options.schema`: {error}") from error

    def __call__(self, task: Mapping[str, Any], output: str) -> float:
        """Returns 1.0 if the answer satisfies the schema, else 0.0 or its share.

        Raises:
            RewardError: there is no schema, or it is invalid.
        """
        try:
            validator = _validator(self._text() if self.schema else _text_of(task.get(self.field), self.field))
        except RewardError as error:
            raise RewardError(f"task {task_name(task)}: {error}") from error
        try:
            value = parse_answer(output)
        except ValueError:
            return 0.0
        try:
            if validator.is_valid(value):
                return 1.0
            return _share(validator, value) if self.partial else 0.0
        except (
            RecursionError,
            library().exceptions._WrappedReferencingError,  # noqa: SLF001
        ) as error:
            raise RewardError(
                f"task {task_name(task)}: the schema cannot be followed: {type(error).__name__}: {error!s:.100}"
            ) from error

    def _text(self) -> str:
        if isinstance(self.schema, dict):
            return json.dumps(self.schema, default=str)
        try:
            return Path(self.schema).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RewardError(f"{self.schema} cannot be read: {error}") from error


def parse_answer(output: str) -> Any:
    """Parses an answer.

    Raises:
        ValueError: it is not JSON, or nested too deep.
    """
    try:
        value = json.loads(_strip_fences(output.strip()), parse_constant=_refuse_constant)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if _deeper_than(value, DEEPEST):
        raise ValueError("nested too deep")
    return value


def _strip_fences(text: str) -> str:
    first, _, rest = text.partition("\n")
    if first.startswith(_FENCE) and first[3:].strip().lower() in {"", "json"} and rest.endswith(_FENCE):
        return rest.removesuffix(_FENCE)
    return text


@cache
def library() -> Any:
    """Returns the `jsonschema` package; raises like `optional_package`."""
    return optional_package("jsonschema", "json_schema", "jsonschema")


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """Returns the validator of a schema; Draft 2020-12 if the schema names no draft."""
    try:
        schema = json.loads(text)
        kind = library().validators.validator_for(schema, default=library().Draft202012Validator)
        kind.check_schema(schema)
    except (ValueError, RecursionError, library().SchemaError) as error:
        raise RewardError(f"not a JSON schema: {getattr(error, 'message', error)!s:.200}") from error
    return kind(schema, registry=importlib.import_module("referencing").Registry())


def _text_of(schema: object, field: str) -> str:
    if isinstance(schema, str) and schema.strip():
        return schema
    if isinstance(schema, Mapping | bool):
        return json.dumps(schema, sort_keys=True)
    raise RewardError(f"`{field}` must be a JSON schema, as an object or its text, got {schema!r:.60}")


def _share(validator: Any, value: Any) -> float:
    """Returns the share of the schema's properties that are valid in an object."""
    properties = validator.schema.get("properties") if isinstance(validator.schema, dict) else None
    if not properties or not isinstance(value, dict):
        return 0.0
    wrong = {error.absolute_path[0] for error in validator.iter_errors(value) if error.absolute_path}
    return sum(name in value and name not in wrong for name in properties) / len(properties)


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        containers = [
            outer.values() if isinstance(outer, dict) else outer for outer in level if isinstance(outer, dict | list)
        ]
        level = [inner for container in containers for inner in container]
        if not level:
            return False
    return True


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
