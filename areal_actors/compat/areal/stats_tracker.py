"""AReaL's `stats_tracker`: named trackers of scalars, timings and masked columns.

`PPOTrainer` exports them after every step. Values are kept in the process that records them.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

P = ParamSpec("P")
T = TypeVar("T")


class ReduceType(Enum):
    """Reductions of the columns of `stat`."""

    AVG_MIN_MAX = auto()
    AVG = auto()
    SUM = auto()
    MIN = auto()
    MAX = auto()
    SCALAR = auto()


class StatsTracker:
    """Values by key; keys are joined with the names of the open scopes. Thread-safe."""

    def __init__(self, name: str = "") -> None:
        self._lock = threading.RLock()
        self._scopes: list[str] = [name.strip("/")] if name else []
        self._values: defaultdict[str, list[Any]] = defaultdict(list)
        self._reductions: dict[str, tuple[ReduceType, str]] = {}
        """Reduction and key of the denominator of each key."""

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Add a name to the keys within."""
        self._scopes.append(name.strip("/"))
        try:
            yield
        finally:
            self._scopes.pop()

    def scope_func_wrapper(self, name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorate a function with a scope."""

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            @wraps(function)
            def call(*args: P.args, **named: P.kwargs) -> T:
                with self.scope(name):
                    return function(*args, **named)

            return call

        return decorate

    @contextmanager
    def record_timing(self, key: str) -> Iterator[None]:
        """Record the seconds of the code within as `timeperf/key`, outside of all scopes."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._add(f"timeperf/{key}", time.perf_counter() - began, ReduceType.SCALAR)

    def scalar(self, **values: Any) -> None:
        """Record numbers; their mean is exported, and their count as `KEY__count`."""
        for key, value in values.items():
            self._add(self._key(key), float(value), ReduceType.SCALAR)

    def denominator(self, **masks: Any) -> None:
        """Record masks: bool tensors or arrays.

        Raises:
            ValueError: a mask is not bool, or is empty.
        """
        for key, mask in masks.items():
            column = _column(key, mask)
            if column.dtype != np.bool_:
                raise ValueError(f"`{key}` is {column.dtype}; a denominator must be bool")
            self._add(self._key(key), column, ReduceType.SUM)

    def stat(self, denominator: str, reduce_type: ReduceType | None = None, **columns: Any) -> None:
        """Record columns of numbers, of which only those under the mask count.

        Raises:
            ValueError: the denominator was not recorded, has another shape, or the reduction is SCALAR.
        """
        reduce_type = reduce_type or ReduceType.AVG_MIN_MAX
        if reduce_type is ReduceType.SCALAR:
            raise ValueError("reduce_type is SCALAR, which is for numbers; call scalar(…), or leave it out")
        mask_key = self._key(denominator)
        for key, given in columns.items():
            full, column = self._key(key), _column(key, given)
            masks, place = self._values.get(mask_key, []), len(self._values.get(full, []))
            if len(masks) <= place or masks[place].shape != column.shape:
                raise ValueError(
                    f"`{key}`: no denominator `{denominator}` of shape {list(column.shape)}; call denominator(…) before"
                )
            self._add(full, column, reduce_type, mask_key)

    def export(self, key: str | None = None, reduce_group: object = None, reset: bool = True) -> dict[str, float]:  # noqa: FBT001, FBT002
        """Return the reduced values, of one key or all, and with `reset` forget them.

        `reduce_group` has no effect in one process.
        """
        del reduce_group
        with self._lock:
            keys = list(self._values) if key is None else [self._key(key)]
            exported = {name: value for reported_key in keys for name, value in self._reduce(reported_key).items()}
            for one in keys if reset else ():
                self._values.pop(one, None)
                self._reductions.pop(one, None)
            return exported

    def _key(self, key: str) -> str:
        return "/".join([*self._scopes, key])

    def _add(self, key: str, value: Any, reduction: ReduceType, denominator: str = "") -> None:
        with self._lock:
            self._reductions[key] = (reduction, denominator)
            self._values[key].append(value)

    def _reduce(self, key: str) -> dict[str, float]:
        reduction, denominator = self._reductions[key]
        values = self._values[key]
        if reduction is ReduceType.SCALAR:
            return {key: sum(values) / len(values), f"{key}__count": len(values)}
        if not denominator:
            return {key: float(sum(mask.sum() for mask in values))}
        counted = np.concatenate([value[mask] for value, mask in zip(values, self._values[denominator], strict=False)])
        if reduction is ReduceType.SUM:
            return {key: float(counted.sum())}
        if not len(counted):
            return {}
        parts = {"avg": float(counted.mean()), "min": float(counted.min()), "max": float(counted.max())}
        if reduction is ReduceType.AVG_MIN_MAX:
            return {f"{key}/{name}": part for name, part in parts.items()}
        return {key: parts[reduction.name.lower()]}


class Trackers:
    """Trackers by name."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trackers: dict[str, StatsTracker] = {}

    def get(self, name: str = "") -> StatsTracker:
        """The tracker of this name, whose keys begin with it."""
        with self._lock:
            return self._trackers.setdefault(name, StatsTracker(name))

    def export_all(self, reduce_group: object = None, reset: bool = True) -> dict[str, float]:  # noqa: FBT001, FBT002
        """Return the values of all trackers; see `StatsTracker.export`."""
        return {
            key: value
            for name in list(self._trackers)
            for key, value in self.get(name).export(None, reduce_group, reset).items()
        }


def _column(key: str, given: Any) -> NDArray[Any]:
    column = np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    if not column.size:
        raise ValueError(f"`{key}` is empty")
    return column


_TRACKERS = Trackers()
"""The trackers of this process: in AReaL's API workflows and the trainer share them by name."""
get = _TRACKERS.get
export_all = _TRACKERS.export_all
DEFAULT_TRACKER = get()
scalar = DEFAULT_TRACKER.scalar
stat = DEFAULT_TRACKER.stat
denominator = DEFAULT_TRACKER.denominator
scope = DEFAULT_TRACKER.scope
scope_func_wrapper = DEFAULT_TRACKER.scope_func_wrapper
record_timing = DEFAULT_TRACKER.record_timing
export = DEFAULT_TRACKER.export
