"""Makes a function of a run's process hang, raise or slow down.

Python imports this file at its start if its folder is on PYTHONPATH.
Configured by environment variables: `STALL_PATCH=package.module:Class.method:hang` (or `raise`, `exit`, `slow`),
`STALL_AFTER=2` skips the first two calls, and the time of each faulty call is appended to the file `STALL_MARK`.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.util
import inspect
import itertools
import os
import sys
import time
from pathlib import Path

SLOW_SECONDS = 3.0


def mark():
    """Note when the fault was hit first."""
    with Path(os.environ["STALL_MARK"]).open("a") as file:
        file.write(f"{time.time()}\n")


def faulty(function, action):
    """Return a faulty version of the function."""
    calls = itertools.count()
    passed = int(os.environ.get("STALL_AFTER", "0"))

    @functools.wraps(function)
    def wrapper(*arguments, **options):
        if next(calls) < passed:
            return function(*arguments, **options)
        mark()
        if action == "exit":
            os._exit(9)
        if action == "raise":
            raise OSError("the device does not answer")
        if inspect.iscoroutinefunction(function):
            return hanging(function, arguments, options, action)
        time.sleep(SLOW_SECONDS if action == "slow" else 10_000)
        return function(*arguments, **options)

    return wrapper


async def hanging(function, arguments, options, action):
    """Delay a coroutine function."""
    await asyncio.sleep(SLOW_SECONDS if action == "slow" else 10_000)
    return await function(*arguments, **options)


class Patch(importlib.abc.MetaPathFinder):
    """Changes one function of one module when it is imported."""

    def __init__(self, spec):
        self.module, self.path, self.action = spec.split(":")

    def find_spec(self, name, _path, _target=None):
        if name != self.module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            *holders, last = self.path.split(".")
            holder = functools.reduce(getattr, holders, module)
            setattr(holder, last, faulty(getattr(holder, last), self.action))

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("STALL_PATCH"):
    sys.meta_path.insert(0, Patch(os.environ["STALL_PATCH"]))
