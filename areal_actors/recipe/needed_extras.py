"""Extras that a recipe needs on this machine, by what it computes here."""

from __future__ import annotations

from collections.abc import Iterator

from areal_actors.core.errors import SetupError
from areal_actors.core.extras import EMBEDDED, TRAIN, absent_modules, install_command, require_extra
from areal_actors.embedded.settings import EMBEDDED as EMBEDDED_MODEL
from areal_actors.generation.engines import describe_engine
from areal_actors.recipe.mixture import source_recipes
from areal_actors.recipe.recipe import Recipe
from areal_actors.rewards import MODEL

INFERENCE, REWARD = "inference_worker", "reward_worker"


def check_extras(recipe: Recipe) -> None:
    """Refuse a recipe that computes something here for which a package is absent.

    Raises:
        SetupError: a package is absent; the message has each setting that needs it, and the command that installs all
            of them.
    """
    if problem := extras_problem(recipe):
        raise SetupError(problem)


def extras_problem(recipe: Recipe) -> str:
    """Returns a sentence with the settings that need an absent extra, and the command that installs it.

    Empty if nothing is absent.
    """
    needs = list(_needed_extras(recipe))
    absent = {extra: modules for extra, _ in needs if (modules := absent_modules(extra))}
    if not absent:
        return ""
    settings = " and ".join(dict.fromkeys(setting for extra, setting in needs if extra in absent))
    lacks = ", ".join(dict.fromkeys(module for modules in absent.values() for module in modules))
    return f"{settings}: this installation lacks {lacks}: {install_command(absent)}"


def check_worker_extras(recipe: Recipe, role: str) -> None:
    """Refuse to serve workers of a run of another host for which a package is absent here.

    Raises:
        SetupError: a package is absent; the message has the command that installs it.
    """
    needs = {INFERENCE: _inference_extras, REWARD: _reward_extras}.get(role)
    for extra, setting in needs(recipe) if needs is not None else ():
        require_extra(extra, setting)


def _needed_extras(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields each extra that the recipe needs on this machine, with what needs it."""
    if recipe.actors.trainer.count:
        yield TRAIN, "the trainer"
    if recipe.actors.reward_worker.count:
        yield from _reward_extras(recipe)
    if recipe.model == EMBEDDED_MODEL:
        yield EMBEDDED, f'model = "{recipe.model}"'
    if recipe.actors.inference_worker.count:
        yield from _inference_extras(recipe)


def _inference_extras(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yields what inference workers need.

    A server has its own interpreter, but tensors are sent to it by a process with torch.
    """
    generation, engine = recipe.generation, describe_engine(recipe.generation.engine)
    if engine.extra:
        yield engine.extra, f'generation.engine = "{generation.engine}"'
    if engine.is_server and generation.server.weights != "folder" and not recipe.is_served():
        yield TRAIN, f'generation.server.weights = "{generation.server.weights}"'


def _reward_extras(recipe: Recipe) -> Iterator[tuple[str, str]]:
    for source in source_recipes(recipe).values():
        if source.task.reward.startswith(MODEL):
            yield TRAIN, f'task.reward = "{source.task.reward}"'
