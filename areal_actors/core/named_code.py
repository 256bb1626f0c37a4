"""Checks of code that a recipe names as `path.py:Name` or `package.module:Name`; files are parsed, and not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from areal_actors.core.layers import Key
from areal_actors.core.problems import Problems, nearest, toml_value


def named_code_problems(key: Key, spec: str, what: str, example: str) -> Problems:
    """Yields what is wrong with `path.py:Name`, which has to name a class or function at the top of that file.

    Args:
        key: the setting.
        spec: its value.
        what: `class`, `function`, or `agent`, which is either.
        example: a value for the remedy.
    """
    word = "class" if what == "agent" else what
    file, _, name = spec.rpartition(":")
    path, fault = Path(file).expanduser(), f"found {toml_value(spec)}"
    if not name.isidentifier() or path.suffix != ".py":
        yield key, f"{fault}; write the {word} as `path.py:Name`, as in `{example}`"
        return
    try:
        body = ast.parse(path.read_text(encoding="utf-8"), filename=file).body
    except OSError:
        looked = f"there is no file {path} to read (looked beside the recipe and in {Path.cwd()})"
        yield key, f"{fault}, but {looked}; fix the path"
        return
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) else ""
        yield key, f"{fault}, but {path}{line} is not valid Python: {error.args[0]}; fix that file"
        return
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    wanted = {"function": functions, "agent": functions | ast.ClassDef}.get(what, ast.ClassDef)
    defined = [node.name for node in body if isinstance(node, wanted)]
    if name not in (*defined, *_assigned_names(body)):
        statement = "def" if what == "function" else "class"
        hint = nearest(name, defined) if defined else f"it defines none; write `{statement} {name}` there"
        yield key, f"{fault}, but {path} has no {word} `{name}`; {hint}"


def dotted_parts(spec: str) -> Sequence[str]:
    """Returns the parts of `package.module:Name` or `package.module.Name`; empty for anything else."""
    parts = spec.replace(":", ".").split(".")
    return parts if len(parts) > 1 and ".py:" not in spec and all(part.isidentifier() for part in parts) else ()


def _assigned_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yields names that a file imports or assigns at its top; their types are known only at run time."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
