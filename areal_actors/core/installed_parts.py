"""Parts that other distributions bring: engines, rewards, trackers and the like, found by their entry points.

A distribution declares a part in its `pyproject.toml`, and a recipe names it as it names one of ours:

    [project.entry-points."areal_actors.engines"]
    echo = "areal_echo:EchoEngine"

Nothing is imported until a part is used or examined. A part with a name that we use ourselves is not found: ours stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from areal_actors.core.errors import RecipeError
from areal_actors.core.loading import load_named

PartKind = Literal["engine", "reward", "algorithm", "tool_format", "tracker", "reader", "check", "command"]
KINDS: tuple[PartKind, ...] = get_args(PartKind)


class InstalledPart(NamedTuple):
    """A part of another distribution."""

    kind: PartKind
    name: str
    """As recipes write it; for a reader the end of file names, as `.parquet`; for a command its word on the command
    line."""
    target: str
    """`module:attribute`."""
    distribution: str
    version: str

    def load(self) -> Any:
        """Returns the object; imports its module.

        Raises:
            RecipeError: the module cannot be imported, or has no such attribute.
        """
        try:
            return EntryPoint(self.name, self.target, group_of(self.kind)).load()
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise RecipeError(
                f"the {self.kind} `{self.name}` of {self.distribution} {self.version} cannot be loaded: {why}"
            ) from error

    def __str__(self) -> str:
        """`echo (areal-echo 0.1)`."""
        return f"{self.name} ({self.distribution} {self.version})"


def group_of(kind: PartKind) -> str:
    """Returns the group of entry points of a kind: `areal_actors.engines`."""
    return f"areal_actors.{kind}s"


@cache
def installed_parts(kind: PartKind) -> Mapping[str, InstalledPart]:
    """Returns the parts of a kind that other distributions bring, by name.

    If two have one name, the one of the first distribution counts.
    """
    points = sorted(
        entry_points(group=group_of(kind)), key=lambda point: (point.dist.name if point.dist else "", point.name)
    )
    parts = dict[str, InstalledPart]()
    for point in points:
        distribution, version = (point.dist.name, point.dist.version) if point.dist else ("an unknown distribution", "")
        parts.setdefault(point.name, InstalledPart(kind, point.name, point.value, distribution, version))
    return parts


def all_installed_parts() -> Iterator[InstalledPart]:
    """Yields the parts of all kinds."""
    for kind in KINDS:
        yield from installed_parts(kind).values()


def load_part(kind: PartKind, spec: str, root: Path) -> Any:
    """Returns the installed part with this name, else the object that `path.py:Name` or `package.module:Name` names.

    Raises:
        RecipeError: neither can be loaded.
    """
    part = installed_parts(kind).get(spec)
    return part.load() if part is not None else load_named(spec, root)
