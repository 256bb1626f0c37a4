"""A folder for a run or for what is served: nobody else's while it is used, on a disk that has room, and made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from areal_actors.errors import SetupError
from areal_actors.recipe.recipe import Recipe
from areal_actors.run.disk_watch import refuse_full_disk
from areal_actors.run.leftovers import holding_weights, report_clean_up
from areal_actors.run_folder import RunFolder


@contextmanager
def fresh_folder(recipe: Recipe, folder: RunFolder, check: Callable[[Recipe], Recipe]) -> Iterator[Recipe]:
    """Hold and make the folder; yields the recipe as `check` returns it, which is called before anything is made.

    Raises:
        SetupError: a run of this name is live, the disk is full or cannot be written, or `check` says so.
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
