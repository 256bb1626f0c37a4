"""A recipe for remote workers, and the files that it names.

Its program has an identity, which must be the same there.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import xxhash

import areal_actors
import areal_bus
from areal_actors.chaos.settings import ChaosSettings
from areal_actors.core.durable_files import MEBIBYTE
from areal_actors.core.errors import SetupError
from areal_actors.recipe.paths import LONGEST_PATH, NAMED
from areal_actors.recipe.recipe import Recipe, redact_recipe

TABLES = ("task", "generation")
"""Tables of a recipe with files that workers read."""
STAYS = frozenset({"dataset", "held_out", "python"})
"""Settings whose files workers do not read, or have of their own."""
OUTSIDE = "outside"
"""Folder of files that are not below the current directory."""
MAX_FILES, MAX_MB = 2000, 64
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
PACKAGES = tuple(Path(package.__path__[0]).resolve() for package in (areal_actors, areal_bus))


class PortableRecipe:
    """A recipe without passwords and faults, whose paths are relative to one folder, and the files of that folder."""

    def __init__(self, recipe: Recipe, root: Path) -> None:
        """Paths in the recipe are relative to `root`.

        Raises:
            SetupError: too many files belong to the agent.
        """
        self._root = root
        self.files: dict[str, Path] = {}
        self.recipe = redact_recipe(msgspec.structs.replace(recipe, chaos=ChaosSettings(), record_actor_io=False))
        for table in TABLES:
            self.recipe[table] = self._ship_value(self.recipe[table])
        self.recipe["gateway"]["chat_template"] = self._ship_value(recipe.gateway.chat_template)
        if len(self.files) > MAX_FILES or sum(path.stat().st_size for path in self.files.values()) > MAX_MB * MEBIBYTE:
            folders = ", ".join(sorted({str(path.parent) for path in self.files.values()})[:3])
            raise SetupError(
                f"bus.host: remote workers would be sent {len(self.files):,} files, of {folders} and others; at most"
                f" {MAX_FILES:,} files of together {MAX_MB} MiB are: keep agent and reward in a folder without other"
                " files"
            )

    def _ship_value(self, value: Any) -> Any:
        """Returns a value with paths relative to the folder, and adds their files."""
        if isinstance(value, dict):
            return {name: entry if name in STAYS else self._ship_value(entry) for name, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self._ship_value(entry) for entry in value]
        if (
            not isinstance(value, str)
            or len(value) > LONGEST_PATH
            or not re.search(r"[/.]", value)
            or not (match := NAMED.fullmatch(value))
        ):
            return value
        named = self._root / match["path"]
        if not os.path.exists(named):  # noqa: PTH110 - any text is a fine argument of this
            self._add_module(match["path"])
            return value
        # Resolve() would follow links
        return f"{match['kind'] or ''}{self._add(Path(os.path.abspath(named)))}{match['name'] or ''}"  # noqa: PTH100

    def _add(self, path: Path) -> str:
        """Add a file, with the Python files beside and below it if it is one, or a folder.

        Returns its name in the folder.
        """
        below = path.is_relative_to(self._root)
        name = (
            path.relative_to(self._root)
            if below
            else Path(OUTSIDE) / f"{zlib.crc32(str(path.parent).encode()):08x}" / path.name
        )
        if path.is_dir():
            self._add_all(files_below(path), path, name)
        elif path.suffix == ".py":
            self._add_all(python_files(path.parent), path.parent, name.parent)
        self._add_all([path] if path.is_file() else [], path.parent, name.parent)
        return name.as_posix()

    def _add_module(self, spec: str) -> None:
        """Add the files of a module or package below the root, as in `package.module:Name`."""
        top = self._root / spec.partition(".")[0]
        if spec.partition(".")[0].isidentifier():
            module = top.with_suffix(".py")
            modules = python_files(top) if top.is_dir() else [module] if module.is_file() else []
            self._add_all(modules, self._root, Path())

    def _add_all(self, files: Iterator[Path] | list[Path], base: Path, name: Path) -> None:
        self.files |= {(name / file.relative_to(base)).as_posix(): file for file in files}


def python_files(folder: Path) -> Iterator[Path]:
    """Yields the Python files in and below a folder, but not those of this package."""
    return (file for file in files_below(folder) if file.suffix == ".py")


def files_below(folder: Path) -> Iterator[Path]:
    """Yields the files in and below a folder, without hidden ones, caches and installed packages."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        folders[:] = [name for name in folders if (Path(place) / name).resolve() not in PACKAGES]
        yield from (Path(place) / name for name in sorted(names) if not name.startswith("."))


def code_digest() -> str:
    """Returns a digest of the source files of areal-actors: messages and their meaning are the same where it is."""
    digest = xxhash.xxh3_64()
    for package in PACKAGES:
        for file in sorted(package.rglob("*.py")):
            digest.update(f"{package.name}/{file.relative_to(package).as_posix()}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
