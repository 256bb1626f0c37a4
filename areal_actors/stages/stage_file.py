"""The file of a run in stages: a TOML file with a table `[[stage]]` for each run.

run = "rejection-sampling"

[[stage]]
name = "sample"
recipe = "gsm8k_grpo.toml"

[[stage]]
name = "imitate"
recipe = "sft.toml"
episodes_of = "sample"
model_of = "sample"
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from areal_actors.core.config import Config, PositiveInt
from areal_actors.core.errors import RecipeError
from areal_actors.export.defaults import LEAST_REWARD
from areal_actors.recipe.recipe import RunName

KEY = "stage"


class Stage(Config):
    """`[[stage]]`: one run."""

    name: RunName
    """Name of the stage; its run is called `<run>-<name>`."""
    command: Literal["run", "serve", "learn"] = "run"
    """`run` trains with the recipe; `serve` serves its model to a program of users, until that ends; `learn` learns
    from the sessions that an earlier stage served."""
    recipe: str = ""
    """Recipe file, relative to this file; none for `learn`."""
    settings: dict[str, Any] = {}
    """Settings of the recipe that differ, as a table."""
    model_of: str = ""
    """Earlier stage whose best, else newest checkpoint is the model; empty for the recipe's model."""
    episodes_of: str = ""
    """Earlier stage whose episodes are the data set; empty for the recipe's data set."""
    episodes_as: Literal["sft", "preferences"] = "sft"
    """Demonstrations for `sft`, or pairs for `dpo` and reward models."""
    best: PositiveInt = 1
    """Largest number of episodes of a group that become demonstrations."""
    least_reward: float = LEAST_REWARD
    """Smallest reward of a demonstration."""
    margin: float = 0.0
    """Smallest difference of the two rewards of a pair; 0 for any."""
    users: str = ""
    """`serve`: Python file of the users, relative to this file. It gets the gateway's address, the admin key and the
    feedback key as words."""
    user_arguments: list[str] = []
    """Further words for it."""
    candidate_of: str = ""
    """`serve`: earlier stage whose checkpoint is compared with the served model (docs/canary.md)."""
    sessions_of: str = ""
    """`learn`: earlier stage whose sessions are learned from."""
    reward: str = ""
    """`learn`: `FILE.py:FUNCTION` of its rewards, relative to this file; empty for the feedback itself."""


class StageFile(Config):
    """All stages, in their order."""

    run: RunName
    """First part of the names of the runs."""
    stage: list[Stage]
    folder: str = "runs"
    """Folder of the runs."""

    def words(self, stage: Stage, root: Path) -> list[str]:
        """Returns the recipe and the settings of a stage as words of the command line; without model and data set."""
        fixed = {"run": f"{self.run}-{stage.name}", "folder": self.folder}
        settings = map("=".join, _flatten({**stage.settings, **fixed}))
        if stage.command != "learn":
            return [str((root / stage.recipe).absolute()), *settings]
        rule = ["--reward", str((root / stage.reward).absolute())] if stage.reward else []
        return [str(Path(self.folder) / self.run_of(stage.sessions_of)), "--folder", self.folder, *rule, *settings]

    def run_of(self, name: str) -> str:
        """Returns the name of a stage's run."""
        is_served = any(stage.command == "serve" for stage in self.stage if stage.name == name)
        return f"{self.run}-{name}{'-serve' if is_served else ''}"


def has_stages(path: Path) -> bool:
    """Returns True if the file has stages, and is no recipe."""
    try:
        return isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get(KEY), list)
    except (OSError, ValueError):
        return False  # the recipe's reader names the error


def read_stages(path: Path, overrides: Sequence[str]) -> StageFile:
    """Read the file, with overrides `run=…`, `folder=…` and `STAGE.SETTING=…` over it.

    Raises:
        RecipeError: a field is wrong, or a stage refers to none before it; names the field and the remedy.
    """
    try:
        stages = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), StageFile)
    except msgspec.ValidationError as error:
        raise RecipeError(f"{path}: {error}") from error
    for override in overrides:
        _override(stages, override)
    for number, stage in enumerate(stages.stage):
        _check(stage, [earlier.name for earlier in stages.stage[:number]], path)
    return stages


def _override(stages: StageFile, override: str) -> None:
    key, _, value = override.partition("=")
    if key in {"run", "folder"}:
        msgspec.structs.force_setattr(stages, key, value)
        return
    name, _, setting = key.partition(".")
    stage = next((stage for stage in stages.stage if stage.name == name), None)
    if stage is None or not setting:
        names = ", ".join(f"`{stage.name}.`" for stage in stages.stage)
        raise RecipeError(f"`{override}`: a setting of a stage begins with its name: {names} (or write `run=NAME`)")
    try:
        stage.settings[setting] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        stage.settings[setting] = value


def _check(stage: Stage, earlier: list[str], path: Path) -> None:
    if stage.name in earlier:
        raise RecipeError(f"{path}: two stages are called `{stage.name}`; give one another name")
    for field in ("model_of", "episodes_of", "candidate_of", "sessions_of"):
        name = getattr(stage, field)
        if name and name not in earlier:
            known = ", ".join(f"`{other}`" for other in earlier) or "none"
            raise RecipeError(f"{path}: stage `{stage.name}`: `{field}` names `{name}`; stages before it: {known}")
    needed = {"run": ("recipe",), "serve": ("recipe", "users"), "learn": ("sessions_of",)}[stage.command]
    for field in needed:
        if not getattr(stage, field):
            raise RecipeError(
                f'{path}: stage `{stage.name}`: `{field}` is missing, which command = "{stage.command}" needs'
            )
    for field in ("recipe", "users"):
        if (file := getattr(stage, field)) and not (path.parent / file).is_file():
            raise RecipeError(f"{path}: stage `{stage.name}`: there is no {field} {file} beside this file")


def _flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields dotted names and values, as the command line takes them."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value if isinstance(value, str) else json.dumps(value)
