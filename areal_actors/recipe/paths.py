"""Finds recipes by path or by name, and the files that a recipe names.

Beside the recipe, or in the current directory.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
SHIPPED = next(
    (folder for folder in (PACKAGE / "shipped" / "recipes", PACKAGE.parent / "recipes") if folder.is_dir()), PACKAGE
)
"""Recipes that come with the package: in a wheel within it, in a clone beside it."""
FROM_HERE = ("folder",)
"""Settings of places to write to, relative to the current directory."""
LONGEST_PATH = 1024
HOME = re.compile(r"(?P<kind>model:|verifiers:|openenv:)?(?:~|\$HOME|\$\{HOME\})(?=/|$)")
NAMED = re.compile(r"(?P<kind>model:|verifiers:|openenv:)?(?P<path>.+?)(?P<name>:[A-Za-z_][\w.]*)?")
"""A value that may name a file: `path.py:Name`, `model:folder`, `verifiers:file.py`, `tasks.jsonl`,
`shards/*.parquet`."""


def is_file(word: str) -> bool:
    """Returns True if a command line word names a recipe file rather than an override `a.b=value`."""
    # A Path raises for a value longer than the name of a file
    return "=" not in word or os.path.isfile(word)  # noqa: PTH113


def find_recipe(name: str, origin: Path = Path()) -> Path:
    """Returns the file of a recipe.

    A path in the current directory or in `origin`, or else the name of a shipped recipe.
    """
    path = Path(name).expanduser()
    shipped = SHIPPED / f"{name.removeprefix('recipes/').removesuffix('.toml')}.toml"
    return next((place for place in (path, origin / path, shipped) if place.is_file()), path)


def missing_recipe(path: Path) -> str:
    """Returns a hint with the nearest recipe of the folder, or of the package for a bare name."""
    recipes = {other.name: str(path.with_name(other.name)) for other in sorted(path.parent.glob("*.toml"))}
    if path.parent == Path():
        recipes |= {other.stem: other.stem for other in sorted(SHIPPED.glob("*.toml"))}
    if near := difflib.get_close_matches(path.name, recipes, n=1):
        return f"did you mean {recipes[near[0]]}?"
    return (
        f"recipes in {path.parent}: {', '.join(recipes) or 'none'}"
        if path.parent != Path()
        else f"recipes: {', '.join(recipes)}"
    )


def expand_home(value: Any) -> Any:
    """Returns settings in which texts with `~`, `$HOME` or `${HOME}` as first folder begin with the home folder."""
    if isinstance(value, dict):
        return {name: expand_home(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [expand_home(entry) for entry in value]
    if not isinstance(value, str) or (match := HOME.match(value)) is None:
        return value
    return f"{match['kind'] or ''}{Path.home()}{value[match.end() :]}"


def beside(settings: dict[str, Any], folder: Path, *, unless_here: bool = False) -> dict[str, Any]:
    """Returns settings of a recipe in `folder`, with paths that exist there as seen from the current directory.

    With `unless_here`, as for settings of the command line, those that exist in the current directory stay.
    """
    return {
        name: value if name in FROM_HERE else _beside(value, folder, unless_here=unless_here)
        for name, value in settings.items()
    }


def _beside(value: Any, folder: Path, *, unless_here: bool) -> Any:
    if isinstance(value, dict):
        return {name: _beside(entry, folder, unless_here=unless_here) for name, entry in value.items()}
    if isinstance(value, list):
        return [_beside(entry, folder, unless_here=unless_here) for entry in value]
    if (
        not isinstance(value, str)
        or len(value) > LONGEST_PATH
        or not re.search(r"[/.]", value)
        or not (match := NAMED.fullmatch(value))
    ):
        return value
    path = match["path"]
    # Any text is a fine argument
    if os.path.isabs(path) or not _exists(path, folder) or (unless_here and _exists(path, Path())):  # noqa: PTH117
        return value
    return f"{match['kind'] or ''}{_from_here(folder / path)}{match['name'] or ''}"


def _exists(path: str, folder: Path) -> bool:
    # As above
    return os.path.exists(folder / path) or ("*" in path and bool(glob.glob(path, root_dir=folder)))  # noqa: PTH110, PTH207


def _from_here(path: Path) -> str:
    """Returns a path relative to the current directory if it lies below it, else absolute."""
    whole = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    return str(whole.relative_to(Path.cwd())) if whole.is_relative_to(Path.cwd()) else str(whole)
