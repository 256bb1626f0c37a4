"""Lists the folds over a run's log outside actors and its history: `python scripts/log_folds.py [CHECKOUT]`.

A fold is a class that distinguishes at least two kinds of logged events, in `case` patterns, `isinstance` or by
subject, and keeps what follows from them. Actors are folds by design, `history/` is the one that readers query; neither
is counted.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST_KINDS = 2
CHANGES = (".append", ".add", ".pop", ".setdefault")
"""Ends of calls by which a container changes."""


def class_names(path: Path) -> set[str]:
    """Names of the events that a file of messages declares."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return {node.name for node in classes if any(ast.unparse(base) == "Event" for base in node.bases)}


def distinguished_names(node: ast.AST) -> Iterator[str]:
    """Names that a class compares messages with."""
    for part in ast.walk(node):
        if isinstance(part, ast.MatchClass):
            yield ast.unparse(part.cls)
        elif isinstance(part, ast.Call) and ast.unparse(part.func) == "isinstance" and len(part.args) == 2:
            yield from (name.id for name in ast.walk(part.args[1]) if isinstance(name, ast.Name))
        elif isinstance(part, ast.Compare):
            sides = (part.left, *part.comparators)
            yield from (
                name.value.id
                for side in sides
                for name in ast.walk(side)
                if isinstance(name, ast.Attribute) and name.attr == "subject" and isinstance(name.value, ast.Name)
            )
        elif isinstance(part, ast.Dict):  # a table of handlers
            yield from (key.id for key in part.keys if isinstance(key, ast.Name))


def keeps_state(node: ast.ClassDef) -> bool:
    """True if a method besides the first changes the object, or what it holds."""
    methods = [
        part
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name != "__init__"
    ]
    for part in (part for method in methods for part in ast.walk(method)):
        targets = (
            part.targets
            if isinstance(part, ast.Assign)
            else [part.target]
            if isinstance(part, ast.AugAssign | ast.AnnAssign)
            else []
        )
        if any(ast.unparse(target).startswith("self.") for target in targets):
            return True
        is_call = (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in ("append", "add", "pop", "setdefault")
        )
        if is_call and ast.unparse(part.func).startswith("self."):
            return True
    return False


def is_actor(node: ast.ClassDef) -> bool:
    """True if the class handles messages of a mailbox."""
    handlers = [part for part in node.body if isinstance(part, ast.AsyncFunctionDef)]
    marked = any(
        ast.unparse(decorator).split("(")[0] == "on" for handler in handlers for decorator in handler.decorator_list
    )
    return marked or any(ast.unparse(base).endswith("Actor") for base in node.bases)


def main() -> int:
    """Print the folds and their number."""
    package = Path(*sys.argv[1:2] or [Path(__file__).parent.parent]) / "areal_actors"
    events = {name for path in (package / "messages").glob("*.py") for name in class_names(path)}
    count = 0
    for path in sorted(package.rglob("*.py")):
        if path.is_relative_to(package / "history"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not is_actor(node) and keeps_state(node):
                kinds = events.intersection(distinguished_names(node))
                if len(kinds) >= LEAST_KINDS:
                    count += 1
                    print(f"{path.relative_to(package)!s:36} {node.name:20} {len(kinds)} kinds of events")
    print(f"{count} folds over the log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
