"""Converts a file of another system to a recipe and its table."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_actors.compat.areal.recipe_file import recipe_toml
from areal_actors.compat.convert.areal import convert_areal
from areal_actors.compat.convert.conversion import Conversion, Fate, describe
from areal_actors.compat.convert.foreign_file import ForeignFile, read_foreign
from areal_actors.compat.convert.trl import convert_trl
from areal_actors.compat.convert.verl import convert_verl
from areal_actors.core.config import merge_tables
from areal_actors.core.devices import CudaDevices, detect_cuda

VERL = ("actor_rollout_ref.", "data.train_files", "trainer.project_name")
ONLINE = "online"
OFFLINE = ("sft", "dpo", "reward_model")
"""Algorithms without episodes."""
AREAL = ("gconfig.", "cluster.", "experiment_name", "rollout.")


def convert_file(file: Path, overrides: Sequence[str], cuda: CudaDevices | None = None) -> Conversion:
    """Returns the recipe of a file of AReaL, TRL or verl, which its keys show.

    Raises:
        RecipeError: the file cannot be read, or has no configuration of them.
    """
    foreign = read_foreign(file, overrides)
    if not foreign.method and _has(foreign, VERL):
        return convert_verl(foreign)
    if not foreign.method and _has(foreign, AREAL):
        return convert_areal(file, list(overrides), cuda or detect_cuda())
    return convert_trl(foreign)


def _has(foreign: ForeignFile, starts: Sequence[str]) -> bool:
    return any(key.startswith(starts_with) for key in foreign.values for starts_with in starts)


def write_conversion(conversion: Conversion, recipe: Path, *, run: str, source: str) -> None:
    """Write the recipe in the place of a starter's, whose agent, reward and tasks stay where the file names none.

    The table is beside it, in conversion.md.
    """
    tables = merge_tables(tomllib.loads(recipe.read_text(encoding="utf-8")), {**conversion.tables, "run": run})
    if tables["task"].get("agent") == ONLINE:
        tables["task"] = conversion.tables["task"]
    if tables["algorithm"]["name"] in OFFLINE:
        tables["task"] = {"dataset": tables["task"]["dataset"], **conversion.tables.get("task", {})}
        del tables["sampling"]
    recipe.write_text(recipe_text(conversion, tables, source), encoding="utf-8")
    recipe.with_name("conversion.md").write_text(describe(conversion), encoding="utf-8")


def recipe_text(conversion: Conversion, tables: dict[str, Any], source: str) -> str:
    """Returns the recipe as TOML, under a line for each key that differs or is unknown."""
    rows = [row for row in conversion.rows if row.fate in (Fate.DIFFERS, Fate.UNKNOWN)]
    lines = [f"# From {source} ({conversion.system}); conversion.md has every key. To look at:"]
    for row in rows:
        setting = f" {row.setting}:" if row.setting else ""
        lines.append(f"# - {row.key}: {row.fate};{setting} {row.remark}")
    return "\n".join(lines) + "\n" + recipe_toml(tables)
