"""Writes docs/public-names.md, what users may import, with signatures: `python scripts/public_names.py`.

Public is what `__all__` of these modules lists; everything else may change with any version.
"""

from __future__ import annotations

import importlib
import inspect
import re
from abc import ABC
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

PAGE = Path(__file__).parent.parent / "docs" / "public-names.md"
MODULES = {
    "areal_actors.client": "a light client for agents, docs/write-an-agent.md",
    "areal_actors.reader": "finished and live runs as tables, docs/reading-runs.md",
    "areal_actors.testing": "recorded runs in tests, docs/replay.md",
    "areal_actors.library.workflow": "agents that call the model themselves, docs/library.md",
    "areal_actors.library.controllers": "training loops written by hand, docs/library.md",
    "areal_actors.library.tooling": "tools of agents, docs/write-an-agent.md",
    "areal_actors.containers": "containers for agents and tools, docs/containers.md",
    "areal_actors.sandbox": "programs of a model, docs/rewards.md",
    "areal_actors.rewards": "rewards, docs/rewards.md",
    "areal_actors.rewards.judge_usage": "tokens and cost of judges, docs/rewards.md",
    "areal_actors.tasks.datasets": "tasks of a recipe, docs/data.md",
    "areal_actors.tasks.repositories": "generated repositories with a fault, docs/coding-agents.md",
    "areal_actors.training.algorithms": "algorithms, docs/algorithms.md",
    "areal_actors.generation.engine": "engines, docs/engines.md",
    "areal_actors.tokenization.tool_parsers.base": "formats of tool calls, docs/chat-templates.md",
    "areal_actors.tokenization.tool_parsers.syntax": (
        "formats of tool calls by their delimiters, docs/chat-templates.md"
    ),
    "areal_actors.track.sender": "trackers, docs/tracking.md",
    "areal_bus": "the bus, docs/architecture.md",
}
"""Public modules, with what they are for."""
HEAD = """\
# Public names

After this page you know which names a program may import, and for how long they stay.

What programs may import: the names below, {count} in {modules} modules. Their signatures change only with a new major
version, or with a new minor version before 1.0, and `CHANGELOG.md` names the change; everything else is internal and
may change with any version. Public as well are the command line, [recipes](settings.md), [events](events.md) and the
names of the package {compat}.

"""
COMPAT = "`areal_actors.compat.areal` ([docs/areal.md](areal.md))"


def signature_of(value: Any) -> str:
    """Returns parameters and result of a function, or the fields of a struct; empty for a value without them."""
    if inspect.isclass(value) and issubclass(value, msgspec.Struct):
        types = {
            name: kind
            for base in reversed(value.__mro__)
            for name, kind in vars(base).get("__annotations__", {}).items()
        }
        text = f"({', '.join(f'{name}: {types[name]}' for name in value.__struct_fields__)})"
    elif inspect.isclass(value) and issubclass(value, BaseException | ABC):
        return ""
    else:
        try:
            text = str(inspect.signature(value))
        except (TypeError, ValueError):
            return ""
    return re.sub(r" at 0x[0-9a-f]+", "", text).replace("|", "\\|").replace("'", "")


def methods_of(kind: type) -> Iterator[str]:
    """Yields name and signature of the public methods that a class itself defines."""
    for name, value in vars(kind).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and inspect.isfunction(function):
            yield f"`.{name}{signature_of(function)}`"


def row(name: str, value: Any) -> str:
    """Returns the line of one name."""
    doc = (inspect.getdoc(value) or "").strip().split("\n")[0] if callable(value) else ""
    if inspect.isclass(value) and not issubclass(value, Enum):
        members = "<br>".join(
            [
                f"`{name}{signature_of(value)}`" if not getattr(value, "_is_protocol", False) else f"`{name}`",
                *methods_of(value),
            ]
        )
        return f"| {members} | {doc} |"
    return f"| `{name}{signature_of(value) if callable(value) else ''}` | {doc} |"


def lines() -> Iterator[str]:
    """Yields the tables."""
    for module_name, purpose in MODULES.items():
        module = importlib.import_module(module_name)
        page = re.sub(r"docs/([\w-]+)\.md", r"[docs/\1.md](\1.md)", purpose)
        yield f"## `{module_name}`\n\n{page[0].upper()}{page[1:]}.\n\n| name | |\n|---|---|\n"
        yield "\n".join(row(name, getattr(module, name)) for name in sorted(module.__all__)) + "\n\n"


def page() -> str:
    """Returns the page."""
    count = sum(len(importlib.import_module(name).__all__) for name in MODULES)
    return HEAD.format(count=count, modules=len(MODULES), compat=COMPAT) + "".join(lines()).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
