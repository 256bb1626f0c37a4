"""Exceptions of a computation on a batch, as the error that the trainer refuses the batch with."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from areal_actors.core.errors import ArealError, UntrainableBatch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def raise_untrainable(compute: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Have a computation that changes no weight raise UntrainableBatch in place of exceptions other than `ArealError`.

    One batch of a shape that the code or the device's memory cannot take would otherwise end the trainer at every
    restart.
    """

    @functools.wraps(compute)
    def compute_or_raise(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return compute(*args, **kwargs)
        except ArealError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            raise UntrainableBatch(
                f"its forward or backward pass failed: {type(error).__name__}: {error} ({place})"
            ) from error

    return compute_or_raise
