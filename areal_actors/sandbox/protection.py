"""Describes what shuts programs of a model in on this machine, and what they still can do."""

from __future__ import annotations

import ctypes
import os
import sys

from areal_actors.sandbox.guest import ARCHITECTURES, LANDLOCK_CREATE, LANDLOCK_VERSION, SCOPES_FROM

PAGE = "docs/security.md"


def landlock_version() -> int:
    """Version of Landlock in this kernel; 0 without it."""
    if sys.platform != "linux":
        return 0
    system = ctypes.CDLL(None, use_errno=True)
    return max(int(system.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)), 0)


def describe_protection() -> str:
    """A sentence on the restrictions of programs, and on what stays possible."""
    version = landlock_version()
    if sys.platform != "linux" or os.uname().machine not in ARCHITECTURES:
        return (
            "programs of the model are bounded in time, memory, output and disk, and not shut in: this system has"
            f" neither seccomp nor Landlock; run them in a container ({PAGE})"
        )
    if version < 1:
        return (
            "programs of the model are shut in by seccomp alone: this kernel has no Landlock (Linux 5.13 and later),"
            " so they read and write the files that this user may; run as a user of its own, or in a container"
            f" ({PAGE})"
        )
    scope = (
        ""
        if version >= SCOPES_FROM
        else ", without its scope of signals (Linux 6.12 and later), which seccomp alone denies"
    )
    return (
        f"programs of the model are shut in by seccomp and Landlock version {version}{scope}; what they still can do is"
        f" to see that a file exists, and to use their time and memory ({PAGE})"
    )
