"""Reference of the settings, from the structs that a recipe decodes into.

`areal-actors explain`, docs/settings.md, the JSON schema.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, get_args

import msgspec
from msgspec import inspect as types

from areal_actors.core.command import COMMAND
from areal_actors.core.errors import RecipeError
from areal_actors.core.installed_parts import InstalledPart, PartKind, installed_parts
from areal_actors.core.part_problems import settings_of
from areal_actors.core.problems import toml_value
from areal_actors.core.task_settings import WEIGHTED, TaskSettings
from areal_actors.core.trackers import TRACKERS
from areal_actors.generation.engines import engine_descriptions
from areal_actors.recipe.other_names import OTHER_NAMES
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import REWARDS
from areal_actors.tasks.sources import READERS
from areal_actors.tokenization.tool_parsers.families import FORMATS
from areal_actors.training.algorithms import AnyAlgorithm

LISTED = 20
"""Largest number of settings of a table that an error lists."""
REQUIRED, NOT_SET = "required", "not set"
KINDS_OF_SETTING: dict[str, tuple[PartKind, ...]] = {
    "generation.engine": ("engine",),
    "task.reward": ("reward",),
    "task.dataset": ("reader",),
    "algorithm.path": ("algorithm",),
    "gateway.tool_format": ("tool_format",),
    "track.to": ("tracker",),
}
"""Settings whose values are names of parts."""
GENERAL_FIELDS: dict[PartKind, tuple[str, ...]] = {"algorithm": ("group_size", "minibatches")}
"""Fields of a part that are settings of every part of its kind."""


class Setting(msgspec.Struct, frozen=True):
    """One setting of a recipe."""

    name: str
    """Dotted name, as in overrides: `trainer.optimizer.lr`."""
    type: str
    default: str
    """TOML, `required` or `not set`."""
    meaning: str
    algorithms: tuple[str, ...] = ()
    """Algorithms that have it with this default; empty for settings outside of `[algorithm]`."""

    def line(self) -> str:
        """Returns name, default and the first sentence of its meaning."""
        return f"{self.name} = {self.default}  {self.meaning.partition('. ')[0].rstrip('.')}."

    def text(self) -> str:
        """Returns a description in plain text."""
        which = f" of {', '.join(self.algorithms)}" if self.algorithms else ""
        body = textwrap.fill(self.meaning, 100, initial_indent="    ", subsequent_indent="    ")
        return f"{self.name}{which}: {self.type}; default: {self.default}\n{body}"


@cache
def settings() -> tuple[Setting, ...]:
    """Returns all settings in the order of the recipe.

    Algorithms with the same default of a setting share one entry.
    """
    by_key: dict[tuple[str, str, str], Setting] = {}
    for setting in _of_struct(Recipe, None, "", ()):
        key = (setting.name, setting.default, setting.meaning)
        before = by_key.get(key, setting)
        by_key[key] = msgspec.structs.replace(
            before, algorithms=tuple(dict.fromkeys((*before.algorithms, *setting.algorithms)))
        )
    return tuple(by_key.values())


def explain_settings(names: Sequence[str]) -> str:
    """Returns descriptions of settings or whole tables, such as `trainer.microbatch_tokens` and `gateway`.

    Of all, if none is named.

    Raises:
        RecipeError: there is no such setting or table.
    """
    chosen = [] if names else list(settings())
    lines: list[str] = []
    for name in names:
        matching = [setting for setting in settings() if f"{setting.name}.".startswith(f"{name}.")]
        chosen += matching
        lines += [] if matching else _settings_called(name)
    return "\n\n".join(["\n".join(lines)] * bool(lines) + [_with_installed(setting) for setting in chosen])


def _settings_called(name: str) -> list[str]:
    """Returns a line for each setting whose last part is a name, else of those that it means in other programs.

    Raises:
        RecipeError: there is none; names the nearest.
    """
    known = {setting.name: setting for setting in reversed(settings())}  # of several algorithms: the first
    table, _, last = name.rpartition(".")
    called = [setting.line() for setting in known.values() if setting.name.rpartition(".")[2] == last][::-1]
    elsewhere = [known[key].line() for key in OTHER_NAMES.get(last, ()) if key in known]
    if called or elsewhere:
        return called or [f"{name} of other programs (docs/coming-from.md):", *elsewhere]
    near = difflib.get_close_matches(name, known, n=3) or difflib.get_close_matches(
        last, {key.rpartition(".")[2]: key for key in known}, n=3
    )
    inside = [key for key in known if table and key.startswith(f"{table}.")]
    if inside and len(inside) <= LISTED:
        raise RecipeError(f"`{name}` is not a setting; known: {', '.join(inside)}")
    hint = f"did you mean {', '.join(f'`{key}`' for key in near)}?" if near else f"`{COMMAND} explain` lists all"
    raise RecipeError(f"`{name}` is not a setting; {hint}")


def _with_installed(setting: Setting) -> str:
    """The description of a setting, with parts of other distributions as values, and the fields of their options."""
    lines = [setting.text()]
    for kind in KINDS_OF_SETTING.get(setting.name, ()):
        for part in parts_beside_ours(kind):
            lines.append(f"    installed here: {part}")
            if (options := settings_of(part.load())) is not None:
                fields = [
                    field
                    for field in _of_struct(options, None, "", ())
                    if field.name not in GENERAL_FIELDS.get(kind, ())
                ]
                lines += [
                    f"        {field.name}: {field.type}; default: {field.default}; {field.meaning}".rstrip("; ")
                    for field in fields
                ]
    return "\n".join(lines)


def parts_beside_ours(kind: PartKind) -> list[InstalledPart]:
    """Returns the parts of other distributions that recipes can name: a name of ours stays ours."""
    ours: dict[PartKind, Iterable[str]] = {
        "engine": engine_descriptions(),
        "reward": (*REWARDS, WEIGHTED),
        "tool_format": FORMATS,
        "tracker": TRACKERS,
        "reader": READERS,
    }
    return [part for name, part in installed_parts(kind).items() if name not in ours.get(kind, ())]


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of recipe files, with the meaning of every setting, for editors."""
    schema = msgspec.json.schema(Recipe)
    for kind in structs_of(Recipe):
        table = schema["$defs"].get(kind.__name__, {})
        for name, meaning in meanings(kind).items():
            if name in table.get("properties", {}):
                table["properties"][name]["description"] = meaning
    for table in schema["$defs"].values():
        table.pop("required", None)  # a file may complete another one
    reward = schema["$defs"][TaskSettings.__name__]["properties"]["reward"]
    reward["type"] = [reward["type"], "array"]  # a list is a short form of `weighted`
    reward["items"] = {"type": "string"}
    recipe = schema["$defs"][Recipe.__name__]
    recipe["properties"] |= {
        "profile": {"type": "string", "description": "Name of the profile to use, or `auto`."},
        "profiles": {"type": "object", "description": "Settings that override the recipe on some machines."},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "areal-actors recipe", **schema}


def meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the attribute docstrings of a struct by field, including inherited ones."""
    by_name: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            by_name |= _own_meanings(base)
    return by_name


@cache
def _own_meanings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the attribute docstrings of a struct's own fields."""
    by_name: dict[str, str] = {}
    body = _classes_of(kind.__module__)[kind.__qualname__].body
    for field, docstring in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(docstring, ast.Expr):
            by_name[field.target.id] = " ".join(str(ast.literal_eval(docstring.value)).split())
    return by_name


@cache
def _classes_of(module: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a module by name; its file is parsed once for all of them."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_struct(kind: type[msgspec.Struct], default: Any, prefix: str, algorithms: tuple[str, ...]) -> Iterator[Setting]:
    """Yields the settings of a table; `default` is the table where it has other defaults than its own."""
    documented = meanings(kind)
    for field in msgspec.structs.fields(kind):
        name, value = f"{prefix}{field.encode_name}", _default(field, default)
        if field.type is AnyAlgorithm:
            for variant in get_args(AnyAlgorithm):
                yield from _of_struct(variant, None, f"{name}.", (str(variant.__struct_config__.tag),))
            continue
        table = next((part for part in (field.type, *get_args(field.type)) if _is_struct(part)), None)
        if table is None or field.type not in (table, table | None):
            shown = (
                REQUIRED
                if value is msgspec.NODEFAULT
                else NOT_SET
                if value is None
                else toml_value(msgspec.to_builtins(value))
            )
            yield Setting(
                name, type_text(types.type_info(field.type)), shown, documented.get(field.name, ""), algorithms
            )
            for entry in filter(_is_struct, get_args(field.type)):  # an array of tables
                yield from _of_struct(entry, None, f"{name}.", algorithms)
        else:
            yield from _of_struct(table, None if value is msgspec.NODEFAULT else value, f"{name}.", algorithms)


def _default(field: msgspec.structs.FieldInfo, table: Any) -> Any:
    if table is not None:
        return getattr(table, field.name)
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def type_text(info: types.Type) -> str:  # noqa: PLR0911 - one return per type
    """Returns a type in words."""
    match info:
        case types.Metadata():
            return type_text(info.type)
        case types.LiteralType():
            return " or ".join(toml_value(value) for value in info.values)
        case types.UnionType():
            return " or ".join(type_text(part) for part in info.types if not isinstance(part, types.NoneType))
        case types.IntType() | types.FloatType():
            bounds = {"≥": info.ge, ">": info.gt, "≤": info.le, "<": info.lt}
            limits = [f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None]
            return " ".join(
                ["whole number" if isinstance(info, types.IntType) else "number", ", ".join(limits)]
            ).strip()
        case types.StrType():
            return "text"
        case types.BoolType():
            return "true or false"
        case types.VarTupleType() | types.ListType() | types.SetType() | types.FrozenSetType():
            return f"list of {type_text(info.item_type)}"
        case types.TupleType():
            return f"list of {len(info.item_types)}: {', '.join(map(type_text, info.item_types))}"
        case types.DictType() | types.StructType():
            return "table"
        case _:
            return "value"


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def structs_of(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    """Returns a struct and all structs in its fields."""
    structs, waiting = set[type[msgspec.Struct]](), [kind]
    while waiting:
        structs.add(struct := waiting.pop())
        inside = (field.type for field in msgspec.structs.fields(struct))
        waiting += [part for outer in inside for part in _parts(outer) if _is_struct(part) and part not in structs]
    return structs


def _parts(kind: Any) -> Iterator[Any]:
    """Yields a type and the types that it is composed of."""
    yield kind
    for part in get_args(kind):
        yield from _parts(part)
