"""AReaL's `perf_tracer`: measured scopes; their seconds are timings of `stats_tracker`, `timeperf/NAME`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from typing import Any, TypeVar

from areal_actors.compat.areal import stats_tracker

F = TypeVar("F", bound=Callable[..., Any])


class Category(StrEnum):
    """Kinds of scopes; accepted without effect."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


@contextmanager
def trace_scope(name: str, **_: Any) -> Iterator[None]:
    """Measure the code within."""
    with stats_tracker.get("").record_timing(name):
        yield


@asynccontextmanager
async def atrace_scope(name: str, **_: Any) -> AsyncIterator[None]:
    """Measure the code within, waits included."""
    with trace_scope(name):
        yield


@asynccontextmanager
async def atrace_session_phase(name: str, **_: Any) -> AsyncIterator[None]:
    """Measure a phase of an episode, `generate` or `reward`."""
    with trace_scope(name):
        yield


def trace_perf(name: str, **_: Any) -> Callable[[F], F]:
    """Measure every call of a function."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with trace_scope(name):
                return function(*args, **named)

        @functools.wraps(function)
        async def acall(*args: Any, **named: Any) -> Any:
            with trace_scope(name):
                return await function(*args, **named)

        return acall if inspect.iscoroutinefunction(function) else call  # type: ignore[return-value]

    return decorate


def trace_session(phase: str, **options: Any) -> Callable[[F], F]:
    """Measure every call of a function as a phase of an episode."""
    return trace_perf(phase, **options)


def session_context(**_: Any) -> Callable[[F], F]:
    """Return the function as it is: the gateway records the session of every call."""
    return lambda function: function
