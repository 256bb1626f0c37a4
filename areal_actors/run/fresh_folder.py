"""A new, locked folder for a run or a served model, on a disk with enough room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from areal_actors.core.errors import SetupError
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.disk_watch import refuse_full_disk
from areal_actors.run.leftovers import holding_weights, report_clean_up
from areal_actors.run.run_folder import RunFolder


@contextmanager
def fresh_folder(recipe: Recipe, folder: RunFolder, check: Callable[[Recipe], Recipe]) -> Iterator[Recipe]:
    """Lock and create the folder; yields the recipe that `check` returns, which is called before anything is created.

    Raises:
        SetupError: a run of this name is live, the disk is full or not writable, or `check` raised it.
    """
    report_clean_up(folder.path.parent)
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.held())
            recipe = check(recipe)
            refuse_full_disk(recipe.disk, folder.path.parent)
            stack.enter_context(holding_weights(recipe, folder))
            folder.create(recipe)
        except OSError as error:
            raise SetupError(
                f"folder: the run cannot be kept in {folder.path} ({error.strerror}); set folder to one that can be written"
            ) from error
        yield recipe
