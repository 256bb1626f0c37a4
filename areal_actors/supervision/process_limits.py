"""Limits of the operating system and of Python that end a run in its middle, named before its start.

They are those of open files and address space, and -OO.
"""

from __future__ import annotations

import resource
import sys

from areal_actors.core.durable_files import GIBIBYTE
from areal_actors.core.errors import SetupError

OPEN_FILES = 256
"""Least number of files that a process may open, with which the main recipe runs: connections of agents, the log, and
libraries."""
ADDRESS_BYTES = 5 * GIBIBYTE
"""Least address space of a process, with which the embedded model runs: torch and its threads reserve gigabytes that
they never use."""


def limit_problems() -> list[tuple[str, str]]:
    """Returns each limit under which a run cannot work, with its remedy; empty if there is none."""
    problems = []
    if sys.flags.optimize >= 2:
        removed = "Python runs with PYTHONOPTIMIZE=2 (-OO), which removes the docstrings that transformers reads"
        problems.append((removed, "unset PYTHONOPTIMIZE, or set it to 1"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _is_below(soft, OPEN_FILES):
        raised = (
            f"ulimit -n {OPEN_FILES * 16}"
            if not _is_below(hard, OPEN_FILES * 16)
            else f"raise the hard limit ({hard}) as root"
        )
        problems.append(
            (
                f"a process may open {soft} files, at least {OPEN_FILES} are needed",
                f"{raised}, in the shell that starts the run",
            )
        )
    address = resource.getrlimit(resource.RLIMIT_AS)[0]
    if _is_below(address, ADDRESS_BYTES):
        given = f"{address / GIBIBYTE:.1f} GiB of address space, at least {ADDRESS_BYTES // GIBIBYTE} are needed"
        problems.append(
            (f"a process has {given}", "ulimit -v unlimited; limit the memory of a control group or container instead")
        )
    return problems


def check_limits() -> None:
    """Refuse to start under limits that would end the run in its middle.

    Raises:
        SetupError: there are such; names each with its remedy.
    """
    if problems := limit_problems():
        raise SetupError("; ".join(f"{problem}: {remedy}" for problem, remedy in problems))


def _is_below(limit: int, least: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < least
