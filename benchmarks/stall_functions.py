"""Faulty rewards, filters and `should_accept` functions for `stalls.py`; without slow imports."""

from __future__ import annotations

import os
import time
from pathlib import Path

FOREVER = 10_000.0


def mark():
    """Note when the fault was hit."""
    with Path(os.environ["STALL_MARK"]).open("a") as file:
        file.write(f"{time.time()}\n")


def reward_raises(task, output):
    mark()
    raise KeyError("answer")


def reward_hangs(task, output):
    mark()
    time.sleep(FOREVER)


def reward_nan(task, output):
    mark()
    return float("nan")


def reward_constant(task, output):
    mark()
    return 1.0


def reward_wrong(task):
    return 1.0


def filter_all(rewards):
    mark()
    return False


def filter_raises(rewards):
    mark()
    raise IndexError("no such reward")


def accept_none(trajectory, *arguments):
    mark()
    return False


def accept_raises(trajectory, *arguments):
    mark()
    raise LookupError("nothing to look at")
